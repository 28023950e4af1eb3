//! Two connected ends in one process, each with an adapter of its own, and how to wait for completions.

use ironwarp::completion::{Completion, CompletionQueue};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, AccessError, Buffer, MemoryRegion, Sge};
use ironwarp::queue::{Completes, QueuePair, QueuePairBuilder};
use ironwarp::{Adapter, Config, ProtectionDomain};
use std::error::Error;
use std::time::Duration;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Time limit of every wait. None of them is expected to take a second.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const LOCAL: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);
/// The rights of memory that the peer may read and write.
pub(crate) const REMOTE: Access = LOCAL.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// One end of a connection.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) adapter: Adapter,
}

impl End {
    /// Opens an adapter and creates a queue pair with these options.
    pub(crate) fn new(
        config: Config,
        options: impl FnOnce(QueuePairBuilder) -> QueuePairBuilder,
    ) -> Result<Self> {
        let adapter = Adapter::open(config)?;
        let (cq, domain) = (adapter.completion_queue(4096)?, adapter.protection_domain());
        let qp = options(domain.queue_pair(&cq)).create()?;
        Ok(Self { qp, cq, domain, adapter })
    }

    /// Registers memory that holds these bytes.
    pub(crate) fn register(&self, bytes: &[u8], access: Access) -> Result<MemoryRegion> {
        Ok(self.domain.register(Buffer::copy_of(bytes)?, access)?)
    }

    /// Waits for the next completion.
    pub(crate) fn next(&self) -> Result<Completion> {
        next(&self.cq)
    }

    /// Waits for the next completion, which must be a success.
    pub(crate) fn done(&self) -> Result<Completion> {
        Ok(self.next()?.success()?)
    }
}

/// Connects a client to a server, and returns both. Requests complete once the peer has acknowledged them, so that a
/// completed Write is known to be in the peer's memory.
pub(crate) fn pair() -> Result<(End, End)> {
    pair_with(Config::default(), Config::default(), acknowledged)
}

/// Connects a client and a server with these settings, whose queue pairs both have these options.
pub(crate) fn pair_with(
    client: Config,
    server: Config,
    options: impl Fn(QueuePairBuilder) -> QueuePairBuilder,
) -> Result<(End, End)> {
    let (client, server) = (End::new(client, &options)?, End::new(server, &options)?);
    connect(&client.qp, &server.qp, &server.adapter)?;
    Ok((client, server))
}

/// Requests complete once the peer has acknowledged them.
pub(crate) fn acknowledged(builder: QueuePairBuilder) -> QueuePairBuilder {
    builder.completes(Completes::WhenAcknowledged)
}

/// Connects one queue pair to another, which belongs to this adapter.
pub(crate) fn connect(near: &QueuePair, far: &QueuePair, adapter: &Adapter) -> Result {
    let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    near.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    let incoming = listener.accept(TIMEOUT)?;
    incoming.accept(far, &AcceptOptions::new())?;
    near.wait_connected(TIMEOUT)?;
    Ok(())
}

/// Waits for the next completion of a queue.
pub(crate) fn next(cq: &CompletionQueue) -> Result<Completion> {
    Ok(cq.wait(TIMEOUT)?)
}

/// All bytes of a region, as an element of a scatter/gather list.
pub(crate) fn whole(region: &MemoryRegion) -> std::result::Result<Sge, AccessError> {
    region.slice(..region.len())
}

/// Fails with this text unless it is true. These programs verify what they print.
pub(crate) fn check(holds: bool, text: &str) -> Result {
    if holds { Ok(()) } else { Err(format!("this is not so: {text}").into()) }
}

/// Bytes that are all different from their neighbours.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..=250_u8).cycle().take(len).collect()
}
