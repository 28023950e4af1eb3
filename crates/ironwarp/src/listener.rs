//! Listeners: peers that want to connect. After this: a queue pair that is connected to one.

use crate::adapter::Shared;
use crate::connect::AcceptOptions;
use crate::queue_pair::QueuePair;
use ironwarp_engine::{ConnectError, Established, Incoming as InnerIncoming, Listener as Inner};
use ironwarp_rnic::connect::Depths;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A port at which peers connect. Dropped, it is closed; connections that were accepted stay.
///
/// Up to 1024 peers wait to be accepted or rejected, fewer if the process may not open many files. For each one more, the adapter rejects
/// the one that has waited longest, of the address (on the same host: the user) that has the most waiting. A peer that was not answered
/// within six times [`Config::startup`](crate::Config::startup) is rejected as well; accepting it then fails.
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
/// client.connect_start(listener.local_addr()?, &ConnectOptions::new().private_data(b"hello"))?;
///
/// let incoming = listener.accept(Duration::from_secs(5)).expect("a peer connects");
/// assert_eq!(incoming.private_data(), b"hello");
/// incoming.accept(&server, &AcceptOptions::new().private_data(b"welcome"))?;
///
/// let established = client.wait_connected(Duration::from_secs(5))?;
/// assert_eq!(&established.private_data[..], b"welcome");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it is closed"]
pub struct Listener {
    shared: Arc<Shared>,
    inner: Inner,
}

/// A peer that wants to connect. Dropped, it is rejected.
#[must_use = "dropped, the peer is rejected"]
pub struct Incoming {
    shared: Arc<Shared>,
    inner: InnerIncoming,
}

impl Listener {
    pub(crate) fn new(shared: &Arc<Shared>, inner: Inner) -> Self {
        Self { shared: Arc::clone(shared), inner }
    }

    /// Where it listens.
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

    /// Waits for the next peer, in order of arrival. `None` if `timeout` is over first; a timeout of `None` waits as long
    /// as it takes, one of zero does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(Duration::from_secs(5)).expect("a peer connects");
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
    /// Readable exactly while [`accept`](Self::accept) has a peer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.incoming().as_fd()
    }
}

impl AsRawFd for Listener {
    /// The same, for what takes it in this form: tokio's `AsyncFd`, mio's `SourceFd`. It does not change, and is open as long
    /// as this lives.
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
    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer()
    }

    /// The address at which it connects.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local()
    }

    /// What the peer's program sent along.
    pub fn private_data(&self) -> &[u8] {
        self.inner.private_data()
    }

    /// What the peer said of its IRD and ORD.
    pub fn depths(&self) -> Depths {
        self.inner.depths()
    }

    /// Connects a queue pair to the peer, and waits until that is done; [`Config::startup`](crate::Config::startup)
    /// bounds it. Post the first receives before this: the peer may send at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(None).expect("it waits for ever");
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
        self.accept_start(pair, options)?;
        pair.wait_connected(pair.patience())
    }

    /// Begins to connect a queue pair to the peer, and does not wait. [`QueuePair::wait_connected`] tells how it went.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let (client, qp) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
    /// let incoming = listener.accept(None).expect("it waits for ever");
    /// incoming.accept_start(&qp, &AcceptOptions::new())?;
    /// // Here other peers can be served.
    /// qp.wait_connected(Duration::from_secs(5))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn accept_start(self, pair: &QueuePair, options: &AcceptOptions) -> Result<(), ConnectError> {
        if !Arc::ptr_eq(&self.shared, pair.shared()) {
            let why = "the queue pair is of another adapter than the listener: create it with the listener's";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        pair.begin()?;
        let terms = self.shared.engine.terms(options.ird, options.ord);
        self.inner.accept(pair.inner(), terms, &options.private_data)
    }

    /// Turns the peer away. It sees `private_data` in its [`ConnectError::Rejected`]: a reason in words is best.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Adapter, ConnectError, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let client = adapter.protection_domain().queue_pair(&adapter.completion_queue(64)?).create()?;
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # client.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
    /// # let incoming = listener.accept(Duration::from_secs(5)).expect("a peer connects");
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
