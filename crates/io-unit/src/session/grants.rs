//! How many pools an end grants to a peer that asks for more.

use std::time::Duration;

/// Time after which one more pool may be granted.
const INTERVAL: Duration = Duration::from_secs(1);

/// An allowance of pools. A peer that asks for pools and flushes them, again and again, would otherwise make this end
/// allocate, register and free megabytes with each message.
#[derive(Debug)]
pub(super) struct Grants {
    left: usize,
    /// When `left` was last increased.
    since: Duration,
}

impl Grants {
    /// Allows `most` pools at once.
    pub(super) fn new(most: usize, now: Duration) -> Self {
        Self { left: most, since: now }
    }

    /// Takes one pool from the allowance of at most `most`, unless it is used up.
    pub(super) fn take(&mut self, most: usize, now: Duration) -> bool {
        while self.left < most && now >= self.since.saturating_add(INTERVAL) {
            self.left += 1;
            self.since = self.since.saturating_add(INTERVAL);
        }
        if self.left >= most {
            self.since = now;
        }
        let some = self.left > 0;
        self.left -= usize::from(some);
        some
    }
}
