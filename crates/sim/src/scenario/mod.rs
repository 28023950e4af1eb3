//! Two programs do random work over simulated links, and everything that comes of it is checked.
//!
//! One seed is one run: the settings of both adapters, the path, the faults, the requests and the order of events. What is
//! wrong is a panic; the same seed does it again.
//!
//! | to find | look in |
//! |---|---|
//! | what is asked for | `plan.rs`, `request.rs`; what must fail: `crime.rs` |
//! | who asks, with which memory, and where receives come from | `program.rs`, `line.rs`, `memory.rs`, `supply.rs` |
//! | what a run is like, and how it goes | `rules.rs`, `scene.rs` |
//! | the states of queue pairs | `states.rs` |
//! | what is done to completion queues meanwhile | `watch.rs` |
//! | what is checked: of a completion, of an event, at the end | `check.rs`, `watch.rs`, `end.rs`, `verdict.rs` |
//! | what must have been reached, over all seeds | `coverage.rs` |

mod check;
mod coverage;
mod crime;
mod end;
mod line;
mod memory;
mod plan;
mod program;
mod request;
mod rules;
mod scene;
mod states;
mod supply;
mod verdict;
mod watch;

pub use coverage::Coverage;

use crate::trace::Trace;
use crate::world::World;
use ironwarp_rnic::fault::{Counts, Rng};
use scene::Scene;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How long it took, by its own clock.
    pub time: Duration,
    /// How many requests succeeded, on both sides.
    pub succeeded: usize,
    /// How many messages were received.
    pub received: usize,
    /// What went wrong on purpose.
    pub faults: Counts,
    /// What it came across.
    pub coverage: Coverage,
}

/// Runs one seed to its end. Panics if anything is not as it should be.
pub fn run(seed: u64) -> Outcome {
    Scene::new(seed, World::new).run()
}

/// The same, and `keep` gets the trace that is written meanwhile.
pub fn trace(seed: u64, keep: impl FnOnce(Trace)) -> Outcome {
    let scene = Scene::new(seed, World::traced);
    keep(scene.trace());
    scene.run()
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
        write!(f, "{succeeded} requests reported done and {received} messages received in {time:?}; ")?;
        write!(f, "{splits} splits, {delays} delays, {stalls} stalls, {cuts} cuts, ")?;
        write!(f, "{withheld_receives} withheld receives")
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    let index = usize::try_from(rng.below(from.len() as u64)).expect("an index");
    from[index]
}
