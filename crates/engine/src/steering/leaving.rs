//! Has all connections of an adapter leave shared memory (requirement X2): before they move to another process, and before
//! a checkpoint of the process.

use super::Steering;
use crate::reactor::member::Member;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A connection that has not left shared memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue pair {qp}, connected to {peer}, did not leave shared memory: {why}")]
#[non_exhaustive]
pub struct LeaveError {
    /// The number of the queue pair.
    pub qp: u32,
    /// The address of its peer.
    pub peer: SocketAddr,
    /// Why it has not left.
    pub why: LeaveFailure,
}

/// Why a connection has not left shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveFailure {
    /// The peer does not know the request.
    #[error("its peer does not know the request: update the peer")]
    Unsupported,
    /// The peer has not answered within the time.
    #[error("its peer has not answered in time: the peer may be stopped, or wait for a receive to be posted")]
    Timeout,
}

/// The connections that are leaving shared memory.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Those that have not left yet.
    pending: Vec<Arc<dyn Member>>,
    /// Those that cannot leave.
    unable: Vec<Arc<dyn Member>>,
}

impl Steering {
    /// Has new connections stay with TCP, and the others begin to leave shared memory. Those that have begun before go on.
    pub(crate) fn begin_leaving(&self) -> Leaving {
        let Some(memory) = self.shared_memory() else { return Leaving::default() };
        memory.turn_off();
        let mut leaving = Leaving::default();
        let sets = self.all_lanes().flat_map(|lane| lane.sets());
        for member in sets.flat_map(|set| set.members()) {
            match Arc::clone(&member).leave_shared_memory() {
                true if member.has_left_shared_memory() => {}
                true => leaving.pending.push(member),
                false => leaving.unable.push(member),
            }
        }
        leaving
    }

    /// Has all connections leave shared memory, and waits until they have. Returns those that have not until the
    /// deadline.
    pub(crate) fn leave_shared_memory(&self, deadline: Instant) -> Vec<LeaveError> {
        let mut leaving = self.begin_leaving();
        leaving.wait(self, deadline);
        let errors = leaving.errors();
        if let Some(memory) = self.shared_memory().filter(|_| errors.is_empty()) {
            memory.wait_until_left(deadline, || memory.is_unmapped());
        }
        errors
    }
}

impl Leaving {
    /// Returns the leaving of one connection.
    pub(crate) fn of(member: Arc<dyn Member>) -> Self {
        match Arc::clone(&member).leave_shared_memory() {
            true => Self { pending: vec![member], unable: Vec::new() },
            false => Self { pending: Vec::new(), unable: vec![member] },
        }
    }

    /// Waits until the connections that can leave have left, at most until the deadline. Whatever drives their streams must
    /// go on meanwhile.
    pub(crate) fn wait(&mut self, steering: &Steering, deadline: Instant) {
        let Some(memory) = steering.shared_memory() else { return };
        memory.wait_until_left(deadline, || {
            self.pending.retain(|member| !member.has_left_shared_memory());
            self.pending.is_empty()
        });
    }

    /// Returns an error for each connection that has not left.
    pub(crate) fn errors(&self) -> Vec<LeaveError> {
        let pending = self.pending.iter().filter_map(|member| error(member, LeaveFailure::Timeout));
        self.unable().into_iter().chain(pending).collect()
    }

    /// Returns an error for each connection that cannot leave.
    pub(crate) fn unable(&self) -> Vec<LeaveError> {
        self.unable.iter().filter_map(|member| error(member, LeaveFailure::Unsupported)).collect()
    }

    /// Returns the number of connections that have not left yet, but can.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }
}

/// Returns the error of a connection; `None` if it is closed.
fn error(member: &Arc<dyn Member>, why: LeaveFailure) -> Option<LeaveError> {
    let qp = member.qp()?.id();
    let (peer, _) = Arc::clone(member).movable()?.addresses()?;
    (!member.has_left_shared_memory()).then_some(LeaveError { qp, peer, why })
}
