//! Options of manually connected queue pairs.

use ironwarp_engine::gid::Gid;
use ironwarp_engine::{BringUpOptions as Inner, Local};

/// Options for [`QueuePair::bring_up`](crate::QueuePair::bring_up).
///
/// ```
/// use ironwarp::BringUpOptions;
///
/// let options = BringUpOptions::new().gid_index(1).ird(4).ord(4);
/// let at_address = options.gid("127.0.0.2".parse()?);
/// # let _ = at_address;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BringUpOptions {
    pub(crate) inner: Inner,
}

impl BringUpOptions {
    /// Creates options for GID index 0 with the adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the index of the local GID, the one that the peer connects to. Defaults to 0.
    #[must_use]
    pub fn gid_index(mut self, index: usize) -> Self {
        self.inner.local = Local::Index(index);
        self
    }

    /// Sets the local GID, the one that the peer connects to. It must be an address of this host, but need not be among
    /// [its GIDs](crate::Adapter::gids), such as 127.0.0.2.
    #[must_use]
    pub fn gid(mut self, gid: Gid) -> Self {
        self.inner.local = Local::Gid(gid);
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
}
