//! Where programs run: on one host, or on two, which are network namespaces joined by a veth pair. The job makes them as an
//! ordinary user could, inside a user namespace of its own. There can be several such stages, each with hosts of its own.

use super::catalogue::{Program, Shape};
use crate::inside::{Home, listens, network, network_host};
use crate::process::Process;
use crate::shell::{Result, command, output};
use crate::workspace::Workspace;
use std::collections::HashMap;
use std::fmt;
use std::fs;
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
    /// On two, by IPv4.
    Veth4,
    /// On two, by IPv6.
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

/// The drop-in, and a folder for what programs write.
#[derive(Debug)]
pub(super) struct Theatre {
    home: Home,
    runs: AtomicU32,
    /// Programs of our own, compiled once.
    compiled: Mutex<HashMap<&'static str, PathBuf>>,
}

/// Two hosts, on which one program runs at a time.
#[derive(Debug)]
pub(super) struct Stage<'t> {
    theatre: &'t Theatre,
    /// Keep the namespaces of the hosts alive: of the server's, and of the client's if that is another.
    hosts: [Process; 2],
    /// The indices of the GIDs of the two address families, at the two ends.
    gids: OnceLock<[[usize; 2]; 2]>,
}

/// One run of a program: what its arguments may name.
#[derive(Debug)]
pub(super) struct Scene<'s> {
    pub(super) stage: &'s Stage<'s>,
    pub(super) persona: &'s str,
    pub(super) mode: Mode,
    pub(super) port: u16,
    pub(super) folder: PathBuf,
}

const SERVER4: &str = "10.77.0.1";
const CLIENT4: &str = "10.77.0.2";
const SERVER6: &str = "fd77::1";
const CLIENT6: &str = "fd77::2";
/// Each run has one of its own, below those that the kernel gives out. Nobody else is in these networks; but some programs name
/// files after it. One keeps it in fifteen bits.
const PORTS: Range<u16> = 10_000..32_000;

impl Theatre {
    pub(super) fn new(workspace: &Workspace) -> Result<Self> {
        let home = Home::new(workspace, "programs")?;
        Ok(Self { home, runs: AtomicU32::new(0), compiled: Mutex::default() })
    }

    /// The program that `compile` makes, unless it has done so before.
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

impl<'t> Stage<'t> {
    /// Makes the hosts. They are called by `number`, where there is more than one stage.
    pub(super) fn new(theatre: &'t Theatre, number: usize) -> Result<Self> {
        let host = |name: &str| network_host(name, &theatre.home.folder.join(format!("{name}-{number}.log")));
        let stage =
            Self { theatre, hosts: [host("server-host")?, host("client-host")?], gids: OnceLock::new() };
        stage.join_hosts()?;
        Ok(stage)
    }

    pub(super) fn theatre(&self) -> &Theatre {
        self.theatre
    }

    fn join_hosts(&self) -> Result {
        let [server, client] = self.hosts.each_ref().map(|host| host.id().to_string());
        let ip = |host: &str, words: &[&str]| {
            let target = network(host);
            output(&mut command("nsenter", &[&[target.as_str(), "--", "ip"], words].concat())).map(drop)
        };
        ip(&server, &["link", "add", "iw0", "type", "veth", "peer", "name", "iw0", "netns", &client])?;
        for (host, four, six) in [(&server, SERVER4, SERVER6), (&client, CLIENT4, CLIENT6)] {
            ip(host, &["link", "set", "lo", "up"])?;
            ip(host, &["addr", "add", &format!("{four}/24"), "dev", "iw0"])?;
            // Without duplicate address detection it can be used at once.
            ip(host, &["-6", "addr", "add", &format!("{six}/64"), "dev", "iw0", "nodad"])?;
            ip(host, &["link", "set", "iw0", "up"])?;
        }
        Ok(())
    }

