//! Coverage of the runs: the situations that must occur.

use std::fmt;
use std::ops::AddAssign;

/// Situations that all runs together must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Situation {
    Read,
    Write,
    /// A response that ended a command before all of its data was transferred.
    Early,
    Aborted,
    /// An abort came after the response.
    AbortedLate,
    /// A PDU failed a check.
    Refused,
    /// A command failed because its memory could not be registered.
    NotRegistered,
    Flushed,
    /// The target has closed or reset the connection, or the program has ended it.
    Lost,
}

impl Situation {
    const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::Early,
        Self::Aborted,
        Self::AbortedLate,
        Self::Refused,
        Self::NotRegistered,
        Self::Flushed,
        Self::Lost,
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
        self.situations[what as usize] += 1;
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
