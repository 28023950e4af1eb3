//! Tests of devices with several ports, and of ports that go down, with programs in C.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use ironwarp_testkit::long_form;
use std::path::{Path, PathBuf};

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

/// Runs the recovery with queue pairs of this type. The devices have names of their own, because `ironwarp port` reaches
/// all programs that have a device of the name.
fn recover(kind: &str) {
    let test = format!("ports-recover-{kind}");
    let program = compile(&test, "recovers.c");
    let ironwarp = common::libraries().join("../../bin/ironwarp");
    let devices = format!("2 name=recover_{kind}0");
    let failures = if long_form::is_requested() { "5" } else { "1" };
    let output = common::with_dropin(Path::new("timeout"))
        .args(["100".as_ref(), program.as_os_str(), ironwarp.as_os_str(), kind.as_ref(), failures.as_ref()])
        .env("IRONWARP_DEVICES", devices)
        .output()
        .unwrap();
    let (printed, logged) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.ends_with("recovered\n"), "{printed}{logged}");
    std::fs::remove_dir_all(common::scratch(&test)).unwrap();
}

/// NCCL checks with queue pairs of type UC whether a port is back.
#[test]
fn a_program_recovers_a_port_as_nccl_does() {
    recover("uc");
}

/// RCCL checks with datagrams whether a port is back.
#[test]
fn a_program_recovers_a_port_as_rccl_does() {
    recover("ud");
}
