//! Runs programs under `ironwarp run`.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "part of tests, which may stop")]

use super::common::{libraries, scratch};
use ironwarp_testkit::net::{free_port, listens};
use ironwarp_testkit::process::{Exit, Process};
use std::process::Command;
use std::time::Duration;

/// Time after which a program is killed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Options that make Open MPI use UCX over our device only.
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
/// Options that make Open MPI use libfabric over our device only.
pub const OFI: &[&str] =
    &["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"];

/// Starts `ironwarp run OPTIONS -- WORDS`.
pub fn start(test: &str, options: &[&str], words: &[&str]) -> Process {
    let ironwarp = libraries().join("../../bin/ironwarp");
    let folder = scratch(test);
    let log = (0..).map(|n| folder.join(format!("{n}.log"))).find(|log| !log.exists()).unwrap();
    let mut command = Command::new(ironwarp);
    command.arg("run").args(options).arg("--").args(words).current_dir(folder);
    let mut process = Process::start(command, test, &log).unwrap();
    process.set_timeout(TIMEOUT);
    process
}

/// Runs `ironwarp run OPTIONS -- WORDS`, and waits for its end.
pub fn run(test: &str, options: &[&str], words: &[&str]) -> Exit {
    start(test, options, words).exit().unwrap()
}

/// Runs a server and a client of the same program, which take a port with `-p`. `server` and `client` are the options
/// of `ironwarp run`.
pub fn run_pair(test: &str, server: &[&str], client: &[&str], words: &[&str]) -> (Exit, Exit) {
    let port = free_port();
    let number = port.to_string();
    let words = [words, &["-p", &number]].concat();
    let mut server = start(test, server, &words);
    server.wait_until("it listens", |server| listens(server.id(), port)).unwrap();
    let client = run(test, client, &[&words[..], &["127.0.0.1"]].concat());
    (server.exit().unwrap(), client)
}

/// Compiles the MPI program that exchanges messages and verifies every byte. Returns its path.
pub fn compile_exchange(test: &str) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/src/programs/exchange.c");
    let program = scratch(test).join("exchange");
    let status = Command::new("mpicc").args(["-o", program.to_str().unwrap(), source]).status();
    assert!(status.expect("mpicc is installed").success());
    program.to_str().unwrap().to_owned()
}

/// Runs two ranks of an MPI program, with options of `ironwarp run` and of `mpirun`.
pub fn mpirun(test: &str, options: &[&str], mpi_options: &[&str], program: &str) -> Exit {
    let words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"];
    run(test, options, &[&words[..], mpi_options, &[program]].concat())
}
