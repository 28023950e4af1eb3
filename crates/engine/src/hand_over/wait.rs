//! Waits of a hand-over, which have deadlines.

use super::error::Failure;
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// A wait that has a name, for its error, and a deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    awaited: &'static str,
    after: Duration,
    deadline: Instant,
}

impl Wait {
    pub(super) fn new(awaited: &'static str, after: Duration) -> Self {
        Self { awaited, after, deadline: Instant::now() + after }
    }

    /// Returns the name of what is waited for.
    pub(super) fn awaited(self) -> &'static str {
        self.awaited
    }

    /// Returns a wait for something else, with the same deadline.
    pub(super) fn awaiting(self, awaited: &'static str) -> Self {
        Self { awaited, ..self }
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.deadline
    }

    pub(super) fn failed(self) -> Failure {
        Failure::TimedOut { awaited: self.awaited, after: self.after }
    }

    /// Waits until one of the descriptors is ready. Returns false after the deadline.
    pub(super) fn poll(self, descriptors: &mut [PollFd<'_>]) -> Result<bool, Failure> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(descriptors, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(Failure::system("poll")(error)),
            }
        }
    }
}
