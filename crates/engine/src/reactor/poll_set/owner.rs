//! The owner of a poll set: the lane, or the program that polls.
//!
//! ```text
//!            program polls                    event                messages stream
//!   Polled <─────────────── Armed ───────────────────────> Serving ─────────────────> Paused
//!      │  ───────────────>    ▲                               │  <─────────────────────  │
//!      │   stopped polling,   └───────────────────────────────┤ done    end of the pause │
//!      │   or about to sleep                                  │                          │
//!      ▲──────────────────────────────────────────────────────┴──────────────────────────┘ program polls meanwhile
//! ```

use super::carriers::Carriers;
use super::pace::{Pace, Timing};
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::sys::poller::{Epoll, Interest};
use ironwarp_rnic::sync::lock;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Who serves the set, and whether its entry in the lane's epoll is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The lane waits for an event of the entry, which is armed.
    Armed,
    /// The lane serves the set. The entry stays armed: only the lane waits for it, and does not do so now.
    Serving,
    /// The lane will serve the set at the end of a pause. The entry is disarmed.
    Paused,
    /// The program serves the set. The entry is disarmed.
    Polled,
}

/// The entry of a poll set in its lane's epoll, and who serves the set.
#[derive(Debug)]
pub(super) struct Owner {
    /// The epoll set of the sockets.
    pub(super) epoll: Epoll,
    pub(super) lane: Arc<LaneHandle>,
    /// Token of the entry in the lane's epoll.
    pub(super) token: u64,
    /// The state. The entry is armed and disarmed under this lock, too.
    state: Mutex<State>,
    /// Whether the state is `Polled`, to read without the lock. Changed under the lock.
    polled: AtomicBool,
    /// Number of times the program polled.
    polls: AtomicU64,
    /// Whether the lane checks from time to time that the program still polls.
    watched: AtomicBool,
    pace: Mutex<Pace>,
    /// Shared memory with other processes.
    pub(super) carriers: Carriers,
}

