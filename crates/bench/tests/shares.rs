//! Runs one round of `ironwarp-bench shares` and checks the format of its output. The values depend on the machine.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::process::Command;

#[test]
fn shares_are_measured() {
    let output = Command::new(env!("CARGO_BIN_EXE_ironwarp-bench")).args(["shares", "1"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for shares in ["16 and 16", "16 and 32", "16 and 64", "8 and 128"] {
        assert!(table.contains(&format!("\n| {shares} | ")), "{table}");
    }
}
