//! Hands a function over between real processes, which are stopped and killed at every step (requirement X2). The function
//! of these tests is one end of a TCP connection that echoes a stream of bytes; both ends check every byte.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;
mod echo;
mod faults;
mod instants;
mod log;
mod many;
mod revoked;
mod role;
mod scene;
mod simple;
mod strangers;
mod terms;
