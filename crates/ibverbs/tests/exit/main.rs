//! The end of a process: connections are closed in order, whatever other threads do meanwhile.

#[path = "../common/mod.rs"]
mod common;

use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exit/exits.c");

#[test]
fn queue_pairs_may_be_destroyed_while_exit_closes_their_connections() {
    let scratch = common::scratch("exits");
    let program = scratch.join("exits");
    common::compile(&program, &[SOURCE, "-libverbs"]);
    let folder = common::libraries();
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).env("LD_LIBRARY_PATH", &folder);
    let output = command.env("LD_PRELOAD", folder.join("libibverbs.so.1")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("destroyed\n"), "exit() ended before the queue pairs were destroyed: {said}");
    std::fs::remove_dir_all(scratch).unwrap();
}
