//! The objects of the verbs: completion queues, queue pairs and their connections.
//!
//! | file | for |
//! |---|---|
//! | `event`, `error` | events of connections, and why a connection was not established |
//! | `cq` | a completion queue that makes progress when it is polled |
//! | `event_queues` | event queues by function and lane, and the vectors that wake their readers |
//! | `life`, `connection` | a queue pair's socket, from the end of the handshake to the last byte |
//! | `qpn` | numbers of queue pairs |
//! | `manual` | what a manually connected queue pair is told of its peer |
//! | `queue_pair` | a queue pair: its number, its states, the device's queue pair behind it |
//! | `datagram` | a connectionless queue pair and its sockets |
//! | `control` | operations that may take long, done in order by a thread of their own |

pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod cq;
pub(crate) mod datagram;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod event_queues;
mod life;
pub(crate) mod manual;
pub mod qpn;
pub(crate) mod queue_pair;
