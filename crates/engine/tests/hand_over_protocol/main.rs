//! Hands a function over between real processes, which are stopped and killed at every step (requirement X2). The function
//! of these tests is one end of a TCP connection that echoes a stream of bytes; both ends check every byte.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

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

use ironwarp_testkit::control::get_within;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Maximum time for something that happens soon, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for a message: see [`get_within`].
fn get(socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    get_within(TIMEOUT, socket)
}
