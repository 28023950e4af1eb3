//! The receive queue: buffers for the messages to come, used in the order they were posted.

use super::{Completion, Cq, Opcode, ReceiveRequest, Status};
use crate::error::{Fault, PostError};
use crate::memory::Domain;
use std::collections::VecDeque;
use std::sync::Arc;

/// Posted and not yet used receives.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    /// The domain of the buffers.
    domain: Domain,
    /// How many it holds, and how many elements each may have. Small: see `a_queue_pair_stays_small`.
    capacity: u32,
    max_sges: u32,
    posted: VecDeque<ReceiveRequest>,
}

/// A receive that a message is using up.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) request: ReceiveRequest,
    /// How much the buffers hold.
    pub(crate) room: u64,
    /// The domain of the buffers.
    pub(crate) domain: Domain,
    /// Where it completes, if not where the queue pair's own receives do.
    pub(crate) cq: Option<Arc<Cq>>,
}

impl ReceiveQueue {
    pub(crate) fn new(domain: Domain, capacity: usize, max_sges: usize) -> Self {
        let (capacity, max_sges) = (narrow(capacity), narrow(max_sges));
        Self { domain, capacity, max_sges, posted: VecDeque::new() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    pub(crate) fn max_sges(&self) -> usize {
        self.max_sges as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// From now on it holds so many. Refused if more are posted.
    pub(crate) fn resize(&mut self, capacity: usize) -> Result<(), PostError> {
        if self.posted.len() > capacity {
            return Err(PostError::Full { capacity });
        }
        self.capacity = narrow(capacity);
        Ok(())
    }

    pub(crate) fn post(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let sges = request.buffers.as_slice().len();
        if sges > self.max_sges() {
            return Err(PostError::TooManySges { have: sges, limit: self.max_sges() });
        }
        if self.posted.len() == self.capacity() {
            return Err(PostError::Full { capacity: self.capacity() });
        }
        self.posted.push_back(request);
        Ok(())
    }

    /// The receive for the message that begins, if it is `ready`.
    pub(crate) fn take_if(&mut self, ready: impl FnOnce(&ReceiveRequest) -> bool) -> Option<Receive> {
        if self.posted.front().is_some_and(ready) { self.take() } else { None }
    }

    /// The receive for the message that begins.
    pub(crate) fn take(&mut self) -> Option<Receive> {
        let request = self.posted.pop_front()?;
        let room = request.buffers.len();
        Some(Receive { request, room, domain: self.domain, cq: None })
    }

    /// Forgets all that are left.
    pub(crate) fn clear(&mut self) {
        self.posted.clear();
    }

    /// All that are left, as completions that say they were not used.
    pub(crate) fn flush(&mut self, qp: u32, cause: &Arc<Fault>) -> Vec<Completion> {
        self.posted.drain(..).map(|request| flushed(&request, qp, cause)).collect()
    }
}

/// Nobody posts more than 2^32 of anything.
pub(super) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A receive that ends with the stream.
pub(crate) fn flushed(request: &ReceiveRequest, qp: u32, cause: &Arc<Fault>) -> Completion {
    Completion::failed(request.id, Opcode::Receive, qp, Status::Flushed, Some(Arc::clone(cause)))
}
