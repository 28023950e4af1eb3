//! The objects that programs create by verbs: completion queues, queue pairs with their connections, control queues.
//!
//! | file | for |
//! |---|---|
//! | `event`, `error` | events of connections, and the errors of those that were not established |
//! | `cq` | a completion queue that makes progress when it is polled |
//! | `event_queues` | event queues by function and lane, and the vectors that wake their readers |
//! | `lifecycle`, `connection` | a queue pair's socket, from the end of the handshake to the last byte |
//! | `qpn` | assigning queue pair numbers |
//! | `manual` | manual connections: the peer and the options that the program names |
//! | `device_qp` | the device's queue pair behind a queue pair, which a reset replaces |
//! | `queue_pair` | a queue pair: its number and its states |
//! | `datagram` | a connectionless queue pair and its sockets |
//! | `iscsi` | a queue pair in iSCSI mode and its socket |
//! | `objects`, `function` | what a function of an adapter owns, and how it ends |
//! | `control` | a queue of slow operations, which a thread of the queue executes in order |

pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod cq;
pub(crate) mod datagram;
mod device_qp;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod event_queues;
pub(crate) mod function;
pub(crate) mod iscsi;
mod lifecycle;
pub(crate) mod manual;
pub(crate) mod objects;
pub mod qpn;
pub(crate) mod queue_pair;
