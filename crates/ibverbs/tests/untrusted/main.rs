//! Callers are not trusted: every function answers what no caller should give with an errno, and comes back.

#[path = "../common/mod.rs"]
mod common;

use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/untrusted/untrusted.c");

/// The functions that programs call: all but those of drivers, and what only the headers' inline code calls.
fn functions() -> Vec<&'static str> {
    let map = include_str!("../../versions.map");
    let names = map.lines().filter_map(|line| line.strip_prefix("\t\t")?.strip_suffix(';'));
    let of_drivers = ["ibv_cmd_", "verbs_", "_verbs", "__", "execute_ioctl", "*"];
    names.filter(|name| !of_drivers.iter().any(|front| name.starts_with(front))).collect()
}

#[test]
fn every_function_is_called_with_what_makes_no_sense() {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let called =
        |name: &&str| source.contains(&format!("({name}(")) || source.contains(&format!("= {name}("));
    let missing: Vec<_> = functions().into_iter().filter(|name| !called(name)).collect();
    assert!(missing.is_empty(), "not called: {missing:?}");
}

#[test]
fn each_answers_with_its_errno_and_comes_back() {
    let scratch = common::scratch("untrusted");
    let program = scratch.join("untrusted");
    // Some arguments are NULL where the headers say that none may be.
    common::compile(&program, &["-Wno-nonnull", "-Wno-unused-value", SOURCE, "-libverbs", "-lrdmacm"]);
    let folder = common::libraries();
    for persona in ["roce", "iwarp"] {
        let output = Command::new(&program)
            .env("LD_PRELOAD", folder.join("libibverbs.so.1"))
            .env("LD_LIBRARY_PATH", &folder)
            .env("IRONWARP_PERSONA", persona)
            .env("IRONWARP_LOG", "off")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{persona}: {}\n{said}{output:?}", output.status);
    }
    std::fs::remove_dir_all(scratch).unwrap();
}