impl Owner {
    /// Creates an empty epoll set that the lane owns. The caller adds it to the lane's epoll, armed.
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
            carriers: Carriers::default(),
        })
    }

    /// Returns whether the program serves the set.
    #[inline]
    pub(super) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// Returns whether the lane owns the set, and waits for its next event.
    pub(super) fn is_armed(&self) -> bool {
        *lock(&self.state) == State::Armed
    }

    /// Returns the number of times the program polled.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    // --- The program's side ---

    /// Counts a poll of the program, which serves the set from now on.
    #[inline]
    pub(super) fn record_poll(&self) {
        // Not `fetch_add`, which is slower: if two threads poll at once, one count is lost, but the value still
        // changes.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if !self.polled.load(Ordering::Relaxed) {
            self.give_to_program();
        }
    }

    /// Makes the program the owner, and has the lane check whether the program keeps polling. Called at the program's
    /// first poll since the lane owned the set. Does no harm if another thread of the program does the same.
    #[cold]
    fn give_to_program(&self) {
        let mut state = lock(&self.state);
        // If the lane is serving the set right now, it finishes that, and `end_serving` leaves the state as it is.
        if matches!(*state, State::Armed | State::Serving) {
            self.disarm();
        }
        *state = State::Polled;
        // Relaxed, unlike the store in `arm`: a thread that still reads false only acknowledges earlier than necessary,
        // or leaves the set to the lane's check.
        self.polled.store(true, Ordering::Relaxed);
        self.carriers.begin_polling();
        drop(state);
        self.watch();
    }

    /// Makes the lane the owner, if the program is. Called when the program is about to wait for an event.
    pub(super) fn give_to_lane(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.state);
        if *state == State::Polled {
            self.arm(&mut state);
        }
    }

    /// Has the lane check from time to time whether the program still polls, unless the lane does so already. When the
    /// program has stopped, the lane [takes the set](Self::take_from_program), which ends the checks.
    pub(super) fn watch(&self) {
        if self.begin_watch() {
            self.lane.submit(Command::Watch(self.token));
        }
    }

    /// Records that the lane checks whether the program polls. Returns whether this is new: then the caller must start
    /// the checks, with a command or, on the lane itself, directly.
    pub(super) fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    // --- The lane's side ---

    /// Begins to serve the set on the lane, after an event of the entry. Returns how the event is classified; `None` if
    /// the program owns the set, or the set is paused.
    pub(super) fn begin_serving(&self) -> Option<Timing> {
        {
            let mut state = lock(&self.state);
            if *state != State::Armed {
                return None;
            }
            *state = State::Serving;
        }
        Some(lock(&self.pace).record_event(Instant::now()))
    }

    /// Begins to serve the set on the lane, at the end of a pause. Returns false if the program owns the set.
    pub(super) fn resume_serving(&self) -> bool {
        let mut state = lock(&self.state);
        if *state != State::Paused {
            return false;
        }
        self.arm(&mut state);
        *state = State::Serving;
        true
    }

    /// Disarms the entry, and so pauses serving on the lane until [`resume_serving`](Self::resume_serving). Returns
    /// false if the program owns the set by now.
    pub(super) fn pause(&self) -> bool {
        let mut state = lock(&self.state);
        if *state != State::Serving {
            return false;
        }
        self.disarm();
        *state = State::Paused;
        true
    }

    /// Ends the serving of the set by the lane, which then waits for the next event of the entry. Does nothing if the
    /// program has polled meanwhile. `more_events`: the sockets may have events that the lane did not take.
    pub(super) fn end_serving(&self, more_events: bool) {
        let mut state = lock(&self.state);
        if *state == State::Serving {
            if more_events {
                self.arm(&mut state); // arming again reports the events that are left
            } else {
                *state = State::Armed;
            }
            lock(&self.pace).record_armed(Instant::now());
        }
    }

    /// Makes the lane the owner, because the program has stopped polling, unless a thread of the program sleeps on the
    /// set. Returns whether a thread does. `is_slept_on` is called with the state locked.
    pub(super) fn take_from_program(&self, is_slept_on: impl FnOnce() -> bool) -> bool {
        self.watched.store(false, Ordering::Release);
        let mut state = lock(&self.state);
        let slept_on = is_slept_on();
        if *state == State::Polled && !slept_on {
            lock(&self.pace).record_taken_back(Instant::now());
            self.arm(&mut state);
        }
        slept_on
    }

    /// Arms the entry. If the sockets have events already, the entry reports one at once. A failure stops the adapter:
    /// nothing would serve the sockets.
    fn arm(&self, state: &mut MutexGuard<'_, State>) {
        **state = State::Armed;
        // SeqCst, for `PollSet::acknowledge_unless_polled`.
        self.polled.store(false, Ordering::SeqCst);
        if let Err(error) = self.lane.epoll().modify(&self.epoll, self.token, Interest::ReadableEdges) {
            self.lane.fail(&format_args!("failed to arm a poll set: {error}"));
        }
        if !self.carriers.end_polling() {
            self.serve_later();
        }
    }

    /// Has the lane serve the set, because something has arrived in a carrier for which no bell rings.
    pub(super) fn serve_later(&self) {
        self.lane.submit(Command::Serve(self.token));
    }

    /// Records that the thread of the program that serves the set is about to sleep on it. Returns false if something has
    /// arrived in a carrier: then it must not sleep.
    pub(super) fn begin_sleep(&self) -> bool {
        let _state = lock(&self.state);
        let may_sleep = self.carriers.end_polling();
        if !may_sleep {
            self.carriers.begin_polling();
        }
        may_sleep
    }

    /// Records that a thread of the program that slept on the set is awake.
    pub(super) fn end_sleep(&self) {
        let state = lock(&self.state);
        if *state == State::Polled {
            self.carriers.begin_polling();
        }
    }

    /// Disarms the entry. A failure leaves it armed, and the lane wakes up for events that it ignores.
    fn disarm(&self) {
        let _ = self.lane.epoll().modify(&self.epoll, self.token, Interest::Disarmed);
    }
}

impl Drop for Owner {
    /// Stops polling the carriers, which other sets may use.
    fn drop(&mut self) {
        self.carriers.leave(&self.lane);
    }
}
