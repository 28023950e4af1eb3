//! What a manually connected queue pair is told of its peer: a GID and a QPN, without a connection manager.

use ironwarp_rnic::gid::Gid;
use std::fmt;
use std::sync::Arc;

/// A remote queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remote {
    /// Its GID.
    pub gid: Gid,
    /// Its number.
    pub qpn: u32,
}

/// The local address of a manual connection. The peer must have been told the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The GID with this index in the [table](crate::gid::GidTable).
    Index(usize),
    /// This GID: an address of the host that need not be in the table, such as 127.0.0.2.
    Gid(Gid),
}

/// Options of a manual connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BringUpOptions {
    /// The local address.
    pub local: Local,
    /// Maximum number of remote reads and atomics to hold (max_dest_rd_atomic). Defaults to the adapter's setting.
    pub ird: Option<u16>,
    /// Maximum number of outstanding reads and atomics (max_rd_atomic). Defaults to the adapter's setting.
    pub ord: Option<u16>,
    /// The path MTU that the program expects. It is only reported: TCP finds out itself.
    pub path_mtu: Option<u32>,
    /// The first packet sequence number that the program expects from the peer (rq_psn). It is compared with the one that the remote program
    /// starts with, and has no other use.
    pub receive_psn: Option<u32>,
}

impl Default for BringUpOptions {
    /// From GID 0, with the adapter's depths.
    fn default() -> Self {
        Self { local: Local::Index(0), ird: None, ord: None, path_mtu: None, receive_psn: None }
    }
}

/// A manual connection that is being made, or was made, as its queue pair sees it.
#[derive(Debug)]
pub(crate) struct ManualConnect {
    pub(crate) remote: Remote,
    pub(crate) options: BringUpOptions,
    pub(crate) attempt: Arc<dyn Attempt>,
}

/// What a queue pair tells the attempt to connect it.
pub(crate) trait Attempt: Send + Sync + fmt::Debug {
    /// The program wants no connection any more. Returns whether none was made yet.
    fn cancel(&self) -> bool;

    /// The peer closed the connection.
    fn peer_gone(self: Arc<Self>);

    /// The queue pair's retries have changed.
    fn patience_changed(self: Arc<Self>);

    /// Sets the first packet sequence number of this end.
    fn set_send_psn(&self, psn: u32);
}
