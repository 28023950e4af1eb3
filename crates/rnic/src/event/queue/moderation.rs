//! How moderation holds the wakeups of an event queue back (requirement I10). Events can be taken meanwhile.

use super::super::wake::{Moderation, Timer};
use std::sync::Arc;
use std::time::Duration;

/// How wakeups are held back.
#[derive(Debug)]
pub(super) enum Hold {
    /// There is at most one wakeup in this time, which the timer measures.
    Interval(Duration, Arc<dyn Timer>),
    /// A wakeup waits for a number of events, or for a time after the first of them.
    Batch {
        settings: Moderation,
        /// Whether the timer runs.
        is_timed: bool,
    },
}

impl Hold {
    /// Returns the number of unread events that are worth a wakeup.
    pub(super) fn threshold(&self) -> u64 {
        match self {
            Self::Interval(..) => 1,
            Self::Batch { settings, .. } => settings.count.max(1) as u64,
        }
    }

    /// Starts the timer that measures the time to the next wakeup, after a wakeup.
    pub(super) fn start_interval(&self) {
        if let Self::Interval(interval, timer) = self {
            timer.start(*interval);
        }
    }

    /// Starts the timer for events that wait for others, unless it runs.
    pub(super) fn start_batch(&mut self) {
        if let Self::Batch { settings, is_timed } = self
            && !settings.period.is_zero()
            && !std::mem::replace(is_timed, true)
        {
            settings.timer.start(settings.period);
        }
    }

    /// Records that the timer has expired.
    pub(super) fn on_timer(&mut self) {
        if let Self::Batch { is_timed, .. } = self {
            *is_timed = false;
        }
    }
}
