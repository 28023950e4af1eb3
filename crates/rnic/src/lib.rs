//! The device: queues, memory and streams of an RNIC, in memory. No socket, no thread, no clock, no `unsafe`.
#![forbid(unsafe_code)]

pub mod host;
pub mod link;
pub mod memory;
mod sync;
