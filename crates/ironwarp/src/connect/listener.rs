//! Listeners and incoming connection requests.

use super::options::AcceptOptions;
use crate::adapter::Adapter;
use crate::queue::QueuePair;
use crate::shared::Shared;
use ironwarp_engine::{ConnectError, Established, Incoming as InnerIncoming, Listener as Inner};
use ironwarp_rnic::connect::Depths;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Listens for connection requests of peers. Dropping it closes the port; accepted connections stay.
///
/// Up to 1024 requests wait to be accepted or rejected, fewer if the process may open few files. When another request
/// arrives, the adapter rejects the oldest request of the address (on the same host: the user) with the most requests.
/// It also rejects requests that the program does not answer within six times
/// [`Config::startup`](crate::Config::startup); accepting such a request fails.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
/// use std::time::Duration;
///
/// let adapter = Adapter::new()?;
/// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let (client, server) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
///
/// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
/// client.start_connect(listener.local_addr()?, &ConnectOptions::new().private_data(b"hello"))?;
///
/// let incoming = listener.accept(Duration::from_secs(5)).expect("a request arrives");
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

/// A connection request of a peer. Dropping it rejects the request.
#[must_use = "dropping a request rejects it"]
pub struct Incoming {
    shared: Arc<Shared>,
    inner: InnerIncoming,
}

impl Listener {
    /// Returns the address at which it listens.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// println!("listening at {}", listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Waits for the next connection request, in order of arrival. Returns `None` if `timeout` expires. A timeout of
    /// `None` waits forever, one of zero does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(Duration::from_secs(5)).expect("a request arrives");
    /// println!("{} wants to connect", incoming.peer_addr());
    /// assert!(listener.accept(Duration::ZERO).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn accept(&self, timeout: impl Into<Option<Duration>>) -> Option<Incoming> {
        let inner = self.inner.incoming().wait(timeout.into())?;
        Some(Incoming { shared: Arc::clone(&self.shared), inner })
    }
}

impl AsFd for Listener {
    /// Readable while [`accept`](Self::accept) has a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.incoming().as_fd()
    }
}

impl AsRawFd for Listener {
    /// Returns the descriptor in the form that tokio's `AsyncFd` and mio's `SourceFd` take. It stays open and the same
    /// as long as the listener lives.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

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

    /// Returns the local address that the peer connects to.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local()
    }

    /// Returns the private data of the request.
    pub fn private_data(&self) -> &[u8] {
        self.inner.private_data()
    }

    /// Returns the IRD and ORD that the peer requested.
    pub fn depths(&self) -> Depths {
        self.inner.depths()
    }

    /// Accepts the request: connects a queue pair to the peer, and waits until it is connected.
    /// [`Config::startup`](crate::Config::startup) limits the time. Post the first receives before, because the peer
    /// may send at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(None).expect("waits forever");
    /// qp.post_receive(1, &[])?;
    /// let established = incoming.accept(&qp, &AcceptOptions::new().private_data(b"welcome"))?;
    /// assert_eq!(established.local, listener.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn accept(
        self,
        pair: &QueuePair,
        options: &AcceptOptions,
    ) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.start_accept(pair, options)?;
        pair.wait_connected(pair.startup_timeout())
    }

    /// Starts to connect a queue pair to the peer, without waiting. [`QueuePair::wait_connected`] returns the result.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(None).expect("waits forever");
    /// incoming.start_accept(&qp, &AcceptOptions::new())?;
    /// // Serve other peers in the meantime.
    /// qp.wait_connected(Duration::from_secs(5))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_accept(self, pair: &QueuePair, options: &AcceptOptions) -> Result<(), ConnectError> {
        if !Arc::ptr_eq(&self.shared, pair.shared()) {
            let why = "the queue pair and the listener belong to different adapters";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        pair.claim()?;
        let terms = self.shared.engine.terms(options.ird, options.ord);
        self.inner.accept(pair.inner(), terms, &options.private_data)
    }

    /// Rejects the request. The peer finds `private_data` in its [`ConnectError::Rejected`]; readable text is best.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Adapter, ConnectError, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let client = adapter.protection_domain().queue_pair(&adapter.completion_queue(64)?).create()?;
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// # let incoming = listener.accept(Duration::from_secs(5)).expect("a request arrives");
    /// incoming.reject(b"not today")?;
    ///
    /// let error = client.wait_connected(Duration::from_secs(5)).unwrap_err();
    /// assert_eq!(error.to_string(), "the peer rejected the connection: \"not today\"");
    /// # Ok(())
    /// # }
    /// ```
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.inner.reject(private_data)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer_addr", &self.peer_addr())
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

impl Adapter {
    /// Listens at an address. With port 0 the kernel chooses the port, and [`Listener::local_addr`] returns it.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen(&self, at: SocketAddr) -> io::Result<Listener> {
        Ok(Listener { shared: Arc::clone(&self.shared), inner: self.shared.engine.listen(at)? })
    }
}
