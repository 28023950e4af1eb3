//! The handle of a lane: its epoll, its inbox and its counters, which all threads may use.

use super::command::Command;
use super::source::Callback;
use crate::sys::poller::{Epoll, EventFd, Interest};
use crate::sys::thread::Thread;
use ironwarp_rnic::event::AsyncEvents;
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// The token of the eventfd that wakes a lane.
pub(super) const WAKE: u64 = 0;
/// The token of the alarm that ends a pause.
pub(super) const ALARM: u64 = 1;
/// The bits of a token from this one on are the number of the lane that issued it.
const LANE_SHIFT: u32 = 48;

/// State of a lane that is shared with other threads.
#[derive(Debug)]
pub(crate) struct LaneHandle {
    number: usize,
    epoll: Epoll,
    pub(super) wake: EventFd,
    /// Commands that the thread has not taken yet; `None` once it has ended.
    inbox: Mutex<Option<Vec<Command>>>,
    tokens: AtomicU64,
    pub(super) counters: Counters,
    /// The lane's thread, once it runs.
    pub(super) thread: OnceLock<Thread>,
    /// The same thread, to wake it once it does not wait for descriptors any more.
    pub(super) parked: OnceLock<std::thread::Thread>,
    failed: AtomicBool,
    /// Reports that the lane cannot go on.
    reports: Arc<AsyncEvents>,
}

/// What a lane counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Number of times its thread woke.
    pub(super) wakes: AtomicU64,
    /// Number of pending timers when its thread last went to sleep.
    pub(super) timers: AtomicUsize,
    /// Number of handshakes that peers have begun, at that time.
    pub(crate) handshakes: AtomicUsize,
    /// Number of such handshakes that were evicted.
    pub(crate) evicted: AtomicU64,
}

impl LaneHandle {
    pub(super) fn new(number: usize, reports: &Arc<AsyncEvents>) -> io::Result<Arc<Self>> {
        let handle = Arc::new(Self {
            number,
            epoll: Epoll::new()?,
            wake: EventFd::counter()?,
            inbox: Mutex::new(Some(Vec::new())),
            tokens: AtomicU64::new((number as u64) << LANE_SHIFT | (ALARM + 1)),
            counters: Counters::default(),
            thread: OnceLock::new(),
            parked: OnceLock::new(),
            failed: AtomicBool::new(false),
            reports: Arc::clone(reports),
        });
        handle.epoll.add(&handle.wake, WAKE, Interest::Readable)?;
        Ok(handle)
    }

    /// Its place among the lanes of the adapter.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A token that nothing else on the lanes of the adapter has: a connection that is moved keeps its token.
    pub(crate) fn new_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Number of times its thread woke.
    pub(crate) fn wakes(&self) -> u64 {
        self.counters.wakes.load(Ordering::Relaxed)
    }

    /// The thread, once it runs.
    pub(crate) fn thread(&self) -> Option<Thread> {
        self.thread.get().copied()
    }

    /// Waits until the thread runs.
    pub(crate) fn await_thread(&self) -> Thread {
        *self.thread.wait()
    }

    /// Calls a function on the lane's thread, soon.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.submit(Command::Call(Callback::new(call)));
    }

    /// Calls a function on the lane's thread at this time, or soon after.
    pub(crate) fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) {
        self.submit(Command::CallAt(at, Callback::new(call)));
    }

    /// Has the lane do something. A lane that has ended does nothing.
    pub(crate) fn submit(&self, command: Command) {
        let mut inbox = lock(&self.inbox);
        let Some(commands) = &mut *inbox else {
            drop(inbox);
            return drop(command); // which may drop much else: not under the lock
        };
        let first = commands.is_empty();
        commands.push(command);
        drop(inbox);
        if first {
            self.wake.signal();
            if self.is_failed()
                && let Some(thread) = self.parked.get()
            {
                thread.unpark();
            }
        }
    }

    /// Takes what was submitted.
    pub(super) fn take_commands(&self) -> Vec<Command> {
        lock(&self.inbox).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The thread ends: commands are dropped from now on.
    pub(super) fn close(&self) {
        let left = lock(&self.inbox).take();
        drop(left);
    }

    /// Number of commands that its thread has not taken yet.
    #[cfg(test)]
    pub(crate) fn pending_commands(&self) -> usize {
        lock(&self.inbox).as_ref().map_or(0, Vec::len)
    }

    /// Whether it cannot wait for descriptors any more.
    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    pub(super) fn set_failed(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Stops the adapter: what the lane's sockets have cannot be known any more.
    #[cold]
    pub(crate) fn fail(&self, why: &dyn fmt::Display) {
        self.reports.fail(&format_args!("lane {} failed: {why}", self.number));
    }
}
