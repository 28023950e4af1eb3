//! Runs iperf3, which measures throughput with TCP.

use ironwarp_testkit::child::Partner;
use std::process::Command;

/// Bytes of each direction.
const BYTES: u64 = 32 << 20;

/// Runs iperf3 in both directions between the places that the words of `client` and `server` enter. Panics unless bytes
/// arrive.
pub(crate) fn iperf_both_ways(client: &[String], server: &[String], address: &str) {
    for direction in [None, Some("--reverse")] {
        // A server of its own for each direction: a server does not listen for a while between two clients.
        let mut listening = iperf(server);
        listening.args(["--server", "--one-off", "--forceflush"]);
        let mut listening = Partner::start(listening);
        listening.wait_for("Server listening on ");
        let mut command = iperf(client);
        command
            .args(["--client", address, "--connect-timeout", "20000", "--json"])
            .args(["--bytes", &BYTES.to_string()])
            .args(direction);
        let output = command.output().unwrap();
        let json = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !json.contains("\"error\""), "{json}");
        // The receiver does not wait for the last bytes.
        assert!(received(&json).is_some_and(|bytes| bytes > 0), "{direction:?}: {json}");
        listening.finish();
    }
}

/// Returns a command that runs iperf3 behind the words that enter a container, if any.
fn iperf(enter: &[String]) -> Command {
    let installed = Command::new("iperf3").arg("--version").output().is_ok();
    assert!(installed, "iperf3 is missing: run `cargo xtask setup`, or install the package iperf3");
    match enter {
        [] => Command::new("iperf3"),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg("iperf3");
            command
        }
    }
}

/// Returns how many bytes the receiver has counted.
fn received(json: &str) -> Option<u64> {
    let (_, sum) = json.split_once("\"sum_received\"")?;
    let (_, bytes) = sum.split_once("\"bytes\":")?;
    bytes.split(',').next()?.trim().parse().ok()
}
