//! The device of the adapter: queues, memory table and streams of an RNIC. Uses no socket, no thread, no clock and no
//! `unsafe`: the engine or the simulator provides them through traits.
#![forbid(unsafe_code)]

pub mod adversary;
mod blocked;
mod broken;
pub mod bug;
pub mod config;
pub mod connect;
mod context;
pub mod datagram;
pub mod device;
pub mod error;
pub mod event;
pub mod fault;
pub mod gid;
mod half;
pub mod host;
pub mod iscsi;
pub mod link;
pub mod memory;
mod outbound;
mod parking;
mod pool;
pub mod qp;
pub mod queue;
pub mod quota;
pub mod recorded;
pub mod recording;
pub mod retry;
mod siphash;
pub mod snapshot;
pub mod state;
mod status;
pub mod steering;
mod stream;
pub mod sync;
