//! What tells a program that something happened: the events of its completion queues, one for each time it armed them, whatever
//! it does to the queues meanwhile; and the asynchronous events of its adapter.

use super::coverage::{Coverage, Trait};
use super::line::{Drain, Events};
use super::pick;
use super::program::Program;
use super::supply::Supply;
use crate::clock::Timers;
use ironwarp_rnic::event::{AsyncEvent, CompletionHandler, HandlerId, Wake};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::queue::{Arm, Completion, Cq, Moderation, Status};
use std::sync::Arc;
use std::time::Duration;

/// A completion queue, its handlers, and whether an event of it is due.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) cq: Arc<Cq>,
    handlers: [Arc<CompletionHandler>; 2],
    /// The one that it has now.
    at: Option<usize>,
    /// It had another since events were last looked for, which may have got one.
    left: bool,
    /// How many were found since completions were last polled.
    found: usize,
    /// An event came while there was no handler.
    kept: bool,
    armed: Option<Arm>,
    /// The event waits for so many completions, or for so long.
    moderation: Option<(usize, Duration)>,
    held: Option<Held>,
}

/// An event that was held back when completions were last polled.
#[derive(Clone, Copy, Debug)]
struct Held {
    come: usize,
    /// The first of them was there by then.
    since: Duration,
    /// Moderation was changed: it does not wait any longer.
    released: bool,
}

/// Nobody sleeps here.
#[derive(Debug)]
pub(super) struct Awake;

impl Wake for Awake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl Watch {
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

    /// Takes the events that came since this was last asked. None is at a handler that the queue had left by then.
    fn look(&mut self) {
        for (number, handler) in self.handlers.iter().enumerate() {
            let events = std::iter::from_fn(|| handler.next()).count();
            assert!(events == 0 || self.left || self.at == Some(number), "an event at a handler of before");
            self.found += events;
        }
        self.left = false;
    }

    /// Takes all completions. There was an event for them if, and only if, the queue was armed for one of them; unless that is
    /// held back, but not longer than it may be, or there is no handler that it could go to.
    pub(super) fn poll(&mut self, now: Duration, coverage: &mut Coverage) -> Vec<Completion> {
        let mut completions = Vec::new();
        let polled = self.cq.poll(usize::MAX, |completion| completions.push(completion));
        self.look();
        let come = match self.armed {
            None => 0,
            Some(Arm::Next) => completions.len(),
            Some(Arm::Solicited) => completions.iter().filter(|completion| completion.wakes()).count(),
        };
        let failed = polled.is_err() || completions.iter().any(|it| it.status != Status::Success);
        let raised = self.is_raised();
        let come = come + self.held.map_or(0, |held| held.come);
        assert!(!raised || come > 0 || polled.is_err(), "an event for nothing");
        let due = come > 0 || self.armed.is_some() && polled.is_err();
        assert!(raised || !due || self.may_wait(come, now) && !failed, "armed {:?}: {come} came", self.armed);
        assert!(self.found <= usize::from(raised), "{} events", self.found);
        let unseen = raised && self.found == 0;
        assert!(!unseen || self.at.is_none(), "the event did not come");
        self.kept |= unseen;
        if raised {
            self.armed = None;
            coverage.met_if(Trait::HeldBack, self.held.is_some());
        }
        let since = self.held.map_or(now, |held| held.since);
        self.held = (due && !raised).then_some(Held { come, since, released: false });
        self.found = 0;
        completions
    }

    /// Whether an event may still be held back for so many completions.
    fn may_wait(&self, come: usize, now: Duration) -> bool {
        let Some((count, period)) = self.moderation else { return false };
        let late = |held: Held| held.released || !period.is_zero() && held.since + period < now;
        come < count && !self.held.is_some_and(late)
    }

    /// Nothing will happen any more: no event waits for a time.
    pub(super) fn expect_told(&self) {
        let timed = self.moderation.is_some_and(|(_, period)| !period.is_zero());
        assert!(self.held.is_none() || !timed, "its timer did not ring: {:?}", self.held);
    }

