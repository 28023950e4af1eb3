//! The part of the context that moves with a queue pair to another function (requirement X2): everything but the queues,
//! the obligations and what belongs to the function.

use super::QpContext;
use crate::error::QpError;
use crate::link::Route;
use crate::memory::Rights;
use crate::queue::MAX_COUNT;
use crate::retry::Retries;
use crate::state::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The values of a context that is frozen.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FrozenContext {
    state: u8,
    connection: u8,
    error: Option<Arc<QpError>>,
    retries: u32,
    rights: Rights,
    completions_suppressed: bool,
    request_blamed: bool,
    last_wqe_raised: bool,
    drain_requested: bool,
    cq_overrun: bool,
    peer_not_ready: u64,
    shared_receives: u64,
    delivered: u64,
    acknowledgeable: u64,
    routes: [Route; 2],
}

impl QpContext {
    /// Returns the values. The caller has taken both halves, so that nothing but the program changes them.
    pub(crate) fn freeze(&self) -> FrozenContext {
        FrozenContext {
            state: self.state() as u8,
            connection: self.connection.bits(),
            error: self.error().cloned(),
            retries: self.retries().to_bits(),
            rights: self.rights(),
            completions_suppressed: self.completions_suppressed.load(Ordering::SeqCst),
            request_blamed: self.request_blamed.load(Ordering::Acquire),
            last_wqe_raised: self.last_wqe_raised.load(Ordering::Acquire),
            drain_requested: self.drain_requested.load(Ordering::Acquire),
            cq_overrun: self.cq_overrun.load(Ordering::Acquire),
            peer_not_ready: self.peer_not_ready.load(Ordering::Acquire),
            shared_receives: self.shared_receives.load(Ordering::Relaxed),
            delivered: self.delivered(),
            acknowledgeable: self.acknowledgeable(),
            routes: [self.send_route(), self.recv_route()],
        }
    }

    /// Sets the values of a new context.
    pub(crate) fn restore(&self, frozen: FrozenContext) {
        self.state.store(State::from_bits(frozen.state) as u8, Ordering::Release);
        self.connection.restore(frozen.connection);
        if let Some(error) = frozen.error {
            let _ = self.error.set(error);
        }
        self.set_retries(Retries::from_bits(frozen.retries));
        self.set_rights(frozen.rights);
        self.completions_suppressed.store(frozen.completions_suppressed, Ordering::SeqCst);
        self.request_blamed.store(frozen.request_blamed, Ordering::Release);
        self.last_wqe_raised.store(frozen.last_wqe_raised, Ordering::Release);
        self.drain_requested.store(frozen.drain_requested, Ordering::Release);
        self.cq_overrun.store(frozen.cq_overrun, Ordering::Release);
        self.peer_not_ready.store(frozen.peer_not_ready, Ordering::Release);
        self.shared_receives.store(frozen.shared_receives, Ordering::Relaxed);
        self.set_delivered(frozen.delivered);
        self.set_acknowledgeable(frozen.acknowledgeable);
        self.set_ack_may_be_due(); // whether one is due is found when the list of such queue pairs is made
        self.sq_used.store(true, Ordering::Relaxed); // cleared when the queue is found empty
        let [send, receive] = frozen.routes;
        self.set_send_route(send);
        self.set_recv_route(receive);
    }
}

impl FrozenContext {
    /// Returns whether the values are those of some context.
    pub(crate) fn is_consistent(&self) -> bool {
        let counts = [self.peer_not_ready, self.shared_receives, self.delivered, self.acknowledgeable];
        State::ALL.iter().any(|state| *state as u8 == self.state)
            && (self.state == State::Error as u8) == self.error.is_some()
            && counts.iter().all(|count| *count <= MAX_COUNT)
    }
}
