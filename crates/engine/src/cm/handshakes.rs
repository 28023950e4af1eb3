//! The handshakes and listeners of one lane. `accept.rs` has the part for handshakes that peers begin.

use super::admission::Admission;
use super::answer::Answer;
use super::handshake::{Handshake, Step, Target};
use super::incoming::{Decide, Decision};
use super::listener::ListenerSocket;
use crate::logical::LogicalDevice;
use crate::reactor::handle::LaneHandle;
use crate::reactor::source::Service;
use crate::reactor::thread::catch_panic;
use crate::sys::poller::{EventFd, Interest};
use crate::sys::socket::set_deaf;
use crate::util::timers::Timers;
use crate::verbs::error::ConnectError;
use crate::verbs::function::PendingHandshakes;
use ironwarp_rnic::bug;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

/// The handshakes and listeners of a lane. Only the lane's thread locks the state.
#[derive(Debug)]
pub(crate) struct Handshakes {
    lane: Arc<LaneHandle>,
    state: Mutex<State>,
}

/// The handshakes and listeners, by their tokens in the lane's epoll.
#[derive(Debug)]
pub(super) struct State {
    pub(super) lane: Arc<LaneHandle>,
    /// The registry itself, for decisions of the program.
    pub(super) this: Weak<dyn Decide>,
    /// Handshakes that this end began, by token.
    dialled: HashMap<u64, Box<dyn Handshake>>,
    /// Handshakes that peers began, by token.
    pub(super) answers: HashMap<u64, Box<Answer>>,
    /// Limits and deadlines of `answers`.
    pub(super) admission: Admission,
    /// Listeners, by token.
    listeners: HashMap<u64, Arc<ListenerSocket>>,
    pub(super) timers: Timers<Timeout>,
    /// A descriptor in reserve, to accept and reset a connection when the process has no other.
    pub(super) spare: Option<EventFd>,
    /// When evictions were last logged; `None` if they never were.
    pub(super) last_log: Option<Instant>,
}

/// A timer of the registry.
#[derive(Debug)]
pub(super) enum Timeout {
    /// The deadline of the handshake with this token, which this end began.
    Handshake(u64),
    /// The time at which the listener with this token, which failed to accept, tries again.
    Listener(u64),
}

impl Handshakes {
    /// Creates the registry of a lane, without handshakes.
    pub(super) fn new(lane: &Arc<LaneHandle>) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let state = State {
                lane: Arc::clone(lane),
                this: Weak::<Self>::clone(this),
                dialled: HashMap::new(),
                answers: HashMap::new(),
                admission: Admission::default(),
                listeners: HashMap::new(),
                timers: Timers::new(),
                spare: None,
                last_log: None,
            };
            Self { lane: Arc::clone(lane), state: Mutex::new(state) }
        })
    }

    /// Begins a handshake, on the lane's thread.
    pub(super) fn begin(self: &Arc<Self>, handshake: Box<dyn Handshake>) {
        let this = Arc::clone(self);
        self.lane.call(move || lock(&this.state).begin(handshake));
    }

    /// Adds a listener, at which the lane accepts connections from now on.
    pub(super) fn add_listener(self: &Arc<Self>, listener: &Arc<ListenerSocket>) {
        let (this, listener) = (Arc::clone(self), Arc::clone(listener));
        self.lane.call(move || lock(&this.state).add_listener(listener));
    }

    /// Blocks or unblocks all sockets whose port was taken down or up, on the lane's thread.
    pub(super) fn apply_port_state(self: &Arc<Self>, device: &Arc<LogicalDevice>) {
        let (this, device) = (Arc::clone(self), Arc::clone(device));
        self.lane.call(move || lock(&this.state).apply_port_state(&device));
    }

    /// Removes a listener, on the lane's thread.
    pub(super) fn remove_listener(self: &Arc<Self>, listener: &Arc<ListenerSocket>) {
        let (this, listener) = (Arc::clone(self), Arc::clone(listener));
        self.lane.call(move || lock(&this.state).remove_listener(&listener));
    }

    /// Counts the handshakes of a listener, on the lane's thread after all calls that were made before. `None` if the lane
    /// does not answer until the deadline.
    pub(super) fn pending(
        self: &Arc<Self>,
        listener: &Arc<ListenerSocket>,
        deadline: Instant,
    ) -> Option<PendingHandshakes> {
        let (this, listener) = (Arc::clone(self), Arc::clone(listener));
        let (done, counted) = mpsc::channel();
        self.lane.call(move || {
            let _ = done.send(lock(&this.state).pending(&listener)); // fails if nobody waits any more
        });
        counted.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }
}

impl Decide for Handshakes {
    fn decide(&self, token: u64, decision: Decision) {
        lock(&self.state).decide(token, decision);
    }
}

impl Service for Handshakes {
    fn on_ready(&self, token: u64) -> bool {
        let mut state = lock(&self.state);
        if state.dialled.contains_key(&token) {
            state.progress(token);
        } else if state.answers.contains_key(&token) {
            state.progress_answer(token);
        } else if let Some(listener) = state.listeners.get(&token).cloned() {
            state.accept(token, &listener);
        } else {
            return false;
        }
        true
    }

    fn time_to_deadline(&self, now: Instant) -> Option<Duration> {
        let state = lock(&self.state);
        [state.timers.time_to_next(now), state.admission.time_to_next_deadline(now)]
            .into_iter()
            .flatten()
            .min()
    }

