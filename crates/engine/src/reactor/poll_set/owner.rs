//! Who serves a poll set: its lane, or the program that polls.
//!
//! ```text
//!            program polls                 entry fires              messages stream
//!   Polled <─────────────── Armed ───────────────────────> Serving ─────────────────> Paused
//!      │  ───────────────>    ▲                               │  <─────────────────────  │
//!      │   stopped polling,   └───────────────────────────────┤ done     a moment later  │
//!      │   or about to sleep                                  │                          │
//!      ▲──────────────────────────────────────────────────────┴──────────────────────────┘ program polls meanwhile
//! ```

use super::pace::Pace;
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::sys::poller::{Epoll, Interest};
use ironwarp_rnic::sync::lock;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Armed,
    /// The lane serves it. The entry is still armed: only the lane waits for it.
    Serving,
    /// The lane will serve it in a moment. The entry is not armed.
    Paused,
    Polled,
}

/// A poll set as an entry of its lane's epoll, and who serves it.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) epoll: Epoll,
    pub(super) lane: Arc<LaneHandle>,
    pub(super) token: u64,
    /// Changes, and the kernel's entry with it, under this lock.
    state: Mutex<State>,
    /// Whether the state is `Polled`, for the fast path.
    polled: AtomicBool,
    /// Number of times the program polled.
    polls: AtomicU64,
    /// The lane checks from time to time whether the program still polls.
    watched: AtomicBool,
    pace: Mutex<Pace>,
}

impl Owner {
    pub(super) fn new(lane: &Arc<LaneHandle>) -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            lane: Arc::clone(lane),
            token: lane.new_token(),
            state: Mutex::new(State::Armed),
            polled: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            pace: Mutex::default(),
        })
    }

    /// Whether the program serves it.
    #[inline]
    pub(super) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// Whether the lane has it, and does not serve it now.
    pub(super) fn is_armed(&self) -> bool {
        *lock(&self.state) == State::Armed
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    // --- The program's side ---

    /// The program polls: from now on it serves the set.
    #[inline]
    pub(super) fn record_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if !self.polled.load(Ordering::Relaxed) {
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Armed | State::Serving) {
            self.disarm();
        }
        *state = State::Polled;
        self.polled.store(true, Ordering::Relaxed);
        drop(state);
        self.watch();
    }

    /// The program is about to sleep: the lane serves the set.
    pub(super) fn hand_over(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.state);
        if *state == State::Polled {
            self.arm(&mut state);
        }
    }

    /// Has the lane check whether the program goes on polling.
    pub(super) fn watch(&self) {
        if self.begin_watch() {
            self.lane.submit(Command::Watch(self.token));
        }
    }

    /// Returns whether the caller is to see to it that the lane checks.
    pub(super) fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    // --- The lane's side ---

    /// The entry fired. `None` if the program polls, or the lane will be told later; else whether the message is late, and whether
    /// messages stream in.
    pub(super) fn begin_serving(&self) -> Option<(bool, bool)> {
        {
            let mut state = lock(&self.state);
            if *state != State::Armed {
                return None;
            }
            *state = State::Serving;
        }
        let now = Instant::now();
        let mut pace = lock(&self.pace);
        Some((pace.is_late(now), pace.fires(now)))
    }

    /// The pause is over. Returns false if the program polls.
    pub(super) fn resume_serving(&self) -> bool {
        let mut state = lock(&self.state);
        if *state != State::Paused {
            return false;
        }
        self.arm(&mut state);
        *state = State::Serving;
        true
    }

    /// Pauses, unless the program polls now.
    pub(super) fn pause(&self) -> bool {
        let mut state = lock(&self.state);
        if *state != State::Serving {
            return false;
        }
        self.disarm();
        *state = State::Paused;
        true
    }

    /// The lane has served the set; `more`: there were more events than it took.
    pub(super) fn end_serving(&self, more: bool) {
        let mut state = lock(&self.state);
        if *state == State::Serving {
            if more {
                self.arm(&mut state); // which reports those that were left
            } else {
                *state = State::Armed;
            }
            lock(&self.pace).armed(Instant::now());
        }
    }

    /// The program has stopped polling: the lane serves the set, unless a thread sleeps on it. Returns whether one does.
    pub(super) fn take_back(&self, is_slept_on: impl FnOnce() -> bool) -> bool {
        self.watched.store(false, Ordering::Release);
        let mut state = lock(&self.state);
        let slept_on = is_slept_on();
        if *state == State::Polled && !slept_on {
            lock(&self.pace).taken_back(Instant::now());
            self.arm(&mut state);
        }
        slept_on
    }

    fn arm(&self, state: &mut MutexGuard<'_, State>) {
        **state = State::Armed;
        self.polled.store(false, Ordering::SeqCst);
        if let Err(error) = self.lane.epoll().modify(&self.epoll, self.token, Interest::ReadableEdges) {
            self.lane.fail(&format_args!("failed to arm a poll set: {error}"));
        }
    }

    /// A failure leaves the entry armed, which costs wakeups and nothing else.
    fn disarm(&self) {
        let _ = self.lane.epoll().modify(&self.epoll, self.token, Interest::Disarmed);
    }
}
