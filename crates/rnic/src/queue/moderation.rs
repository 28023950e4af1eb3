//! Moderation of a completion queue (requirement I10): an event may wait for a number of completions, or for a
//! time after the first of them. Completions can be polled meanwhile; only the wakeup waits.

use crate::broken;
use crate::event::Timer;
use std::sync::Arc;
use std::time::Duration;

/// How long events are held back.
#[derive(Clone, Debug)]
pub struct Moderation {
    /// Number of completions that raise an event.
    pub count: usize,
    /// Time after the first completion that raises an event. Zero means no limit.
    pub period: Duration,
    /// What calls [`Moderated::expired`](crate::event::Moderated::expired) after that time.
    pub timer: Arc<dyn Timer>,
}

/// State of the moderation.
#[derive(Debug)]
pub(super) struct Held {
    by: Moderation,
    /// Number of completions since the last event.
    come: usize,
    /// Whether the timer runs.
    runs: bool,
}

/// What happens to an event that is due.
#[derive(Debug)]
pub(super) enum Fate {
    Raised,
    /// It is held back, and the timer has to be started.
    Timed(Duration, Arc<dyn Timer>),
    Waits,
}

impl Held {
    pub(super) fn new(by: Moderation) -> Self {
        Self { by, come: 0, runs: false }
    }

    /// Counts a completion for which an event is due.
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

    /// An error was added, which is never held back.
    pub(super) fn failed(&mut self) {
        self.come = 0;
    }

    /// The timer has expired. Returns whether an event was held back.
    pub(super) fn expired(&mut self) -> bool {
        self.runs = false;
        std::mem::take(&mut self.come) > 0
    }

    /// Whether an event is held back.
    pub(super) fn holds(&self) -> bool {
        self.come > 0
    }
}
