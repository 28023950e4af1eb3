//! `ironwarp ping`: ping-pong with every byte verified. `client.rs` sends, `server.rs` answers, and `hello.rs` has the
//! private data that they exchange when they connect.

mod client;
mod hello;
mod message;
mod options;
mod report;
mod server;

pub(crate) use options::Arguments;

use crate::say::Failure;
use ironwarp::{Adapter, Config};
use options::PORT;
use std::net::{SocketAddr, ToSocketAddrs};

/// Runs the command, as server or as client. Returns false if it has reported failures.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let adapter = Adapter::open(Config::from_env()?)?;
    match (&arguments.listen, &arguments.peer) {
        (Some(at), _) => server::run(&adapter, *at, arguments.once),
        (None, Some(peer)) => client::run(&adapter, resolve(peer)?, arguments),
        (None, None) => Err("missing address; see `ironwarp ping --help`".into()),
    }
}

/// Returns the address of a server, given as address or host name, with or without port.
fn resolve(peer: &str) -> Result<SocketAddr, Failure> {
    let unbracketed = peer.trim_start_matches('[').trim_end_matches(']');
    let found = match unbracketed.parse() {
        Ok(ip) => Ok(Some(SocketAddr::new(ip, PORT))),
        Err(_) if peer.contains(':') => peer.to_socket_addrs().map(|mut found| found.next()),
        Err(_) => (peer, PORT).to_socket_addrs().map(|mut found| found.next()),
    };
    match found {
        Ok(Some(addr)) => Ok(addr),
        Ok(None) => Err(format!("`{peer}` has no address").into()),
        Err(error) => Err(format!("failed to resolve `{peer}`: {error}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_with_and_without_port() {
        for (text, addr) in [
            ("127.0.0.1", "127.0.0.1:7471"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("::1", "[::1]:7471"),
            ("[::1]", "[::1]:7471"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(resolve(text).unwrap(), addr.parse().unwrap(), "{text}");
        }
        assert!(resolve("127.0.0.1:x").is_err());
    }
}
