//! Measures the round-trip time of a small message while bulk traffic keeps both processors busy. Every consumer sleeps
//! until its completion handler wakes it. The result is the 99th percentile, which classes of handlers are meant to
//! reduce (requirement N6).

use super::end::Host;
use super::sleeper::Sleeper;
use crate::control::{Server, TIMEOUT};
use crate::measure::{Measured, Stopwatch};
use crate::result::Result;
use crate::turn::Turn;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{QueuePair, WorkRequest};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Size of a bulk message in bytes.
const BULK: usize = 64 << 10;
/// Number of outstanding bulk messages per connection.
const QUEUED: usize = 16;

/// Creates the consumer that is measured, with the low-latency class if the turn demands it.
fn measured_consumer(turn: &Turn, host: &Host) -> Result<Sleeper> {
    let sleeper = Sleeper::new(host, 2 * QUEUED)?;
    if turn.urgent { sleeper.with_low_latency() } else { Ok(sleeper) }
}

/// The connections of the load, and a thread that keeps them busy.
#[derive(Debug)]
struct Load {
    /// Number of bytes moved so far.
    moved: Arc<AtomicU64>,
}

impl Load {
    /// Starts the load. `repost` reposts a completed request.
    fn start(
        sleeper: Sleeper,
        pairs: Vec<QueuePair>,
        region: MemoryRegion,
        repost: fn(&QueuePair, u64, &MemoryRegion) -> Result,
    ) -> Self {
        let moved = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&moved);
        thread::spawn(move || -> std::result::Result<(), String> {
            // The thread ends with the process, so errors are ignored.
            loop {
                let done = sleeper.next().map_err(|error| error.to_string())?;
                counter.fetch_add(BULK as u64, Ordering::Relaxed);
                let index = usize::try_from(done.wr_id).map_err(|error| error.to_string())?;
                repost(&pairs[index], done.wr_id, &region).map_err(|error| error.to_string())?;
            }
        });
        Self { moved }
    }

    /// Returns the number of bytes moved so far.
    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

/// Posts a bulk Send.
fn send(pair: &QueuePair, id: u64, region: &MemoryRegion) -> Result {
    Ok(pair.post_send(WorkRequest::send(id, &[region.slice(..BULK)?]))?)
}

/// Posts a receive for a bulk message.
fn receive(pair: &QueuePair, id: u64, region: &MemoryRegion) -> Result {
    Ok(pair.post_receive(id, &[region.slice(..BULK)?])?)
}

/// Registers memory for local access.
fn region(host: &Host, size: usize) -> Result<MemoryRegion> {
    Ok(host.domain.register(Buffer::new(size)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?)
}

/// Accepts a client.
fn accept(listener: &Listener, pair: &QueuePair) -> Result {
    let incoming = listener.accept(TIMEOUT)?;
    incoming.accept(pair, &AcceptOptions::new()).map_err(|error| error.to_string())?;
    Ok(())
}

/// Runs the server. The first connection is measured, and the others are the load.
pub(super) fn serve(turn: &Turn, host: &Host, listener: &Listener) -> Result {
    let quick = measured_consumer(turn, host)?;
    let (pair, memory) = (quick.pair(host, QUEUED)?, region(host, turn.size)?);
    let slice = || memory.slice(..turn.size);
    pair.post_receive(0, &[slice()?])?;
    pair.post_receive(0, &[slice()?])?;
    accept(listener, &pair)?;
    let bulk = Sleeper::new(host, 2 * QUEUED * turn.load.max(1))?;
    let room = region(host, BULK)?;
    let mut pairs = Vec::new();
    for index in 0..turn.load as u64 {
        let pair = bulk.pair(host, QUEUED)?;
        (0..QUEUED).try_for_each(|_| receive(&pair, index, &room))?;
        accept(listener, &pair)?;
        pairs.push(pair);
    }
    let _load = Load::start(bulk, pairs, room, receive);
    loop {
        // Sends are unsignaled. An empty message is the last one.
        if quick.next()?.byte_len == 0 {
            return Ok(());
        }
        pair.post_send(WorkRequest::send(0, &[slice()?]).unsignaled())?;
        pair.post_receive(0, &[slice()?])?;
    }
}

/// Runs the client.
pub(super) fn run(turn: &Turn, server: &Server, at: SocketAddr) -> Result<Measured> {
    let host = Host::open(turn)?;
    let quick = measured_consumer(turn, &host)?;
    let (pair, memory) = (quick.pair(&host, QUEUED)?, region(&host, turn.size)?);
    let slice = || memory.slice(..turn.size);
    let connect = |pair: &QueuePair| -> Result {
        pair.connect(at, &ConnectOptions::new()).map_err(|error| error.to_string())?;
        Ok(())
    };
    connect(&pair)?;
    let bulk = Sleeper::new(&host, 2 * QUEUED * turn.load.max(1))?;
    let source = region(&host, BULK)?;
    let pairs: Vec<_> = (0..turn.load).map(|_| bulk.pair(&host, QUEUED)).collect::<Result<_>>()?;
    for (index, pair) in pairs.iter().enumerate() {
        connect(pair)?;
        (0..QUEUED).try_for_each(|_| send(pair, index as u64, &source))?;
    }
    let load = Load::start(bulk, pairs, source, send);
    let ping = || -> Result {
        pair.post_receive(0, &[slice()?])?;
        pair.post_send(WorkRequest::send(0, &[slice()?]).unsignaled())?;
        quick.next().map(drop)
    };
    let (mut pings, mut watch, mut before) = (Vec::new(), Stopwatch::start(server)?, 0);
    for time in [turn.warm_up(), turn.time()] {
        pings.clear();
        (watch, before) = (Stopwatch::start(server)?, load.moved());
        let begin = Instant::now();
        let is_idle = || turn.load > 0 && load.moved() == before;
        while begin.elapsed() < time || pings.is_empty() || is_idle() {
            if begin.elapsed() > TIMEOUT {
                return Err("the load made no progress".into());
            }
            let start = Instant::now();
            ping()?;
            pings.push(start.elapsed());
        }
    }
    let moved = load.moved() - before;
    let measured = watch.stop(server, 2 * pings.len() as u64, turn.size)?;
    pings.sort();
    let ninety_ninth = pings[(pings.len() * 99 / 100).min(pings.len() - 1)];
    pair.post_send(WorkRequest::send(0, &[]).unsignaled())?;
    Ok(Measured { half: ninety_ninth.as_secs_f64() / 2.0, bytes: measured.bytes + moved, ..measured })
}
