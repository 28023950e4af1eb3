//! What a connected queue pair takes of the process's memory while nothing is posted: the difference of the resident set before
//! and after many of them.

use super::Host;
use crate::Result;
use crate::control::{self, PATIENCE};
use crate::measure::Measured;
use crate::turn::Turn;
use ironwarp::{AcceptOptions, ConnectOptions, Listener, QueuePair};
use std::fs;
use std::net::SocketAddr;

/// Requests of each queue.
const DEPTH: usize = 64;
/// So many are there before it is measured: what is needed once is there then.
const BEFORE: usize = 50;

pub(super) fn run(turn: &Turn, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let mut pairs = Vec::with_capacity(BEFORE + turn.connections);
    connect(turn, &host, at, BEFORE, &mut pairs)?;
    let before = resident()?;
    connect(turn, &host, at, turn.connections, &mut pairs)?;
    let resident = (resident()? - before) / turn.connections as f64;
    Ok(Measured { resident, ..Measured::default() })
}

fn connect(turn: &Turn, host: &Host, at: SocketAddr, count: usize, pairs: &mut Vec<QueuePair>) -> Result {
    for _ in 0..count {
        let pair = host.pair(turn, DEPTH)?;
        pair.connect(at, &ConnectOptions::new()).map_err(|error| error.to_string())?;
        pairs.push(pair);
    }
    Ok(())
}

pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let mut pairs = Vec::with_capacity(BEFORE + turn.connections);
    while pairs.len() < BEFORE + turn.connections {
        let incoming = listener.accept(PATIENCE).ok_or("nobody connects")?;
        let pair = host.pair(turn, DEPTH)?;
        incoming.accept(&pair, &AcceptOptions::new()).map_err(|error| error.to_string())?;
        pairs.push(pair);
    }
    control::wait_until_asked()
}

/// In bytes.
fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024.0)
}
