//! One half of a queue pair, transmit or receive: driven by one thread at a time, and no thread waits for it.
//!
//! Threads of the program, which post and poll, and lanes, which see that the link is ready, compete here to
//! drive the stream.
//!
//! # Why no work is lost
//! A thread with work first makes it visible (by putting it into a queue), then tries the lock. If that fails, it
//! sets `work` and tries once more; if that fails too, it goes on. The holder clears `work` *after* it has
//! released the lock. Both are read-modify-writes of one variable, so one comes first. If setting does, the
//! holder sees it and takes the lock again, or finds that another thread has it, to which the same applies. If
//! clearing does, the lock was released before `work` was set, so this holder did not make the second attempt
//! fail.

mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use self::lock::{Guard, Lock};
use crate::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of rounds that a thread of the program does before it leaves the rest to a lane.
///
/// Without a bound, a thread that posted one request could be kept busy forever by what others post meanwhile. A
/// few rounds are worth it, because the state is in the cache of this processor.
pub(crate) const ROUNDS: usize = if cfg!(loom) { 2 } else { 32 };
/// Maximum number of rounds that a lane does before its other connections get a turn.
pub(crate) const TURN: usize = 1;

/// Whether work is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "work that is left waits until somebody runs the half again"]
pub(crate) enum Left {
    /// None, or none that another thread will not do.
    Nothing,
    /// Work that no thread has taken on: a lane must run the half, after its other connections had a turn.
    Work,
}

/// State that one thread at a time drives.
#[derive(Debug)]
pub(crate) struct Half<T> {
    work: AtomicBool,
    state: Lock<T>,
}

impl<T> Half<T> {
    /// Creates a half without work.
    pub(crate) fn new(state: T) -> Self {
        Self { work: AtomicBool::new(false), state: Lock::new(state) }
    }

    /// Does work with `round`, unless another thread holds the half, which then does it. Never waits.
    ///
    /// `round` does all it can, or a fair share; work that it leaves counts as work that arrived meanwhile. It
    /// may call `run` on the same half, which returns at once and causes another round. Does at most `rounds`
    /// rounds.
    pub(crate) fn run(&self, rounds: usize, mut round: impl FnMut(&mut T) -> Left) -> Left {
        for _ in 0..rounds {
            let Some(mut state) = self.try_lock() else { return Left::Nothing };
            let left = round(&mut state);
            drop(state);
            if self.take_work() == Left::Nothing && left == Left::Nothing {
                return Left::Nothing;
            }
        }
        Left::Work // and the caller has it, not the next round
    }

    /// `None`: another thread holds the lock, and will see that there is work.
    fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.try_lock().or_else(|| {
            self.set_work();
            self.state.try_lock()
        })
    }

    /// Waits for the holder, then calls `act`. For the control path only.
    ///
    /// Threads that call [`run`](Self::run) meanwhile do not wait; the work that they leave is returned as
    /// [`Left::Work`]. The caller then passes it on, as with `run`, or runs the half.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> (R, Left) {
        let mut state = self.state.lock();
        let result = act(&mut state);
        drop(state);
        (result, self.take_work())
    }

    /// A swap, because a store would hide what an earlier `set` published.
    fn set_work(&self) {
        self.work.swap(true, Ordering::AcqRel);
    }

    /// Takes the work over, if there is some. Called after the lock was released. A swap, because a load could
    /// miss what another thread has just set.
    fn take_work(&self) -> Left {
        if self.work.swap(false, Ordering::AcqRel) { Left::Work } else { Left::Nothing }
    }
}
