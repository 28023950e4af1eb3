//! Servers and clients: `ironwarp ping` verifies every byte, and Debian's rping runs on the drop-in, with both ends on
//! aarch64, or one end on aarch64 and the other on this machine's processor.

use super::emulator::{ARCHITECTURE, Emulator};
use crate::dropin::Architecture;
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The network is our own, so this port is free.
const PORT: u16 = 7471;

/// Where an end of a pair runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Emulated,
    Native,
}

const PAIRS: [(End, End); 3] =
    [(End::Emulated, End::Emulated), (End::Emulated, End::Native), (End::Native, End::Emulated)];

/// Options of the client of `ironwarp ping`.
const PINGS: [&[&str]; 4] = [
    &["--count", "50", "--size", "64"],
    &["--count", "5", "--size", "1000000"],
    &["--count", "5", "--size", "300000", "--op", "write", "--acknowledged"],
    &["--count", "5", "--size", "300000", "--op", "read"],
];

/// Further pairs, on the drop-in: words of the server, of the client, and what the client prints.
const PROGRAMS: [[&str; 3]; 3] = [
    [
        "rping -s -a 127.0.0.1 -p 7471 -C 20 -V -S 4096",
        "rping -c -a 127.0.0.1 -p 7471 -C 20 -V -v -S 4096",
        "rdma-ping-19:",
    ],
    ["ucmatose -b 127.0.0.1 -p 7471", "ucmatose -s 127.0.0.1 -p 7471", "test complete"],
    [
        "ibv_rc_pingpong -g 0 -p 7471 -n 100 -c",
        "ibv_rc_pingpong -g 0 -p 7471 -n 100 -c 127.0.0.1",
        "100 iters in",
    ],
];

struct Ends<'a> {
    emulator: &'a Emulator,
    workspace: &'a Workspace,
    /// The folder for their output.
    logs: PathBuf,
}

pub(super) fn run(emulator: &Emulator, workspace: &Workspace) -> Result {
    run_command(&mut command("ip", &["link", "set", "lo", "up"]))?;
    let logs = ARCHITECTURE.dropin(workspace).join("logs");
    fs::create_dir_all(&logs).map_err(at(&logs))?;
    let ends = Ends { emulator, workspace, logs };
    for pair in PAIRS {
        for options in PINGS {
            ends.ping(pair, options)?;
        }
        for [server, client, wanted] in PROGRAMS {
            ends.programs(pair, server, client, wanted)?;
        }
    }
    Ok(())
}

impl Ends<'_> {
    fn ping(&self, pair: (End, End), options: &[&str]) -> Result {
        let (mut server, mut client) = (self.ironwarp(pair.0), self.ironwarp(pair.1));
        server.args(["ping", "--once", "--listen", &format!("127.0.0.1:{PORT}")]);
        client.args(["ping", "--interval", "0"]).args(options).arg(format!("127.0.0.1:{PORT}"));
        let name = format!("ironwarp ping {}", options.join(" "));
        self.run(pair, &name, [server, client], "every byte verified")
    }

    /// Runs a server and a client on the drop-in.
    fn programs(&self, pair: (End, End), server: &str, client: &str, wanted: &str) -> Result {
        let start = |end, words: &str| {
            let (program, arguments) = words.split_once(' ').unwrap_or((words, ""));
            let mut command = self.ironwarp(end);
            let program = match end {
                // QEMU does not look for executables there.
                End::Emulated => self.emulator.root.join("usr/bin").join(program),
                End::Native => program.into(),
            };
            command.args(["run", "--"]).arg(program).args(arguments.split(' '));
            if end == End::Emulated {
                command.env("IRONWARP_USERS", "any"); // QEMU cannot ask whose socket the peer has
            }
            command
        };
        self.run(pair, client, [start(pair.0, server), start(pair.1, client)], wanted)
    }

    /// Returns the command `ironwarp` of a processor.
    fn ironwarp(&self, end: End) -> Command {
        let file = |architecture: Architecture| architecture.dropin(self.workspace).join("bin/ironwarp");
        match end {
            End::Emulated => self.emulator.command(&file(ARCHITECTURE)),
            End::Native => command(&file(Architecture::HOST).to_string_lossy(), &[]),
        }
    }

    /// Starts the client once the server listens. Both must succeed, and the client must print `wanted`.
    fn run(
        &self,
        (at, from): (End, End),
        name: &str,
        [server, client]: [Command; 2],
        wanted: &str,
    ) -> Result {
        let log = |end: &str| -> PathBuf { Path::new(&self.logs).join(end) };
        let mut server = Process::start(server, &format!("server of {name}"), &log("server"))?;
        server.wait_until("it listens", |server| listens(server.id(), PORT))?;
        let mut client = Process::start(client, &format!("client of {name}"), &log("client"))?;
        let printed = client.finish()?;
        server.finish()?;
        if !printed.contains(wanted) {
            return Err(client.error(&format!("did not print `{wanted}`")));
        }
        println!("server {at:?}, client {from:?}: {name}");
        Ok(())
    }
}
