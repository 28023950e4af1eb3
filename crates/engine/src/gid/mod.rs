//! The GIDs of this host, derived from the addresses of its interfaces.

mod notifications;
pub(crate) mod parse;
pub(crate) mod scope;
pub(crate) mod table;

pub use ironwarp_rnic::gid::Gid;
pub(crate) use scope::Scope;
pub(crate) use table::PortState;
pub(crate) use table::socket_addr;
pub use table::{GidEntry, GidTable, MAX_GIDS};
