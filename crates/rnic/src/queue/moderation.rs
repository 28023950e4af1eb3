//! Moderation of the events of a completion queue (requirement I10): an event is held back until a number of
//! completions has arrived, or until some time after the first of them. Completions can be polled meanwhile.

pub use crate::event::Moderation;

use crate::broken;
use crate::event::Timer;
use std::sync::Arc;
use std::time::Duration;

/// The moderation of one queue, and the event that it holds back.
#[derive(Debug)]
pub(super) struct ModerationState {
    settings: Moderation,
    /// Number of completions since the last event for which the queue was armed. An event is held back while it is not
    /// zero.
    count: usize,
    /// Whether the timer runs.
    timer_running: bool,
}

/// What to do with an event that is due.
#[derive(Debug)]
pub(super) enum EventDecision {
    /// Raise the event now.
    Raise,
    /// Hold the event back, and start this timer with this period.
    StartTimer(Duration, Arc<dyn Timer>),
    /// Hold the event back. The timer runs already, or there is none.
    Hold,
}

impl ModerationState {
    /// Creates the state for these settings. No event is held back.
    pub(super) fn new(settings: Moderation) -> Self {
        Self { settings, count: 0, timer_running: false }
    }

    /// Counts a completion for which an event is due, and decides whether to raise the event.
    pub(super) fn count_completion(&mut self) -> EventDecision {
        self.count += 1;
        if self.count >= self.settings.count {
            self.count = 0;
            return EventDecision::Raise;
        }
        if self.timer_running || self.settings.period.is_zero() {
            return EventDecision::Hold;
        }
        self.timer_running = true;
        if broken::is("timer") {
            return EventDecision::Hold;
        }
        EventDecision::StartTimer(self.settings.period, Arc::clone(&self.settings.timer))
    }

    /// Forgets the event that is held back, because it is raised for an error, which is never held back.
    pub(super) fn reset_count(&mut self) {
        self.count = 0;
    }

    /// Handles the expiry of the timer. Returns whether an event was held back, which is to be raised now.
    pub(super) fn on_timer(&mut self) -> bool {
        self.timer_running = false;
        std::mem::take(&mut self.count) > 0
    }

    /// Whether an event is held back.
    pub(super) fn holds_event(&self) -> bool {
        self.count > 0
    }
}
