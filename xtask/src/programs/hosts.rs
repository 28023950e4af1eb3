//! Where programs run: on one host, or on two, which are network namespaces joined by a veth pair. The job
//! creates them in a user namespace of its own, as unprivileged users can. There can be several such stages,
//! each with hosts of its own.

use crate::inside::{Home, network, network_host};
use crate::shell::{Result, command, output};
use crate::workspace::Workspace;
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::Process;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// Where the two ends of a program are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// On one host.
    Local,
    /// On two, over IPv4.
    Veth4,
    /// On two, over IPv6.
    Veth6,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Veth4 => "veth4",
            Self::Veth6 => "veth6",
        })
    }
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Server,
    Client,
}

/// The drop-in, and a folder for the output of programs.
#[derive(Debug)]
pub(super) struct Environment {
    home: Home,
    /// Further options of `ironwarp run`. `{run}` is replaced by the number of the run of the program.
    options: Vec<String>,
    trials: AtomicU32,
    /// Our own programs, compiled once.
    compiled: Mutex<HashMap<&'static str, PathBuf>>,
}

/// Two hosts, on which one program runs at a time.
#[derive(Debug)]
pub(super) struct Hosts<'e> {
    environment: &'e Environment,
    /// Keep the namespaces of the hosts alive: the server's, and the client's if that is on another host.
    processes: [Process; 2],
    /// GID indices by end and address family.
    gids: OnceLock<[[usize; 2]; 2]>,
}

/// Prepares a run of a program with a folder of its own, and with a port of its own unless the program has a
/// fixed one.
#[derive(Debug)]
pub(super) struct Trial<'h> {
    number: u32,
    /// The number of the run among those of its program, from 1 on.
    run: usize,
    pub(super) hosts: &'h Hosts<'h>,
    pub(super) persona: &'h str,
    pub(super) mode: Mode,
    pub(super) port: u16,
    pub(super) folder: PathBuf,
}

const SERVER4: &str = "10.77.0.1";
const CLIENT4: &str = "10.77.0.2";
const SERVER6: &str = "fd77::1";
const CLIENT6: &str = "fd77::2";
/// Each run has a port of its own, below the kernel's ephemeral ports. Nothing else uses these networks, but
/// some programs name files after the port, and one stores it in fifteen bits.
const PORTS: Range<u16> = 10_000..32_000;

impl Environment {
    /// `options` are further ones of `ironwarp run`.
    pub(super) fn new(workspace: &Workspace, options: Vec<String>) -> Result<Self> {
        let home = Home::new(workspace, "programs")?;
        Ok(Self { home, options, trials: AtomicU32::new(0), compiled: Mutex::default() })
    }

    /// Returns the program that `compile` creates, once.
    pub(super) fn compiled(
        &self,
        name: &'static str,
        compile: impl FnOnce(&Path) -> Result,
    ) -> Result<PathBuf> {
        let mut compiled = self.compiled.lock().map_err(|error| error.to_string())?;
        if let Some(program) = compiled.get(name) {
            return Ok(program.clone());
        }
        let program = self.home.file(name);
        compile(&program)?;
        compiled.insert(name, program.clone());
        Ok(program)
    }
}

impl<'e> Hosts<'e> {
    /// Creates the hosts. `number` distinguishes the stages.
    pub(super) fn new(environment: &'e Environment, number: usize) -> Result<Self> {
        let host =
            |name: &str| network_host(name, &environment.home.folder.join(format!("{name}-{number}.log")));
        let hosts = Self {
            environment,
            processes: [host("server-host")?, host("client-host")?],
            gids: OnceLock::new(),
        };
        hosts.join_hosts()?;
        Ok(hosts)
    }

    pub(super) fn environment(&self) -> &Environment {
        self.environment
    }

    fn join_hosts(&self) -> Result {
        let [server, client] = self.processes.each_ref().map(|host| host.id().to_string());
        let ip = |host: &str, words: &[&str]| {
            let target = network(host);
            output(&mut command("nsenter", &[&[target.as_str(), "--", "ip"], words].concat())).map(drop)
        };
        ip(&server, &["link", "add", "iw0", "type", "veth", "peer", "name", "iw0", "netns", &client])?;
        for (host, four, six) in [(&server, SERVER4, SERVER6), (&client, CLIENT4, CLIENT6)] {
            ip(host, &["link", "set", "lo", "up"])?;
            ip(host, &["addr", "add", &format!("{four}/24"), "dev", "iw0"])?;
            // Without duplicate address detection, the address is usable at once.
            ip(host, &["-6", "addr", "add", &format!("{six}/64"), "dev", "iw0", "nodad"])?;
            ip(host, &["link", "set", "iw0", "up"])?;
        }
        Ok(())
    }

