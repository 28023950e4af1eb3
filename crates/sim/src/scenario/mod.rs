//! Two programs do random work over simulated links, and every result is checked.
//!
//! One seed determines the settings of both adapters, the path, the faults, the requests and the order of events. An
//! error is a panic, and the same seed reproduces it.
//!
//! | to find | look in |
//! |---|---|
//! | the requests | `plan.rs`, `request.rs`, `verb.rs`; those that must fail: `defect.rs`, `faulty_request.rs` |
//! | the programs, their queue pairs, memory and receives | `program.rs`, `connection.rs`, `memory.rs`, `supply.rs` |
//! | the settings of a run, and its course | `rules.rs`, `scene.rs` |
//! | the states of queue pairs | `states.rs` |
//! | switches between TCP and shared memory | `routes.rs` |
//! | completion queues and asynchronous events | `cq_model.rs`, `events.rs` |
//! | checks of completions and at the end | `check.rs`, `end.rs`, `verdict.rs` |
//! | what all seeds together must cover | `coverage.rs` |

mod check;
mod connection;
mod coverage;
mod cq_model;
mod defect;
mod end;
mod events;
mod faulty_request;
mod memory;
mod moving;
mod outcome;
mod plan;
mod program;
mod random;
mod request;
mod routes;
mod rules;
mod scene;
mod states;
mod supply;
mod verb;
mod verdict;

pub use coverage::Coverage;
pub use outcome::Outcome;

use crate::trace::Trace;
use crate::world::World;
use scene::Scene;

/// Runs one seed. Panics if a check fails.
pub fn run(seed: u64) -> Outcome {
    Scene::new(seed, World::new).run()
}

/// Runs one seed. Passes its trace to `keep` before the run, so that the caller has the trace even if a check fails,
/// which panics.
pub fn trace(seed: u64, keep: impl FnOnce(Trace)) -> Outcome {
    let scene = Scene::new(seed, World::traced);
    keep(scene.trace());
    scene.run()
}
