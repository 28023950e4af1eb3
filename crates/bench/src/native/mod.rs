//! Ironwarp through its native API, as a program uses it: no setting but those that the turn names.
//!
//! `pingpong.rs`, `stream.rs`, `requests.rs` and `idle.rs` hold the loops, which mirror those of `bare`; `priority.rs` has no
//! counterpart there. This file makes the ends that they use.

mod idle;
mod pingpong;
mod priority;
mod requests;
mod sleeper;
mod stream;

use crate::Result;
use crate::control::{self, PATIENCE, Server};
use crate::measure::Measured;
use crate::turn::{Turn, What};
use ironwarp::{
    AcceptOptions, Access, Adapter, Buffer, Completes, Completion, CompletionQueue, Config, ConnectOptions,
    Listener, MemoryRegion, Place, ProtectionDomain, QueuePair,
};
use std::net::SocketAddr;

pub(crate) fn run(turn: &Turn, server: &mut Server) -> Result<Measured> {
    let at = server.address()?;
    match turn.what {
        What::PingPong => pingpong::run(turn, server, at),
        What::Watch => pingpong::run_watching(turn, server, at),
        What::Stream => stream::run(turn, server, at),
        What::Requests => requests::run(turn, server, at),
        What::Priority => priority::run(turn, server, at),
        What::Idle => idle::run(turn, at),
    }
}

pub(crate) fn serve(turn: &Turn) -> Result {
    let host = Host::open(turn)?;
    let listener = host.adapter.listen(SocketAddr::new(turn.at, 0))?;
    control::say_address(listener.local_addr()?);
    match turn.what {
        What::PingPong => pingpong::serve(turn, &host, &listener),
        What::Watch => pingpong::serve_watching(turn, &host, &listener),
        What::Stream => stream::serve(turn, &host, &listener),
        What::Requests => requests::serve(turn, &host, &listener),
        What::Priority => priority::serve(turn, &host, &listener),
        What::Idle => idle::serve(turn, &host, &listener),
    }
}

/// What a process has once.
#[derive(Debug)]
struct Host {
    adapter: Adapter,
    domain: ProtectionDomain,
    cq: CompletionQueue,
}

impl Host {
    fn open(turn: &Turn) -> Result<Self> {
        let adapter = Adapter::open(Config { crc: turn.crc, ..Config::default() })?;
        let cq = adapter.completion_queue(2 * turn.queued.max(turn.connections).max(DEPTH))?;
        Ok(Self { domain: adapter.protection_domain(), cq, adapter })
    }

    fn pair(&self, turn: &Turn, depth: usize) -> Result<QueuePair> {
        let completes = if turn.acked { Completes::WhenAcknowledged } else { Completes::WhenSent };
        let pair = self.domain.queue_pair(&self.cq).completes(completes);
        Ok(pair.send_depth(depth).receive_depth(depth).max_sges(1).create()?)
    }

    fn region(&self, buffer: Buffer) -> Result<MemoryRegion> {
        Ok(self.domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE)?)
    }

    /// The next completion, polled for or slept for. It must be a good one.
    fn completion(&self, turn: &Turn) -> Result<Completion> {
        let completion = match turn.blocking {
            true => self.cq.wait(PATIENCE)?.ok_or("no completion in time")?,
            false => loop {
                if let Some(completion) = self.cq.poll_one()? {
                    break completion;
                }
            },
        };
        Ok(completion.success()?)
    }
}

/// Requests of a queue, where the turn does not say.
const DEPTH: usize = 64;

/// One connection, with memory that the peer may reach.
#[derive(Debug)]
struct End<'h> {
    host: &'h Host,
    pair: QueuePair,
    region: MemoryRegion,
    /// The first byte of the peer's memory.
    peer: Place,
}

impl<'h> End<'h> {
    /// The client's. `prepare` posts the receives that must be there before the first message.
    fn connect(
        turn: &Turn,
        host: &'h Host,
        to: SocketAddr,
        region: MemoryRegion,
        prepare: impl Fn(&QueuePair, &MemoryRegion) -> Result,
    ) -> Result<Self> {
        let pair = host.pair(turn, DEPTH.max(turn.queued))?;
        prepare(&pair, &region)?;
        let options = ConnectOptions::new().private_data(&region.place(0)?.to_bytes());
        let established = pair.connect(to, &options).map_err(|error| error.to_string())?;
        let peer = Place::from_bytes(&established.private_data).ok_or("the server says no place")?;
        Ok(Self { host, pair, region, peer })
    }

    /// The server's.
    fn accept(
        turn: &Turn,
        host: &'h Host,
        listener: &Listener,
        region: MemoryRegion,
        prepare: impl Fn(&QueuePair, &MemoryRegion) -> Result,
    ) -> Result<Self> {
        let incoming = listener.accept(PATIENCE).ok_or("nobody connects")?;
        let peer = Place::from_bytes(incoming.private_data()).ok_or("the client says no place")?;
        let pair = host.pair(turn, DEPTH.max(turn.queued))?;
        prepare(&pair, &region)?;
        let options = AcceptOptions::new().private_data(&region.place(0)?.to_bytes());
        incoming.accept(&pair, &options).map_err(|error| error.to_string())?;
        Ok(Self { host, pair, region, peer })
    }
}
