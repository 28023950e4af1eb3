//! Tests that a process with connections may fork: neither it nor its children affect each other's connections.

#[path = "../common/mod.rs"]
mod common;

use std::path::Path;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fork/forks.c");

/// Runs the program with these logical devices.
fn check(test: &str, devices: &str) {
    let scratch = common::scratch(test);
    let program = scratch.join("forks");
    common::compile(&program, &[SOURCE, "-libverbs"]);
    let mut command = common::with_dropin(Path::new("timeout"));
    let output = command.arg("60").arg(&program).env("IRONWARP_DEVICES", devices).output();
    let output = output.expect("timeout is in coreutils");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "forks: all is well\n", "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(scratch).expect("the folder exists");
}

#[test]
fn parents_and_children_do_not_affect_each_other() {
    check("forks", "all");
}

/// A child opens a device with a rate of its own: the parent's may be locked when it forks.
#[test]
fn children_of_a_process_with_a_limited_rate_open_devices_of_their_own() {
    check("forks-rate", "1 rate=10g");
}
