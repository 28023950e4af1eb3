//! Tests of sockets over RDMA in C: a server and a client, in two processes, with every byte verified.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use std::path::PathBuf;
use std::sync::OnceLock;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rsocket");

/// Compiles the program once, linked to the system's librdmacm, which the drop-in replaces. Returns its path.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = common::scratch("rsocket").join("rsocket");
        let sources = ["main.c", "stream.c", "wait.c"].map(|file| format!("{SOURCES}/{file}"));
        let mut arguments: Vec<&str> = sources.iter().map(String::as_str).collect();
        arguments.extend(["-O1", "-pthread", "-lrdmacm"]);
        common::compile(&program, &arguments);
        program
    })
}

/// Runs a case of the program, over IPv4 ("4") or IPv6 ("6").
fn run(test: &str, family: &str) {
    run_with(test, family, &[]);
}

/// Runs a case of the program with settings of the adapter.
fn run_with(test: &str, family: &str, settings: &[(&str, &str)]) {
    let mut command = common::with_dropin(program());
    let output = command.args([test, family]).envs(settings.iter().copied()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} over IPv{family}: {}\n{errors}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{test}: good\n"));
}

macro_rules! tests {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), "4");
            run(stringify!($name), "6");
        })*
    };
}

tests! {
    odd_sizes,
    half_close,
    short_connections,
    exits,
    closes_and_vanishes,
    peer_killed,
    duplex,
    small,
    mapped,
    nonblocking,
    many,
    both_full,
    interrupted,
    selects,
    sets,
}

/// An adversary adds the completions of the last data after the end of the connection is reported.
#[test]
fn all_data_is_received_before_the_end_with_an_adversary() {
    for seed in ["1", "2", "3", "4"] {
        run_with("short_connections", "4", &[("IRONWARP_ADVERSARY", seed)]);
    }
}