    /// Runs a program once.
    pub(super) fn play(&self, program: &Program, persona: &str, mode: Mode) -> Result {
        let number = self.theatre.runs.fetch_add(1, Ordering::Relaxed);
        let folder = self.theatre.home.room(&number.to_string())?;
        let its_own = u16::try_from(number % u32::from(PORTS.end - PORTS.start)).unwrap_or_default();
        let port = program.port.unwrap_or(PORTS.start + its_own);
        let scene = Scene { stage: self, persona, mode, port, folder };
        let outcome = match program.shape {
            Shape::Alone(words) => scene.alone(program, words),
            Shape::Pair { server, client } => scene.pair(program, server, client),
            Shape::Special(play) => play(&scene),
        };
        if outcome.is_ok() {
            let _ = fs::remove_dir_all(&scene.folder);
        }
        outcome
    }
}

impl Scene<'_> {
    /// The server's address, as the client names it.
    pub(super) fn server_address(&self) -> &'static str {
        match self.mode {
            Mode::Local | Mode::Veth4 => SERVER4,
            Mode::Veth6 => SERVER6,
        }
    }

    /// `ironwarp run -- words`, at one of the ends, as an ordinary user.
    pub(super) fn command(&self, end: End, words: &[String]) -> Command {
        self.command_as(&self.stage.theatre.home.as_user(), end, words)
    }

    /// The same, for a program that wants to be root.
    pub(super) fn command_as(&self, user: &[&str], end: End, words: &[String]) -> Command {
        let host = &self.stage.hosts[usize::from(end == End::Client && self.mode != Mode::Local)];
        let mut line: Vec<String> = vec!["nsenter".into(), network(&host.id().to_string()), "--".into()];
        line.extend(user.iter().map(|word| (*word).to_owned()));
        line.extend(self.stage.theatre.home.ironwarp(self.persona, words));
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).current_dir(&self.folder).env("HOME", &self.folder);
        command
    }

    /// The words with the names in braces filled in: the server's address for RDMA and for what programs agree on before that,
    /// the GID of this end, a port, a folder.
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

    /// The index of the GID that this end uses.
    fn gid(&self, end: End) -> Result<usize> {
        if self.stage.gids.get().is_none() {
            let found = [self.find_gids(Mode::Local)?, self.find_gids(Mode::Veth4)?];
            self.stage.gids.get_or_init(|| found);
        }
        let gids = self.stage.gids.get().ok_or("no GIDs")?;
        let host = usize::from(end == End::Client && self.mode != Mode::Local);
        Ok(gids[host][usize::from(self.mode == Mode::Veth6)])
    }

    /// Asks `ibv_devinfo` at the client of this mode.
    fn find_gids(&self, mode: Mode) -> Result<[usize; 2]> {
        let folder = self.folder.clone();
        let asking = Scene { stage: self.stage, persona: self.persona, mode, port: 0, folder };
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

    /// Starts a server, and waits until it listens.
    pub(super) fn serve(&self, words: &[&str]) -> Result<Process> {
        let mut server = self.start(End::Server, words)?;
        server.wait_until("it listens", |server| listens(server.id(), self.port))?;
        Ok(server)
    }

    fn alone(&self, program: &Program, words: &[&str]) -> Result {
        let mut process = self.start(End::Server, words)?;
        let printed = process.finish()?;
        expect(&process, &printed, program.expect)
    }

    fn pair(&self, program: &Program, server: &[&str], client: &[&str]) -> Result {
        let mut server = self.serve(server)?;
        let mut client = self.start(End::Client, client)?;
        let printed = client.finish().map_err(|error| format!("{error}\n    {}", server.meanwhile()))?;
        expect(&client, &printed, program.expect)?;
        if program.server_stays {
            return Ok(());
        }
        server.finish().map(drop)
    }
}

/// What a program must have printed.
pub(super) fn expect(process: &Process, printed: &str, texts: &[&str]) -> Result {
    match texts.iter().find(|text| !printed.contains(**text)) {
        Some(text) => Err(process.complaint(&format!("did not print {text:?}"))),
        None => Ok(()),
    }
}
