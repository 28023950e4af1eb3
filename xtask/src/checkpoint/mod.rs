//! `checkpoint`: moves unmodified programs on the drop-in as whole processes, with CRIU and the hook of
//! `examples/criu` (requirement X2). Their peers are not part of the checkpoint, and notice nothing.
//!
//! ```text
//!  network.rs   the hosts, which are network namespaces
//!  criu.rs      where CRIU comes from
//! ```

mod criu;
mod network;

use crate::arguments::Arguments;
use crate::dropin;
use crate::inside::{Home, run_inside};
use crate::roots::need_root;
use crate::shell::{Result, at, output};
use crate::workspace::Workspace;
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::Process;
use network::{Addresses, DEVICE, FAMILIES, Host, Network};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

pub(crate) const USAGE: &str = "checkpoint [--runs N]";

/// Namespaces of the job, and a session there, which CRIU requires. A restored process gets the process ID that it had, which
/// no other process must have taken.
const NAMESPACES: [&str; 7] = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "setsid"];

/// A script that closes the descriptors that this job has inherited, and runs the words of a command. CRIU cannot save files
/// and sockets from outside of the job's namespaces.
const CLOSE_OTHERS: &str = r#"for file in /proc/self/fd/*; do
    number=${file##*/}
    if [ "$number" -gt 2 ]; then eval "exec $number>&-"; fi
done
exec "$@""#;

/// The port of the server. Nothing else is in its network.
const PORT: u16 = 7174;
/// Bytes of each verified message of rping.
const SIZE: &str = "60000";
/// Bytes that the client must receive before the next move: many messages.
const ENOUGH: u64 = 20 << 20;
/// Bytes that the client must receive for a program to count as restored: some messages.
const A_LITTLE: u64 = 1 << 20;

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    need_root("CRIU reads and writes the memory and the sockets of processes")?;
    let (mut runs, mut inside, mut caller) = (1, false, None);
    let mut arguments = Arguments::new(options, USAGE);
    while let Some(argument) = arguments.next() {
        match argument {
            "--inside" => inside = true,
            "--caller" => caller = Some(arguments.value()?),
            "--runs" => runs = arguments.number()?,
            _ => return Err(arguments.unknown()),
        }
    }
    let commands = criu::make(workspace)?;
    let Some(caller) = caller.filter(|_| inside) else {
        dropin::build(workspace, true)?;
        // Inside, the process ID is always 1, and no name for a folder.
        let caller = ["--caller".to_owned(), std::process::id().to_string()];
        return run_inside("checkpoint", &NAMESPACES, &[options, &caller].concat());
    };
    let home = Home::new(workspace, &format!("checkpoint-{caller}"))?;
    let hook = workspace.root.join("examples/criu/hook.sh");
    for run in 0..runs {
        for addresses in &FAMILIES {
            let folder = home.room(&format!("{}-{run}", addresses.name))?;
            let network = Network::new(&folder, addresses)?;
            let trial = Trial { home: &home, commands: &commands, hook: &hook, folder, network, addresses };
            trial.run().map_err(|error| format!("{}: {error}", addresses.name))?;
            fs::remove_dir_all(&trial.folder).map_err(at(&trial.folder))?;
        }
    }
    Ok(())
}

/// One pair of programs whose ends are moved.
struct Trial<'t> {
    home: &'t Home,
    /// The folder of CRIU and nft.
    commands: &'t Path,
    hook: &'t Path,
    folder: PathBuf,
    network: Network,
    addresses: &'t Addresses,
}

/// A program that can be moved.
struct Moving {
    /// Its process ID, which it keeps.
    id: u32,
    /// The program, or the `criu restore` that waits for it.
    process: Process,
}

