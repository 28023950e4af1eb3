//! Waits for conditions of which there is no notification.

use std::thread;
use std::time::{Duration, Instant};

/// Maximum time to wait, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `done` returns true. Panics if that takes too long.
#[track_caller]
pub fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "the condition did not become true in time");
        thread::yield_now();
    }
}
