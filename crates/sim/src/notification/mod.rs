//! Who is told of completions, and when: one adapter, some completion queues, some handlers, and programs that sleep at those.
//!
//! One seed is one run. Requests complete at random; a program that is woken takes the event, polls that queue and arms it
//! again. All the while queues are resized, moved to other handlers or to none (*Modify CQ*, requirement N4), moderated by
//! count and by time (requirement I10), polled and armed by others, and handlers are moderated as well. What must come of each
//! step is said by a model, which has it from the documentation; and in the end, when nothing happens any more, no program
//! sleeps that should have been woken.
//!
//! This is much faster than a [`scenario`](crate::scenario), which does such things to queue pairs at work: ten million events
//! take seconds (`ironwarp-sim --events`).
//!
//! | to find | look in |
//! |---|---|
//! | the steps | `scene.rs` |
//! | what must come of them: at a queue, at a handler | `queue.rs`, `handler.rs` |
//! | what must have been reached, over all seeds | `tally.rs` |

mod handler;
mod queue;
mod scene;
mod tally;

pub use tally::Tally;

use crate::trace::Trace;
use scene::Scene;

/// Runs one seed to its end. Panics if anything is not as it should be.
pub fn run(seed: u64) -> Tally {
    Scene::new(seed, false).run()
}

/// The same, and `keep` gets the trace that is written meanwhile.
pub fn trace(seed: u64, keep: impl FnOnce(Trace)) -> Tally {
    let scene = Scene::new(seed, true);
    keep(scene.trace());
    scene.run()
}
