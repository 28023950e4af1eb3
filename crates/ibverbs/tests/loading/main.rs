//! Tests that the loader finds the shared library under the names of both libraries, with all symbol versions, in every
//! way of loading it.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loading");

/// Reads all symbols and their version nodes from the linker's version script.
fn names() -> Vec<(String, String)> {
    let map = include_str!("../../versions.map");
    let mut node = "";
    let mut names = Vec::new();
    for line in map.lines() {
        if let Some((start, "")) = line.split_once(" {") {
            node = start;
        } else if let Some(name) = line.strip_prefix("\t\t").and_then(|line| line.strip_suffix(';'))
            && name != "*"
        {
            names.push((name.to_owned(), node.to_owned()));
        }
    }
    names
}

/// Runs the program that loads these libraries and looks up all symbols, and returns its output. `preload` sets
/// LD_PRELOAD, and `path` LD_LIBRARY_PATH.
fn load(program: &Path, libraries: &[&str], preload: bool, path: bool) -> String {
    let folder = common::libraries();
    let mut command = Command::new(program);
    command.arg(folder.canonicalize().unwrap()).args(libraries).env_remove("LD_LIBRARY_PATH");
    if preload {
        command.env("LD_PRELOAD", folder.join("libibverbs.so.1"));
    }
    if path {
        command.env("LD_LIBRARY_PATH", &folder);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for (name, node) in names() {
        writeln!(input, "{name} {node}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn every_name_is_found_by_its_version_in_every_way_of_loading() {
    let scratch = common::scratch("loading");
    let program = scratch.join("loads");
    common::compile(&program, &[&format!("{SOURCES}/loads.c")]);
    let all = format!("{} names", names().len());
    let both = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];
    assert_eq!(load(&program, &both, true, true), all, "as `ironwarp run` sets it up");
    assert_eq!(load(&program, &both, false, true), all, "by the folder alone");
    assert_eq!(load(&program, &both[..1], true, false), all, "by the preload alone");
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn unversioned_programs_get_current_functions() {
    let scratch = common::scratch("unversioned");
    let (stub, program) = (scratch.join("libibverbs.so.1"), scratch.join("unversioned"));
    let source = scratch.join("stub.c");
    std::fs::write(&source, "void ibv_get_device_list(void) {}\nvoid ibv_free_device_list(void) {}\n")
        .unwrap();
    common::compile(&stub, &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", source.to_str().unwrap()]);
    common::compile(&program, &[&format!("{SOURCES}/unversioned.c"), stub.to_str().unwrap()]);
    let output = Command::new(&program).env("LD_LIBRARY_PATH", common::libraries()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a list\n");
    std::fs::remove_dir_all(scratch).unwrap();
}
