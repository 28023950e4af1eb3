//! A completion queue, and a model that predicts its completions and events.

use super::tally::{Situation, Tally};
use crate::clock::Timers;
use ironwarp_rnic::queue::{Arm, Completion, Cq, Moderation, Opcode, Overrun, Status, TooSmall};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A completion queue and its model.
pub(super) struct Queue {
    pub(super) cq: Arc<Cq>,
    /// For each completion in the queue, whether it counts as solicited.
    waiting: VecDeque<bool>,
    /// Number of the completion to be polled next.
    next: u64,
    /// Number of completions added so far.
    pushed: u64,
    capacity: usize,
    /// Whether the queue has overrun.
    pub(super) overrun: bool,
    /// Whether the queue was armed once, and may raise events.
    pub(super) may_raise: bool,
    /// How the queue is armed; `None` if it is not.
    armed: Option<Arm>,
    /// The event is held back until this many completions have arrived, or for this long.
    moderation: Option<(usize, Duration)>,
    /// The event that is held back, if any.
    held: Option<Held>,
    /// Index of the current handler; `None` if the queue has no handler.
    pub(super) handler: Option<usize>,
    /// Number of the queue's last event at the current handler.
    pub(super) last: Option<u64>,
    /// Whether an event was raised while the queue had no handler.
    pub(super) kept_event: bool,
}

/// An event that is held back: the number of its completions, and when the first one arrived.
#[derive(Clone, Copy, Debug)]
struct Held {
    count: usize,
    first: Duration,
}

/// Whether a step is expected to raise the event, and why.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Never,
    Maybe(Situation),
    Always(Option<Situation>),
}

