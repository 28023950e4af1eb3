//! Runs `ironwarp-bench iscsi` briefly against tgtd, and checks its output.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_testkit::tgtd::{NAME, Tgtd};
use std::process::Command;

#[test]
fn reads_are_counted_with_one_buffer_and_with_a_buffer_for_each_command() {
    let target = Tgtd::start(1 << 20); // so small that reads begin again at block 0
    for buffers in ["each", "one"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironwarp-bench"));
        let words = ["iscsi", &target.addr().to_string(), NAME, "65536", "32", "50", buffers];
        let output = command.args(words).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (seconds, commands) =
            printed.trim().strip_prefix("seconds=").unwrap().split_once(" commands=").unwrap();
        assert!(seconds.parse::<f64>().unwrap() >= 0.05, "{printed}");
        assert!(commands.parse::<u64>().unwrap() >= 32, "{printed}");
    }
}
