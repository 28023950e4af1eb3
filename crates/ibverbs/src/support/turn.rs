//! A lock that one call takes and a later call releases. The extended interfaces of queue pairs and completion queues
//! consist of sequences such as `start_poll`, `next_poll`, `end_poll`: while one thread is between start and end,
//! other threads wait at their start.

use ironwarp_rnic::sync::{self, lock};
use std::sync::{Condvar, Mutex};

/// The right to make a sequence of calls on one object, which one thread has at a time.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Whether the program promised that one thread at a time uses the object. Then taking a turn never waits.
    single_threaded: bool,
    /// Whether a thread has the turn.
    taken: Mutex<bool>,
    /// Signalled when `taken` becomes false.
    free: Condvar,
}

impl Turn {
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self { single_threaded, ..Self::default() }
    }

    /// Waits until no other thread has the turn, and takes it.
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

    /// Ends the turn, so that another thread can take it. A program that calls the end of a sequence without its
    /// start may end the turn of another thread, which is undefined in the C interface as well.
    pub(crate) fn release(&self) {
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
                        turn.release();
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 4000);
    }
}
