//! Measures the memory of an idle connected queue pair: the growth of the resident set by many of them.

use super::end::Host;
use crate::control::{self, TIMEOUT};
use crate::measure::{Measured, resident};
use crate::result::Result;
use crate::turn::Turn;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::queue::QueuePair;
use std::net::SocketAddr;

/// Depth of each queue.
const DEPTH: usize = 64;
/// Number of connections before the measurement, so that one-time allocations are not counted.
const BEFORE: usize = 50;

/// Runs the client.
pub(super) fn run(turn: &Turn, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let mut pairs = Vec::with_capacity(BEFORE + turn.connections);
    connect(turn, &host, at, BEFORE, &mut pairs)?;
    let before = resident()?;
    connect(turn, &host, at, turn.connections, &mut pairs)?;
    let resident = (resident()? - before) / turn.connections as f64;
    Ok(Measured { resident, ..Measured::default() })
}

/// Connects `count` queue pairs, and adds them to `pairs`.
fn connect(turn: &Turn, host: &Host, at: SocketAddr, count: usize, pairs: &mut Vec<QueuePair>) -> Result {
    for _ in 0..count {
        let pair = host.pair(turn, DEPTH)?;
        pair.connect(at, &ConnectOptions::new()).map_err(|error| error.to_string())?;
        pairs.push(pair);
    }
    Ok(())
}

/// Runs the server.
pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let mut pairs = Vec::with_capacity(BEFORE + turn.connections);
    while pairs.len() < BEFORE + turn.connections {
        let incoming = listener.accept(TIMEOUT)?;
        let pair = host.pair(turn, DEPTH)?;
        incoming.accept(&pair, &AcceptOptions::new()).map_err(|error| error.to_string())?;
        pairs.push(pair);
    }
    control::wait_for_query()
}
