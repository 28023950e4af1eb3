//! The refusal of a registration by work request (requirement M7), found by `stream/tx`. It ends the stream, or
//! `queue/send/refusal.rs` handles it.

use super::QpContext;
use super::attributes::RegistrationFailure;
use crate::error::QpError;
use crate::queue::Status;
use crate::state::State;
use crate::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QpContext {
    /// Whether the stream survives a refused registration.
    pub(crate) fn survives_refusal(&self) -> bool {
        self.attributes.registration_failure == RegistrationFailure::Reactive
    }

    /// Whether posted requests are flushed because a registration was refused.
    pub fn is_refusing(&self) -> bool {
        lock(&self.sq).is_refusing()
    }

    /// The registration `seq` was refused. Returns the sequence number of the next request to be posted.
    pub(crate) fn refuse(&self, seq: u64, error: QpError) -> u64 {
        let mut sq = lock(&self.sq);
        let behind = sq.refuse(seq, Status::WindowBind, &Arc::new(error));
        // With the lock: a thread that sees the completion also sees the state, and can move it back.
        let (from, to) = (State::ReadyToSend as u8, State::Drained as u8);
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        self.retire_from(&mut sq);
        behind
    }
}
