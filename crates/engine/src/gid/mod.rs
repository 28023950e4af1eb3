//! The GIDs of this host, derived from the addresses of its interfaces, and changes to them.

pub(crate) mod monitor;
pub(crate) mod parse;
pub(crate) mod table;

pub use ironwarp_rnic::gid::Gid;
pub use monitor::{PortChange, PortWatcher};
pub(crate) use table::socket_addr;
pub use table::{GidEntry, GidTable, MAX_GIDS};