    /// From now on the event waits for so many completions, or for so long. One that waits now does not any more.
    fn moderate(&mut self, by: Option<(usize, Duration)>, timers: &Arc<Timers>) {
        let timer = || timers.timer(self.cq.id() as usize, &self.cq);
        self.cq.moderate(by.map(|(count, period)| Moderation { count, period, timer: timer() }));
        self.moderation = by;
        if let Some(held) = &mut self.held {
            held.released = true;
        }
    }

    /// Whether the event that was asked for was raised, since completions were last polled.
    fn is_raised(&self) -> bool {
        self.armed.is_some() && !self.cq.is_armed()
    }

    /// *Modify CQ* (requirement N4). An event that was kept while there was no handler comes now.
    fn move_to(&mut self, to: Option<usize>) {
        self.cq.set_handler(to.map(|to| Arc::clone(&self.handlers[to])));
        self.at = to;
        if to.is_some() && std::mem::take(&mut self.kept) {
            self.look();
            assert_eq!(self.found, 1, "it was kept for this handler");
            self.found = usize::from(self.is_raised()); // it does for both
        }
    }

    /// Completions are about to be taken back. Their event is not, and does not wait for others.
    fn forget(&mut self, timers: &Arc<Timers>) {
        self.moderate(None, timers);
        self.look();
        if self.is_raised() {
            assert!(self.held.is_some() || !self.cq.is_empty(), "an event for nothing");
            assert!(self.found == 1 || self.at.is_none());
            self.kept |= self.found == 0;
            self.armed = None;
        }
        assert!(self.found <= 1 && (self.found == 0 || self.armed.is_none()));
        (self.found, self.held) = (0, None);
    }
}

impl Program {
    /// Asks for an event.
    pub(super) fn arm(&mut self, rng: &mut Rng) {
        let arm = pick(rng, &[Arm::Next, Arm::Solicited]);
        self.coverage.met(if arm == Arm::Next { Trait::ArmedNext } else { Trait::ArmedSolicited });
        for watch in &mut self.watches {
            assert!(!watch.cq.arm(arm) || watch.cq.overrun(), "all was polled");
            watch.armed = watch.armed.max(Some(arm));
        }
    }

    /// Resizes a completion queue, moves it to another handler, or changes its moderation, with whatever is in it.
    pub(super) fn meddle(&mut self, rng: &mut Rng) {
        let number = usize::try_from(rng.below(self.watches.len() as u64)).expect("an index");
        match rng.below(3) {
            0 => self.resize(rng, number),
            1 => self.modify(rng, number),
            _ => {
                let by = [(1, 0), (2, 0), (3, 5), (8, 30), (8, 200)];
                let by = by.map(|(count, period)| (count, Duration::from_micros(period)));
                let by = Some(pick(rng, &by)).filter(|_| rng.below(3) > 0);
                self.note(format_args!("moderates completion queue {number}: {by:?}"));
                self.watches[number].moderate(by, &self.timers);
                self.coverage.met(Trait::Moderated);
            }
        }
    }

    fn resize(&mut self, rng: &mut Rng, number: usize) {
        let cq = &self.watches[number].cq;
        let (before, waiting) = (cq.capacity(), cq.len());
        let room = self.rules.room[self.number];
        let capacity = if rng.below(3) == 0 { waiting.saturating_sub(1) } else { room + rng.part_of(room) };
        self.note(format_args!("resizes completion queue {number} to {capacity}"));
        let resized = cq.resize(capacity);
        let fits = capacity >= waiting.max(1);
        assert_eq!((resized.is_ok(), cq.len()), (fits, waiting), "what waits stays");
        assert_eq!(cq.capacity(), if fits { capacity } else { before });
        let what = if fits { Trait::Resized } else { Trait::ResizeRefused };
        self.coverage.met_if(what, waiting > 0);
    }

