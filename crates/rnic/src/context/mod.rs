//! The context of a queue pair (requirement N10): the state that both halves of its stream and the threads that post
//! share.
//!
//! | lock | protects | held while |
//! |---|---|---|
//! | `sq`, `rq` | posted requests | an entry is added or taken; a completion is pushed |
//! | `obligations` | messages that the tx half has to send apart from requests | a field is read or written |
//!
//! Lock order: a half of the stream, then one of `sq`, `rq` and `obligations`, then a shared send queue, then a
//! completion queue. No thread holds two of `sq`, `rq` and `obligations`, except `fail`, which locks `rq` before it unlocks
//! `sq`. A thread that posts tries to take the tx half with
//! `sq` locked, and never waits for it.
//!
//! | file | purpose |
//! |---|---|
//! | `attributes` | attributes of a queue pair, and the traits that it calls |
//! | `connection` | the state machine of its connection |
//! | `qp_context` | the context itself, and queries |
//! | `complete` | completes requests and receives |
//! | `ending` | ends the stream |
//! | `access` | checks accesses of the peer to memory |
//! | `receives` | takes receives for arriving messages, or waits for one |
//! | `signals` | capabilities, signals and drains: calls by the halves while they are driven |
//! | `frozen` | the values that move with a queue pair to another function |
//! | `refusal` | refuses a registration by work request |

mod access;
mod attributes;
mod complete;
mod connection;
mod ending;
mod frozen;
mod qp_context;
mod receives;
mod refusal;
mod signals;

pub(crate) use attributes::Owner;
pub use attributes::{AlreadyConnected, Attributes, QpInfo, Receives, RegistrationFailure, StreamDriver};
pub(crate) use connection::Step;
pub(crate) use frozen::FrozenContext;
pub use qp_context::QpContext;
pub(crate) use qp_context::{PEER_ENDED, READABLE};
