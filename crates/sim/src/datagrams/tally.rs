//! Coverage of the runs: the situations that must occur.

use std::fmt;
use std::ops::AddAssign;

/// Situations that all runs together must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Situation {
    Succeeded,
    Rejected,
    /// Failed without an answer, and was not delivered.
    NoAnswer,
    /// Failed without an answer, but was delivered.
    AnswerLost,
    NotReady,
    /// Failed because its session was lost, and was not delivered.
    SessionLost,
    /// Failed because its session was lost, but was delivered.
    SessionLostLater,
    /// A queue pair was reset and used again.
    Reset,
    /// A process was started again.
    Restarted,
    /// A message arrived again, and was not placed.
    Duplicate,
    /// A message arrived whose session was replaced.
    NoSession,
    Damaged,
    /// A send queue was full.
    QueueFull,
}

impl Situation {
    const ALL: [Self; 13] = [
        Self::Succeeded,
        Self::Rejected,
        Self::NoAnswer,
        Self::AnswerLost,
        Self::NotReady,
        Self::SessionLost,
        Self::SessionLostLater,
        Self::Reset,
        Self::Restarted,
        Self::Duplicate,
        Self::NoSession,
        Self::Damaged,
        Self::QueueFull,
    ];
}

/// How often each situation occurred.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    situations: [u64; Situation::ALL.len()],
}

impl Tally {
    /// Counts a situation.
    pub(super) fn record(&mut self, what: Situation) {
        self.add(what, 1);
    }

    /// Counts a situation that occurred this often.
    pub(super) fn add(&mut self, what: Situation, times: u64) {
        self.situations[what as usize] += times;
    }

    /// Returns the situations that did not occur.
    pub fn missing(&self) -> Vec<String> {
        let missing = Situation::ALL.into_iter().filter(|what| self.situations[*what as usize] == 0);
        missing.map(|what| format!("{what:?}")).collect()
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        for (count, more) in self.situations.iter_mut().zip(other.situations) {
            *count += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = Situation::ALL.iter().zip(self.situations);
        let counts: Vec<String> = counts.map(|(what, count)| format!("{what:?} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}
