//! Tests of devices with several ports, and of ports that go down, with programs in C.

#[path = "../common/mod.rs"]
mod common;

use std::path::PathBuf;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ports");

/// Compiles a program for a test, and returns its path.
fn compile(test: &str, source: &str) -> PathBuf {
    let program = common::scratch(test).join(source.trim_end_matches(".c"));
    common::compile(&program, &["-O1", "-g", &format!("{SOURCES}/{source}"), "-libverbs"]);
    program
}

#[test]
fn each_port_has_its_own_gids_and_connections() {
    let test = "ports-two";
    let program = compile(test, "two_ports.c");
    let output =
        common::with_dropin(&program).env("IRONWARP_DEVICES", "1 ports=2 name=two0").output().unwrap();
    let (printed, logged) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{logged}");
    assert_eq!(printed, "port 1 is at 127.0.2.1\nport 2 is at 127.0.2.2\n");
    assert!(logged.contains("alternative paths are not supported (errno EOPNOTSUPP)"), "{logged}");
    std::fs::remove_dir_all(common::scratch(test)).unwrap();
}
