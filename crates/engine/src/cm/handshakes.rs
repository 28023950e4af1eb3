//! The handshakes and listeners of one lane. `accept.rs` has the part for connections that peers begin.

use super::admission::Admission;
use super::answer::Answer;
use super::handshake::{Handshake, Step, Target};
use super::incoming::{Decide, Decision};
use super::listener::ListenerSocket;
use crate::reactor::handle::LaneHandle;
use crate::reactor::source::Service;
use crate::reactor::thread::catch_panic;
use crate::sys::poller::{EventFd, Interest};
use crate::util::timers::Timers;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::bug;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The handshakes of a lane. Only its thread looks inside.
#[derive(Debug)]
pub(crate) struct Handshakes {
    lane: Arc<LaneHandle>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) lane: Arc<LaneHandle>,
    pub(super) this: Weak<dyn Decide>,
    /// Handshakes that this end began, by token.
    dialled: HashMap<u64, Box<dyn Handshake>>,
    /// Handshakes that peers began, by token.
    pub(super) answers: HashMap<u64, Box<Answer>>,
    pub(super) admission: Admission,
    listeners: HashMap<u64, Arc<ListenerSocket>>,
    pub(super) timers: Timers<Timeout>,
    /// A descriptor that is kept to reject a connection when there is no other.
    pub(super) spare: Option<EventFd>,
    /// When evictions were last logged.
    pub(super) last_log: Option<Instant>,
}

/// What is due.
#[derive(Debug)]
pub(super) enum Timeout {
    /// The handshake with this token, which this end began.
    Handshake(u64),
    /// The listener with this token, which failed to accept, tries again.
    Listener(u64),
}

impl Handshakes {
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

    /// Waits for connections at a listener, on the lane's thread.
    pub(super) fn listen(self: &Arc<Self>, listener: &Arc<ListenerSocket>) {
        let (this, listener) = (Arc::clone(self), Arc::clone(listener));
        self.lane.call(move || lock(&this.state).listen(listener));
    }

    /// Forgets a listener, on the lane's thread.
    pub(super) fn unlisten(self: &Arc<Self>, listener: &Arc<ListenerSocket>) {
        let (this, listener) = (Arc::clone(self), Arc::clone(listener));
        self.lane.call(move || lock(&this.state).unlisten(&listener));
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
        [state.timers.time_to_next(now), state.admission.next(now)].into_iter().flatten().min()
    }

    fn expire(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.evict_overdue(now);
        while let Some(timeout) = state.timers.pop_expired(now) {
            state.timed_out(timeout, now);
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
            catch_panic("failing a handshake", || handshake.failed(stopped().into()));
        }
        for (_, answer) in std::mem::take(&mut state.answers) {
            catch_panic("failing a handshake", || answer.failed(stopped().into()));
        }
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        let listeners = std::mem::take(&mut state.listeners);
        let handshakes = (std::mem::take(&mut state.dialled), std::mem::take(&mut state.answers));
        drop(state);
        drop((listeners, handshakes)); // which may call the program
    }
}

impl State {
    fn begin(&mut self, handshake: Box<dyn Handshake>) {
        if self.lane.is_failed() {
            return handshake.failed(stopped().into());
        }
        let token = self.lane.new_token();
        if let Err(error) = self.lane.epoll().add(&**handshake.link(), token, Interest::Edges) {
            return handshake.failed(error.into());
        }
        self.timers.add(handshake.deadline(), Timeout::Handshake(token));
        self.dialled.insert(token, handshake);
        self.progress(token);
    }

    fn progress(&mut self, token: u64) {
        let Some(handshake) = self.dialled.remove(&token) else { return };
        let link = Arc::clone(handshake.link());
        let target = Some(handshake.target());
        let step = survive_handshake(target, || handshake.progress()).unwrap_or(Step::Done);
        if let Step::Wait(handshake) = step {
            self.dialled.insert(token, handshake);
            return;
        }
        // A stream is in the poll set of its completion queue, and nowhere else.
        let _ = self.lane.epoll().delete(&*link);
        if let Step::Restart(handshake) = step {
            self.begin(handshake);
        }
    }

    fn timed_out(&mut self, timeout: Timeout, now: Instant) {
        match timeout {
            Timeout::Handshake(token) => {
                if self.dialled.get(&token).is_some_and(|handshake| handshake.deadline() <= now)
                    && let Some(handshake) = self.dialled.remove(&token)
                {
                    handshake.failed(ConnectError::TimedOut);
                }
            }
            Timeout::Listener(token) => {
                if let Some(listener) = self.listeners.get(&token) {
                    let _ = self.lane.epoll().modify(&**listener, token, Interest::Readable);
                }
            }
        }
    }

    fn listen(&mut self, listener: Arc<ListenerSocket>) {
        let token = self.lane.new_token();
        match self.lane.epoll().add(&*listener, token, Interest::Readable) {
            Ok(()) => {
                self.listeners.insert(token, listener);
            }
            Err(error) => tracing::error!(%error, "failed to add a listener to epoll"),
        }
    }

    fn unlisten(&mut self, listener: &Arc<ListenerSocket>) {
        let _ = self.lane.epoll().delete(&**listener);
        self.listeners.retain(|_, known| !Arc::ptr_eq(known, listener));
    }
}

/// What handshakes on a failed lane are told.
fn stopped() -> io::Error {
    io::Error::other("the adapter has stopped")
}

/// The next step of a handshake. After a panic there will be no connection, and its target is told so.
pub(super) fn survive_handshake<T>(target: Option<Arc<dyn Target>>, step: impl FnOnce() -> T) -> Option<T> {
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
