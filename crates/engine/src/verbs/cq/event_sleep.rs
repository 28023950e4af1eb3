//! Whether threads that block until an event of a completion queue sleep on its sockets (`notify/blocking.rs`).
//!
//! A program arms the queue before it blocks, and usually polls once more. If the last threads that did so have slept on
//! the sockets, the sockets stay with the program meanwhile: handing them to the lane and back would take two system
//! calls for each message. A thread that does not come leaves them to the lane's check of programs that stop polling.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Score from which a thread is expected to sleep on the sockets soon.
const EXPECT_SLEEP: i32 = 2;
/// The highest score.
const MAX_SCORE: i32 = 4;
/// The score after a thread was expected and did not come.
const MISSED_SLEEP: i32 = -16;

/// Whether threads block until an event of the queue.
#[derive(Debug, Default)]
pub(super) struct EventSleeps {
    /// How often the last threads that armed the queue have slept on the sockets.
    score: AtomicI32,
    /// Whether the queue was last armed without handing the sockets to the lane.
    keep: AtomicBool,
    /// Whether events are held back for more completions: then lanes serve the sockets.
    is_moderated: AtomicBool,
}

impl EventSleeps {
    /// Decides who serves the sockets of the queue, which was armed just now. `missed`: since it was last armed, the lane
    /// has taken the sockets, because no thread has slept on them.
    pub(super) fn record_arm(&self, missed: bool) {
        if missed {
            self.score.store(MISSED_SLEEP, Ordering::Relaxed);
        }
        self.keep.store(self.score.load(Ordering::Relaxed) >= EXPECT_SLEEP, Ordering::Relaxed);
    }

    /// Returns whether the program keeps the sockets while the queue is armed.
    pub(super) fn keeps_sockets(&self) -> bool {
        self.keep.load(Ordering::Relaxed)
    }

    /// Records that a thread sleeps on the sockets.
    pub(super) fn record_sleep(&self) {
        self.score.store((self.score.load(Ordering::Relaxed) + 1).min(MAX_SCORE), Ordering::Relaxed);
    }

    /// Records whether events are moderated.
    pub(super) fn set_moderated(&self, moderated: bool) {
        self.is_moderated.store(moderated, Ordering::Relaxed);
    }

    /// Returns whether a thread that waits for an event can sleep on the sockets.
    pub(super) fn are_allowed(&self) -> bool {
        !self.is_moderated.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
impl EventSleeps {
    pub(super) fn score(&self) -> i32 {
        self.score.load(Ordering::Relaxed)
    }

    pub(super) fn reset_score(&self) {
        self.score.store(0, Ordering::Relaxed);
    }
}
