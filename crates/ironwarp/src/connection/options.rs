//! Options of connections: for connecting, for accepting, and for connecting manually.

use ironwarp_engine::gid::Gid;
use ironwarp_engine::{BringUpOptions as InnerBringUp, ConnectOptions as InnerConnect, Local};
use ironwarp_rnic::connect::MpaMode;
use std::net::SocketAddr;
use std::time::Duration;

/// Options for [`QueuePair::connect`](crate::queue::QueuePair::connect) and
/// [`QueuePair::start_connect`](crate::queue::QueuePair::start_connect).
///
/// ```
/// use ironwarp::connection::{ConnectOptions, MpaMode};
/// use std::time::Duration;
///
/// let options = ConnectOptions::new()
///     .private_data(b"hello")
///     .from_addr("127.0.0.1:0".parse()?)
///     .ird(0) // the peer may not read
///     .ord(4)
///     .mpa_mode(MpaMode::PeerToPeer)
///     .traffic_class(0xb8) // expedited forwarding
///     .timeout(Duration::from_secs(2));
/// # let _ = options;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub(crate) inner: InnerConnect,
    /// How long `connect` waits. `None` waits as long as a startup can take.
    pub(crate) timeout: Option<Duration>,
}

/// Options for [`Incoming::accept`](crate::connection::Incoming::accept) and
/// [`Incoming::start_accept`](crate::connection::Incoming::start_accept).
///
/// ```
/// let options = ironwarp::connection::AcceptOptions::new().private_data(b"welcome").ird(16).ord(16).traffic_class(0xb8);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct AcceptOptions {
    /// Private data for the remote program.
    pub(crate) private_data: Vec<u8>,
    /// Maximum number of incoming Reads outstanding. `None` selects the adapter's setting.
    pub(crate) ird: Option<u16>,
    /// Maximum number of outgoing Reads outstanding. `None` selects the adapter's setting.
    pub(crate) ord: Option<u16>,
    /// Traffic class of this end's packets.
    pub(crate) traffic_class: u8,
}

/// Options for [`QueuePair::bring_up`](crate::queue::QueuePair::bring_up).
///
/// ```
/// use ironwarp::connection::BringUpOptions;
///
/// let options = BringUpOptions::new().gid_index(1).ird(4).ord(4).traffic_class(0xb8);
/// let at_address = options.gid("127.0.0.2".parse()?);
/// # let _ = at_address;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BringUpOptions {
    pub(crate) inner: InnerBringUp,
}

impl ConnectOptions {
    /// Creates options without private data, with the adapter's settings.
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

    /// Sets the local address to connect from, which must belong to the adapter's device. With port 0 the kernel chooses
    /// the port. By default the kernel chooses both address and port; a [logical device](crate::device) other than the
    /// default one connects from its first address.
    #[must_use]
    pub fn from_addr(mut self, addr: SocketAddr) -> Self {
        self.inner.from = Some(addr);
        self
    }

    /// Sets the MPA mode. Defaults to [`MpaMode::PeerToPeer`], with which either program may send first.
    #[must_use]
    pub fn mpa_mode(mut self, mode: MpaMode) -> Self {
        self.inner.mode = mode;
        self
    }

    /// Sets how long [`QueuePair::connect`](crate::queue::QueuePair::connect) waits for the connection, if that is less
    /// than [`Config::startup`](crate::Config::startup), the default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl AcceptOptions {
    /// Creates options without private data, with the adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the private data for the remote program.
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self
    }
}

impl BringUpOptions {
    /// Creates options for the first GID of port 1, with the adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects the port of the adapter's [device](crate::Adapter::device) that has the local GID. Defaults to 1, which
    /// is the only port of most devices.
    ///
    /// ```
    /// use ironwarp::connection::BringUpOptions;
    ///
    /// // The first GID of the second port.
    /// let options = BringUpOptions::new().port(2).gid_index(0);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn port(mut self, port: u8) -> Self {
        let index = self.selected().map_or(0, |(_, index)| index);
        self.inner.local = Local::Index { port, index };
        self
    }

    /// Selects the local GID, which the peer connects to, by its index in the table of its [port](Self::port):
    /// [`Adapter::gids`](crate::Adapter::gids) if the device has only one. Defaults to 0.
    #[must_use]
    pub fn gid_index(mut self, index: usize) -> Self {
        let port = self.selected().map_or(1, |(port, _)| port);
        self.inner.local = Local::Index { port, index };
        self
    }

    /// Sets the local GID, which the peer connects to, instead of its port and index. The GID must be an address of the
    /// adapter's device. With the default device it may be any address of this host, also one that is not among
    /// [`Adapter::gids`](crate::Adapter::gids), such as 127.0.0.2.
    #[must_use]
    pub fn gid(mut self, gid: Gid) -> Self {
        self.inner.local = Local::Gid(gid);
        self
    }

    /// Returns the port and the index that select the local GID; `None` if the GID itself was set.
    fn selected(&self) -> Option<(u8, usize)> {
        match self.inner.local {
            Local::Index { port, index } => Some((port, index)),
            Local::Gid(_) => None,
        }
    }
}

/// Defines the methods that set the read depths: `ird` in one field of the options, `ord` in another.
macro_rules! read_depths {
    ($options:ident, $($ird:ident).+, $($ord:ident).+) => {
        impl $options {
            /// Sets the maximum number of incoming Reads outstanding (IRD). Defaults to the adapter's setting.
            #[must_use]
            pub fn ird(mut self, ird: u16) -> Self {
                self.$($ird).+ = Some(ird);
                self
            }

            /// Sets the maximum number of outgoing Reads outstanding (ORD). Defaults to the adapter's setting.
            #[must_use]
            pub fn ord(mut self, ord: u16) -> Self {
                self.$($ord).+ = Some(ord);
                self
            }
        }
    };
}

read_depths!(ConnectOptions, inner.ird, inner.ord);
read_depths!(AcceptOptions, ird, ord);
read_depths!(BringUpOptions, inner.ird, inner.ord);

/// Defines the method that sets the traffic class, in a field of the options.
macro_rules! traffic_class {
    ($options:ident, $($field:ident).+) => {
        impl $options {
            /// Sets the traffic class of the packets that this end sends (IP_TOS or IPV6_TCLASS), and with it their
            /// priority in the queues of the interface. The upper six bits are the DSCP; TCP controls the lower two
            /// itself. Each end chooses its own. Defaults to 0. Without effect in shared memory.
            #[must_use]
            pub fn traffic_class(mut self, class: u8) -> Self {
                self.$($field).+ = class;
                self
            }
        }
    };
}

traffic_class!(ConnectOptions, inner.traffic_class);
traffic_class!(AcceptOptions, traffic_class);
traffic_class!(BringUpOptions, inner.traffic_class);
