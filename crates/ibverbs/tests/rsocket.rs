//! Sockets over RDMA, as programs of C use them: a server and a client, two processes, and every byte looked at.

#![expect(clippy::unwrap_used, reason = "a test may stop")]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rsocket");

/// The program, linked to the system's librdmacm, in place of which it gets ours.
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

fn run(test: &str, family: &str) {
    let folder = common::libraries();
    let mut command = Command::new(program());
    command.args([test, family]).env("LD_LIBRARY_PATH", &folder);
    let output = command.env("LD_PRELOAD", folder.join("libibverbs.so.1")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} over IPv{family}: {}\n{said}", output.status);
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
