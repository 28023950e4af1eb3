//! A model of a completion queue and its events: one event per arming, whatever happens to the queue meanwhile.

use super::coverage::{Coverage, Feature};
use crate::clock::Timers;
use ironwarp_rnic::event::{CompletionHandler, HandlerId, Wake};
use ironwarp_rnic::queue::{Arm, Completion, Cq, Moderation, Status};
use std::sync::Arc;
use std::time::Duration;

/// A completion queue, its handlers, and whether an event is due.
#[derive(Debug)]
pub(super) struct CqModel {
    pub(super) cq: Arc<Cq>,
    handlers: [Arc<CompletionHandler>; 2],
    /// The current handler.
    pub(super) at: Option<usize>,
    /// The handler was changed since events were last checked, so the old one may have an event.
    pub(super) left: bool,
    /// Number of events since completions were last polled.
    found: usize,
    /// An event was raised without a handler.
    pub(super) kept: bool,
    pub(super) armed: Option<Arm>,
    /// The event is held back for this many completions or this long.
    moderation: Option<(usize, Duration)>,
    held: Option<Held>,
}

/// An event that was held back when completions were last polled.
#[derive(Clone, Copy, Debug)]
struct Held {
    come: usize,
    /// The first of them had arrived by then.
    since: Duration,
    /// Moderation was changed, so the event is no longer held back.
    released: bool,
}

/// A program that does not sleep.
#[derive(Debug)]
pub(super) struct Awake;

impl Wake for Awake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl CqModel {
    pub(super) fn new(cq: Cq) -> Self {
        let handlers = [2, 3].map(|id| CompletionHandler::new(HandlerId(id), Box::new(Awake), None));
        cq.set_handler(Some(Arc::clone(&handlers[0])));
        Self {
            cq: Arc::new(cq),
            handlers,
            at: Some(0),
            left: false,
            found: 0,
            kept: false,
            armed: None,
            moderation: None,
            held: None,
        }
    }

    /// Takes new events, and checks that none is at a handler that the queue had left before.
    pub(super) fn look(&mut self) {
        for (number, handler) in self.handlers.iter().enumerate() {
            let events = std::iter::from_fn(|| handler.try_next()).count();
            assert!(events == 0 || self.left || self.at == Some(number), "event at an earlier handler");
            self.found += events;
        }
        self.left = false;
    }

    /// Polls all completions. Checks that there was an event if and only if the queue was armed for one of them, unless the event
    /// is held back within its limits, or there is no handler.
    pub(super) fn poll(&mut self, now: Duration, coverage: &mut Coverage) -> Vec<Completion> {
        let mut completions = Vec::new();
        let polled = self.cq.poll(usize::MAX, |completion| completions.push(completion));
        self.look();
        let come = match self.armed {
            None => 0,
            Some(Arm::Next) => completions.len(),
            Some(Arm::Solicited) => {
                completions.iter().filter(|completion| completion.raises_solicited_event()).count()
            }
        };
        let failed = polled.is_err() || completions.iter().any(|it| it.status != Status::Success);
        let raised = self.is_raised();
        let come = come + self.held.map_or(0, |held| held.come);
        assert!(!raised || come > 0 || polled.is_err(), "event without a reason");
        let due = come > 0 || self.armed.is_some() && polled.is_err();
        assert!(raised || !due || self.may_wait(come, now) && !failed, "armed {:?}: {come} came", self.armed);
        assert!(self.found <= usize::from(raised), "{} events", self.found);
        let unseen = raised && self.found == 0;
        assert!(!unseen || self.at.is_none(), "event missing");
        self.kept |= unseen;
        if raised {
            self.armed = None;
            coverage.met_if(Feature::HeldBack, self.held.is_some());
        }
        let since = self.held.map_or(now, |held| held.since);
        self.held = (due && !raised).then_some(Held { come, since, released: false });
        self.found = 0;
        completions
    }

    /// Whether an event for this many completions may still be held back.
    fn may_wait(&self, come: usize, now: Duration) -> bool {
        let Some((count, period)) = self.moderation else { return false };
        let late = |held: Held| held.released || !period.is_zero() && held.since + period < now;
        come < count && !self.held.is_some_and(late)
    }

    /// Checks, after everything has settled, that no event is held back by time.
    pub(super) fn expect_told(&self) {
        let timed = self.moderation.is_some_and(|(_, period)| !period.is_zero());
        assert!(self.held.is_none() || !timed, "timer did not expire: {:?}", self.held);
    }

    /// Changes moderation. An event that is held back is released.
    pub(super) fn moderate(&mut self, by: Option<(usize, Duration)>, timers: &Arc<Timers>) {
        let timer = || timers.timer(self.cq.id() as usize, &self.cq);
        self.cq.moderate(by.map(|(count, period)| Moderation { count, period, timer: timer() }));
        self.moderation = by;
        if let Some(held) = &mut self.held {
            held.released = true;
        }
    }

    /// Whether an event was raised since completions were last polled.
    fn is_raised(&self) -> bool {
        self.armed.is_some() && !self.cq.is_armed()
    }

    /// *Modify CQ* (requirement N4): changes the handler. An event that was raised without a handler goes to the new one.
    pub(super) fn move_to(&mut self, to: Option<usize>) {
        self.cq.set_handler(to.map(|to| Arc::clone(&self.handlers[to])));
        self.at = to;
        if to.is_some() && std::mem::take(&mut self.kept) {
            self.look();
            assert_eq!(self.found, 1, "the kept event is missing");
            self.found = usize::from(self.is_raised()); // one event covers both
        }
    }

    /// Prepares for a reset, which removes completions, but not their event.
    pub(super) fn forget(&mut self, timers: &Arc<Timers>) {
        self.moderate(None, timers);
        self.look();
        if self.is_raised() {
            assert!(self.held.is_some() || !self.cq.is_empty(), "event without a reason");
            assert!(self.found == 1 || self.at.is_none());
            self.kept |= self.found == 0;
            self.armed = None;
        }
        assert!(self.found <= 1 && (self.found == 0 || self.armed.is_none()));
        (self.found, self.held) = (0, None);
    }
}
