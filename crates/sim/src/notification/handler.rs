//! A completion handler, the descriptor that its program waits on, and a model of both.

use super::tally::{Met, Tally};
use crate::clock::{Clock, Timers};
use crate::lock;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{CompletionHandler, Wake};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A handler and its events.
pub(super) struct Handler {
    pub(super) inner: Arc<CompletionHandler>,
    bell: Arc<Bell>,
    /// Events that were not taken: their queue, and an ascending number.
    untaken: VecDeque<(u32, u64)>,
    /// Number of all events so far.
    given: u64,
    /// Size of its event queue.
    size: usize,
    /// Number of steps for which its program is busy.
    pub(super) away: u64,
}

/// The descriptor that a program waits on. It is readable exactly while there is an event that moderation does not hold back.
#[derive(Debug)]
struct Bell {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    readable: bool,
    wakes: u64,
    /// At most one wakeup per interval.
    interval: Option<Duration>,
    /// No wakeup before this time, unless moderation is changed.
    held_until: Option<Duration>,
}

impl Wake for Bell {
    fn signal(&self) {
        let (now, mut state) = (self.clock.now(), lock(&self.state));
        assert!(!state.readable, "more than one wakeup per arming");
        assert!(state.held_until.is_none_or(|until| now >= until), "woken twice in {:?}", state.interval);
        state.readable = true;
        state.wakes += 1;
        state.held_until = state.interval.map(|interval| now + interval);
    }

    fn consume(&self) {
        assert!(std::mem::take(&mut lock(&self.state).readable), "no wakeup to consume");
    }
}

impl Handler {
    pub(super) fn new(device: &Device, clock: &Clock) -> Self {
        let bell = Arc::new(Bell { clock: clock.clone(), state: Mutex::default() });
        let inner = device.create_handler(Box::new(Arc::clone(&bell))).expect("there are few");
        let size = inner.stats().size;
        Self { inner, bell, untaken: VecDeque::new(), given: 0, size, away: 0 }
    }

    /// Adds an event of a queue, whose last one was `last`. If that was not taken yet, no other one is added.
    pub(super) fn gets(&mut self, cq: u32, last: &mut Option<u64>, tally: &mut Tally) {
        let oldest = self.untaken.front().map(|(_, number)| *number);
        if oldest.is_some_and(|oldest| last.is_some_and(|last| last >= oldest)) {
            tally.met(Met::Coalesced);
            return;
        }
        self.untaken.push_back((cq, self.given));
        *last = Some(self.given);
        self.given += 1;
    }

    /// Whether it has an event of this queue.
    pub(super) fn has(&self, cq: u32) -> bool {
        self.untaken.iter().any(|(of, _)| *of == cq)
    }

    /// Takes an event if the program is woken, and checks that it belongs to the expected queue.
    pub(super) fn take(&mut self, tally: &mut Tally) -> Option<u32> {
        let readable = lock(&self.bell.state).readable;
        let event = self.inner.try_next().map(|event| event.cq);
        assert_eq!(event.is_some(), readable, "readable without an event, or the reverse");
        event?;
        let expected = self.untaken.pop_front().map(|(cq, _)| cq);
        assert_eq!(event, expected, "events out of order or repeated");
        tally.events += 1;
        event
    }

    /// Limits wakeups to one per interval, or to one whenever the last event was taken.
    pub(super) fn moderate(&self, interval: Option<Duration>, name: usize, timers: &Arc<Timers>) {
        let mut state = lock(&self.bell.state);
        (state.interval, state.held_until) = (interval, None);
        drop(state); // this may cause a wakeup
        self.inner.moderate(interval.map(|interval| (interval, timers.timer(name, &self.inner))));
    }

    /// Checks that it has all its events, and that its program is or will be woken for them.
    pub(super) fn check(&mut self, tally: &mut Tally) {
        let stats = self.inner.stats();
        let untaken = self.untaken.len() as u64;
        assert_eq!((stats.written, stats.unread), (self.given, untaken), "wrong number of events");
        tally.met_if(Met::QueueSwitched, stats.size > self.size);
        self.size = stats.size;
        let state = lock(&self.bell.state);
        if untaken == 0 || state.readable {
            return assert!(untaken > 0 || !state.readable, "woken without an event");
        }
        let held = state.held_until.is_some_and(|until| until > self.bell.clock.now());
        assert!(held, "a program sleeps despite {untaken} events");
        tally.met(Met::WakeHeld);
    }

    pub(super) fn wakes(&self) -> u64 {
        lock(&self.bell.state).wakes
    }
}
