//! Statistics of round trips.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Maximum number of round-trip times in the summary: the most recent. Bounds the memory of a client that runs forever.
const MAX_TIMES: usize = 1 << 20;

/// The results so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    sent: u64,
    received: u64,
    /// Recent round-trip times, oldest first.
    times: VecDeque<Duration>,
}

impl Report {
    /// Counts a ping that was sent.
    pub(super) fn record_sent(&mut self) {
        self.sent += 1;
    }

    /// Counts an answer, with its round-trip time.
    pub(super) fn record_answer(&mut self, took: Duration) {
        self.received += 1;
        if self.times.len() == MAX_TIMES {
            self.times.pop_front();
        }
        self.times.push_back(took);
    }

    /// Returns the 0th, 50th, 99th and 100th percentile of the times; `None` without answers.
    fn quantiles(&self) -> Option<[Duration; 4]> {
        let mut sorted: Vec<Duration> = self.times.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some([0, 50, 99, 100].map(|percent| sorted[(last * percent).div_ceil(100)]))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, .. } = self;
        write!(f, "{sent} sent, {received} received")?;
        if let Some([min, median, p99, max]) = self.quantiles() {
            write!(f, ", every byte verified\nround trip min/median/p99/max ")?;
            write!(f, "{:.1}/{:.1}/{:.1}/{:.1} µs", micros(min), micros(median), micros(p99), micros(max))?;
        }
        Ok(())
    }
}

/// Returns a duration in microseconds.
pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let mut report = Report::default();
        assert_eq!(report.to_string(), "0 sent, 0 received");
        for n in (1..=101).rev() {
            report.record_sent();
            report.record_answer(Duration::from_micros(n));
        }
        report.record_sent();
        assert_eq!(
            report.to_string(),
            "102 sent, 101 received, every byte verified\nround trip min/median/p99/max 1.0/51.0/100.0/101.0 µs"
        );
    }

    #[test]
    fn a_single_round_trip_is_all_of_them() {
        let mut report = Report::default();
        report.record_answer(Duration::from_nanos(1500));
        assert_eq!(report.quantiles(), Some([Duration::from_nanos(1500); 4]));
    }
}
