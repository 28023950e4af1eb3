//! Simulates a queue pair in iSCSI mode (requirement M13) and its target, over a link that fragments, blocks and breaks.
//!
//! Each seed is one run. The program posts reads and writes, aborts some of them and uses their memory again at once. The
//! target is a model: it answers commands, in part early or late, and lies about tags, offsets and lengths. Each byte that
//! is placed or sent is compared with the pattern of its command, each command must end once, memory of no command must
//! not change, and each PDU of the target must use a receive.
//!
//! `target.rs` has the target, `scene.rs` the program and the model, and `tally.rs` what all seeds together must cover.

mod scene;
mod tally;
mod target;

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
