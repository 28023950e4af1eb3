//! The lock of one half of a queue pair, transmit or receive. One thread at a time drives a half. Another thread with
//! work for the half does not wait: it leaves the work to the holder.
//!
//! Threads of the program, which post and poll, and lanes, which are notified that the link is ready, compete here to
//! drive the stream.
//!
//! # Why no work is lost
//! A thread with work first makes the work visible (by putting it into a queue), then tries the lock. If that fails,
//! the thread sets `work` and tries once more; if that fails too, it leaves. The holder clears `work` *after* it has
//! released the lock. Setting and clearing are read-modify-writes of one variable, so one of them comes first:
//!
//! - If `work` is set first, the holder sees that when it clears `work`. The holder then takes the lock again, or finds
//!   that another thread holds it, to which the same applies.
//! - If `work` is cleared first, the holder had released the lock before `work` was set. The second attempt can then
//!   only fail because of a later holder, to which the same applies.

mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use self::lock::{Guard, Lock};
use crate::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of rounds that a thread of the program does before it leaves the rest to a lane.
///
/// Without a limit, a thread that posted one request could be kept busy forever by requests that other threads post
/// meanwhile. Several rounds are worth it, because the state is in the cache of this processor.
pub(crate) const ROUNDS: usize = if cfg!(loom) { 2 } else { 32 };
/// Maximum number of rounds that a lane does before its other connections get a turn.
pub(crate) const TURN: usize = 1;

/// Whether work is left that the caller has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "work that is left waits until a thread runs the half again"]
pub(crate) enum Left {
    /// No work is left, or another thread will do it.
    Nothing,
    /// Work is left that no thread does: a lane must run the half, after its other connections had a turn.
    Work,
}

/// State that one thread at a time drives.
#[derive(Debug)]
pub(crate) struct Half<T> {
    /// A thread has left work to the holder of the lock.
    work: AtomicBool,
    state: Lock<T>,
}

impl<T> Half<T> {
    /// Creates a half without work.
    pub(crate) fn new(state: T) -> Self {
        Self { work: AtomicBool::new(false), state: Lock::new(state) }
    }

    /// Locks the half and calls `round` until no work is left, but at most `rounds` times. If another thread holds the
    /// half, leaves the work to that thread and returns [`Left::Nothing`]. Never waits.
    ///
    /// `round` does all work, or a fair share of it, and returns whether it left some. It may call `run` on the same
    /// half, which returns at once and causes another round.
    pub(crate) fn run(&self, rounds: usize, mut round: impl FnMut(&mut T) -> Left) -> Left {
        for _ in 0..rounds {
            let Some(mut state) = self.try_lock() else { return Left::Nothing };
            let left = round(&mut state);
            drop(state);
            if self.take_work() == Left::Nothing && left == Left::Nothing {
                return Left::Nothing;
            }
        }
        Left::Work // `take_work` has cleared the flag, so the caller has to see to this work
    }

    /// Locks the half. If another thread holds it, leaves the work to that thread and returns `None`.
    fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.try_lock().or_else(|| {
            self.set_work();
            self.state.try_lock()
        })
    }

    /// Waits until no thread holds the half, then locks it and calls `act`. For the control path only.
    ///
    /// Threads that call [`run`](Self::run) meanwhile do not wait. If they left work, [`Left::Work`] is returned: the
    /// caller then has a lane run the half, as after `run`, or runs it itself. A caller that runs the half in any case may
    /// ignore the result.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> (R, Left) {
        let mut state = self.state.lock();
        let result = act(&mut state);
        drop(state);
        (result, self.take_work())
    }

    /// Marks that there is work for the holder. A swap, because a plain store would break the release sequence of an
    /// earlier `set_work`, whose work the holder might then not see.
    fn set_work(&self) {
        self.work.swap(true, Ordering::AcqRel);
    }

    /// Clears the mark, and returns whether it was set: the caller then has to do the work. Called after the lock was
    /// released. A swap, because a load could miss the mark that another thread has just set.
    fn take_work(&self) -> Left {
        if self.work.swap(false, Ordering::AcqRel) { Left::Work } else { Left::Nothing }
    }
}
