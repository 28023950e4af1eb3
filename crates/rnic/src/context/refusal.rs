//! Handles a refused registration by work request (requirement M7) on a queue pair whose stream survives it.
//! `stream/tx` executes the registration; `queue/send/refusal.rs` has the effects on the send queue.

use super::QpContext;
use super::attributes::RegistrationFailure;
use crate::error::QpError;
use crate::queue::Status;
use crate::recording::{Kind, record};
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

    /// Refuses the registration `seq`: moves the queue pair to the drained state, fails the request and flushes those
    /// after it. Returns the sequence number of the next request to be posted.
    pub(crate) fn refuse(&self, seq: u64, error: QpError) -> u64 {
        let mut sq = lock(&self.sq);
        let behind = sq.refuse(seq, Status::WindowBind, &Arc::new(error));
        // With `sq` locked, so that a thread that polls the completion finds the drained state and can move it back.
        let (from, to) = (State::ReadyToSend as u8, State::Drained as u8);
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        record(Kind::State, self.id(), self.state() as u32);
        self.retire_from(&mut sq);
        behind
    }
}
