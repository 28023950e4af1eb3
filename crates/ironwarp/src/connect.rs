//! What a connection is to be like: options of both ends. After this: `queue_pair.rs` connects, `listener.rs` accepts.

use ironwarp_engine::ConnectOptions as Inner;
use ironwarp_rnic::connect::Setup;
use std::net::SocketAddr;
use std::time::Duration;

/// What the end that connects asks for.
///
/// ```
/// use ironwarp::{ConnectOptions, Setup};
/// use std::time::Duration;
///
/// let options = ConnectOptions::new()
///     .private_data(b"hello")
///     .from_addr("127.0.0.1:0".parse()?)
///     .ird(0) // the peer shall not read here
///     .ord(4)
///     .setup(Setup::PeerToPeer)
///     .timeout(Duration::from_secs(2));
/// # let _ = options;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub(crate) inner: Inner,
    pub(crate) timeout: Option<Duration>,
}

/// What the end that accepts asks for.
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
    /// The adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// For the peer's program. Linux siw and Chelsio's driver take up to 252 bytes, the RFC allows 508.
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.inner.private_data = bytes.to_vec();
        self
    }

    /// The address to connect from; port 0 lets the kernel choose.
    #[must_use]
    pub fn from_addr(mut self, addr: SocketAddr) -> Self {
        self.inner.from = Some(addr);
        self
    }

    /// How many of the peer's Reads to hold at once (IRD).
    #[must_use]
    pub fn ird(mut self, ird: u16) -> Self {
        self.inner.ird = Some(ird);
        self
    }

    /// How many Reads to have outstanding at once (ORD).
    #[must_use]
    pub fn ord(mut self, ord: u16) -> Self {
        self.inner.ord = Some(ord);
        self
    }

    /// The way to set the connection up. With the default, either program may send first.
    #[must_use]
    pub fn setup(mut self, setup: Setup) -> Self {
        self.inner.way = setup;
        self
    }

    /// How long [`QueuePair::connect`](crate::QueuePair::connect) waits, if less than
    /// [`Config::startup`](crate::Config::startup) allows.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl AcceptOptions {
    /// The adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// For the peer's program.
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self
    }

    /// How many of the peer's Reads to hold at once (IRD).
    #[must_use]
    pub fn ird(mut self, ird: u16) -> Self {
        self.ird = Some(ird);
        self
    }

    /// How many Reads to have outstanding at once (ORD).
    #[must_use]
    pub fn ord(mut self, ord: u16) -> Self {
        self.ord = Some(ord);
        self
    }
}
