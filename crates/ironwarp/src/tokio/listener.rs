//! Asynchronous listeners.

use super::queue_pair::QueuePair;
use crate::connection::{AcceptOptions, Incoming as NativeIncoming, Listener as Native};
use ::tokio::io::unix::AsyncFd;
use ironwarp_engine::{ConnectError, Established};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

/// A listener with asynchronous methods. Dropping it closes its port; accepted connections stay.
#[must_use = "dropping a listener closes its port"]
pub struct Listener {
    inner: AsyncFd<Native>,
}

/// A connection request of a peer, which dereferences to the [native](crate::connection::Incoming) one. Dropping it
/// rejects the request.
#[derive(Debug)]
#[must_use = "dropping a request rejects it"]
pub struct Incoming {
    inner: NativeIncoming,
}

impl Listener {
    /// Registers a listener with the current runtime.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// use ironwarp::tokio::Listener;
    ///
    /// let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the descriptor of the listener cannot be registered.
    ///
    /// # Panics
    /// Panics outside of a runtime, and if the runtime was built without `enable_io`.
    pub fn new(listener: Native) -> io::Result<Self> {
        #[allow(deprecated, reason = "its replacement in new versions is unsafe, and does the same")]
        let inner = AsyncFd::new(listener)?;
        Ok(Self { inner })
    }

    /// Returns the address at which the listener accepts connections.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// # use ironwarp::tokio::Listener;
    /// # let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    /// println!("listening at {}", listener.local_addr()?);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel does not return the address of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.get_ref().local_addr()
    }

    /// Waits for a connection request, and returns the oldest.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// # use ironwarp::tokio::Listener;
    /// # use ironwarp::prelude::*;
    /// # let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    /// # let (near, to) = (client.driver.create(client.domain.queue_pair(client.driver.cq()))?, listener.local_addr()?);
    /// # let connecting = tokio::spawn(async move { near.connect(to, &ConnectOptions::new()).await.map(|_| near) });
    /// let incoming = listener.accept().await?;
    /// println!("{} wants to connect", incoming.peer_addr());
    /// # incoming.reject(b"")?;
    /// # assert!(connecting.await?.is_err());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect: a request that was not returned stays in the queue.
    ///
    /// # Errors
    /// Fails if the runtime shuts down.
    pub async fn accept(&self) -> io::Result<Incoming> {
        loop {
            if let Ok(inner) = self.inner.get_ref().accept(Duration::ZERO) {
                return Ok(Incoming { inner });
            }
            // The next turn looks for requests that arrived before this was cleared.
            self.inner.readable().await?.clear_ready();
        }
    }
}

impl Incoming {
    /// Accepts the request: connects a queue pair to the peer, and waits until the connection is established. Post the
    /// first receives before, because the peer may send at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// # use ironwarp::tokio::Listener;
    /// # use ironwarp::prelude::*;
    /// # let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    /// # let (near, to) = (client.driver.create(client.domain.queue_pair(client.driver.cq()))?, listener.local_addr()?);
    /// # let connecting = tokio::spawn(async move { near.connect(to, &ConnectOptions::new()).await.map(|_| near) });
    /// let qp = server.driver.create(server.domain.queue_pair(server.driver.cq()))?;
    /// let messages = qp.receive_queue(server.chunks(4))?;
    /// listener.accept().await?.accept(&qp, &AcceptOptions::new()).await?;
    /// # connecting.await??.send_inline(b"hello")?.await?;
    /// # assert!(messages.recv().await?.is_some());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped before it was polled, the request is rejected. If it is dropped later, the connection
    /// is established in the background: [`QueuePair::connected`] waits for it.
    ///
    /// # Errors
    /// Fails like [`Incoming::accept`](crate::connection::Incoming::accept).
    pub async fn accept(
        self,
        pair: &QueuePair,
        options: &AcceptOptions,
    ) -> Result<Established, ConnectError> {
        pair.start(|native| self.inner.start_accept(native, options))?;
        pair.connected().await
    }

    /// Rejects the request, like [`Incoming::reject`](crate::connection::Incoming::reject).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// # use ironwarp::tokio::Listener;
    /// # use ironwarp::prelude::*;
    /// # let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    /// # let (near, to) = (client.driver.create(client.domain.queue_pair(client.driver.cq()))?, listener.local_addr()?);
    /// # let connecting = tokio::spawn(async move { near.connect(to, &ConnectOptions::new()).await.map(|_| near) });
    /// listener.accept().await?.reject(b"not today")?;
    /// let error = connecting.await?.unwrap_err();
    /// assert_eq!(error.to_string(), "the peer rejected the connection: \"not today\"");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the private data is too long. The request is then rejected without private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.inner.reject(private_data)
    }
}

impl Deref for Incoming {
    type Target = NativeIncoming;

    fn deref(&self) -> &NativeIncoming {
        &self.inner
    }
}

// Not derived: prints what the native listener prints.
impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.get_ref().fmt(f)
    }
}
