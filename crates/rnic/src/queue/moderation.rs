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
    /// What calls [`Moderated::on_timer`](crate::event::Moderated::on_timer) after that time.
    pub timer: Arc<dyn Timer>,
}

/// State of the moderation.
#[derive(Debug)]
pub(super) struct ModerationState {
    settings: Moderation,
    /// Number of completions since the last event.
    count: usize,
    /// Whether the timer runs.
    timer_running: bool,
}

/// What happens to an event that is due.
#[derive(Debug)]
pub(super) enum EventDecision {
    Raise,
    /// It is held back, and the timer has to be started.
    StartTimer(Duration, Arc<dyn Timer>),
    Hold,
}

impl ModerationState {
    pub(super) fn new(settings: Moderation) -> Self {
        Self { settings, count: 0, timer_running: false }
    }

    /// Counts a completion for which an event is due.
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

    /// An error was added, which is never held back.
    pub(super) fn reset_count(&mut self) {
        self.count = 0;
    }

    /// The timer has expired. Returns whether an event was held back.
    pub(super) fn on_timer(&mut self) -> bool {
        self.timer_running = false;
        std::mem::take(&mut self.count) > 0
    }

    /// Whether an event is held back.
    pub(super) fn holds_event(&self) -> bool {
        self.count > 0
    }
}
