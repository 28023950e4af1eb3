//! The outcome of a run, or the sum of several.

use super::coverage::Coverage;
use ironwarp_rnic::fault::Counts;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// The outcome of a run, or the sum of several.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Simulated duration.
    pub time: Duration,
    /// Number of requests that succeeded, on both sides.
    pub succeeded: usize,
    /// Number of messages received.
    pub received: usize,
    /// Injected faults.
    pub faults: Counts,
    /// What the run covered.
    pub coverage: Coverage,
}

impl AddAssign<&Self> for Outcome {
    fn add_assign(&mut self, other: &Self) {
        self.time += other.time;
        self.succeeded += other.succeeded;
        self.received += other.received;
        self.faults.splits += other.faults.splits;
        self.faults.delays += other.faults.delays;
        self.faults.stalls += other.faults.stalls;
        self.faults.cuts += other.faults.cuts;
        self.faults.withheld_receives += other.faults.withheld_receives;
        self.coverage += &other.coverage;
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, succeeded, received, faults, .. } = self;
        let Counts { splits, delays, stalls, cuts, withheld_receives, .. } = faults;
        write!(f, "{succeeded} requests succeeded and {received} messages were received in {time:?}; ")?;
        write!(f, "{splits} splits, {delays} delays, {stalls} stalls, {cuts} cuts, ")?;
        write!(f, "{withheld_receives} withheld receives")
    }
}
