//! Receive queues, which keep messages until a receiver takes them.

use super::buffers::{Held, Home, Message};
use super::driver::Driver;
use super::error::Error;
use super::inbox::Inbox;
use super::queue_pair::{Pair, QueuePair};
use super::table::Waiter;
use crate::memory::Chunk;
use crate::queue::SharedReceiveQueue;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::Sge;
use std::fmt;
use std::sync::{Arc, Weak};

/// Receives messages into chunks that it keeps posted, and returns the messages in order.
///
/// [`recv`](Self::recv) is cancel-safe. Dropping a [`Message`] posts its chunk again, so the number of chunks limits
/// how many messages wait for the program: if none is posted, further messages wait at the peer.
///
/// A posted receive cannot be cancelled. If the receive queue is dropped while its connection lasts, the messages that
/// its chunks still receive are lost.
///
/// [`QueuePair::receive_queue`] creates one for a connection, [`Driver::receive_queue`] one for all connections of a
/// shared receive queue.
#[must_use = "dropping a receive queue discards its messages"]
pub struct ReceiveQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    target: Target,
    inbox: Arc<Inbox>,
}

/// Where the chunks are posted.
enum Target {
    Pair(Arc<Pair>),
    Shared(SharedReceiveQueue, Driver),
}

impl QueuePair {
    /// Posts receives into chunks, and returns the queue of their messages. The chunks can be posted before the queue
    /// pair is connected, and should be: the peer may send at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let messages = server.qp.receive_queue(server.chunks(4))?;
    /// client.qp.send_inline(b"hello")?.await?;
    /// let message = messages.recv().await?.expect("a message");
    /// assert_eq!(message.chunk().to_vec()?, b"hello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a chunk cannot be posted: like [`receive`](Self::receive).
    pub fn receive_queue(&self, chunks: impl IntoIterator<Item = Chunk>) -> Result<ReceiveQueue, Error> {
        let queue = ReceiveQueue::new(Target::Pair(Arc::clone(&self.pair)), chunks)?;
        self.pair.link.set_inbox(&queue.inner.inbox);
        Ok(queue)
    }
}

impl Driver {
    /// Posts chunks to a shared receive queue, and returns the queue of the messages of all connections.
    /// [`Message::qp`] has the number of the queue pair that received a message. All queue pairs that use the shared
    /// receive queue must be created with this driver.
    ///
    /// A connection that fails does not end the queue: [`QueuePair::closed`] reports that.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let srq = server.domain.shared_receive_queue(16);
    /// let messages = server.driver.receive_queue(&srq, server.chunks(4))?;
    /// let qp = server.driver.create(server.domain.queue_pair(server.driver.cq()).srq(&srq))?;
    /// # let _ = (qp, messages);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a chunk cannot be posted: like [`SharedReceiveQueue::post_receive`], and if the driver has ended.
    pub fn receive_queue(
        &self,
        srq: &SharedReceiveQueue,
        chunks: impl IntoIterator<Item = Chunk>,
    ) -> Result<ReceiveQueue, Error> {
        ReceiveQueue::new(Target::Shared(srq.clone(), self.clone()), chunks)
    }
}

impl ReceiveQueue {
    fn new(target: Target, chunks: impl IntoIterator<Item = Chunk>) -> Result<Self, Error> {
        let shared = matches!(target, Target::Shared(..));
        let inner = Arc::new_cyclic(|this: &Weak<Inner>| {
            let home: Weak<dyn Home> = Weak::<Inner>::clone(this);
            Inner { target, inbox: Arc::new(Inbox::new(home, shared)) }
        });
        inner.target.driver().table().add_inbox(&inner.inbox)?;
        chunks.into_iter().try_for_each(|chunk| inner.post(chunk))?;
        Ok(Self { inner })
    }

    /// Waits for the next message. Returns `None` if the connection is closed and all of its messages were taken.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let messages = server.qp.receive_queue(server.chunks(4))?;
    /// client.qp.send_inline(b"hello")?.await?;
    /// client.qp.disconnect().await;
    /// while let Some(message) = messages.recv().await? {
    ///     assert_eq!(message.chunk().to_vec()?, b"hello");
    /// }
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect: a message that was not returned stays in the queue.
    ///
    /// # Errors
    /// Returns why the connection failed, after its last message. The next call returns `None`.
    pub async fn recv(&self) -> Result<Option<Message>, Error> {
        self.inner.inbox.recv().await
    }

