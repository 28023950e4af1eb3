//! State of a lane that all threads may use: its epoll, its inbox of commands and its counters.

use super::command::Command;
use super::fine_timers::FineTimers;
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
/// The lowest bit of the lane's number in a token. The bits below it count the tokens of the lane.
const LANE_SHIFT: u32 = 48;

/// State of a lane that is shared with other threads.
#[derive(Debug)]
pub(crate) struct LaneHandle {
    /// Index among the lanes of the adapter.
    number: usize,
    epoll: Epoll,
    /// Wakes the thread for commands.
    pub(super) wake: EventFd,
    /// Commands that the thread has not taken yet; `None` once it has ended.
    inbox: Mutex<Option<Vec<Command>>>,
    /// The next token to issue.
    tokens: AtomicU64,
    pub(super) counters: Counters,
    /// The lane's thread, once it runs.
    pub(super) thread: OnceLock<Thread>,
    /// The lane's thread as the standard library knows it, to unpark it after the lane has failed.
    pub(super) parked: OnceLock<std::thread::Thread>,
    /// Set once the thread does not wait for descriptors any more.
    failed: AtomicBool,
    /// Timers that are exact to some microseconds, once there are any.
    fine_timers: OnceLock<Arc<FineTimers>>,
    /// Where a failure of the lane is reported.
    reports: Arc<AsyncEvents>,
}

/// Counters of a lane, for statistics.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Number of times its thread woke.
    pub(super) wakes: AtomicU64,
    /// Number of pending timers when its thread last went to sleep.
    pub(super) timers: AtomicUsize,
    /// Number of handshakes in progress that peers began, when its thread last went to sleep.
    pub(crate) handshakes: AtomicUsize,
    /// Number of handshakes begun by peers that were evicted, since the lane started.
    pub(crate) evicted: AtomicU64,
}

impl LaneHandle {
    /// Creates the state of a lane whose thread does not run yet. Failures are reported to `reports`.
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
            fine_timers: OnceLock::new(),
            reports: Arc::clone(reports),
        });
        handle.epoll.add(&handle.wake, WAKE, Interest::Readable)?;
        Ok(handle)
    }

    /// Returns its index among the lanes of the adapter.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns its index, as events name it (requirement I8).
    pub(crate) fn event_lane(&self) -> u16 {
        u16::try_from(self.number).unwrap_or(u16::MAX)
    }

    pub(crate) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns a new token for an epoll entry. It is unique among all lanes of the adapter, because a connection that
    /// is moved to another lane keeps its token.
    pub(crate) fn new_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns how many times its thread woke.
    pub(crate) fn wakes(&self) -> u64 {
        self.counters.wakes.load(Ordering::Relaxed)
    }

    /// Returns the thread; `None` if it does not run yet.
    pub(crate) fn thread(&self) -> Option<Thread> {
        self.thread.get().copied()
    }

    /// Waits until the thread runs, and returns it.
    pub(crate) fn await_thread(&self) -> Thread {
        *self.thread.wait()
    }

    /// Has the lane's thread call a function as soon as it can.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.submit(Command::Call(Callback::new(call)));
    }

    /// Has the lane's thread call a function at this time, or soon after.
    pub(crate) fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) {
        self.submit(Command::CallAt(at, Callback::new(call)));
    }

    /// Has the lane's thread call a function at this time, or some microseconds after. Costs more than
    /// [`call_at`](Self::call_at), which may be a millisecond late.
    pub(crate) fn call_exactly_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) {
        let timers = match self.fine_timers.get() {
            Some(timers) => timers,
            None => match FineTimers::new() {
                Ok(new) => {
                    let new = Arc::new(new);
                    if self.fine_timers.set(Arc::clone(&new)).is_ok() {
                        self.submit(Command::AddSource(new));
                    }
                    self.fine_timers.wait()
                }
                Err(_) => return self.call_at(at, call), // for lack of descriptors
            },
        };
        timers.call_at(at, call);
    }

    /// Sends a command to the lane's thread and wakes the thread. If the thread has ended, drops the command.
    pub(crate) fn submit(&self, command: Command) {
        let mut inbox = lock(&self.inbox);
        let Some(commands) = &mut *inbox else {
            drop(inbox);
            return drop(command); // after unlocking: its destructor may submit commands
        };
        let was_empty = commands.is_empty();
        commands.push(command);
        drop(inbox);
        // The thread takes all commands at once, so the first one wakes it for all.
        if was_empty {
            self.wake.signal();
            // The thread of a failed lane does not wait for `wake`: it is parked.
            if self.is_failed()
                && let Some(thread) = self.parked.get()
            {
                thread.unpark();
            }
        }
    }

    /// Takes all submitted commands: none once the lane is closed.
    pub(super) fn take_commands(&self) -> Vec<Command> {
        lock(&self.inbox).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all pending commands and those submitted from now on, because the thread ends.
    pub(super) fn close(&self) {
        let pending = lock(&self.inbox).take();
        drop(pending); // after unlocking: destructors may submit commands
    }

    /// Returns whether the thread has ended, or is about to: it serves no sockets any more.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.inbox).is_none()
    }

    /// Returns the number of commands that its thread has not taken yet.
    #[cfg(test)]
    pub(crate) fn pending_commands(&self) -> usize {
        lock(&self.inbox).as_ref().map_or(0, Vec::len)
    }

    /// Returns whether the lane has failed: its thread does not wait for descriptors any more.
    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Records that the lane's thread does not wait for descriptors any more.
    pub(super) fn set_failed(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Stops the adapter, because the lane cannot serve its sockets any more. `why` goes to the log.
    #[cold]
    pub(crate) fn fail(&self, why: &dyn fmt::Display) {
        self.reports.fail(&format_args!("lane {} failed: {why}", self.number));
    }
}
