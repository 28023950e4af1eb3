//! Ports and sockets of this host.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// Runs ip(8).
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Whether a socket listens on a port, in the network namespace of a process.
pub fn listens(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, _| state == LISTEN)
}

/// Whether a connection to that port waits to be accepted.
pub fn has_backlog(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, queues| state == LISTEN && !queues.ends_with(":00000000"))
}

/// Whether a connection to that port exists that is not closed at both ends.
pub fn has_connection(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, _| state != LISTEN && state != TIME_WAIT)
}

/// States of sockets in proc_net_tcp(5).
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// Looks for a local socket by its port, its state, and its queues: what is not acknowledged, and behind the colon what is
/// not read or, of a listener, not accepted.
fn has_socket(process: u32, port: u16, is_wanted: impl Fn(&str, &str) -> bool) -> bool {
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("net").join(file));
        table.unwrap_or_default().lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            matches!(words[..], [_, local, _, state, queues, ..] if local.ends_with(&wanted) && is_wanted(state, queues))
        })
    })
}
