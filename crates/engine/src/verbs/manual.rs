//! Manual connections, as their queue pairs see them: the peer that the program names by GID and QPN, and the options.
//! `cm/manual` makes the connections.

use ironwarp_rnic::gid::Gid;
use std::fmt;
use std::sync::Arc;

/// The peer of a manual connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remote {
    /// Its GID.
    pub gid: Gid,
    /// Its queue pair number.
    pub qpn: u32,
}

/// The local address of a manual connection. The remote program must name the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The GID with this index in the [table](crate::gid::GidTable) of a port.
    Index {
        /// Number of the port.
        port: u8,
        /// Index in its table.
        index: usize,
    },
    /// This GID. With the default device, it may be an address of the host that is not in the table, such as 127.0.0.2.
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
    /// The path MTU that the program sets. It is only reported back by queries: TCP discovers the MTU itself.
    pub path_mtu: Option<u32>,
    /// The first packet sequence number that the program expects from the peer (rq_psn). The ends compare it with the
    /// one that the remote program sends with (sq_psn); it has no other use.
    pub receive_psn: Option<u32>,
    /// The traffic class of this end's packets (requirement M16).
    pub traffic_class: u8,
}

impl Default for BringUpOptions {
    /// Returns options with the first GID of port 1 and the adapter's IRD and ORD.
    fn default() -> Self {
        Self {
            local: Local::Index { port: 1, index: 0 },
            ird: None,
            ord: None,
            path_mtu: None,
            receive_psn: None,
            traffic_class: 0,
        }
    }
}

/// The manual connection of a queue pair, in progress or established.
#[derive(Debug)]
pub(crate) struct ManualConnect {
    pub(crate) remote: Remote,
    pub(crate) options: BringUpOptions,
    pub(crate) attempt: Arc<dyn Attempt>,
}

/// An attempt to connect a queue pair manually, as the queue pair sees it.
pub(crate) trait Attempt: Send + Sync + fmt::Debug {
    /// Ends the attempt. Returns whether it had not connected the queue pair yet.
    fn cancel(&self) -> bool;

    /// Reports that the peer closed the connection.
    fn on_peer_closed(self: Arc<Self>);

    /// Reports that the program changed the timeouts and retry counts of the queue pair.
    fn on_retries_changed(self: Arc<Self>);

    /// Sets the first packet sequence number that this end sends (sq_psn).
    fn set_send_psn(&self, psn: u32);
}