    fn expire(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.evict_overdue(now);
        while let Some(timeout) = state.timers.pop_expired(now) {
            state.on_timeout(timeout);
        }
        self.lane.counters().handshakes.store(state.admission.len(), Ordering::Relaxed);
    }

    fn timer_count(&self) -> usize {
        lock(&self.state).timers.len()
    }

    fn fail(&self) {
        let mut state = lock(&self.state);
        state.listeners.clear();
        for (_, handshake) in std::mem::take(&mut state.dialled) {
            catch_panic("failing a handshake", || handshake.fail(stopped_error().into()));
        }
        for (_, answer) in std::mem::take(&mut state.answers) {
            catch_panic("failing a handshake", || answer.fail(stopped_error().into()));
        }
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        let listeners = std::mem::take(&mut state.listeners);
        let handshakes = (std::mem::take(&mut state.dialled), std::mem::take(&mut state.answers));
        drop(state);
        drop((listeners, handshakes)); // without the lock, because their destructors may call the program
    }
}

impl State {
    /// Adds a handshake that this end begins, and its deadline, and starts it.
    fn begin(&mut self, handshake: Box<dyn Handshake>) {
        if self.lane.is_failed() {
            return handshake.fail(stopped_error().into());
        }
        let token = self.lane.new_token();
        if let Err(error) = self.lane.epoll().add(&**handshake.link(), token, Interest::Edges) {
            return handshake.fail(error.into());
        }
        self.timers.add(handshake.deadline(), Timeout::Handshake(token));
        self.dialled.insert(token, handshake);
        self.progress(token);
    }

    /// Continues a handshake that this end began.
    fn progress(&mut self, token: u64) {
        let Some(handshake) = self.dialled.remove(&token) else { return };
        let link = Arc::clone(handshake.link());
        let target = Some(handshake.target());
        let step = catch_handshake_panic(target, || handshake.progress()).unwrap_or(Step::Done);
        if let Step::Wait(handshake) = step {
            self.dialled.insert(token, handshake);
            return;
        }
        // The handshake has ended. If the link has a stream now, its socket is in a poll set of its completion queue.
        let _ = self.lane.epoll().delete(&*link);
        if let Step::Restart(handshake) = step {
            self.begin(handshake);
        }
    }

    /// Handles an expired timer: fails a handshake that took too long, or waits again for connections at a listener
    /// that failed to accept one. Timers are not cancelled, so the handshake or listener may be gone.
    fn on_timeout(&mut self, timeout: Timeout) {
        match timeout {
            Timeout::Handshake(token) => {
                // `None` if the handshake has ended. Otherwise this is its deadline, which never changes.
                if let Some(handshake) = self.dialled.remove(&token) {
                    handshake.fail(ConnectError::TimedOut);
                }
            }
            Timeout::Listener(token) => {
                // `None` if the listener was removed. Otherwise `accept` has disarmed its entry in epoll.
                if let Some(listener) = self.listeners.get(&token) {
                    let _ = self.lane.epoll().modify(&**listener, token, Interest::Readable);
                }
            }
        }
    }

    /// Blocks or unblocks all sockets whose port was taken down or up. A stream that starts later does this for its own
    /// socket.
    fn apply_port_state(&self, device: &LogicalDevice) {
        self.listeners.values().for_each(|listener| listener.apply_port_state());
        let dialled = self.dialled.values().map(|handshake| handshake.link());
        for link in dialled.chain(self.answers.values().map(|answer| answer.link())) {
            let is_down = link.local_addr().is_ok_and(|local| device.is_down_at(local.ip()));
            let _ = set_deaf(&**link, is_down); // fails only if the connection is lost
        }
    }

    /// Adds a listener to epoll.
    fn add_listener(&mut self, listener: Arc<ListenerSocket>) {
        listener.apply_port_state(); // again: the port may have changed before the registry knew the listener
        let token = self.lane.new_token();
        match self.lane.epoll().add(&*listener, token, Interest::Readable) {
            Ok(()) => {
                self.listeners.insert(token, listener);
            }
            Err(error) => tracing::error!(%error, "failed to add a listener to epoll"),
        }
    }

    /// Counts the handshakes of a listener.
    fn pending(&self, listener: &Arc<ListenerSocket>) -> PendingHandshakes {
        let mut pending = PendingHandshakes::default();
        for answer in self.answers.values().filter(|answer| Arc::ptr_eq(answer.listener(), listener)) {
            match answer.awaits_request() {
                true => pending.without_request += 1,
                false => pending.with_request += 1,
            }
        }
        pending
    }

    /// Removes a listener from epoll.
    fn remove_listener(&mut self, listener: &Arc<ListenerSocket>) {
        let _ = self.lane.epoll().delete(&**listener);
        self.listeners.retain(|_, known| !Arc::ptr_eq(known, listener));
    }
}

/// Returns the error of handshakes on a lane that has failed.
fn stopped_error() -> io::Error {
    io::Error::other("the adapter has stopped")
}

/// Calls `step`, a step of a handshake, and returns its result. If it panics, reports that to the target and returns
/// `None`.
pub(super) fn catch_handshake_panic<T>(
    target: Option<Arc<dyn Target>>,
    step: impl FnOnce() -> T,
) -> Option<T> {
    match bug::catch("setting up a connection", step) {
        Ok(next) => Some(next),
        Err(bug) => {
            tracing::error!(%bug, "handshake ended by a panic");
            if let Some(target) = target {
                catch_panic("reporting a failed handshake", || target.abandon(ConnectError::Bug(bug)));
            }
            None
        }
    }
}
