//! Turns: calls that belong together, from a first to a last one, of one thread at a time. The extended interfaces are made
//! of such: threads may share a queue pair or a completion queue, and then wait for each other between start and end.

use crate::sync::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Turn {
    /// Waits until nobody has it, and takes it.
    pub(crate) fn take(&self) {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = self.free.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    /// Gives it back. Whoever gives back what it has not does no harm.
    pub(crate) fn give_back(&self) {
        *lock(&self.taken) = false;
        self.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    #[test]
    fn one_thread_at_a_time() {
        let (turn, inside, rounds) = (Turn::default(), AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        turn.take();
                        assert!(!inside.swap(true, Ordering::Relaxed));
                        rounds.fetch_add(1, Ordering::Relaxed);
                        inside.store(false, Ordering::Relaxed);
                        turn.give_back();
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 4000);
    }
}
