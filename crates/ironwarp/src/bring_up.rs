//! How a queue pair is brought up by hand: options besides the peer. After this: `queue_pair.rs` does it.

use ironwarp_engine::gid::Gid;
use ironwarp_engine::{BringUpOptions as Inner, Local};

/// What a queue pair that is [brought up](crate::QueuePair::bring_up) by hand is told besides its peer.
///
/// ```
/// use ironwarp::BringUpOptions;
///
/// let options = BringUpOptions::new().gid_index(1).ird(4).ord(4);
/// let at_an_address = options.gid("127.0.0.2".parse()?);
/// # let _ = at_an_address;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BringUpOptions {
    pub(crate) inner: Inner,
}

impl BringUpOptions {
    /// From GID 0, with the adapter's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// The index of the GID that the peer was told; 0 if this is not called.
    #[must_use]
    pub fn gid_index(mut self, index: usize) -> Self {
        self.inner.local = Local::Index(index);
        self
    }

    /// The GID that the peer was told: an address of this host, which need not be among [its GIDs](crate::Adapter::gids),
    /// such as 127.0.0.2.
    #[must_use]
    pub fn gid(mut self, gid: Gid) -> Self {
        self.inner.local = Local::Gid(gid);
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
}
