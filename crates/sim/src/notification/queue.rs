//! A completion queue and a model of it: its completions, and when its event is due.

use super::tally::{Met, Tally};
use crate::clock::Timers;
use ironwarp_rnic::queue::{Arm, Completion, Cq, Moderation, Opcode, Overrun, Status, TooSmall};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A queue and its model.
pub(super) struct Queue {
    pub(super) cq: Arc<Cq>,
    /// For each completion in the queue, whether it counts as solicited.
    waiting: VecDeque<bool>,
    /// The completion to be polled next, and the one to be added next.
    next: u64,
    pushed: u64,
    capacity: usize,
    pub(super) overrun: bool,
    armed: Option<Arm>,
    /// Its event is held back for this many completions or this long.
    moderation: Option<(usize, Duration)>,
    held: Option<Held>,
    pub(super) handler: Option<usize>,
    /// The last event at the handler, unless it is known to be taken.
    pub(super) last: Option<u64>,
    /// An event was raised while there was no handler.
    pub(super) owed: bool,
}

/// An event that is held back: the number of its completions, and when the first one arrived.
#[derive(Clone, Copy, Debug)]
struct Held {
    come: usize,
    first: Duration,
}

/// Whether a step raises the event, and why.
#[derive(Clone, Copy, Debug)]
enum Raises {
    Never,
    Maybe(Met),
    Always(Option<Met>),
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
            armed: None,
            moderation: None,
            held: None,
            handler: None,
            last: None,
            owed: false,
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

    /// Adds a completion. Returns whether that raises the event.
    pub(super) fn push(&mut self, solicited: bool, failed: bool, now: Duration, tally: &mut Tally) -> bool {
        let completion = match failed {
            true => Completion::failed(self.pushed, Opcode::Receive, 1, Status::Flushed, None),
            false => Completion { solicited, ..Completion::succeeded(self.pushed, Opcode::Receive, 1, 0) },
        };
        let wakes = solicited || failed;
        let full = self.is_full();
        let pushed = self.cq.push(completion);
        assert_eq!(pushed, if full { Err(Overrun { cq: self.cq.id() }) } else { Ok(()) });
        if full {
            self.overrun = true;
            tally.met(Met::Overrun);
        } else {
            self.waiting.push_back(wakes);
            self.pushed += 1;
        }
        let due = self.armed.is_some_and(|arm| arm == Arm::Next || wakes || full);
        let raises = if due { self.comes(failed || full, now) } else { Raises::Never };
        self.raised(raises, tally)
    }

    /// Handles a completion that calls for an event, which may be held back (requirement I10) unless it is an error.
    fn comes(&mut self, failed: bool, now: Duration) -> Raises {
        let Some((count, _)) = self.moderation else { return Raises::Always(None) };
        if failed {
            return Raises::Always(Some(Met::RaisedByError));
        }
        let held = self.held.get_or_insert(Held { come: 0, first: now });
        held.come += 1;
        if held.come >= count { Raises::Always(Some(Met::RaisedByCount)) } else { Raises::Never }
    }

    /// Polls some completions.
    pub(super) fn poll(&mut self, most: usize, tally: &mut Tally) {
        let (next, mut found) = (self.next, 0);
        let waiting = &mut self.waiting;
        let many = most.min(waiting.len());
        let lost = self.overrun && waiting.is_empty();
        let polled = self.cq.poll(most, |completion| {
            assert_eq!(completion.wr_id, next + found, "completion missing, repeated or out of order");
            assert_eq!(Some(completion.raises_solicited_event()), waiting.pop_front());
            found += 1;
        });
        assert_eq!(polled, if lost { Err(Overrun { cq: self.cq.id() }) } else { Ok(many) });
        self.next += found;
        tally.completions += found;
        assert_eq!(self.cq.len(), self.waiting.len());
    }

