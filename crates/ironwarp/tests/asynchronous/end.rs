//! One end of the tests: an adapter with a driver and a pool.

use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, Buffer, Chunk, Pool};
use ironwarp::tokio::{Driver, Listener, QueuePair};
use ironwarp::{Adapter, ProtectionDomain};

/// Length of each chunk.
pub(crate) const CHUNK: usize = 1024;

pub(crate) struct End {
    pub(crate) adapter: Adapter,
    pub(crate) domain: ProtectionDomain,
    pub(crate) driver: Driver,
    pub(crate) pool: Pool,
    /// Number of chunks in the pool.
    pub(crate) chunks: usize,
}

impl End {
    pub(crate) fn new(chunks: usize) -> Self {
        let adapter = Adapter::new().unwrap();
        let domain = adapter.protection_domain();
        // Too small for all requests: the driver makes it larger.
        let driver = Driver::new(adapter.completion_queue(2).unwrap()).unwrap();
        let region = domain.register(Buffer::new(chunks * CHUNK).unwrap(), Access::all()).unwrap();
        Self { adapter, domain, driver, pool: Pool::new(region, CHUNK), chunks }
    }

    pub(crate) fn queue_pair(&self) -> QueuePair {
        self.driver.create(self.domain.queue_pair(self.driver.cq())).unwrap()
    }

    pub(crate) fn take(&self, count: usize) -> Vec<Chunk> {
        (0..count).map(|_| self.pool.take().unwrap()).collect()
    }

    /// Takes a chunk that contains `bytes`.
    pub(crate) fn chunk_of(&self, bytes: &[u8]) -> Chunk {
        fill(self.pool.take().unwrap(), bytes)
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener::new(self.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap()
    }
}

pub(crate) fn fill(mut chunk: Chunk, bytes: &[u8]) -> Chunk {
    chunk.set_len(bytes.len()).unwrap();
    chunk.write(0, bytes).unwrap();
    chunk
}

/// Connects a new queue pair of each end.
pub(crate) async fn connect(client: &End, server: &End) -> (QueuePair, QueuePair) {
    let (near, far) = (client.queue_pair(), server.queue_pair());
    connect_pairs(&near, &far, server).await;
    (near, far)
}

pub(crate) async fn connect_pairs(near: &QueuePair, far: &QueuePair, server: &End) {
    let listener = server.listen();
    let (to, options) = (listener.local_addr().unwrap(), ConnectOptions::new());
    let accepting = async {
        let incoming = listener.accept().await.unwrap();
        incoming.accept(far, &AcceptOptions::new()).await.unwrap();
    };
    let (connected, ()) = tokio::join!(near.connect(to, &options), accepting);
    assert_eq!(connected.unwrap().peer, to);
}
