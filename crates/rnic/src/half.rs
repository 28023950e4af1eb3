//! One half of a queue pair, transmit or receive: held by one thread at a time, and nobody waits for it.
//!
//! Before this: a consumer posted or polled, or the link became ready (steps 2 and 5 of the path). After it: the stream,
//! which the holder drives. Program threads and lanes meet here.
//!
//! # Why no work is lost
//! Whoever has work first makes it visible (puts it into a queue), then tries the lock. If that fails it sets `work`, and
//! tries once more; if that fails too, it goes on. The holder takes `work` back *after* it let go of the lock. Both are
//! read-modify-writes of one variable, so one comes first. If the setting does, the holder sees it and takes the lock again,
//! or finds that yet another thread has it, of which the same can be said. If the taking back does, the release of the lock
//! happened before the setting, so this holder was not the one that made the second attempt fail.

mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use self::lock::{Guard, Lock};
use crate::sync::atomic::{AtomicBool, Ordering};

/// How often a thread of the program goes round before it leaves the rest to a lane.
///
/// Without a bound, a thread that posted one request could be held for ever by what others post meanwhile. Some rounds
/// are worth it, because the state is in this processor's cache; then a lane does better, which has time.
pub(crate) const ROUNDS: usize = if cfg!(loom) { 2 } else { 32 };
/// The same for a lane: then others have their turn, and this one waits for its next.
pub(crate) const TURN: usize = 1;

/// What was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "work that is left waits until somebody runs the half again"]
pub(crate) enum Left {
    /// Nothing, or nothing that another thread will not do.
    Nothing,
    /// Work that nobody has taken on: a lane must run the half, after its others have had their turn.
    Work,
}

/// State that one thread at a time drives.
#[derive(Debug)]
pub(crate) struct Half<T> {
    work: AtomicBool,
    state: Lock<T>,
}

impl<T> Half<T> {
    /// A half that nobody holds, and that has nothing to do.
    pub(crate) fn new(state: T) -> Self {
        Self { work: AtomicBool::new(false), state: Lock::new(state) }
    }

    /// There is work: does it with `round`, unless another thread holds the half, which then does it. Never waits.
    ///
    /// `round` does all it can, or a fair share of it: what it says it left counts as work that came meanwhile. It may
    /// call `run` of the same half; that returns at once, and a round follows. There are so many of them at most.
    pub(crate) fn run(&self, rounds: usize, mut round: impl FnMut(&mut T) -> Left) -> Left {
        for _ in 0..rounds {
            let Some(mut state) = self.try_lock() else { return Left::Nothing };
            let left = round(&mut state);
            drop(state);
            if self.look() == Left::Nothing && left == Left::Nothing {
                return Left::Nothing;
            }
        }
        Left::Work // and the caller has it, not the next round
    }

    /// `None`: another thread has it, and will see that there is work.
    fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.try_lock().or_else(|| {
            self.set();
            self.state.try_lock()
        })
    }

    /// Waits for the holder, then does `act`: for the control path only.
    ///
    /// Threads that call [`run`](Self::run) meanwhile do not wait; what they leave, this returns as [`Left::Work`].
    /// Whether or not `act` itself made work, the caller passes it on as it would what `run` left, or runs the half.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> (R, Left) {
        let mut state = self.state.lock();
        let result = act(&mut state);
        drop(state);
        (result, self.look())
    }

    /// A read-modify-write also where nothing is read: a mere store would hide what an earlier `set` published.
    fn set(&self) {
        self.work.swap(true, Ordering::AcqRel);
    }

    /// Whether there is work, once the lock was released; if so, it is the caller's. A mere load could miss what another thread
    /// has just set.
    fn look(&self) -> Left {
        if self.work.swap(false, Ordering::AcqRel) { Left::Work } else { Left::Nothing }
    }
}
