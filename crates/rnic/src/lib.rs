//! The device: queues, memory and streams of an RNIC, in memory. No socket, no thread, no clock, no `unsafe`.
#![forbid(unsafe_code)]

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
pub mod link;
pub mod memory;
mod outbound;
pub mod qp;
pub mod queue;
pub mod retry;
pub mod state;
mod status;
pub mod steering;
mod stream;
pub mod sync;
