//! Where programs run: on one host, or on two, which are network namespaces joined by a veth pair. The job makes them as an
//! ordinary user could, inside a user namespace of its own.

use super::catalogue::{Program, Shape};
use super::process::Process;
use crate::shell::{Result, at, command, output, run};
use crate::workspace::Workspace;
use std::env;
use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// The hosts, the drop-in, and a folder for what programs write.
#[derive(Debug)]
pub(super) struct Stage {
    /// The drop-in as it is installed, where any user can read it.
    home: PathBuf,
    folder: PathBuf,
    /// Keeps the other host's namespace alive.
    other: Process,
    runs: AtomicU32,
    root: bool,
    /// The indices of the GIDs of the two address families, at the two ends.
    gids: OnceLock<[[usize; 2]; 2]>,
}

/// One run of a program: what its arguments may name.
#[derive(Debug)]
pub(super) struct Scene<'s> {
    pub(super) stage: &'s Stage,
    pub(super) persona: &'s str,
    pub(super) mode: Mode,
    pub(super) port: u16,
    pub(super) folder: PathBuf,
}

const SERVER4: &str = "10.77.0.1";
const CLIENT4: &str = "10.77.0.2";
const SERVER6: &str = "fd77::1";
const CLIENT6: &str = "fd77::2";

/// Starts the job again, in namespaces of its own: user, network, mounts.
pub(super) fn run_inside(arguments: &[String]) -> Result {
    let me = env::current_exe().map_err(|error| error.to_string())?;
    let me = me.to_string_lossy();
    let user: &[&str] = if is_root() { &[] } else { &["--user", "--map-root-user"] };
    let words = [user, &["--net", "--mount", "--", &me, "programs", "--inside"]].concat();
    let mut inner = command("unshare", &words);
    inner.args(arguments);
    run(&mut inner)
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
        && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
}

impl Stage {
    pub(super) fn new(workspace: &Workspace) -> Result<Self> {
        let folder = env::temp_dir().join(format!("ironwarp-programs-{}", std::process::id()));
        let home = folder.join("home");
        fs::create_dir_all(&home).map_err(at(&folder))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(at(&folder))?;
        let built = workspace.target.join("dropin");
        run(&mut command("cp", &["-a", &format!("{}/.", built.display()), &home.to_string_lossy()]))?;
        let mut holder = Command::new("unshare");
        holder.args(["--net", "--", "sleep", "infinity"]);
        let mut other = Process::start(holder, "the other host", &folder.join("other.log"))?;
        let own = fs::read_link("/proc/self/ns/net").map_err(at(Path::new("/proc/self/ns/net")))?;
        other.wait_until("it has a network of its own", |other| {
            fs::read_link(format!("/proc/{}/ns/net", other.id())).is_ok_and(|theirs| theirs != own)
        })?;
        let stage =
            Self { home, folder, other, runs: AtomicU32::new(0), root: is_root(), gids: OnceLock::new() };
        stage.join_hosts()?;
        Ok(stage)
    }

    fn join_hosts(&self) -> Result {
        let other = self.other.id().to_string();
        let ip = |words: &[&str]| output(&mut command("ip", words)).map(drop);
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", "iw0", "type", "veth", "peer", "name", "iw0", "netns", &other])?;
        for (prefix, four, six) in [(None, SERVER4, SERVER6), (Some(&other), CLIENT4, CLIENT6)] {
            let there = |words: &[&str]| match prefix {
                None => ip(words),
                Some(pid) => {
                    let target = format!("--net=/proc/{pid}/ns/net");
                    output(&mut command("nsenter", &[&[target.as_str(), "--", "ip"], words].concat()))
                        .map(drop)
                }
            };
            there(&["link", "set", "lo", "up"])?;
            there(&["addr", "add", &format!("{four}/24"), "dev", "iw0"])?;
            // Without duplicate address detection it can be used at once.
            there(&["-6", "addr", "add", &format!("{six}/64"), "dev", "iw0", "nodad"])?;
            there(&["link", "set", "iw0", "up"])?;
        }
        Ok(())
    }

    /// Runs a program once.
    pub(super) fn play(&self, program: &Program, persona: &str, mode: Mode) -> Result {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(number.to_string());
        fs::create_dir(&folder).map_err(at(&folder))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(at(&folder))?;
        let port = program.port.map_or_else(free_port, Ok)?;
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

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// A port that nobody has now. The program gets it a moment later; nobody else is in this network.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("0.0.0.0:0").and_then(|listener| listener.local_addr());
    listener.map(|addr| addr.port()).map_err(|error| error.to_string())
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
        let nobody: &[&str] = match self.stage.root {
            true => &["--reuid=65534", "--regid=65534", "--clear-groups"],
            false => &["--bounding-set=-all"], // in a user namespace of our own, root is nobody outside
        };
        self.command_as(
            &[&["setpriv", "--inh-caps=-all", "--no-new-privs"], nobody, &["--"]].concat(),
            end,
            words,
        )
    }

    /// The same, for a program that wants to be root.
    pub(super) fn command_as(&self, user: &[&str], end: End, words: &[String]) -> Command {
        let mut line: Vec<String> = Vec::new();
        if end == End::Client && self.mode != Mode::Local {
            line.extend([
                "nsenter".into(),
                format!("--net=/proc/{}/ns/net", self.stage.other.id()),
                "--".into(),
            ]);
        }
        line.extend(user.iter().map(|word| (*word).to_owned()));
        line.push(self.stage.home.join("bin/ironwarp").to_string_lossy().into_owned());
        line.extend(["run", "--persona", self.persona, "--"].map(String::from));
        line.extend_from_slice(words);
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
        let printed =
            client.finish().map_err(|error| format!("{error}\n    {}", server.complaint("meanwhile")))?;
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

/// Whether anybody listens at a port, in the network that this process is in.
pub(super) fn listens(process: u32, port: u16) -> bool {
    let wanted = format!(":{port:04X} ");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{file}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            format!("{local} ").ends_with(&wanted) && words.nth(1) == Some("0A")
        })
    })
}
