//! A completion queue, and a model of it: what it holds, and when its event is due.

use super::tally::{Met, Tally};
use crate::clock::Timers;
use ironwarp_rnic::queue::{Arm, Completion, Cq, Moderation, Opcode, Overrun, Status, TooSmall};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A queue, and what is known of it.
pub(super) struct Queue {
    pub(super) cq: Arc<Cq>,
    /// What waits in it: whether each wakes who wants solicited ones.
    waiting: VecDeque<bool>,
    /// The completion that is polled next, and the one that comes next.
    next: u64,
    pushed: u64,
    capacity: usize,
    pub(super) overrun: bool,
    armed: Option<Arm>,
    /// Its event waits for so many completions, or for so long.
    moderation: Option<(usize, Duration)>,
    held: Option<Held>,
    pub(super) handler: Option<usize>,
    /// The last event that the handler got, if it is not known to be taken.
    pub(super) last: Option<u64>,
    /// An event came while there was no handler.
    pub(super) owed: bool,
}

/// An event that is held back: how many completions it is for, and when the first of them came.
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

    /// A request completes. Returns whether that raises the event.
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

    /// An event is due for a completion that came: it may have to wait (requirement I10), if that is no error.
    fn comes(&mut self, failed: bool, now: Duration) -> Raises {
        let Some((count, _)) = self.moderation else { return Raises::Always(None) };
        if failed {
            return Raises::Always(Some(Met::RaisedByError));
        }
        let held = self.held.get_or_insert(Held { come: 0, first: now });
        held.come += 1;
        if held.come >= count { Raises::Always(Some(Met::RaisedByCount)) } else { Raises::Never }
    }

    /// Takes some completions: the next, in order.
    pub(super) fn poll(&mut self, most: usize, tally: &mut Tally) {
        let (next, mut found) = (self.next, 0);
        let waiting = &mut self.waiting;
        let many = most.min(waiting.len());
        let lost = self.overrun && waiting.is_empty();
        let polled = self.cq.poll(most, |completion| {
            assert_eq!(completion.wr_id, next + found, "in order, none twice, none missing");
            assert_eq!(Some(completion.wakes()), waiting.pop_front());
            found += 1;
        });
        assert_eq!(polled, if lost { Err(Overrun { cq: self.cq.id() }) } else { Ok(many) });
        self.next += found;
        tally.completions += found;
        assert_eq!(self.cq.len(), self.waiting.len());
    }

    /// Asks for an event. Completions that are there already raise none: then the program polls.
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

    /// From now on there is so much room: what waits stays, and so does the arming.
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
        assert_eq!((self.cq.capacity(), self.cq.len()), (self.capacity, waiting), "what waits stays");
        self.raised(Raises::Never, tally);
    }

    /// From now on its event waits for so many completions or so long. Returns whether one that waited is raised.
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

    /// A timer that was started for it rang, maybe for an event that did not wait for it. Returns whether that raises the event.
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

    /// When an event that is held back is raised at the latest.
    fn deadline(&self) -> Option<Duration> {
        let (_, period) = self.moderation.filter(|(_, period)| !period.is_zero())?;
        self.held.map(|held| held.first + period)
    }

    /// The queue was moved: it is armed as it was, and holds back what it held back.
    pub(super) fn moved(&mut self, tally: &mut Tally) {
        self.raised(Raises::Never, tally);
    }

    /// Compares what came of a step with what had to. Raised, an event disarms.
    fn raised(&mut self, expected: Raises, tally: &mut Tally) -> bool {
        let armed = self.cq.is_armed();
        assert!(self.armed.is_some() || !armed, "nobody has armed it");
        let raised = self.armed.is_some() && !armed;
        match expected {
            Raises::Never => assert!(!raised, "an event for nothing"),
            Raises::Always(_) => assert!(raised, "the event is due"),
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

    /// No event is held back for longer than it may.
    pub(super) fn expect_in_time(&self, now: Duration) {
        assert!(
            self.deadline().is_none_or(|deadline| deadline > now),
            "its timer did not ring: {:?}",
            self.held
        );
    }

    /// Nothing happens any more: its program sleeps, and would not if it had something to do.
    pub(super) fn expect_rest(&self) {
        if self.overrun {
            return;
        }
        let due = match self.armed.expect("who is woken arms it again") {
            Arm::Next => !self.waiting.is_empty(),
            Arm::Solicited => self.waiting.contains(&true),
        };
        // One that waits for company alone, and has not enough of it.
        let waits = self.held.is_some() && self.deadline().is_none();
        assert!(!due || waits, "a program sleeps, and {} completions are there", self.waiting.len());
    }

    /// All that ever came was polled.
    pub(super) fn expect_all(&mut self, tally: &mut Tally) {
        self.poll(usize::MAX, tally);
        assert_eq!(self.next, self.pushed);
    }
}
