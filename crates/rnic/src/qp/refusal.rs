//! What becomes of a queue pair whose registration by work request was refused (requirement M7). Before this: `stream/tx`, which
//! executes the request; after it `queue/send/refusal.rs`, or the end of the stream.

use super::{Qp, State};
use crate::error::Fault;
use crate::queue::Status;
use crate::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What becomes of a queue pair if a registration by work request is refused (requirement M7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegistrationFailure {
    /// It is over: the peer gets a Terminate, and all that is posted is flushed. For consumers that keep track of what can
    /// be registered, to whom this is a mistake.
    #[default]
    Anticipatory,
    /// Its send queue is drained: what was posted behind the registration is flushed, and so is what is posted until the consumer
    /// moves the queue pair back to [`State::ReadyToSend`] and tries again. The connection stays: receives, answers to the
    /// peer, and requests before the registration go on.
    Reactive,
}

impl Qp {
    /// Whether a registration that is refused does not end the stream.
    pub(crate) fn survives_refusal(&self) -> bool {
        self.attributes.registration_failure == RegistrationFailure::Reactive
    }

    /// Whether what is posted is flushed, because a registration was refused.
    pub fn is_refusing(&self) -> bool {
        lock(&self.sq).is_refusing()
    }

    /// The registration `seq` was refused. Returns the sequence number of the next request to be posted.
    pub(crate) fn refuse(&self, seq: u64, fault: Fault) -> u64 {
        let mut sq = lock(&self.sq);
        let behind = sq.refuse(seq, Status::WindowBind, &Arc::new(fault));
        // Under the lock: who sees the completion finds the state as well, and can move it back.
        let (from, to) = (State::ReadyToSend as u8, State::Drained as u8);
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        self.retire_from(&mut sq);
        behind
    }
}
