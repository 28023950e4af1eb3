//! Completion handlers, event queues and asynchronous events, with real descriptors and real threads.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod descriptors;
mod identity;
mod many;
mod map;
mod states;
mod stopped;

use ironwarp_rnic::queue::{Completion, Opcode};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

fn completion(wr_id: u64) -> Completion {
    Completion::succeeded(wr_id, Opcode::Receive, 1, 0)
}
