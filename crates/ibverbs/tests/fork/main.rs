//! Tests that a process with connections may fork: neither it nor its children affect each other's connections.

#[path = "../common/mod.rs"]
mod common;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fork/forks.c");

#[test]
fn parents_and_children_do_not_affect_each_other() {
    let scratch = common::scratch("forks");
    let program = scratch.join("forks");
    common::compile(&program, &[SOURCE, "-libverbs"]);
    let output = common::run(&program);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "forks: all is well\n", "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(scratch).unwrap();
}
