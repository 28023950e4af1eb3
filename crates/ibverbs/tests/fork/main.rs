//! A process that has connections forks: neither it nor its children notice each other's.

#[path = "../common/mod.rs"]
mod common;

use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fork/forks.c");

#[test]
fn children_and_parents_keep_out_of_each_others_way() {
    let scratch = common::scratch("forks");
    let program = scratch.join("forks");
    common::compile(&program, &[SOURCE, "-libverbs"]);
    let folder = common::libraries();
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).env("LD_LIBRARY_PATH", &folder);
    let output = command.env("LD_PRELOAD", folder.join("libibverbs.so.1")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "forks: all is well\n", "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(scratch).unwrap();
}
