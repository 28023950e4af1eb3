//! `ironwarp-bench shares`, one round: that it runs, and says what it promises to say. What it says depends on the machine: a lane that
//! is not behind gives everybody all.
#![allow(clippy::unwrap_used, reason = "a test")]

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
