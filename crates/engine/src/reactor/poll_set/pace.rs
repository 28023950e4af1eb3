//! How often the entry of a poll set fires: one message and its answer, or a stream of messages.

use std::time::{Duration, Instant};

/// An entry that fires this soon after it was armed belongs to a stream of messages; an answer takes longer.
const QUICK: Duration = Duration::from_micros(10);
/// Number of quick firings in a row after which the lane pauses before it polls again.
const STREAM: u32 = 3;

/// How the entry of a poll set fires.
#[derive(Debug, Default)]
pub(super) struct Pace {
    armed: Option<Instant>,
    /// It was armed because the program had stopped polling.
    taken_back: bool,
    /// Number of quick firings in a row.
    quick: u32,
}

impl Pace {
    /// The lane armed the entry after it had served the set.
    pub(super) fn armed(&mut self, now: Instant) {
        self.armed = Some(now);
    }

    /// The lane armed the entry because the program had stopped polling.
    pub(super) fn taken_back(&mut self, now: Instant) {
        (self.armed, self.taken_back) = (Some(now), true);
    }

    /// The entry fires. Returns whether more messages are likely to follow in a moment.
    pub(super) fn fires(&mut self, now: Instant) -> bool {
        let quick = self.is_quick(now);
        self.quick = if quick { self.quick.saturating_add(1) } else { 0 };
        self.quick >= STREAM
    }

    fn is_quick(&self, now: Instant) -> bool {
        self.armed.is_some_and(|armed| now.saturating_duration_since(armed) < QUICK)
    }

    /// Whether the message had been waiting since the program stopped polling.
    pub(super) fn is_late(&mut self, now: Instant) -> bool {
        std::mem::take(&mut self.taken_back) && self.is_quick(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_fires_at_once_again_and_again_is_streamed_to() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let after = |pace: &mut Pace, time: Duration| {
            pace.armed = Some(start);
            pace.fires(start + time)
        };
        assert!(!pace.fires(start), "it was never armed");
        for _ in 1..STREAM {
            assert!(!after(&mut pace, QUICK / 2));
        }
        assert!(after(&mut pace, QUICK / 2) && after(&mut pace, QUICK / 2));
        assert!(!after(&mut pace, QUICK), "an answer takes longer");
        assert!(!after(&mut pace, QUICK / 2), "counting starts again");
    }
}
