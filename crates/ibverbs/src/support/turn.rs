//! Turns: sequences of calls, from a first to a last one, that one thread at a time makes. The extended interfaces consist of
//! such sequences. Threads that share a queue pair or a completion queue wait for each other between start and end.

use ironwarp_rnic::sync::{self, lock};
use std::sync::{Condvar, Mutex};

/// The right to make a sequence of calls.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The program promised that threads never meet here, so no thread waits.
    single_threaded: bool,
    taken: Mutex<bool>,
    free: Condvar,
}

impl Turn {
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self { single_threaded, ..Self::default() }
    }

    /// Waits until no other thread has it, and takes it.
    pub(crate) fn take(&self) {
        if self.single_threaded {
            return;
        }
        let mut taken = lock(&self.taken);
        while *taken {
            taken = sync::wait(&self.free, taken);
        }
        *taken = true;
    }

    /// Gives it back. Harmless if this thread does not have it.
    pub(crate) fn give_back(&self) {
        if !self.single_threaded {
            *lock(&self.taken) = false;
            self.free.notify_one();
        }
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