    /// A run of a program, with a folder of its own, and a port of its own unless the program has a fixed one.
    pub(super) fn trial<'h>(
        &'h self,
        persona: &'h str,
        mode: Mode,
        port: Option<u16>,
        run: usize,
    ) -> Result<Trial<'h>> {
        let number = self.environment.trials.fetch_add(1, Ordering::Relaxed);
        let folder = self.environment.home.room(&number.to_string())?;
        let its_own = u16::try_from(number % u32::from(PORTS.end - PORTS.start)).unwrap_or_default();
        let port = port.unwrap_or(PORTS.start + its_own);
        Ok(Trial { number, run, hosts: self, persona, mode, port, folder })
    }
}

impl Trial<'_> {
    /// The address under which the client reaches the server.
    pub(super) fn server_address(&self) -> &'static str {
        match self.mode {
            Mode::Local | Mode::Veth4 => SERVER4,
            Mode::Veth6 => SERVER6,
        }
    }

    /// `ironwarp run -- words` at one of the ends, as an unprivileged user.
    pub(super) fn command(&self, end: End, words: &[String]) -> Command {
        self.command_as(&self.hosts.environment.home.as_user(), end, words)
    }

    /// `ironwarp run -- words` at one of the ends, for a program that must be root.
    pub(super) fn command_as(&self, user: &[&str], end: End, words: &[String]) -> Command {
        let host = &self.hosts.processes[usize::from(end == End::Client && self.mode != Mode::Local)];
        let mut line: Vec<String> = vec!["nsenter".into(), network(&host.id().to_string()), "--".into()];
        line.extend(user.iter().map(|word| (*word).to_owned()));
        let Environment { home, options, .. } = self.hosts.environment;
        let run = self.run.to_string();
        let options: Vec<String> = options.iter().map(|word| word.replace("{run}", &run)).collect();
        line.extend(home.ironwarp_with(self.persona, &options, words));
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).current_dir(&self.folder).env("HOME", &self.folder);
        command
    }

    /// Fills in the names in braces: the server's addresses for RDMA and out of band, the GID of this end, a
    /// port, a folder.
    pub(super) fn fill(&self, end: End, words: &[&str]) -> Result<Vec<String>> {
        let gid = match words.iter().any(|word| word.contains("{gid}")) {
            true => self.gid(end)?.to_string(),
            false => String::new(),
        };
        let fill = |word: &&str| {
            word.replace("{gid}", &gid)
                .replace("{port}", &self.port.to_string())
                .replace("{addr}", self.server_address())
                .replace("{oob}", SERVER4)
                .replace("{dir}", &self.folder.to_string_lossy())
        };
        Ok(words.iter().map(fill).collect())
    }

    /// The index of the GID of this end.
    fn gid(&self, end: End) -> Result<usize> {
        if self.hosts.gids.get().is_none() {
            let found = [self.find_gids(Mode::Local)?, self.find_gids(Mode::Veth4)?];
            self.hosts.gids.get_or_init(|| found);
        }
        let gids = self.hosts.gids.get().ok_or("no GIDs")?;
        let host = usize::from(end == End::Client && self.mode != Mode::Local);
        Ok(gids[host][usize::from(self.mode == Mode::Veth6)])
    }

    /// Runs `ibv_devinfo` at the client of this mode.
    fn find_gids(&self, mode: Mode) -> Result<[usize; 2]> {
        let &Self { number, run, hosts, persona, .. } = self;
        let asking = Trial { number, run, hosts, persona, mode, port: 0, folder: self.folder.clone() };
        let words = ["ibv_devinfo", "-v"].map(String::from);
        let printed = output(&mut asking.command(End::Client, &words))?;
        let index = |of: &str| {
            let line = printed.lines().find(|line| line.contains("GID[") && line.contains(of));
            let number = line.and_then(|line| line.split(['[', ']']).nth(1)?.trim().parse().ok());
            number.ok_or_else(|| format!("ibv_devinfo shows no GID {of}:\n{printed}"))
        };
        match mode {
            Mode::Local => Ok([index(SERVER4)?, index(SERVER6)?]),
            _ => Ok([index(CLIENT4)?, index(CLIENT6)?]),
        }
    }

    pub(super) fn start(&self, end: End, words: &[&str]) -> Result<Process> {
        let words = self.fill(end, words)?;
        let log = self.folder.join(match end {
            End::Server => "server.log",
            End::Client => "client.log",
        });
        Process::start(self.command(end, &words), &words[0], &log)
    }

    /// Starts a server and waits until it listens.
    pub(super) fn serve(&self, words: &[&str]) -> Result<Process> {
        let mut server = self.start(End::Server, words)?;
        server.wait_until("it listens", |server| listens(server.id(), self.port))?;
        Ok(server)
    }
}

/// Checks that a program printed these texts.
pub(super) fn expect(process: &Process, printed: &str, texts: &[&str]) -> Result {
    match texts.iter().find(|text| !printed.contains(**text)) {
        Some(text) => Err(process.error(&format!("did not print {text:?}"))),
        None => Ok(()),
    }
}
