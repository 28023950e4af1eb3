//! The passive side of connecting: listeners, and the connection requests that arrive at them.

use super::options::AcceptOptions;
use crate::adapter::Adapter;
use crate::queue::QueuePair;
use crate::shared::Shared;
use crate::wait::WaitError;
use ironwarp_engine::{ConnectError, Established, Incoming as InnerIncoming, Listener as Inner};
use ironwarp_rnic::connect::Depths;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Listens for connection requests of peers. Dropping the listener closes its port; accepted connections stay.
///
/// Up to 1024 requests wait to be accepted or rejected, fewer if the process may open few files. When another request
/// arrives, the adapter finds the address with the most waiting requests (on the same host: the user), and rejects the
/// oldest of them. The adapter also rejects a request that the program does not answer within six times
/// [`Config::startup`](crate::Config::startup); accepting such a request fails.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::prelude::*;
/// use std::time::Duration;
///
/// let adapter = Adapter::new()?;
/// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let (client, server) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
///
/// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
/// client.start_connect(listener.local_addr()?, &ConnectOptions::new().private_data(b"hello"))?;
///
/// let incoming = listener.accept(Duration::from_secs(5))?;
/// assert_eq!(incoming.private_data(), b"hello");
/// incoming.accept(&server, &AcceptOptions::new().private_data(b"welcome"))?;
///
/// let established = client.wait_connected(Duration::from_secs(5))?;
/// assert_eq!(&established.private_data[..], b"welcome");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a listener closes its port"]
pub struct Listener {
    shared: Arc<Shared>,
    inner: Inner,
}

/// A connection request of a peer. Dropping this value rejects the request.
#[must_use = "dropping a request rejects it"]
pub struct Incoming {
    shared: Arc<Shared>,
    inner: InnerIncoming,
}

impl Listener {
    /// Wraps a listener that was taken over from another process.
    pub(crate) fn restored(shared: &Arc<Shared>, inner: Inner) -> Self {
        Self { shared: Arc::clone(shared), inner }
    }

    /// Returns the address at which the listener accepts connections.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// println!("listening at {}", listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel does not return the address of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Waits for a connection request, and returns the oldest. A timeout of `None` waits forever; a timeout of zero does
    /// not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(Duration::from_secs(5))?;
    /// println!("{} wants to connect", incoming.peer_addr());
    /// assert!(listener.accept(Duration::ZERO).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if `timeout` expires, and [`WaitError::Stopped`] if the adapter was
    /// [shut down](crate::Adapter::shutdown).
    pub fn accept(&self, timeout: impl Into<Option<Duration>>) -> Result<Incoming, WaitError> {
        let inner = self.inner.incoming().wait(timeout.into());
        let inner = inner.ok_or_else(|| WaitError::no_event(&self.shared.engine))?;
        Ok(Incoming { shared: Arc::clone(&self.shared), inner })
    }
}

impl AsFd for Listener {
    /// Returns a descriptor that is readable while [`accept`](Self::accept) has a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.incoming().as_fd()
    }
}

impl AsRawFd for Listener {
    /// Returns the descriptor of [`as_fd`](Self::as_fd) as a number, which tokio's `AsyncFd` and mio's `SourceFd`
    /// require. The descriptor stays open, and its number stays the same, as long as the listener lives.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}

impl Incoming {
    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer()
    }

    /// Returns the local address that the peer connected to.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local()
    }

    /// Returns the private data that the remote program sent with its request.
    pub fn private_data(&self) -> &[u8] {
        self.inner.private_data()
    }

    /// Returns the IRD and ORD that the peer requested: the peer's limits on outstanding Reads.
    pub fn depths(&self) -> Depths {
        self.inner.depths()
    }

    /// Accepts the request: connects a queue pair to the peer, and waits until the connection is established. Post the
    /// first receives before, because the peer may send at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(None)?;
    /// qp.post_receive(1, &[])?;
    /// let established = incoming.accept(&qp, &AcceptOptions::new().private_data(b"welcome"))?;
    /// assert_eq!(established.local, listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`start_accept`](Self::start_accept). Also fails if the peer has closed the connection, or does not
    /// complete its startup within [`Config::startup`](crate::Config::startup).
    pub fn accept(self, pair: &QueuePair, options: &AcceptOptions) -> Result<Established, ConnectError> {
        self.start_accept(pair, options)?;
        pair.wait_connected(pair.startup_timeout())
    }

    /// Starts to accept the request: starts to connect a queue pair to the peer, and returns without waiting.
    /// [`QueuePair::wait_connected`] and the [events](crate::queue::QueuePairBuilder::events) report the result.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(None)?;
    /// incoming.start_accept(&qp, &AcceptOptions::new())?;
    /// // Serve other peers in the meantime.
    /// qp.wait_connected(Duration::from_secs(5))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue pair belongs to another adapter, if it is or was connected, or if the private data or a depth
    /// of `options` is invalid. The request is then rejected.
    pub fn start_accept(self, pair: &QueuePair, options: &AcceptOptions) -> Result<(), ConnectError> {
        if !Arc::ptr_eq(&self.shared, pair.shared()) {
            let error = "the queue pair and the listener belong to different adapters";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error).into());
        }
        pair.claim()?;
        let terms = self.shared.engine.terms(options.ird, options.ord);
        let incoming = self.inner.traffic_class(options.traffic_class);
        incoming.accept(pair.inner(), terms, &options.private_data)
    }

    /// Rejects the request. The remote program finds `private_data` in its [`ConnectError::Rejected`], whose message
    /// shows the data if it is text.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::connection::ConnectError;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let client = adapter.protection_domain().queue_pair(&adapter.completion_queue(64)?).create()?;
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// # let incoming = listener.accept(Duration::from_secs(5))?;
    /// incoming.reject(b"not today")?;
    ///
    /// let error = client.wait_connected(Duration::from_secs(5)).unwrap_err();
    /// assert_eq!(error.to_string(), "the peer rejected the connection: \"not today\"");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the private data is too long. The request is then rejected without private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.inner.reject(private_data)
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer_addr", &self.peer_addr())
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

impl Adapter {
    /// Listens at a TCP address. With port 0 the kernel chooses the port, and [`Listener::local_addr`] returns it. At a
    /// wildcard address, peers can connect to all addresses of the adapter's [device](crate::Adapter::device).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the address does not belong to this host and to the adapter's device, if the port is in use, or if the
    /// kernel refuses a resource.
    pub fn listen(&self, at: SocketAddr) -> io::Result<Listener> {
        Ok(Listener { shared: Arc::clone(&self.shared), inner: self.shared.engine.listen(at)? })
    }
}
