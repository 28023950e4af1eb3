//! Lanes: the threads, sockets, pollers and timers that drive the device over the kernel's TCP.
//!
//! | file | for |
//! |---|---|
//! | [`engine`] | one per adapter: the device, its lanes, what is connected |
//! | `lane` | a thread that waits for sockets and moves what they have, while the program does not |
//! | `set` | the sockets that one completion queue has on one lane, as one entry of the lane |
//! | [`cq`] | a completion queue that makes progress when it is polled |
//! | `connection` | a queue pair and its socket |
//! | `setup` | the first bytes of a connection, from dialling or accepting to a stream |
//! | `timers` | what has to happen by when |
//! | [`sys`] | system calls |

mod connection;
pub mod cq;
pub mod engine;
pub mod event;
mod lane;
mod set;
mod setup;
pub mod sys;
mod timers;

pub use cq::CompletionQueue;
pub use engine::{ConnectOptions, Engine, Listener, QueuePair, QueuePairAttributes, Statistics};
pub use event::{ConnectError, ConnectionEvent, Established, EventChannel, What};
pub use setup::Incoming;