    fn modify(&mut self, rng: &mut Rng, number: usize) {
        let to = pick(rng, &[None, Some(0), Some(1)]);
        let watch = &mut self.watches[number];
        // What comes while there is no handler is known by polling.
        if watch.at.is_none() && !watch.cq.is_empty() {
            return;
        }
        if rng.below(2) == 0 {
            watch.look();
        } else {
            watch.left |= watch.at.is_some();
        }
        let armed = watch.armed.is_some();
        self.coverage.met_if(Trait::Moved, armed && watch.at.is_some() && to != watch.at);
        self.coverage.met_if(Trait::MovedFull, !watch.cq.is_empty() && to != watch.at);
        self.coverage.met_if(Trait::KeptForNext, watch.kept && to.is_some());
        watch.move_to(to);
        self.note(format_args!("moves completion queue {number} to handler {to:?}"));
    }

    /// A queue pair is about to be reset. Returns how many completions wait.
    pub(super) fn forget_events(&mut self) -> usize {
        self.watches.iter_mut().for_each(|watch| watch.forget(&self.timers));
        self.watches.iter().map(|watch| watch.cq.len()).sum()
    }

    /// Asks for the event of a shared receive queue that runs low.
    pub(super) fn limit(&mut self, rng: &mut Rng) -> bool {
        if self.rules.drains && !self.rules.prompt {
            return false; // the completions before it were not looked at
        }
        self.look_at_events(); // one may have come of the limit before
        let Some(supply) = self.supplies.iter_mut().find(|supply| supply.shared.is_some()) else {
            return false;
        };
        let Some(queue) = &supply.shared else { return false };
        supply.limited = true;
        queue.set_limit(rng.part_of(4));
        true
    }

    /// Looks at what happened outside of any request.
    pub(super) fn look_at_events(&mut self) {
        for event in std::iter::from_fn(|| self.device.events().next()).collect::<Vec<_>>() {
            self.note(format_args!("{event:?}"));
            match event {
                AsyncEvent::SrqLimitReached(number) => {
                    let queue = |supply: &&mut Supply| {
                        supply.shared.as_ref().is_some_and(|queue| queue.id() == number)
                    };
                    let supply = self.supplies.iter_mut().find(queue).expect("a queue of ours");
                    assert!(std::mem::take(&mut supply.limited), "asked for, and once");
                    self.coverage.met(Trait::LimitReached);
                }
                AsyncEvent::SqDrained(qp) => {
                    let line = self.line_of(qp);
                    assert!(matches!(self.lines[line].drain, Drain::Asked(_)), "asked for, and once");
                    self.lines[line].drain = Drain::Done;
                    self.coverage.met(Trait::Drained);
                }
                AsyncEvent::QpFatal(qp) => self.events_of(qp).fatal += 1,
                AsyncEvent::QpRequestError(qp) => self.events_of(qp).request_error += 1,
                AsyncEvent::QpAccessError(qp) => self.events_of(qp).access_error += 1,
                AsyncEvent::LastWqeReached(qp) => {
                    self.events_of(qp).last_receive += 1;
                    self.coverage.met(Trait::LastReceive);
                }
                AsyncEvent::Established(qp) => {
                    self.events_of(qp).established += 1;
                    self.coverage.met(Trait::Established);
                }
                AsyncEvent::CqError(cq) => assert!(self.watches[cq as usize].cq.overrun()),
                other => panic!("nothing here can cause {other:?}"),
            }
        }
        for supply in self.supplies.iter().filter(|supply| supply.limited) {
            let status = supply.shared.as_ref().expect("it has a limit").query();
            assert!(status.limit > 0 && status.posted >= status.limit, "the event is due: {status:?}");
        }
    }

    fn events_of(&mut self, qp: u32) -> &mut Events {
        let line = self.line_of(qp);
        &mut self.lines[line].events
    }
}
