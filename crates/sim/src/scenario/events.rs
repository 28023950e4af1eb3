//! What a program does to its completion queues meanwhile, and the asynchronous events of its adapter.

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
        self.coverage.met(if arm == Arm::Next { Feature::ArmedNext } else { Feature::ArmedSolicited });
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
                self.coverage.met(Feature::Moderated);
            }
        }
    }

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
        self.coverage.met_if(what, waiting > 0);
    }

    fn modify(&mut self, rng: &mut Rng, number: usize) {
        let to = pick(rng, &[None, Some(0), Some(1)]);
        let model = &mut self.cqs[number];
        // Completions that arrive without a handler are detected by polling.
        if model.at.is_none() && !model.cq.is_empty() {
            return;
        }
        if rng.below(2) == 0 {
            model.look();
        } else {
            model.left |= model.at.is_some();
        }
        let armed = model.armed.is_some();
        self.coverage.met_if(Feature::Moved, armed && model.at.is_some() && to != model.at);
        self.coverage.met_if(Feature::MovedFull, !model.cq.is_empty() && to != model.at);
        self.coverage.met_if(Feature::KeptForNext, model.kept && to.is_some());
        model.move_to(to);
        self.note(format_args!("moves completion queue {number} to handler {to:?}"));
    }

    /// Prepares for the reset of a queue pair. Returns the number of completions.
    pub(super) fn forget_events(&mut self) -> usize {
        self.cqs.iter_mut().for_each(|model| model.forget(&self.timers));
        self.cqs.iter().map(|model| model.cq.len()).sum()
    }

    /// Requests the limit event of a shared receive queue.
    pub(super) fn limit(&mut self, rng: &mut Rng) -> bool {
        if self.rules.drains && !self.rules.prompt {
            return false; // earlier completions were not polled
        }
        self.look_at_events(); // there may be an event of an earlier limit
        let Some(supply) = self.supplies.iter_mut().find(|supply| supply.shared.is_some()) else {
            return false;
        };
        let Some(queue) = &supply.shared else { return false };
        supply.limited = true;
        queue.set_limit(rng.part_of(4));
        true
    }

    /// Handles asynchronous events.
    pub(super) fn look_at_events(&mut self) {
        for event in std::iter::from_fn(|| self.device.events().try_next()).collect::<Vec<_>>() {
            self.note(format_args!("{event:?}"));
            match event {
                AsyncEvent::SrqLimitReached(number) => {
                    let queue = |supply: &&mut Supply| {
                        supply.shared.as_ref().is_some_and(|queue| queue.id() == number)
                    };
                    let supply = self.supplies.iter_mut().find(queue).expect("a known queue");
                    assert!(std::mem::take(&mut supply.limited), "event not requested, or repeated");
                    self.coverage.met(Feature::LimitReached);
                }
                AsyncEvent::SqDrained(qp) => {
                    let connection = self.connection_of(qp);
                    assert!(
                        matches!(self.connections[connection].drain, Drain::Asked(_)),
                        "event not requested, or repeated"
                    );
                    self.connections[connection].drain = Drain::Done;
                    self.coverage.met(Feature::Drained);
                }
                AsyncEvent::QpFatal(qp) => self.events_of(qp).fatal += 1,
                AsyncEvent::QpRequestError(qp) => self.events_of(qp).request_error += 1,
                AsyncEvent::QpAccessError(qp) => self.events_of(qp).access_error += 1,
                AsyncEvent::LastWqeReached(qp) => {
                    self.events_of(qp).last_receive += 1;
                    self.coverage.met(Feature::LastReceive);
                }
                AsyncEvent::Established(qp) => {
                    self.events_of(qp).established += 1;
                    self.coverage.met(Feature::Established);
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

    fn events_of(&mut self, qp: u32) -> &mut Events {
        let connection = self.connection_of(qp);
        &mut self.connections[connection].events
    }
}