impl Trial<'_> {
    /// Moves a server to another host and back, and checkpoints its client, while the client verifies data.
    fn run(&self) -> Result {
        let address = self.addresses.moving;
        let server = self.start(Host::Source, &["rping", "-s", "-a", address], "server")?;
        let mut server = Moving { id: server.id(), process: server };
        server.process.wait_until("it listens", |server| listens(server.id(), PORT))?;
        // `-V` compares each message that comes back, and ends at the first difference.
        let client = self.start(Host::Peer, &["rping", "-c", "-V", "-a", address], "client")?;
        let mut client = Moving { id: client.id(), process: client };
        self.exchange(&mut client.process, ENOUGH)?;

        for (from, to) in [(Host::Source, Host::Target), (Host::Target, Host::Source)] {
            // CRIU refuses a process that has not read the notification of this.
            self.network.change_address(from, self.addresses)?;
            server = self.pass(server, from, to, &format!("server from {from:?} to {to:?}"))?;
            self.exchange(&mut server.process, ENOUGH)?;
        }
        client = self.pass(client, Host::Peer, Host::Peer, "client, restored where it was")?;
        self.exchange(&mut client.process, ENOUGH)?;

        for log in ["client.log", "server.log"] {
            let log = self.folder.join(log);
            let printed = fs::read_to_string(&log).map_err(at(&log))?;
            if !printed.is_empty() {
                return Err(format!("{} is not empty:\n{printed}", log.display()));
            }
        }
        Ok(())
    }

    /// Starts a program on a host, as root: CRIU needs CAP_SYS_RESOURCE for programs of other users, which containers often
    /// lack.
    fn start(&self, host: Host, words: &[&str], name: &str) -> Result<Process> {
        let port = PORT.to_string();
        let words: Vec<String> =
            [words, &["-p", &port, "-S", SIZE]].concat().into_iter().map(String::from).collect();
        let mut command = self.network.on(host);
        command.args(["bash", "-c", CLOSE_OTHERS, "bash"]).args(self.home.ironwarp("roce", &words));
        command.current_dir(&self.folder).env("IRONWARP_SHM", "off");
        Process::start(command, name, &self.folder.join(format!("{name}.log")))
    }

    /// Waits until the client has received this many bytes of messages, which it verifies, while `process` runs.
    fn exchange(&self, process: &mut Process, bytes: u64) -> Result {
        let received = || self.network.received(Host::Peer);
        let enough = received()? + bytes;
        process.wait_until("data flowed", |_| received().is_ok_and(|now| now >= enough))
    }

    /// Checkpoints a program on one host, and restores it on another, together with its address, or on the same one.
    fn pass(&self, program: Moving, from: Host, to: Host, name: &str) -> Result<Moving> {
        let start = Instant::now();
        let images = self.folder.join(name.replace([' ', ','], "-"));
        fs::create_dir(&images).map_err(at(&images))?;
        let Moving { id, process: mut before } = program;
        let mut dump = self.criu(from, from != to, "dump", &images);
        dump.arg("--action-script").arg(self.hook);
        output(dump.args(["--tree", &id.to_string(), "--network-lock", "nftables"]))
            .map_err(|error| failed(&error, &images, "dump"))?;
        let dumped = start.elapsed();
        before.exit()?; // CRIU has killed it
        drop(before); // kills its process group, whose number the restored program gets
        if from != to && self.network.has_address(from, self.addresses)? {
            return Err(format!("{from:?} still has the address, and would answer the peer with a reset"));
        }
        let mut restore = self.criu(to, from != to, "restore", &images);
        let probe = self.write_probe()?;
        restore.arg("--action-script").arg(if to == Host::Target { &probe } else { self.hook });
        let mut process = Process::start(restore, "criu restore", &self.folder.join("criu.log"))?;
        self.exchange(&mut process, A_LITTLE).map_err(|error| failed(&error, &images, "restore"))?;
        let all = start.elapsed();
        println!(
            "{:<5}{name:<34}{:>5} ms, dump {} ms",
            self.addresses.name,
            all.as_millis(),
            dumped.as_millis()
        );
        Ok(Moving { id, process })
    }

    /// Writes a script that runs the hook, and fails if the target answers the peer too early.
    fn write_probe(&self) -> Result<PathBuf> {
        let file = self.folder.join("probe.sh");
        fs::write(&file, self.network.probe(self.hook, self.addresses, PORT)).map_err(at(&file))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).map_err(at(&file))?;
        Ok(file)
    }

    /// Returns a command that runs CRIU on a host. If the program moves, its address moves with it.
    fn criu(&self, host: Host, moves: bool, action: &str, images: &Path) -> Command {
        let mut criu = self.network.on(host);
        criu.arg("criu").arg(action).arg("--images-dir").arg(images);
        criu.args(["--tcp-established", "--shell-job", "-v4", "--log-file"]).arg(format!("{action}.log"));
        let path = env::var("PATH").unwrap_or_default();
        criu.env("PATH", format!("{}:{path}", self.commands.display()));
        if moves {
            let Addresses { moving, prefix, .. } = self.addresses;
            criu.env("IRONWARP_MOVE_ADDRESS", format!("{moving}{prefix}"));
            criu.env("IRONWARP_MOVE_DEVICE", DEVICE);
        }
        criu
    }
}

/// Adds the errors of CRIU's log.
fn failed(error: &str, images: &Path, action: &str) -> String {
    let log = fs::read_to_string(images.join(format!("{action}.log"))).unwrap_or_default();
    let errors: String =
        log.lines().filter(|line| line.contains("Error")).map(|line| format!("\n  {line}")).collect();
    format!("{error}{errors}")
}
