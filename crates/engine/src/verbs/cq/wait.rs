//! Waiting for completions: polling for a while, then sleeping on the sockets or on an alarm (`reactor/waiters.rs`).

use super::CompletionQueue;
use crate::reactor::poll_set::PollSet;
use crate::reactor::waiters::WaiterGuard;
use crate::sys::thread::wait_readable;
use ironwarp_rnic::queue::Overrun;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long a thread polls before it sleeps: most answers come sooner than a sleeping thread wakes.
const SPIN: Duration = Duration::from_micros(50);

/// Interval at which a thread that cannot sleep checks whether the lanes of a stopped adapter have flushed all requests.
const FLUSHED: Duration = Duration::from_millis(1);

/// Why a wait for completions ended without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue takes no more completions.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// Nothing will complete any more.
    #[error("the adapter has stopped, for a reason in its log: open another one")]
    Stopped,
}

impl CompletionQueue {
    /// Waits for a completion. Returns false if the timeout expires first.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, WaitError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let spin = Instant::now() + SPIN;
        loop {
            self.progress();
            if self.cq.has_overrun() || !self.cq.is_empty() {
                return if self.cq.is_empty() { Err(Overrun { cq: self.cq.id() }.into()) } else { Ok(true) };
            }
            if self.has_stopped() {
                return Err(WaitError::Stopped);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            if now >= spin
                && let Err(error) = self.sleep(deadline.map(|deadline| deadline - now))
            {
                self.reports.fail(&format_args!("a thread failed to wait for completions: {error}"));
                std::thread::sleep(FLUSHED); // nothing can wake it for what the lanes flush now
            }
        }
    }

    /// Sleeps until there may be a completion, the timeout expires, or the adapter has stopped. An error: the program has closed a
    /// descriptor of the adapter.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let waiter = self.waiters.register();
        if self.cq.is_ready() {
            waiter.wake_others();
            return Ok(());
        }
        // Not under a lock: a connection may be made meanwhile. Its lane serves it, and the alarm rings.
        let sets = if waiter.is_direct() { self.sets().clone() } else { Vec::new() };
        let _sleeping: Vec<_> = sets.iter().map(|set| SetSleep::new(set, &waiter)).collect();
        // A socket that was read directly still has its event in the set. It is taken here: the call below would return for it, and
        // this thread would spin instead of sleeping, and be scheduled as one that spins.
        sets.iter().for_each(|set| set.poll());
        let sockets = sets.iter().map(|set| set.epoll().as_fd());
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(waiter.alarm()).chain(sockets).collect();
        wait_readable(&fds, timeout, || self.has_stopped())
    }

    /// Whether nothing completes any more: the adapter has stopped, and its lanes have let go of all connections.
    fn has_stopped(&self) -> bool {
        self.reports.is_stopped() && self.cq.is_empty() && self.sets().iter().all(|set| set.len() == 0)
    }
}

/// A poll set that a thread sleeps on.
struct SetSleep<'w> {
    set: &'w PollSet,
    waiter: &'w WaiterGuard<'w>,
}

impl<'w> SetSleep<'w> {
    fn new(set: &'w PollSet, waiter: &'w WaiterGuard<'w>) -> Self {
        set.begin_sleep(waiter);
        Self { set, waiter }
    }
}

impl Drop for SetSleep<'_> {
    /// Whatever ends the sleep: the lane gets the set back unless the thread polls.
    fn drop(&mut self) {
        self.set.end_sleep(self.waiter);
    }
}
