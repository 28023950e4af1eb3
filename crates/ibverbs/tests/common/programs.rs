//! Programs under `ironwarp run`: started, waited for, what they said kept.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "part of tests, which may stop")]

use super::common::{libraries, scratch};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// No program takes so long, unless it hangs.
const LONGEST: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);

/// UCX and libfabric under Open MPI, kept from taking other ways than ours.
pub const UCX: &[&str] = &[
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "btl",
    "^openib,vader,tcp",
    "-x",
    "UCX_TLS=rc_verbs,ud_verbs,self",
    "-x",
    "UCX_NET_DEVICES=ironwarp0:1",
];
pub const OFI: &[&str] =
    &["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"];

/// A program that runs. Dropped, it is killed, and its children with it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// All that it printed.
    pub said: String,
}

/// Starts `ironwarp run OPTIONS -- WORDS`.
pub fn start(test: &str, options: &[&str], words: &[&str]) -> Running {
    let ironwarp = libraries().join("../../bin/ironwarp");
    let folder = scratch(test);
    let log = (0..).map(|n| folder.join(format!("{n}.log"))).find(|log| !log.exists()).unwrap();
    let out = File::create(&log).unwrap();
    let mut command = Command::new(ironwarp);
    command.arg("run").args(options).arg("--").args(words).current_dir(folder);
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out).process_group(0);
    Running { child: command.spawn().unwrap(), log }
}

/// The same, and waits until it has ended.
pub fn run(test: &str, options: &[&str], words: &[&str]) -> Ended {
    start(test, options, words).finish()
}

/// A server and a client of the same program, which are told a port by `-p`.
pub fn run_pair(test: &str, server: &[&str], client: &[&str], words: &[&str]) -> (Ended, Ended) {
    let port = free_port();
    let number = port.to_string();
    let words = [words, &["-p", &number]].concat();
    let mut serves = start(test, server, &words);
    serves.wait_until_it_listens(port);
    let client = run(test, client, &[&words[..], &["127.0.0.1"]].concat());
    (serves.finish(), client)
}

/// Compiles the MPI program that checks every byte.
pub fn exchange(test: &str) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/src/programs/exchange.c");
    let program = scratch(test).join("exchange");
    let status = Command::new("mpicc").args(["-o", program.to_str().unwrap(), source]).status();
    assert!(status.expect("mpicc is wanted here").success());
    program.to_str().unwrap().to_owned()
}

/// Two ranks of an MPI program.
pub fn mpirun(test: &str, options: &[&str], how: &[&str], program: &str) -> Ended {
    let words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"];
    run(test, options, &[&words[..], how, &[program]].concat())
}

/// A port that nobody has now; the program gets it a moment later.
pub fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

impl Running {
    /// Waits until anybody listens at a port, as long as the program lives.
    pub fn wait_until_it_listens(&mut self, port: u16) {
        let end = format!(":{port:04X}");
        let listens = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.len() > 3 && words[1].ends_with(&end) && words[3] == "0A"
        };
        let tables = || ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/net/{name}")).unwrap());
        while !tables().iter().flat_map(|table| table.lines()).any(listens) {
            assert!(self.child.try_wait().unwrap().is_none(), "{}", self.said());
            thread::sleep(LOOK);
        }
    }

    pub fn finish(mut self) -> Ended {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Ended { code: status.code().unwrap_or(-1), said: self.said() };
            }
            assert!(start.elapsed() < LONGEST, "it does not end: {}", self.said());
            thread::sleep(LOOK);
        }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}
