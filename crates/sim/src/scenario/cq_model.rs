//! A model of a completion queue and its events. Each arming causes one event, even if the queue is resized, moved or
//! moderated meanwhile.

use super::coverage::{Coverage, Feature};
use crate::clock::Timers;
use ironwarp_rnic::event::{CompletionHandler, HandlerId, Wake};
use ironwarp_rnic::queue::{Arm, Completion, Cq, FrozenCq, Moderation, Status};
use std::sync::Arc;
use std::time::Duration;

/// A completion queue, its handlers, and whether an event is due.
#[derive(Debug)]
pub(super) struct CqModel {
    pub(super) cq: Arc<Cq>,
    handlers: [Arc<CompletionHandler>; 2],
    /// Index of the current handler; `None` if the queue has no handler.
    pub(super) handler: Option<usize>,
    /// Whether the handler was changed since events were last taken, so that the old handler may have an event.
    pub(super) moved: bool,
    /// Number of events since completions were last polled.
    event_count: usize,
    /// Whether an event was raised while the queue had no handler.
    pub(super) kept: bool,
    /// How the queue is armed; `None` if it is not.
    pub(super) armed: Option<Arm>,
    /// The event is held back until this many completions have arrived, or for this long.
    moderation: Option<(usize, Duration)>,
    /// The event that is held back, if any.
    held: Option<Held>,
}

/// An event that was held back when completions were last polled.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Number of completions that the event is for.
    count: usize,
    /// When the first of them was polled: it may have arrived earlier.
    since: Duration,
    /// Whether moderation was changed, so that the event is no longer held back.
    released: bool,
}

/// The wakeup of a program that never sleeps: does nothing.
#[derive(Debug)]
pub(super) struct Awake;

impl Wake for Awake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl CqModel {
    /// Creates the model of a new completion queue, and assigns the queue to the first of two handlers.
    pub(super) fn new(cq: Cq) -> Self {
        let handlers = [2, 3].map(|id| CompletionHandler::new(HandlerId(id), Box::new(Awake), None));
        cq.set_handler(Some(Arc::clone(&handlers[0])));
        Self {
            cq: Arc::new(cq),
            handlers,
            handler: Some(0),
            moved: false,
            event_count: 0,
            kept: false,
            armed: None,
            moderation: None,
            held: None,
        }
    }

    /// Prepares the model for a move to another function: takes events, and ends moderation.
    pub(super) fn prepare_move(&mut self, timers: &Arc<Timers>) {
        self.moderate(None, timers);
        self.take_events();
    }

    /// Replaces the queue by one of another function, with the state of the former.
    pub(super) fn replace(&mut self, cq: Arc<Cq>, frozen: FrozenCq) {
        cq.set_handler(self.handler.map(|handler| Arc::clone(&self.handlers[handler])));
        cq.thaw(frozen);
        self.cq = cq;
    }

    /// Takes and counts new events. Checks that they are at the current handler, or at the previous one if the queue
    /// has just moved.
    pub(super) fn take_events(&mut self) {
        for (number, handler) in self.handlers.iter().enumerate() {
            let events = std::iter::from_fn(|| handler.try_next()).count();
            assert!(events == 0 || self.moved || self.handler == Some(number), "event at an earlier handler");
            self.event_count += events;
        }
        self.moved = false;
    }

    /// Polls all completions. Checks that there was an event if and only if the queue was armed for one of them, unless
    /// the event is held back within its limits, or there is no handler.
    pub(super) fn poll(&mut self, now: Duration, coverage: &mut Coverage) -> Vec<Completion> {
        let mut completions = Vec::new();
        let polled = self.cq.poll(usize::MAX, |completion| completions.push(completion));
        self.take_events();
        let count = match self.armed {
            None => 0,
            Some(Arm::Next) => completions.len(),
            Some(Arm::Solicited) => {
                completions.iter().filter(|completion| completion.raises_solicited_event()).count()
            }
        };
        let failed = polled.is_err() || completions.iter().any(|it| it.status != Status::Success);
        let raised = self.is_raised();
        let count = count + self.held.map_or(0, |held| held.count);
        assert!(!raised || count > 0 || polled.is_err(), "event without a reason");
        let due = count > 0 || self.armed.is_some() && polled.is_err();
        assert!(
            raised || !due || self.may_wait(count, now) && !failed,
            "armed {:?}: {count} came",
            self.armed
        );
        assert!(self.event_count <= usize::from(raised), "{} events", self.event_count);
        let unseen = raised && self.event_count == 0;
        assert!(!unseen || self.handler.is_none(), "event missing");
        self.kept |= unseen;
        if raised {
            self.armed = None;
            coverage.record_if(Feature::HeldBack, self.held.is_some());
        }
        let since = self.held.map_or(now, |held| held.since);
        self.held = (due && !raised).then_some(Held { count, since, released: false });
        self.event_count = 0;
        completions
    }

    /// Returns whether an event for this many completions may still be held back.
    fn may_wait(&self, count: usize, now: Duration) -> bool {
        let Some((limit, period)) = self.moderation else { return false };
        let late = |held: Held| held.released || !period.is_zero() && held.since + period < now;
        count < limit && !self.held.is_some_and(late)
    }

    /// Checks, when nothing happens any more, that no event is held back that a timer should have raised.
    pub(super) fn expect_timers_expired(&self) {
        let timed = self.moderation.is_some_and(|(_, period)| !period.is_zero());
        assert!(self.held.is_none() || !timed, "timer did not expire: {:?}", self.held);
    }

    /// Changes the moderation of the queue. An event that is held back must then be raised.
    pub(super) fn moderate(&mut self, by: Option<(usize, Duration)>, timers: &Arc<Timers>) {
        let timer = || timers.timer(self.cq.id() as usize, &self.cq);
        self.cq.moderate(by.map(|(count, period)| Moderation { count, period, timer: timer() }));
        self.moderation = by;
        if let Some(held) = &mut self.held {
            held.released = true;
        }
    }

    /// Returns whether an event was raised since completions were last polled.
    fn is_raised(&self) -> bool {
        self.armed.is_some() && !self.cq.is_armed()
    }

    /// Moves the queue to another handler, or to none (*Modify CQ*, requirement N4). Checks that an event that was
    /// raised without a handler goes to the new one.
    pub(super) fn move_to(&mut self, to: Option<usize>) {
        self.cq.set_handler(to.map(|to| Arc::clone(&self.handlers[to])));
        self.handler = to;
        if to.is_some() && std::mem::take(&mut self.kept) {
            self.take_events();
            assert_eq!(self.event_count, 1, "the kept event is missing");
            self.event_count = usize::from(self.is_raised()); // one event covers both
        }
    }

    /// Prepares the model for the reset of a queue pair, which removes completions, but not their event.
    pub(super) fn forget(&mut self, timers: &Arc<Timers>) {
        self.moderate(None, timers);
        self.take_events();
        if self.is_raised() {
            assert!(self.held.is_some() || !self.cq.is_empty(), "event without a reason");
            assert!(self.event_count == 1 || self.handler.is_none());
            self.kept |= self.event_count == 0;
            self.armed = None;
        }
        assert!(self.event_count <= 1 && (self.event_count == 0 || self.armed.is_none()));
        (self.event_count, self.held) = (0, None);
    }
}
