//! Moderation of a completion queue (requirement I10): its event may wait until so many completions have come, or until so much time
//! has passed since the first of them. What comes is there to be polled all the while; only the wake waits.

use crate::broken;
use crate::event::Timer;
use std::sync::Arc;
use std::time::Duration;

/// How long an event may be held back.
#[derive(Clone, Debug)]
pub struct Moderation {
    /// It is raised when so many completions have come for it.
    pub count: usize,
    /// Or so long after the first. Zero: there is no such time.
    pub period: Duration,
    /// Who calls [`Moderated::expired`](crate::event::Moderated::expired) then.
    pub timer: Arc<dyn Timer>,
}

/// Moderation at work.
#[derive(Debug)]
pub(super) struct Held {
    by: Moderation,
    /// How many have come since the last event.
    come: usize,
    /// The timer runs.
    runs: bool,
}

/// What becomes of an event that is due.
#[derive(Debug)]
pub(super) enum Fate {
    Raised,
    /// It waits, and the timer has to be started.
    Timed(Duration, Arc<dyn Timer>),
    Waits,
}

impl Held {
    pub(super) fn new(by: Moderation) -> Self {
        Self { by, come: 0, runs: false }
    }

    /// A completion came for which an event is due.
    pub(super) fn came(&mut self) -> Fate {
        self.come += 1;
        if self.come >= self.by.count {
            self.come = 0;
            return Fate::Raised;
        }
        if self.runs || self.by.period.is_zero() {
            return Fate::Waits;
        }
        self.runs = true;
        if broken::is("timer") {
            return Fate::Waits;
        }
        Fate::Timed(self.by.period, Arc::clone(&self.by.timer))
    }

    /// An error, which does not wait.
    pub(super) fn failed(&mut self) {
        self.come = 0;
    }

    /// The time is over: whether an event waited for it.
    pub(super) fn expired(&mut self) -> bool {
        self.runs = false;
        std::mem::take(&mut self.come) > 0
    }

    /// Whether an event waits.
    pub(super) fn holds(&self) -> bool {
        self.come > 0
    }
}
