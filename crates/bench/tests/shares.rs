//! Bulk connections have turns by the shares of their handlers (requirement N6), at a lane that has more to do than it can.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

/// The program prints how much the second class had for each byte of the first. A lane that forgets shares gives both as much; on a
/// machine with other things to do it may be idle now and then, and then nobody waits for a turn.
#[test]
fn who_has_the_larger_share_has_more() {
    let output = Command::new(env!("CARGO_BIN_EXE_ironwarp-bench")).args(["shares", "1"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row = table.lines().find_map(|line| line.strip_prefix("| 8 and 128 | ")).unwrap();
    let ratio: f64 = row.split(' ').next().unwrap().parse().unwrap();
    assert!(ratio > 2.0, "sixteen times the share, and not twice as much:\n{table}");
}
