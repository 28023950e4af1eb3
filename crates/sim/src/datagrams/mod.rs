//! Simulates acknowledged datagrams (requirement P2): some queue pairs that send messages to each other over a network
//! that loses, duplicates, delays, reorders and damages datagrams.
//!
//! Each seed is one run. Queue pairs remember only few senders, so that sessions are replaced all the time, and are
//! started again, with and without a new process. Receives are posted late, or are too short. A model counts how often
//! each message was delivered:
//!
//! | a request that | was delivered |
//! |---|---|
//! | succeeded | exactly once, before it completed |
//! | was rejected | never |
//! | failed otherwise, or was discarded when its queue pair was started again | at most once |
//!
//! At the end, when nothing is on its way any more, every request has ended.
//!
//! `network.rs` has the network, `scene.rs` the programs and the model, and `tally.rs` what all seeds together must cover.

mod network;
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
