//! Simulates completion notification: one adapter, some completion queues and handlers, and programs that sleep until
//! an event.
//!
//! Each seed is one run. Requests complete at random; a program that is woken takes the event, polls the queue and arms
//! it again. Meanwhile queues are resized, moved to other handlers or to none (*Modify CQ*, requirement N4), moderated
//! by count and by time (requirement I10), polled and armed by others, and handlers are moderated as well. A model
//! predicts the result of each step. At the end, when nothing happens any more, no program sleeps that should have been
//! woken.
//!
//! This is much faster than a [`scenario`](crate::scenario), which does the same with queue pairs at work: ten million
//! events take seconds (`ironwarp-sim --events`).
//!
//! | to find | look in |
//! |---|---|
//! | the steps | `scene.rs` |
//! | their expected results at a queue and at a handler | `queue.rs`, `handler.rs` |
//! | what all seeds together must cover | `tally.rs` |

mod handler;
mod queue;
mod scene;
mod tally;

pub use tally::Tally;

use crate::trace::Trace;
use scene::Scene;

/// Runs one seed. Panics if a check fails.
pub fn run(seed: u64) -> Tally {
    Scene::new(seed, false).run()
}

/// Runs one seed. Passes its trace to `keep` before the run, so that the caller has the trace even if a check fails,
/// which panics.
pub fn trace(seed: u64, keep: impl FnOnce(Trace)) -> Tally {
    let scene = Scene::new(seed, true);
    keep(scene.trace());
    scene.run()
}
