//! A completion handler, the descriptor that its program waits on, and a model of both.

use super::tally::{Situation, Tally};
use crate::clock::{Clock, Timers};
use crate::lock;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{CompletionHandler, QueueState, ResizeQueueError, Sizes, Wake};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A completion handler and a model of its events.
pub(super) struct Handler {
    pub(super) inner: Arc<CompletionHandler>,
    descriptor: Arc<Descriptor>,
    /// Events that were not taken, oldest first: the number of their completion queue, and an ascending number.
    untaken: VecDeque<(u32, u64)>,
    /// Number of all events so far.
    event_count: u64,
    /// Whether the handler's event queue has memory.
    defined: bool,
    /// Size of the handler's event queue, or of its first ring.
    size: usize,
    /// Whether the program polls, and has not armed the event queue since.
    polls: bool,
    /// Number of steps for which the handler's program is busy, and takes no events.
    pub(super) busy_steps: u64,
}

/// The descriptor that a program waits on. It must be readable exactly while there is an event that moderation does not
/// hold back.
#[derive(Debug)]
struct Descriptor {
    clock: Clock,
    state: Mutex<State>,
}

/// The state of a descriptor.
#[derive(Debug, Default)]
struct State {
    readable: bool,
    /// Number of wakeups so far.
    wakes: u64,
    /// Minimum time between two wakeups. `None` if wakeups are not moderated.
    interval: Option<Duration>,
    /// Time before which there must be no wakeup, unless moderation is changed.
    held_until: Option<Duration>,
}

impl Wake for Descriptor {
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
    /// Creates a handler.
    pub(super) fn new(device: &Device, clock: &Clock) -> Self {
        let descriptor = Arc::new(Descriptor { clock: clock.clone(), state: Mutex::default() });
        let inner = device.create_handler(Box::new(Arc::clone(&descriptor))).expect("there are few");
        let size = Sizes::default().initial;
        Self {
            inner,
            descriptor,
            untaken: VecDeque::new(),
            event_count: 0,
            defined: false,
            size,
            polls: false,
            busy_steps: 0,
        }
    }

    /// Records that a completion queue which may raise events uses the handler: its event queue gets memory
    /// (requirement I2).
    pub(super) fn define(&mut self) {
        self.defined = true;
    }

    /// Resizes the event queue (requirement I3). Sizes out of range must be refused.
    pub(super) fn resize(&mut self, size: usize, tally: &mut Tally) {
        let max = Sizes::default().max;
        let refused = size < 2 || size > max;
        let expected = if refused { Err(ResizeQueueError::Size { size, max }) } else { Ok(()) };
        assert_eq!(self.inner.resize(size), expected);
        if refused {
            return;
        }
        let unread = !self.untaken.is_empty();
        tally.record_if(Situation::QueueEnlarged, unread && size > self.size);
        tally.record_if(Situation::QueueShrunk, unread && size < self.untaken.len());
        tally.record_if(Situation::QueueSizedEarly, !self.defined);
        self.size = size;
    }

    /// Takes events by polling from now on, so that the program is not woken (requirement I10).
    pub(super) fn poll(&mut self) {
        self.polls = true;
    }

    /// Arms the event queue, so that the program is woken again.
    pub(super) fn arm(&mut self, tally: &mut Tally) {
        tally.record_if(Situation::ArmedLate, self.polls && !self.untaken.is_empty());
        self.polls = false;
        self.inner.arm();
    }

    /// Adds an event of a completion queue to the model, and stores its number in `last`, which has the number of the
    /// queue's previous event. If the previous event was not taken yet, adds nothing: one event covers both.
    pub(super) fn add_event(&mut self, cq: u32, last: &mut Option<u64>, tally: &mut Tally) {
        let oldest = self.untaken.front().map(|(_, number)| *number);
        if oldest.is_some_and(|oldest| last.is_some_and(|last| last >= oldest)) {
            tally.record(Situation::Coalesced);
            return;
        }
        self.untaken.push_back((cq, self.event_count));
        *last = Some(self.event_count);
        self.event_count += 1;
    }

    /// Returns whether the handler has an event of this completion queue.
    pub(super) fn has(&self, cq: u32) -> bool {
        self.untaken.iter().any(|(of, _)| *of == cq)
    }

    /// Takes the oldest event, and checks that it is the expected one, and that the descriptor was readable. Returns
    /// the number of its completion queue, or `None` if there is no event.
    pub(super) fn take(&mut self, tally: &mut Tally) -> Option<u32> {
        let event = if self.polls {
            let event = self.inner.poll_one().map(|event| event.cq);
            self.defined = true; // the queue stays unarmed, whenever a completion queue may raise events
            tally.record_if(Situation::Polled, event.is_some());
            assert_eq!(event.is_some(), !self.untaken.is_empty(), "an event was not found, or was made up");
            event
        } else {
            let readable = lock(&self.descriptor.state).readable;
            let event = self.inner.try_next().map(|event| event.cq);
            assert_eq!(event.is_some(), readable, "readable without an event, or the reverse");
            event
        };
        event?;
        let expected = self.untaken.pop_front().map(|(cq, _)| cq);
        assert_eq!(event, expected, "events out of order or repeated");
        tally.events += 1;
        event
    }

    /// Limits wakeups to one per interval; `None` removes the limit.
    pub(super) fn moderate(&self, interval: Option<Duration>, name: usize, timers: &Arc<Timers>) {
        let mut state = lock(&self.descriptor.state);
        (state.interval, state.held_until) = (interval, None);
        drop(state); // the next call may cause a wakeup, which locks the state
        self.inner.moderate(interval.map(|interval| (interval, timers.timer(name, &self.inner))));
    }

    /// Checks that the handler has all events, and that its program is or will be woken for them.
    pub(super) fn check(&mut self, tally: &mut Tally) {
        let stats = self.inner.stats();
        let untaken = self.untaken.len() as u64;
        assert_eq!((stats.written, stats.unread), (self.event_count, untaken), "wrong number of events");
        let undefined = stats.state == QueueState::Undefined;
        assert_eq!((undefined, stats.size > 0), (!self.defined, self.defined), "memory was not given");
        if self.defined {
            tally.record_if(Situation::QueueSwitched, stats.size > self.size);
            assert!(stats.size >= self.size, "the event queue shrank to {}", stats.size);
            self.size = stats.size;
        }
        let state = lock(&self.descriptor.state);
        if self.polls && !state.readable {
            return;
        }
        if untaken == 0 || state.readable {
            return assert!(untaken > 0 || !state.readable, "woken without an event");
        }
        let held = state.held_until.is_some_and(|until| until > self.descriptor.clock.now());
        assert!(held, "a program sleeps despite {untaken} events");
        tally.record(Situation::WakeHeld);
    }

    /// Returns the number of wakeups so far.
    pub(super) fn wakes(&self) -> u64 {
        lock(&self.descriptor.state).wakes
    }
}
