//! System calls: the only place that makes them. Above it lanes drive streams; below it is the kernel.
//!
//! | file | for | `unsafe` |
//! |---|---|---|
//! | `memory` | copies from and to the program's memory | addresses that may be bad |
//! | `socket` | one TCP connection, as a stream's link | addresses that may be bad |
//! | `setup` | connect, listen, accept | |
//! | `poller` | waiting for many sockets, and waking who waits | |

pub mod memory;
pub mod poller;
pub mod setup;
pub mod socket;
#[cfg(test)]
mod testing;
