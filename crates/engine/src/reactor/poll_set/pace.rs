//! Classifies events of a poll set's entry in the lane's epoll by the time since the entry was armed: part of a stream
//! of messages, or one message to be answered.

use std::time::{Duration, Instant};

/// An event sooner than this after the entry was armed is quick: part of a stream of messages. An answer takes longer.
const QUICK: Duration = Duration::from_micros(10);
/// Number of quick events in a row that make a stream.
const STREAM: u32 = 3;

/// When the entry of a poll set was armed, and how often events were quick.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the entry was last armed. `None` if it was not armed since the set was created.
    armed_at: Option<Instant>,
    /// Whether it was armed because the program had stopped polling. Cleared by the next event.
    taken_back: bool,
    /// Number of quick events in a row.
    quick: u32,
}

/// Classification of an event of a poll set's entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// Whether the message had been waiting when the lane took the set back from a program that had stopped polling.
    pub(super) late: bool,
    /// Whether more messages are likely to follow in a moment.
    pub(super) streaming: bool,
}

impl Pace {
    /// Records that the lane armed the entry after it had served the set.
    pub(super) fn record_armed(&mut self, now: Instant) {
        self.armed_at = Some(now);
    }

    /// Records that the lane armed the entry because the program had stopped polling.
    pub(super) fn record_taken_back(&mut self, now: Instant) {
        (self.armed_at, self.taken_back) = (Some(now), true);
    }

    /// Records an event of the entry, and classifies it.
    pub(super) fn record_event(&mut self, now: Instant) -> Timing {
        let quick = self.armed_at.is_some_and(|armed| now.saturating_duration_since(armed) < QUICK);
        self.quick = if quick { self.quick.saturating_add(1) } else { 0 };
        let late = std::mem::take(&mut self.taken_back) && quick;
        Timing { late, streaming: self.quick >= STREAM }
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
            pace.record_armed(start);
            pace.record_event(start + time).streaming
        };
        assert!(!pace.record_event(start).streaming, "it was never armed");
        for _ in 1..STREAM {
            assert!(!after(&mut pace, QUICK / 2));
        }
        assert!(after(&mut pace, QUICK / 2) && after(&mut pace, QUICK / 2));
        assert!(!after(&mut pace, QUICK), "an answer takes longer");
        assert!(!after(&mut pace, QUICK / 2), "counting starts again");
    }
}
