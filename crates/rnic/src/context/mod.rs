//! The context of a queue pair (requirement N10): what both halves of its stream and the threads that post share.
//!
//! | lock | protects | held while |
//! |---|---|---|
//! | `sq`, `rq` | posted requests | an entry is added or taken; a completion is pushed |
//! | `obligations` | what the rx half asks the tx half to send | a field is read or written |
//!
//! Lock order: a half of the stream, then one of `sq`, `rq` and `obligations`, then a shared send queue, then a completion
//! queue. No thread holds two of `sq`, `rq` and `obligations`.
//!
//! | file | purpose |
//! |---|---|
//! | `attributes` | what a queue pair is created with, and the traits that it calls |
//! | `connection` | the life of its connection, as a state machine |
//! | `qp_context` | the context itself, and queries |
//! | `complete` | how requests and receives complete |
//! | `ending` | how a stream ends, with which status for which request |
//! | `access` | memory that a peer names |
//! | `receives` | receives for arriving messages, and waiting for one |
//! | `signals` | what the halves ask of the queue pair while they are driven |
//! | `refusal` | a registration by work request that is refused |

mod access;
mod attributes;
mod complete;
mod connection;
mod ending;
mod qp_context;
mod receives;
mod refusal;
mod signals;

pub(crate) use attributes::Owner;
pub use attributes::{AlreadyConnected, Attributes, QpInfo, Receives, RegistrationFailure, StreamDriver};
pub(crate) use connection::Step;
pub use qp_context::QpContext;
pub(crate) use qp_context::{PEER_ENDED, READABLE};