impl Queue {
    pub(super) fn new(id: u32, capacity: usize) -> Self {
        Self {
            cq: Arc::new(Cq::new(id, capacity)),
            waiting: VecDeque::new(),
            next: 0,
            pushed: 0,
            capacity,
            overrun: false,
            may_raise: false,
            armed: None,
            moderation: None,
            held: None,
            handler: None,
            last: None,
            kept_event: false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() == self.capacity
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a completion. Returns whether that raised the event.
    pub(super) fn push(&mut self, solicited: bool, failed: bool, now: Duration, tally: &mut Tally) -> bool {
        let mut completion = match failed {
            true => Completion::failed(self.pushed, Opcode::Receive, 1, Status::Flushed, None),
            false => Completion::succeeded(self.pushed, Opcode::Receive, 1, 0),
        };
        completion.solicited = solicited && !failed;
        let wakes = solicited || failed;
        let full = self.is_full();
        let pushed = self.cq.push(completion);
        assert_eq!(pushed, if full { Err(Overrun { cq: self.cq.id() }) } else { Ok(()) });
        if full {
            self.overrun = true;
            tally.record(Situation::Overrun);
        } else {
            self.waiting.push_back(wakes);
            self.pushed += 1;
        }
        let due = self.armed.is_some_and(|arm| arm == Arm::Next || wakes || full);
        let raises = if due { self.moderate_event(failed || full, now) } else { Expected::Never };
        self.check_raised(raises, tally)
    }

    /// Returns whether a completion for which the queue is armed must raise the event now. Moderation may hold the
    /// event back (requirement I10), unless the completion is an error.
    fn moderate_event(&mut self, failed: bool, now: Duration) -> Expected {
        let Some((limit, _)) = self.moderation else { return Expected::Always(None) };
        if failed {
            return Expected::Always(Some(Situation::RaisedByError));
        }
        let held = self.held.get_or_insert(Held { count: 0, first: now });
        held.count += 1;
        if held.count >= limit { Expected::Always(Some(Situation::RaisedByCount)) } else { Expected::Never }
    }

    /// Polls up to `max` completions, and checks them.
    pub(super) fn poll(&mut self, max: usize, tally: &mut Tally) {
        let (next, mut found) = (self.next, 0);
        let waiting = &mut self.waiting;
        let count = max.min(waiting.len());
        let lost = self.overrun && waiting.is_empty();
        let polled = self.cq.poll(max, |completion| {
            assert_eq!(completion.wr_id, next + found, "completion missing, repeated or out of order");
            assert_eq!(Some(completion.raises_solicited_event()), waiting.pop_front());
            found += 1;
        });
        assert_eq!(polled, if lost { Err(Overrun { cq: self.cq.id() }) } else { Ok(count) });
        self.next += found;
        tally.completions += found;
        assert_eq!(self.cq.len(), self.waiting.len());
    }

    /// Arms the queue. If a completion is already present, it raises no event, and the program polls instead.
    pub(super) fn arm(&mut self, arm: Arm, tally: &mut Tally) {
        let present = match arm {
            Arm::Next => !self.waiting.is_empty(),
            Arm::Solicited => self.waiting.contains(&true),
        };
        tally.record(if arm == Arm::Next { Situation::ArmedNext } else { Situation::ArmedSolicited });
        tally.record_if(Situation::ArmedAgain, self.armed.is_some());
        tally.record_if(Situation::ArmedTooLate, present);
        self.may_raise = true;
        self.armed = self.armed.max(Some(arm));
        assert_eq!(self.cq.arm(arm), present || self.overrun);
        self.check_raised(Expected::Never, tally);
        if present {
            self.poll(usize::MAX, tally);
        }
    }

    /// Resizes the queue, and checks that its completions and its arming persist.
    pub(super) fn resize(&mut self, capacity: usize, tally: &mut Tally) {
        let waiting = self.waiting.len();
        let resized = self.cq.resize(capacity);
        if capacity < waiting.max(1) {
            assert_eq!(resized, Err(TooSmall { cq: self.cq.id(), capacity, waiting }));
            tally.record(Situation::ResizeRefused);
        } else {
            assert_eq!(resized, Ok(()));
            let what = if capacity < self.capacity { Situation::Shrunk } else { Situation::Grown };
            tally.record_if(what, waiting > 0);
            tally.record_if(Situation::ResizedArmed, self.armed.is_some());
            self.capacity = capacity;
        }
        assert_eq!((self.cq.capacity(), self.cq.len()), (self.capacity, waiting), "completions were lost");
        self.check_raised(Expected::Never, tally);
    }

    /// Changes the moderation. Returns whether that raised the event, which must be so if the event was held back.
    pub(super) fn moderate(
        &mut self,
        by: Option<(usize, Duration)>,
        timers: &Arc<Timers>,
        tally: &mut Tally,
    ) -> bool {
        let timer = |(count, period)| {
            let timer = timers.timer(self.cq.id() as usize, &self.cq);
            Moderation { count, period, timer }
        };
        self.cq.moderate(by.map(timer));
        self.moderation = by;
        let raises = if self.held.is_some() {
            Expected::Always(Some(Situation::RaisedByChange))
        } else {
            Expected::Never
        };
        self.check_raised(raises, tally)
    }

    /// Checks the effect of the expiry of a timer, which may have been started for an earlier event. Returns whether
    /// the expiry raised the event.
    pub(super) fn on_timer(&mut self, now: Duration, tally: &mut Tally) -> bool {
        let raises = match self.held {
            None => Expected::Never,
            Some(_) if self.deadline().is_some_and(|deadline| deadline <= now) => {
                Expected::Always(Some(Situation::RaisedByTimer))
            }
            Some(_) => Expected::Maybe(Situation::RaisedEarly),
        };
        tally.record_if(Situation::RangInVain, self.held.is_none());
        self.check_raised(raises, tally)
    }

    /// Returns the time by which an event that is held back must be raised; `None` without such an event or a time
    /// limit.
    fn deadline(&self) -> Option<Duration> {
        let (_, period) = self.moderation.filter(|(_, period)| !period.is_zero())?;
        self.held.map(|held| held.first + period)
    }

    /// Checks that moving the queue changed neither arming nor moderation.
    pub(super) fn expect_unchanged(&mut self, tally: &mut Tally) {
        self.check_raised(Expected::Never, tally);
    }

    /// Checks whether a step has raised the event, as expected. Returns whether it has. A raised event disarms the
    /// queue.
    fn check_raised(&mut self, expected: Expected, tally: &mut Tally) -> bool {
        let armed = self.cq.is_armed();
        assert!(self.armed.is_some() || !armed, "armed without a request");
        let raised = self.armed.is_some() && !armed;
        match expected {
            Expected::Never => assert!(!raised, "event without a reason"),
            Expected::Always(_) => assert!(raised, "event missing"),
            Expected::Maybe(_) => {}
        }
        if raised {
            (self.armed, self.held) = (None, None);
            if let Expected::Maybe(why) | Expected::Always(Some(why)) = expected {
                tally.record(why);
            }
        }
        raised
    }

    /// Checks that no event is held back for too long.
    pub(super) fn expect_in_time(&self, now: Duration) {
        assert!(
            self.deadline().is_none_or(|deadline| deadline > now),
            "timer did not expire: {:?}",
            self.held
        );
    }

    /// Checks, when nothing happens any more, that no event is missing for completions in the queue.
    pub(super) fn expect_no_missed_event(&self) {
        if self.overrun {
            return;
        }
        let due = match self.armed.expect("armed again after each event") {
            Arm::Next => !self.waiting.is_empty(),
            Arm::Solicited => self.waiting.contains(&true),
        };
        // Without a time limit, moderation holds the event back until enough completions have arrived.
        let waits = self.held.is_some() && self.deadline().is_none();
        assert!(!due || waits, "a program sleeps despite {} completions", self.waiting.len());
    }

    /// Polls the remaining completions, and checks that none is missing.
    pub(super) fn expect_all_polled(&mut self, tally: &mut Tally) {
        self.poll(usize::MAX, tally);
        assert_eq!(self.next, self.pushed);
    }
}