    /// Arms the queue. Completions that are already present raise no event; then the program polls.
    pub(super) fn arm(&mut self, arm: Arm, tally: &mut Tally) {
        let there = match arm {
            Arm::Next => !self.waiting.is_empty(),
            Arm::Solicited => self.waiting.contains(&true),
        };
        tally.met(if arm == Arm::Next { Met::ArmedNext } else { Met::ArmedSolicited });
        tally.met_if(Met::ArmedAgain, self.armed.is_some());
        tally.met_if(Met::ArmedTooLate, there);
        self.armed = self.armed.max(Some(arm));
        assert_eq!(self.cq.arm(arm), there || self.overrun);
        self.raised(Raises::Never, tally);
        if there {
            self.poll(usize::MAX, tally);
        }
    }

    /// Resizes the queue. Its completions and its arming persist.
    pub(super) fn resize(&mut self, capacity: usize, tally: &mut Tally) {
        let waiting = self.waiting.len();
        let resized = self.cq.resize(capacity);
        if capacity < waiting.max(1) {
            assert_eq!(resized, Err(TooSmall { cq: self.cq.id(), capacity, waiting }));
            tally.met(Met::ResizeRefused);
        } else {
            assert_eq!(resized, Ok(()));
            let what = if capacity < self.capacity { Met::Shrunk } else { Met::Grown };
            tally.met_if(what, waiting > 0);
            tally.met_if(Met::ResizedArmed, self.armed.is_some());
            self.capacity = capacity;
        }
        assert_eq!((self.cq.capacity(), self.cq.len()), (self.capacity, waiting), "completions were lost");
        self.raised(Raises::Never, tally);
    }

    /// Changes moderation. Returns whether an event that was held back is raised.
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
        let raises =
            if self.held.is_some() { Raises::Always(Some(Met::RaisedByChange)) } else { Raises::Never };
        self.raised(raises, tally)
    }

    /// Handles the expiry of its timer, which may be obsolete. Returns whether that raises the event.
    pub(super) fn reminded(&mut self, now: Duration, tally: &mut Tally) -> bool {
        let raises = match self.held {
            None => Raises::Never,
            Some(_) if self.deadline().is_some_and(|deadline| deadline <= now) => {
                Raises::Always(Some(Met::RaisedByTimer))
            }
            Some(_) => Raises::Maybe(Met::RaisedEarly),
        };
        tally.met_if(Met::RangInVain, self.held.is_none());
        self.raised(raises, tally)
    }

    /// Returns the time by which an event that is held back must be raised.
    fn deadline(&self) -> Option<Duration> {
        let (_, period) = self.moderation.filter(|(_, period)| !period.is_zero())?;
        self.held.map(|held| held.first + period)
    }

    /// Checks that moving the queue changed neither arming nor moderation.
    pub(super) fn moved(&mut self, tally: &mut Tally) {
        self.raised(Raises::Never, tally);
    }

    /// Compares the result of a step with the expected one. A raised event disarms the queue.
    fn raised(&mut self, expected: Raises, tally: &mut Tally) -> bool {
        let armed = self.cq.is_armed();
        assert!(self.armed.is_some() || !armed, "armed without a request");
        let raised = self.armed.is_some() && !armed;
        match expected {
            Raises::Never => assert!(!raised, "event without a reason"),
            Raises::Always(_) => assert!(raised, "event missing"),
            Raises::Maybe(_) => {}
        }
        if raised {
            (self.armed, self.held) = (None, None);
            if let Raises::Maybe(why) | Raises::Always(Some(why)) = expected {
                tally.met(why);
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

    /// Checks, after everything has settled, that its program sleeps only if it has nothing to do.
    pub(super) fn expect_rest(&self) {
        if self.overrun {
            return;
        }
        let due = match self.armed.expect("armed again after each event") {
            Arm::Next => !self.waiting.is_empty(),
            Arm::Solicited => self.waiting.contains(&true),
        };
        // Held back by count alone, with too few completions.
        let waits = self.held.is_some() && self.deadline().is_none();
        assert!(!due || waits, "a program sleeps despite {} completions", self.waiting.len());
    }

    /// Checks that all completions were polled.
    pub(super) fn expect_all(&mut self, tally: &mut Tally) {
        self.poll(usize::MAX, tally);
        assert_eq!(self.next, self.pushed);
    }
}
