//! Asynchronous queue pairs.

use super::buffers::Buffers;
use super::driver::Driver;
use super::error::Refused;
use super::link::Link;
use super::posted::Posted;
use crate::connection::ConnectOptions;
use crate::queue::{CreateError, QueuePair as Native, QueuePairBuilder, QueuePairInfo, WorkRequest};
use ironwarp_engine::{ConnectError, Established};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::State;
use ironwarp_wire::RemoteAddr;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// A queue pair with asynchronous methods. Clones are handles to the same queue pair.
///
/// A method that posts a request does so when it is called, so requests are sent in the order of the calls. It returns
/// a future of the completion, which owns the buffers of the request. Dropping that future does not cancel the request.
///
/// Dropping the last handle and the [receive queue](Self::receive_queue) disconnects the queue pair. Posted requests
/// are still sent, in the background.
#[derive(Clone)]
#[must_use = "dropping a queue pair disconnects it"]
pub struct QueuePair {
    pub(super) pair: Arc<Pair>,
}

/// What the handles of a queue pair share.
pub(super) struct Pair {
    pub(super) native: Native,
    pub(super) driver: Driver,
    pub(super) link: Arc<Link>,
}

impl Driver {
    /// Creates a queue pair whose completions this driver handles. Its completion queues must be that of the driver.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let qp = client.driver.create(client.domain.queue_pair(client.driver.cq()).send_depth(16))?;
    /// assert_eq!(qp.query().send_depth, 16);
    /// let other = client.adapter.completion_queue(16)?;
    /// assert!(client.driver.create(client.domain.queue_pair(&other)).is_err());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`CreateError::OtherCompletionQueue`] if the queue pair would use other completion queues. Otherwise
    /// fails like [`QueuePairBuilder::create`].
    pub fn create(&self, builder: QueuePairBuilder) -> Result<QueuePair, CreateError> {
        if builder.completion_queues().iter().any(|cq| !Arc::ptr_eq(&cq.inner, &self.cq().inner)) {
            return Err(CreateError::OtherCompletionQueue);
        }
        let mut link = None;
        let native = builder.create_with(|events| {
            let created = Arc::new(Link::new(self.table(), events));
            link = Some(Arc::clone(&created));
            Some(created)
        })?;
        let link = link.expect("`create_with` calls the closure");
        link.set_pair(native.inner());
        Ok(QueuePair { pair: Arc::new(Pair { native, driver: self.clone(), link }) })
    }
}

impl QueuePair {
    /// Returns the queue pair number, as it appears in completions and events.
    pub fn id(&self) -> u32 {
        self.pair.native.id()
    }

    /// Returns attributes and state of the queue pair (requirement N10).
    pub fn query(&self) -> QueuePairInfo {
        self.pair.native.query()
    }

    /// Returns why the connection ended, or `None` if it has not.
    pub fn error(&self) -> Option<QpError> {
        self.pair.native.error()
    }

    /// Returns the driver that handles the completions.
    pub fn driver(&self) -> &Driver {
        &self.pair.driver
    }

    // --- Connecting ---