    /// Adds a chunk for another message. The chunk gets its full length.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let messages = server.qp.receive_queue([])?;
    /// messages.add(server.pool.take().expect("a free chunk"))?;
    /// client.qp.send_inline(b"hello")?.await?;
    /// assert!(messages.recv().await?.is_some());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the chunk cannot be posted. It returns to its pool.
    pub fn add(&self, chunk: Chunk) -> Result<(), Error> {
        self.inner.post(chunk)
    }
}

impl Inner {
    /// Posts a receive into all bytes of a chunk.
    fn post(&self, mut chunk: Chunk) -> Result<(), Error> {
        chunk.set_len(chunk.capacity()).expect("a chunk can have its capacity");
        let list = [chunk.as_sge()];
        let (driver, table) = (self.target.driver(), self.target.driver().table());
        self.inbox.add_posted();
        let waiter = Waiter::Inbox(Arc::clone(&self.inbox));
        let inserted = table.insert(driver.cq(), self.target.queue_pair(), Held::One(chunk), waiter);
        let id = inserted.map_err(|(error, _)| {
            self.inbox.remove_posted();
            error
        })?;
        self.target.post(id, &list).map_err(|error| {
            // If the driver has ended meanwhile, it has told the inbox.
            if let Some((_, Waiter::Inbox(inbox))) = table.remove(id) {
                inbox.remove_posted();
            }
            error.into()
        })
    }
}

impl Target {
    fn driver(&self) -> &Driver {
        match self {
            Self::Pair(pair) => &pair.driver,
            Self::Shared(_, driver) => driver,
        }
    }

    fn queue_pair(&self) -> Option<u32> {
        match self {
            Self::Pair(pair) => Some(pair.native.id()),
            Self::Shared(..) => None,
        }
    }

    fn post(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Pair(pair) => pair.native.post_receive(id, list),
            Self::Shared(srq, _) => srq.post_receive(id, list),
        }
    }
}

impl Home for Inner {
    fn take_back(&self, chunk: Chunk) {
        // Refused if the driver has ended: then the chunk returns to its pool.
        let _ = self.post(chunk);
    }
}

// Not derived: omits the messages.
impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue").field("target", &self.inner.target).finish_non_exhaustive()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair(pair) => pair.fmt(f),
            Self::Shared(srq, _) => srq.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapter;
    use crate::memory::{Access, Buffer, Pool};

    /// Nothing flushes these receives when the adapter stops: neither queue has a connection.
    #[test]
    fn receives_fail_when_the_adapter_stops() {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let test = async {
            let adapter = Adapter::new().unwrap();
            let domain = adapter.protection_domain();
            let driver = Driver::new(adapter.completion_queue(4).unwrap()).unwrap();
            let region = domain.register(Buffer::new(64).unwrap(), Access::all()).unwrap();
            let pool = Pool::new(region, 16);
            let qp = driver.create(domain.queue_pair(driver.cq())).unwrap();
            let posted = qp.receive(pool.take().unwrap()).unwrap();
            let own = qp.receive_queue(pool.take()).unwrap();
            let shared = driver.receive_queue(&domain.shared_receive_queue(1), pool.take()).unwrap();
            let empty = driver.receive_queue(&domain.shared_receive_queue(1), []).unwrap();
            let stopping = ::tokio::spawn(async move {
                adapter.shared.device().events().fail(&"a test stops it");
            });
            assert!(matches!(posted.await.unwrap_err().error, Error::AdapterStopped));
            for queue in [own, shared, empty] {
                assert!(matches!(queue.recv().await, Err(Error::AdapterStopped)));
                assert!(queue.recv().await.unwrap().is_none());
            }
            stopping.await.unwrap();
            assert_eq!(pool.available(), 4);
            assert!(matches!(qp.receive(()).unwrap_err().error, Error::AdapterStopped));
        };
        let within = std::time::Duration::from_secs(30);
        runtime.block_on(async { ::tokio::time::timeout(within, test).await.expect("the requests fail") });
    }
}
