//! Connections: listeners, connection requests, and how queue pairs connect and disconnect.
//!
//! A server creates a [`Listener`] and accepts each [`Incoming`] request with a queue pair; a client calls
//! [`QueuePair::connect`](crate::queue::QueuePair::connect). Programs that exchange GIDs and queue pair numbers
//! themselves call [`QueuePair::bring_up`](crate::queue::QueuePair::bring_up) at both ends instead.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ironwarp::prelude::*;
//! use std::time::Duration;
//!
//! let adapter = Adapter::new()?;
//! let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
//! let (client, server) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
//!
//! let listener = adapter.listen("127.0.0.1:0".parse()?)?;
//! client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
//! let incoming = listener.accept(Duration::from_secs(5))?;
//! incoming.accept(&server, &AcceptOptions::new())?;
//! let established = client.wait_connected(Duration::from_secs(5))?;
//! assert_eq!(established.peer, listener.local_addr()?);
//! # Ok(())
//! # }
//! ```

mod listener;
mod options;
mod queue_pair;

pub use ironwarp_engine::gid::GidEntry;
pub use ironwarp_engine::{BringUpError, ConnectError, ConnectionEvent, ConnectionEventKind, Established};
pub use ironwarp_engine::{EventChannel, Remote};
pub use ironwarp_rnic::connect::{Agreed, Depths, InvalidArgument, MpaMode, Role, Rtr, StartupError};
pub use ironwarp_rnic::gid::Gid;
pub use ironwarp_rnic::qp::AlreadyConnected;
pub use ironwarp_wire::mpa::{Framing, RtrSet};
pub use ironwarp_wire::private::{Reason, Unreadable};
pub use listener::{Incoming, Listener};
pub use options::{AcceptOptions, BringUpOptions, ConnectOptions};
