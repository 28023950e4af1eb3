//! The adapter of a process, and the ends of its connections.

use crate::control::TIMEOUT;
use crate::result::Result;
use crate::turn::Turn;
use ironwarp::completion::{Completion, CompletionQueue};
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::queue::{Completes, QueuePair};
use ironwarp::{Adapter, Config, ProtectionDomain};
use std::net::SocketAddr;

/// The adapter of a process, with a protection domain and a completion queue.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) adapter: Adapter,
    pub(super) domain: ProtectionDomain,
    pub(super) cq: CompletionQueue,
}

impl Host {
    /// Opens an adapter with the settings of the environment and of a turn.
    pub(super) fn open(turn: &Turn) -> Result<Self> {
        let adapter = Adapter::open(Config::from_env()?.crc(turn.crc))?;
        let cq = adapter.completion_queue(2 * turn.queued.max(turn.connections).max(DEPTH))?;
        Ok(Self { domain: adapter.protection_domain(), cq, adapter })
    }

    /// Creates a queue pair with the settings of a turn, which is not connected yet.
    pub(super) fn pair(&self, turn: &Turn, depth: usize) -> Result<QueuePair> {
        let completes = if turn.acked { Completes::WhenAcknowledged } else { Completes::WhenSent };
        let pair = self.domain.queue_pair(&self.cq).completes(completes);
        Ok(pair.send_depth(depth).receive_depth(depth).max_sges(1).create()?)
    }

    /// Registers a buffer for local and remote access.
    pub(super) fn region(&self, buffer: Buffer) -> Result<MemoryRegion> {
        Ok(self.domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE)?)
    }

    /// Waits for the next completion, by polling or sleeping as the turn demands. Fails if the request failed.
    pub(super) fn completion(&self, turn: &Turn) -> Result<Completion> {
        let completion = match turn.blocking {
            true => self.cq.wait(TIMEOUT)?,
            false => loop {
                if let Some(completion) = self.cq.poll_one()? {
                    break completion;
                }
            },
        };
        Ok(completion.success()?)
    }
}

/// Default queue depth.
pub(super) const DEPTH: usize = 64;

/// One end of a connection, with memory for the peer.
#[derive(Debug)]
pub(super) struct End<'h> {
    pub(super) host: &'h Host,
    pub(super) pair: QueuePair,
    pub(super) region: MemoryRegion,
    /// Address of the peer's memory.
    pub(super) peer: RemoteAddr,
}

impl<'h> End<'h> {
    /// Connects the client. `prepare` posts receives before the first message can arrive.
    pub(super) fn connect(
        turn: &Turn,
        host: &'h Host,
        to: SocketAddr,
        region: MemoryRegion,
        prepare: impl Fn(&QueuePair, &MemoryRegion) -> Result,
    ) -> Result<Self> {
        let pair = host.pair(turn, DEPTH.max(turn.queued))?;
        prepare(&pair, &region)?;
        let options = ConnectOptions::new().private_data(&region.remote_addr(0)?.to_bytes());
        let established = pair.connect(to, &options).map_err(|error| error.to_string())?;
        let peer = RemoteAddr::from_bytes(&established.private_data).ok_or("the server sent no address")?;
        Ok(Self { host, pair, region, peer })
    }

    /// Accepts a client. `prepare` posts receives before the first message can arrive.
    pub(super) fn accept(
        turn: &Turn,
        host: &'h Host,
        listener: &Listener,
        region: MemoryRegion,
        prepare: impl Fn(&QueuePair, &MemoryRegion) -> Result,
    ) -> Result<Self> {
        let incoming = listener.accept(TIMEOUT)?;
        let peer = RemoteAddr::from_bytes(incoming.private_data()).ok_or("the client sent no address")?;
        let pair = host.pair(turn, DEPTH.max(turn.queued))?;
        prepare(&pair, &region)?;
        let options = AcceptOptions::new().private_data(&region.remote_addr(0)?.to_bytes());
        incoming.accept(&pair, &options).map_err(|error| error.to_string())?;
        Ok(Self { host, pair, region, peer })
    }
}
