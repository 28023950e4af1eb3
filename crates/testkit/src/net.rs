//! Ports, sockets and interfaces of this host.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// Returns a TCP port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// Runs ip(8) with these arguments. Panics unless it succeeds.
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Returns whether a socket listens on a TCP port, in the network namespace of a process.
pub fn listens(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, _| state == LISTEN)
}

/// Returns whether a connection to a TCP port waits to be accepted, in the network namespace of a process.
pub fn has_backlog(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, queues| state == LISTEN && !queues.ends_with(":00000000"))
}

/// Returns whether a local TCP port has a connection that is not closed at both ends, in the network namespace of a
/// process.
pub fn has_connection(process: u32, port: u16) -> bool {
    has_socket(process, port, |state, _| state != LISTEN && state != TIME_WAIT)
}

// States of sockets in proc_net_tcp(5).
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// Returns whether a local socket has this port, and a state and queues that match. The queues are two hexadecimal
/// numbers: bytes that are not acknowledged, and after a colon bytes that are not read (of a listener: connections that
/// are not accepted).
fn has_socket(process: u32, port: u16, matches: impl Fn(&str, &str) -> bool) -> bool {
    let suffix = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("net").join(file));
        table.unwrap_or_default().lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            matches!(words[..], [_, local, _, state, queues, ..] if local.ends_with(&suffix) && matches(state, queues))
        })
    })
}
