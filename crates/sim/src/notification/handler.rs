//! A completion handler, the descriptor that its program sleeps on, and what both must show.

use super::tally::{Met, Tally};
use crate::clock::{Clock, Timers};
use crate::lock;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{CompletionHandler, Wake};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A handler, and the events that it was given.
pub(super) struct Handler {
    pub(super) inner: Arc<CompletionHandler>,
    bell: Arc<Bell>,
    /// Those that nobody took: of which queue, and a number that grows.
    untaken: VecDeque<(u32, u64)>,
    /// How many it ever got.
    given: u64,
    /// How many entries its event queue has.
    size: usize,
    /// For so many steps its program does something else.
    pub(super) away: u64,
}

/// What a program sleeps on: readable exactly while there is an event that moderation does not hold back.
#[derive(Debug)]
struct Bell {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    readable: bool,
    wakes: u64,
    /// At most one in each.
    interval: Option<Duration>,
    /// There is none before, unless moderation is changed.
    held_until: Option<Duration>,
}

impl Wake for Bell {
    fn signal(&self) {
        let (now, mut state) = (self.clock.now(), lock(&self.state));
        assert!(!state.readable, "one wake for each time the event queue was armed");
        assert!(state.held_until.is_none_or(|until| now >= until), "woken twice in {:?}", state.interval);
        state.readable = true;
        state.wakes += 1;
        state.held_until = state.interval.map(|interval| now + interval);
    }

    fn consume(&self) {
        assert!(std::mem::take(&mut lock(&self.state).readable), "there was a wake");
    }
}

impl Handler {
    pub(super) fn new(device: &Device, clock: &Clock) -> Self {
        let bell = Arc::new(Bell { clock: clock.clone(), state: Mutex::default() });
        let inner = device.create_handler(Box::new(Arc::clone(&bell))).expect("there are few");
        let size = inner.standing().size;
        Self { inner, bell, untaken: VecDeque::new(), given: 0, size, away: 0 }
    }

    /// A queue has raised its event here, the last of which was `last`: as long as nobody took that, it will do.
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

    /// The program takes an event, if it is woken. It is of the queue that it should be of.
    pub(super) fn take(&mut self, tally: &mut Tally) -> Option<u32> {
        let readable = lock(&self.bell.state).readable;
        let event = self.inner.next().map(|event| event.cq);
        assert_eq!(event.is_some(), readable, "readable exactly while there is an event");
        event?;
        let expected = self.untaken.pop_front().map(|(cq, _)| cq);
        assert_eq!(event, expected, "in order, and none twice");
        tally.events += 1;
        event
    }

    /// From now on at most one wake in each interval, or one whenever the last event was taken.
    pub(super) fn moderate(&self, interval: Option<Duration>, name: usize, timers: &Arc<Timers>) {
        let mut state = lock(&self.bell.state);
        (state.interval, state.held_until) = (interval, None);
        drop(state); // it may be woken for this
        self.inner.moderate(interval.map(|interval| (interval, timers.timer(name, &self.inner))));
    }

    /// It has the events that it was given, and its program is awake, or will be.
    pub(super) fn check(&mut self, tally: &mut Tally) {
        let standing = self.inner.standing();
        let untaken = self.untaken.len() as u64;
        assert_eq!((standing.written, standing.unread), (self.given, untaken), "it gets what is its own");
        tally.met_if(Met::QueueSwitched, standing.size > self.size);
        self.size = standing.size;
        let state = lock(&self.bell.state);
        if untaken == 0 || state.readable {
            return assert!(untaken > 0 || !state.readable, "woken for nothing");
        }
        let held = state.held_until.is_some_and(|until| until > self.bell.clock.now());
        assert!(held, "a program sleeps, and {untaken} events are there");
        tally.met(Met::WakeHeld);
    }

    pub(super) fn wakes(&self) -> u64 {
        lock(&self.bell.state).wakes
    }
}
