//! Waits for completions: polls for a short time, then sleeps on the sockets or on an alarm (`reactor/waiters.rs`).

use super::CompletionQueue;
use super::idle::SPIN_TIME;
use crate::notify::blocking::{Descriptors, EventSource};
use crate::reactor::poll_set::PollSet;
use crate::reactor::waiters::WaiterGuard;
use crate::sys::thread::{Awaited, Thread, wait_readable, wait_readable_briefly};
use ironwarp_rnic::queue::Overrun;
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which a thread whose sleep fails checks whether the lanes have flushed all requests.
const FLUSH_CHECK: Duration = Duration::from_millis(1);

/// Why a wait for completions ended without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue overran: it takes no more completions.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// Nothing will complete any more.
    #[error("the adapter has stopped, for a reason in its log: open another one")]
    Stopped,
    /// This process is a forked child of the one that opened the adapter.
    #[error("the adapter was inherited by a fork: open another one in this process")]
    Inherited,
}

impl CompletionQueue {
    /// Waits for a completion. Returns false if the timeout expires first.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, WaitError> {
        if self.creator.is_parent() {
            return Err(WaitError::Inherited);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let spin_end = Instant::now() + SPIN_TIME;
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
            if now >= spin_end
                && let Err(error) = self.sleep(deadline.map(|deadline| deadline - now))
            {
                self.async_events.fail(&format_args!("a thread failed to wait for completions: {error}"));
                std::thread::sleep(FLUSH_CHECK); // nothing can wake this thread when the lanes flush the requests
            }
        }
    }

    /// Sleeps until there may be a completion, the timeout expires, or the adapter has stopped. Fails if the program
    /// has closed a descriptor of the adapter.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.sleep_with(|fds| wait_readable(fds, timeout, || self.has_stopped()))
    }

    /// Sleeps for a short time until there may be a completion. Not a cancellation point, because
    /// [`poll`](Self::poll) is none. Returns false if the thread must not sleep: a socket for datagrams loses those that
    /// arrive in the time until a thread wakes.
    pub(super) fn nap(&self, timeout: Duration) -> bool {
        !self.sets().iter().any(|set| set.has_datagrams())
            && self.sleep_with(|fds| wait_readable_briefly(fds, timeout)).is_ok()
    }

    /// Sleeps until `wait` returns, which waits for the descriptors that become readable when there may be a completion.
    fn sleep_with(&self, wait: impl FnOnce(&[Awaited]) -> io::Result<()>) -> io::Result<()> {
        let waiter = self.waiters.register();
        if self.cq.is_ready() {
            waiter.wake_others();
            return Ok(());
        }
        // The sets are copied, because no lock may be held during the sleep. The lane serves a connection that is made
        // meanwhile, and the alarm wakes this thread.
        let sets = if waiter.is_direct() { self.sets().clone() } else { Vec::new() };
        let mut fds = SmallVec::<[Awaited; 4]>::from_iter([Awaited::readable(waiter.alarm())]);
        let _sleeping: Vec<_> = sets.iter().map(|set| SetSleep::new(set, &waiter, &mut fds)).collect();
        if !await_bells(&sets) || self.cq.is_ready() {
            waiter.wake_others();
            return Ok(());
        }
        wait(&fds)
    }

    /// Returns whether nothing will complete any more: the adapter has stopped, the queue is empty and no connection is
    /// left.
    fn has_stopped(&self) -> bool {
        // In this order: a connection flushes its requests before it leaves its set.
        self.async_events.is_stopped()
            && self.sets().iter().all(|set| set.has_no_connections())
            && self.cq.is_empty()
    }
}

impl CompletionQueue {
    /// Returns the function that assigns a poll set of the armed queue: to the program if one of its threads is expected
    /// to sleep on the sockets, or else to the lane.
    #[inline]
    pub(super) fn assign_armed(&self) -> fn(&PollSet) {
        if self.event_sleeps.keeps_sockets() { PollSet::record_poll } else { PollSet::give_to_lane }
    }
}

/// A thread that waits for an event of the queue.
impl EventSource for CompletionQueue {
    fn begin_event_sleep(&self, fds: &mut Descriptors) -> bool {
        // A queue that is not armed raises no event, and the program or the lane serves its sockets as before.
        let may_register = self.cq.is_armed() && self.event_sleeps.are_allowed();
        if !may_register || !self.waiters.register_for_event() {
            return true;
        }
        self.event_sleeps.record_sleep();
        let (sets, thread) = (self.sets(), Thread::current());
        sets.iter().for_each(|set| set.begin_sleep(thread, &self.waiters, fds));
        await_bells(&sets)
    }

    fn end_event_sleep(&self) {
        if self.waiters.unregister_for_event() {
            let thread = Thread::current();
            self.sets().iter().for_each(|set| set.end_sleep(thread));
            self.progress();
        }
    }
}

/// Has the bells of all sets ring for what arrives in shared memory. Returns false if something has arrived: then the
/// thread must not sleep.
fn await_bells(sets: &[Arc<PollSet>]) -> bool {
    let mut may_sleep = true;
    for set in sets {
        may_sleep &= set.await_bells();
    }
    may_sleep
}

/// Marks a poll set as slept on while it exists.
struct SetSleep<'w> {
    set: &'w PollSet,
    waiter: &'w WaiterGuard<'w>,
}

impl<'w> SetSleep<'w> {
    /// Marks the set, and adds the descriptors to sleep on.
    fn new(set: &'w PollSet, waiter: &'w WaiterGuard<'w>, fds: &mut impl Extend<Awaited>) -> Self {
        set.begin_sleep(waiter.thread(), waiter.waiters(), fds);
        Self { set, waiter }
    }
}

impl Drop for SetSleep<'_> {
    /// Unmarks the set, however the sleep ends. The lane serves the set again, unless the thread polls it.
    fn drop(&mut self) {
        self.set.end_sleep(self.waiter.thread());
    }
}
