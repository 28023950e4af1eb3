//! Options of connections.

use ironwarp_engine::ConnectOptions as Inner;
use ironwarp_rnic::connect::MpaMode;
use std::net::SocketAddr;
use std::time::Duration;

/// Options for [`QueuePair::connect`](crate::QueuePair::connect).
///
/// ```
/// use ironwarp::{ConnectOptions, MpaMode};
/// use std::time::Duration;
///
/// let options = ConnectOptions::new()
///     .private_data(b"hello")
///     .from_addr("127.0.0.1:0".parse()?)
///     .ird(0) // the peer may not read
///     .ord(4)
///     .setup(MpaMode::PeerToPeer)
///     .timeout(Duration::from_secs(2));
/// # let _ = options;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub(crate) inner: Inner,
    pub(crate) timeout: Option<Duration>,
}

/// Options for [`Incoming::accept`](crate::Incoming::accept).
///
/// ```
/// let options = ironwarp::AcceptOptions::new().private_data(b"welcome").ird(16).ord(16);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct AcceptOptions {
    pub(crate) private_data: Vec<u8>,
    pub(crate) ird: Option<u16>,
    pub(crate) ord: Option<u16>,
}

impl ConnectOptions {
    /// Creates options with the adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the private data for the remote program. Linux siw and Chelsio's driver accept up to 252 bytes, the RFC
    /// allows 508.
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.inner.private_data = bytes.to_vec();
        self
    }

    /// Sets the local address to connect from. With port 0 the kernel chooses the port.
    #[must_use]
    pub fn from_addr(mut self, addr: SocketAddr) -> Self {
        self.inner.from = Some(addr);
        self
    }

    /// Sets the maximum number of incoming Reads outstanding (IRD). Defaults to the adapter's setting.
    #[must_use]
    pub fn ird(mut self, ird: u16) -> Self {
        self.inner.ird = Some(ird);
        self
    }

    /// Sets the maximum number of outgoing Reads outstanding (ORD). Defaults to the adapter's setting.
    #[must_use]
    pub fn ord(mut self, ord: u16) -> Self {
        self.inner.ord = Some(ord);
        self
    }

    /// Sets the MPA mode. With the default, either program may send first.
    #[must_use]
    pub fn setup(mut self, setup: MpaMode) -> Self {
        self.inner.mode = setup;
        self
    }

    /// Sets how long [`QueuePair::connect`](crate::QueuePair::connect) waits, if less than
    /// [`Config::startup`](crate::Config::startup).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl AcceptOptions {
    /// Creates options with the adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the private data for the remote program.
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self
    }

    /// Sets the maximum number of incoming Reads outstanding (IRD). Defaults to the adapter's setting.
    #[must_use]
    pub fn ird(mut self, ird: u16) -> Self {
        self.ird = Some(ird);
        self
    }

    /// Sets the maximum number of outgoing Reads outstanding (ORD). Defaults to the adapter's setting.
    #[must_use]
    pub fn ord(mut self, ord: u16) -> Self {
        self.ord = Some(ord);
        self
    }
}