    /// Connects to a listener, and waits until the connection is established: for [`ConnectOptions::timeout`], but at
    /// most for [`Config::startup`](crate::Config::startup). The timeout needs a runtime with `enable_time`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// use ironwarp::tokio::Listener;
    /// use ironwarp::prelude::*;
    ///
    /// let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    /// let far = server.driver.create(server.domain.queue_pair(server.driver.cq()))?;
    /// # let to = listener.local_addr()?;
    /// let accepting = tokio::spawn(async move {
    ///     listener.accept().await?.accept(&far, &AcceptOptions::new().private_data(b"welcome")).await?;
    ///     # let _ = &listener;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(far)
    /// });
    ///
    /// let qp = client.driver.create(client.domain.queue_pair(client.driver.cq()))?;
    /// let established = qp.connect(to, &ConnectOptions::new()).await?;
    /// assert_eq!(&established.private_data[..], b"welcome");
    /// # accepting.await?.unwrap();
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the attempt goes on: [`connected`](Self::connected) waits for it,
    /// and dropping the queue pair ends it.
    ///
    /// # Errors
    /// Fails like [`QueuePair::connect`](crate::queue::QueuePair::connect).
    pub async fn connect(
        &self,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Established, ConnectError> {
        self.start(|native| native.start_connect(to, options))?;
        match options.timeout {
            None => self.connected().await,
            Some(timeout) => match ::tokio::time::timeout(timeout, self.connected()).await {
                Ok(outcome) => outcome,
                Err(_) => Err(ConnectError::TimedOut),
            },
        }
    }

    /// Starts to connect by calling `start`, and records that there may be a connection to wait for.
    pub(super) fn start(
        &self,
        start: impl FnOnce(&Native) -> Result<(), ConnectError>,
    ) -> Result<(), ConnectError> {
        let (table, number) = (self.pair.driver.table(), self.id());
        let is_first = table.open(number).map_err(io::Error::other)?;
        start(&self.pair.native).inspect_err(|_| {
            if is_first {
                table.close(number);
            }
        })
    }

    /// Waits until the queue pair is connected, and returns the parameters of the connection. Returns at once if it was
    /// connected before; waits forever if nothing connects it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// assert_eq!(client.qp.connected().await?.peer, server.qp.connected().await?.local);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// # Errors
    /// Returns why the queue pair failed to connect.
    pub async fn connected(&self) -> Result<Established, ConnectError> {
        self.pair.link.outcome().await
    }

    /// Closes the connection after sending all posted requests, and waits until both directions are closed. Incoming
    /// messages are still received until the peer closes the other direction. If the peer does not, the connection is
    /// aborted after [`Config::close`](crate::Config::close). Returns at once if the queue pair was never connected.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// drop(client.qp.send_inline(b"the last message")?); // it is sent before the connection is closed
    /// # let messages = server.qp.receive_queue(server.chunks(1))?;
    /// client.qp.disconnect().await;
    /// # assert_eq!(messages.recv().await?.expect("a message").chunk().to_vec()?, b"the last message");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the connection is closed all the same, in the background.
    pub async fn disconnect(&self) {
        self.pair.native.disconnect();
        if self.pair.driver.table().is_open(self.id()) {
            self.pair.link.closed().await;
        }
    }

    /// Waits until both directions of the connection are closed, or the queue pair failed to connect.
    /// [`error`](Self::error) tells why. Waits forever if nothing connects the queue pair.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// client.qp.disconnect().await;
    /// server.qp.closed().await;
    /// assert_eq!(server.qp.error().expect("it has ended").to_string(), "the peer closed the connection");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn closed(&self) {
        self.pair.link.closed().await;
    }

    // --- Requests ---

    /// Sends the buffers to the peer's next receive, as one message.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let received = server.qp.receive(server.chunks(1))?;
    /// let (completion, chunk) = client.qp.send(client.chunk_of(b"hello")?)?.await?;
    /// # assert_eq!(completion.qp, client.qp.id());
    /// assert_eq!(received.await?.0.byte_len, 5);
    ///
    /// // Several chunks are one message.
    /// # let received = server.qp.receive(server.chunks(1))?;
    /// client.qp.send(vec![chunk, client.chunk_of(b" again")?])?.await?;
    /// assert_eq!(received.await?.0.byte_len, 11);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`QueuePair::post_send`](crate::queue::QueuePair::post_send), and if the driver has ended.
    pub fn send<B: Buffers>(&self, buffers: B) -> Result<Posted<B>, Refused<B>> {
        self.post_with(buffers, |id, list| WorkRequest::send(id, list).into())
    }

    /// Sends `bytes` to the peer's next receive. The bytes are copied now.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let received = server.qp.receive(server.chunks(1))?;
    /// client.qp.send_inline(b"hello")?.await?;
    /// assert_eq!(received.await?.0.byte_len, 5);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`send`](Self::send).
    pub fn send_inline(&self, bytes: &[u8]) -> Result<Posted<()>, Refused<()>> {
        self.post_with((), |id, _| WorkRequest::send_inline(id, bytes).into())
    }

