//! Tests that every function returns an errno for arguments that no caller should pass.

#[path = "../common/mod.rs"]
mod common;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/untrusted/untrusted.c");

/// Lists the functions that programs call: all except those of drivers, and those that only inline code of the headers
/// calls.
fn functions() -> Vec<&'static str> {
    let map = include_str!("../../versions.map");
    let names = map.lines().filter_map(|line| line.strip_prefix("\t\t")?.strip_suffix(';'));
    let of_drivers_or_headers = ["ibv_cmd_", "verbs_", "_verbs", "__", "execute_ioctl", "*"];
    names.filter(|name| !of_drivers_or_headers.iter().any(|prefix| name.starts_with(prefix))).collect()
}

#[test]
fn every_function_is_called_with_invalid_arguments() {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let called =
        |name: &&str| source.contains(&format!("({name}(")) || source.contains(&format!("= {name}("));
    let missing: Vec<_> = functions().into_iter().filter(|name| !called(name)).collect();
    assert!(missing.is_empty(), "not called: {missing:?}");
}

#[test]
fn each_call_returns_its_errno() {
    let scratch = common::scratch("untrusted");
    let program = scratch.join("untrusted");
    // Some arguments are NULL although the headers declare them as nonnull.
    common::compile(&program, &["-Wno-nonnull", "-Wno-unused-value", SOURCE, "-libverbs", "-lrdmacm"]);
    for persona in ["roce", "iwarp"] {
        let output = common::with_dropin(&program)
            .env("IRONWARP_PERSONA", persona)
            .env("IRONWARP_LOG", "off")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{persona}: {}\n{printed}{output:?}", output.status);
    }
    std::fs::remove_dir_all(scratch).unwrap();
}
