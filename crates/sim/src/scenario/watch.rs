//! What tells a program that something happened: the events of its completion queues, one for each time it armed them, and
//! the asynchronous events of its adapter.

use super::coverage::Trait;
use super::line::{Drain, Events};
use super::pick;
use super::program::Program;
use super::supply::Supply;
use ironwarp_rnic::event::{AsyncEvent, CompletionHandler, HandlerId, Wake};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::queue::{Arm, Completion, Cq};
use std::sync::Arc;

/// A completion queue, and whether an event of it is due.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) cq: Arc<Cq>,
    handler: Arc<CompletionHandler>,
    armed: Option<Arm>,
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
        let (cq, handler) = (Arc::new(cq), CompletionHandler::new(HandlerId(2), Box::new(Awake), None));
        cq.set_handler(Some(Arc::clone(&handler)));
        Self { cq, handler, armed: None }
    }

    /// How many events came since this was last asked.
    fn events(&self) -> usize {
        std::iter::from_fn(|| self.handler.next()).count()
    }

    /// Takes all completions. There was an event for them if, and only if, the queue was armed for one of them.
    pub(super) fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        let polled = self.cq.poll(usize::MAX, |completion| completions.push(completion));
        let due = match self.armed {
            None => false,
            Some(Arm::Next) => !completions.is_empty() || polled.is_err(),
            Some(Arm::Solicited) => completions.iter().any(Completion::wakes) || polled.is_err(),
        };
        assert_eq!(self.events(), usize::from(due), "armed {:?}", self.armed);
        if due {
            self.armed = None;
        }
        completions
    }

    /// Completions are about to be taken back. Their event is not.
    fn forget(&mut self) {
        if self.events() > 0 {
            assert!(self.armed.take().is_some() && !self.cq.is_empty(), "an event for nothing");
        }
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

    /// A queue pair is about to be reset. Returns how many completions wait.
    pub(super) fn forget_events(&mut self) -> usize {
        self.watches.iter_mut().for_each(Watch::forget);
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
