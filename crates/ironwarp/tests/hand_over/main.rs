//! Hands adapters over between real processes, under full load and with processes that are killed or stopped (requirement X2).
#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod buffers;
mod host_kills;
mod host_load;
mod host_pause;
mod hosts;
mod kills;
mod load;
mod pause;
mod role;
mod scene;
mod simple;
mod station;
mod stream;

use ironwarp_testkit::control::get_within;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Maximum time for something that happens soon, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for a message: see [`get_within`].
fn get(socket: impl AsFd) -> (Vec<u8>, Vec<OwnedFd>) {
    get_within(TIMEOUT, socket)
}