    /// Writes the buffers to a remote address (RDMA Write).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let (_, chunk) = client.qp.write(client.chunk_of(b"hello")?, server.region.remote_addr(100)?)?.await?;
    /// let (_, chunk) = client.qp.read(chunk, server.region.remote_addr(100)?)?.await?;
    /// assert_eq!(chunk.to_vec()?, b"hello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`send`](Self::send).
    pub fn write<B: Buffers>(&self, buffers: B, to: RemoteAddr) -> Result<Posted<B>, Refused<B>> {
        self.post_with(buffers, |id, list| WorkRequest::write(id, list, to))
    }

    /// Reads from a remote address into the buffers, and fills them (RDMA Read).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// server.region.write(100, b"hello")?;
    /// let (_, chunk) = client.qp.read(client.chunk_of(&[0; 5])?, server.region.remote_addr(100)?)?.await?;
    /// assert_eq!(chunk.to_vec()?, b"hello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`send`](Self::send).
    pub fn read<B: Buffers>(&self, buffers: B, from: RemoteAddr) -> Result<Posted<B>, Refused<B>> {
        self.post_with(buffers, |id, list| WorkRequest::read(id, list, from))
    }

    /// Posts any request, with the buffers that its scatter/gather list refers to: the request keeps them until it
    /// completes. The driver chooses the identifier, and the request always has a completion:
    /// [`unsignaled`](WorkRequest::unsignaled) has no effect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// use ironwarp::queue::WorkRequest;
    ///
    /// server.region.write(0, &40_u64.to_ne_bytes())?;
    /// let result = client.chunk_of(&[0; 8])?;
    /// let request = WorkRequest::fetch_add(0, result.as_sge(), server.region.remote_addr(0)?, 2);
    /// let (_, result) = client.qp.post(request, result)?.await?;
    /// assert_eq!(result.to_vec()?, 40_u64.to_ne_bytes());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`send`](Self::send).
    pub fn post<B: Buffers>(
        &self,
        request: impl Into<WorkRequest>,
        buffers: B,
    ) -> Result<Posted<B>, Refused<B>> {
        let request = request.into();
        self.post_with(buffers, |id, _| request.with_id(id))
    }

    /// Posts a receive into the buffers, and fills them with the next message. The completion has the length of the
    /// message.
    ///
    /// If the future is dropped, the receive keeps its place in the queue, and its message is lost. Use a
    /// [receive queue](Self::receive_queue) instead, if the future may be dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// let received = server.qp.receive(server.pool.take().expect("a free chunk"))?;
    /// client.qp.send_inline(b"hello")?.await?;
    /// let (completion, mut chunk) = received.await?;
    /// chunk.set_len(completion.byte_len as usize)?;
    /// assert_eq!(chunk.to_vec()?, b"hello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`QueuePair::post_receive`](crate::queue::QueuePair::post_receive), and if the driver has ended.
    pub fn receive<B: Buffers>(&self, buffers: B) -> Result<Posted<B>, Refused<B>> {
        self.pair.driver.post(Some(self.id()), buffers, |id, list| self.pair.native.post_receive(id, list))
    }

    /// Posts a request of the send queue, which `request` creates from the identifier and the scatter/gather list.
    fn post_with<B: Buffers>(
        &self,
        buffers: B,
        request: impl FnOnce(u64, &[ironwarp_rnic::queue::Sge]) -> WorkRequest,
    ) -> Result<Posted<B>, Refused<B>> {
        self.pair
            .driver
            .post(Some(self.id()), buffers, |id, list| self.pair.native.post_send(request(id, list)))
    }
}

impl Drop for Pair {
    /// The native queue pair disconnects when it is dropped. Without a connection, nothing would flush its receives.
    fn drop(&mut self) {
        if !self.driver.table().is_open(self.native.id()) {
            let _ = self.native.set_state(State::Error);
        }
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.native.fmt(f)
    }
}

// Not derived: prints what the native queue pair prints.
impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pair.fmt(f)
    }
}
