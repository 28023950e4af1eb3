//! Arms and changes the completion queues of a program, and checks the asynchronous events of its adapter.

use super::connection::{Drain, Events};
use super::coverage::Feature;
use super::program::Program;
use super::random::pick;
use super::supply::Supply;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::queue::Arm;
use std::time::Duration;

impl Program {
    /// Arms the completion queues.
    pub(super) fn arm(&mut self, rng: &mut Rng) {
        let arm = pick(rng, &[Arm::Next, Arm::Solicited]);
        self.coverage.record(if arm == Arm::Next { Feature::ArmedNext } else { Feature::ArmedSolicited });
        for model in &mut self.cqs {
            assert!(!model.cq.arm(arm) || model.cq.has_overrun(), "completions were not polled");
            model.armed = model.armed.max(Some(arm));
        }
    }

    /// Resizes a completion queue, moves it to another handler, or changes its moderation.
    pub(super) fn change_cq(&mut self, rng: &mut Rng) {
        let number = usize::try_from(rng.below(self.cqs.len() as u64)).expect("an index");
        match rng.below(3) {
            0 => self.resize(rng, number),
            1 => self.modify(rng, number),
            _ => {
                let by = [(1, 0), (2, 0), (3, 5), (8, 30), (8, 200)];
                let by = by.map(|(count, period)| (count, Duration::from_micros(period)));
                let by = Some(pick(rng, &by)).filter(|_| rng.below(3) > 0);
                self.note(format_args!("moderates completion queue {number}: {by:?}"));
                self.cqs[number].moderate(by, &self.timers);
                self.coverage.record(Feature::Moderated);
            }
        }
    }

    /// Resizes a completion queue, sometimes to fewer completions than it has, which must be refused.
    fn resize(&mut self, rng: &mut Rng, number: usize) {
        let cq = &self.cqs[number].cq;
        let (before, waiting) = (cq.capacity(), cq.len());
        let room = self.rules.room[self.number];
        let capacity = if rng.below(3) == 0 { waiting.saturating_sub(1) } else { room + rng.part_of(room) };
        self.note(format_args!("resizes completion queue {number} to {capacity}"));
        let resized = cq.resize(capacity);
        let fits = capacity >= waiting.max(1);
        assert_eq!((resized.is_ok(), cq.len()), (fits, waiting), "completions were lost");
        assert_eq!(cq.capacity(), if fits { capacity } else { before });
        let what = if fits { Feature::Resized } else { Feature::ResizeRefused };
        self.coverage.record_if(what, waiting > 0);
    }

    /// Moves a completion queue to a random handler, or to none.
    fn modify(&mut self, rng: &mut Rng, number: usize) {
        let to = pick(rng, &[None, Some(0), Some(1)]);
        let model = &mut self.cqs[number];
        // The model notices an event that was raised without a handler only when it polls the completions.
        if model.handler.is_none() && !model.cq.is_empty() {
            return;
        }
        if rng.below(2) == 0 {
            model.take_events();
        } else {
            model.moved |= model.handler.is_some();
        }
        let armed = model.armed.is_some();
        self.coverage.record_if(Feature::Moved, armed && model.handler.is_some() && to != model.handler);
        self.coverage.record_if(Feature::MovedFull, !model.cq.is_empty() && to != model.handler);
        self.coverage.record_if(Feature::KeptForNext, model.kept && to.is_some());
        model.move_to(to);
        self.note(format_args!("moves completion queue {number} to handler {to:?}"));
    }

    /// Prepares all completion queues for the reset of a queue pair. Returns the number of completions in them.
    pub(super) fn forget_events(&mut self) -> usize {
        self.cqs.iter_mut().for_each(|model| model.forget(&self.timers));
        self.cqs.iter().map(|model| model.cq.len()).sum()
    }

    /// Requests the limit event of a shared receive queue. Returns false if there is no such queue.
    pub(super) fn request_limit_event(&mut self, rng: &mut Rng) -> bool {
        if self.rules.drains && !self.rules.prompt {
            return false; // receives may be in use whose completions were not polled
        }
        self.check_events(); // there may be an event of an earlier limit
        let Some(supply) = self.supplies.iter_mut().find(|supply| supply.shared.is_some()) else {
            return false;
        };
        let Some(queue) = &supply.shared else { return false };
        supply.limited = true;
        queue.set_limit(rng.part_of(4));
        true
    }

    /// Takes all asynchronous events, and checks that they were requested or are explained.
    pub(super) fn check_events(&mut self) {
        for event in std::iter::from_fn(|| self.device.events().try_next()).collect::<Vec<_>>() {
            self.note(format_args!("{event:?}"));
            match event {
                AsyncEvent::SrqLimitReached(number) => {
                    let queue = |supply: &&mut Supply| {
                        supply.shared.as_ref().is_some_and(|queue| queue.id() == number)
                    };
                    let supply = self.supplies.iter_mut().find(queue).expect("a known queue");
                    assert!(std::mem::take(&mut supply.limited), "event not requested, or repeated");
                    self.coverage.record(Feature::LimitReached);
                }
                AsyncEvent::SqDrained(qp) => {
                    let connection = self.connection_of(qp);
                    assert!(
                        matches!(self.connections[connection].drain, Drain::Requested(_)),
                        "event not requested, or repeated"
                    );
                    self.connections[connection].drain = Drain::Done;
                    self.coverage.record(Feature::Drained);
                }
                AsyncEvent::QpFatal(qp) => self.events_of(qp).fatal += 1,
                AsyncEvent::QpRequestError(qp) => self.events_of(qp).request_error += 1,
                AsyncEvent::QpAccessError(qp) => self.events_of(qp).access_error += 1,
                AsyncEvent::LastWqeReached(qp) => {
                    self.events_of(qp).last_receive += 1;
                    self.coverage.record(Feature::LastReceive);
                }
                AsyncEvent::Established(qp) => {
                    self.events_of(qp).established += 1;
                    self.coverage.record(Feature::Established);
                }
                AsyncEvent::CqError(cq) => assert!(self.cqs[cq as usize].cq.has_overrun()),
                other => panic!("unexpected event {other:?}"),
            }
        }
        for supply in self.supplies.iter().filter(|supply| supply.limited) {
            let status = supply.shared.as_ref().expect("a shared queue").query();
            assert!(status.limit > 0 && status.posted >= status.limit, "limit event missing: {status:?}");
        }
    }

    /// Returns the event counters of a queue pair.
    fn events_of(&mut self, qp: u32) -> &mut Events {
        let connection = self.connection_of(qp);
        &mut self.connections[connection].events
    }
}
