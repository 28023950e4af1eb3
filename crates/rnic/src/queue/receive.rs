//! The receive queue of a queue pair: posted buffers for arriving messages, used in the order of posting.

use super::{Completion, Cq, Opcode, ReceiveRequest, Status};
use crate::error::{PostError, QpError};
use crate::memory::Domain;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Receives that are posted and not used yet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReceiveQueue {
    /// The protection domain of the buffers.
    domain: Domain,
    /// Maximum number of receives. `u32`, to keep queue pairs small.
    capacity: u32,
    /// Maximum number of scatter/gather elements of a receive. `u32`, to keep queue pairs small.
    max_sges: u32,
    /// Whether the adapter was shut down, so that the capacity is zero.
    is_shut_down: bool,
    /// The queue is frozen (requirement X2), so the capacity is zero, and this one only takes the place of the real one.
    #[serde(skip)]
    is_frozen: bool,
    /// The receives, the oldest first.
    posted: VecDeque<ReceiveRequest>,
}

/// A receive that is in use by a message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receive {
    pub(crate) request: ReceiveRequest,
    /// Total size of the buffers.
    pub(crate) room: u64,
    /// The protection domain of the buffers.
    pub(crate) domain: Domain,
    /// The completion queue for this receive. `None` for the receive completion queue of the queue pair.
    #[serde(with = "cq_number")]
    pub(crate) cq: Option<Arc<Cq>>,
}

impl Receive {
    /// Returns whether the size of a loaded receive is that of its buffers.
    pub(crate) fn is_consistent(&self) -> bool {
        self.room == self.request.buffers.len()
    }

    /// Replaces the completion queue of a loaded receive by the one with the same number. Returns false if there is none.
    pub(crate) fn resolve_cq(&mut self, cq: &dyn Fn(u32) -> Option<Arc<Cq>>) -> bool {
        let Some(loaded) = &self.cq else { return true };
        self.cq = cq(loaded.id());
        self.cq.is_some()
    }
}

impl ReceiveQueue {
    /// Creates an empty queue.
    pub(crate) fn new(domain: Domain, capacity: usize, max_sges: usize) -> Self {
        let (capacity, max_sges) = (saturate(capacity), saturate(max_sges));
        let (is_shut_down, is_frozen) = (false, false);
        Self { domain, capacity, max_sges, is_shut_down, is_frozen, posted: VecDeque::new() }
    }

    /// Maximum number of receives.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Maximum number of scatter/gather elements of a receive.
    pub(crate) fn max_sges(&self) -> usize {
        self.max_sges as usize
    }

    /// Number of receives posted.
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Changes the maximum number of receives. Fails if more than `capacity` are posted.
    pub(crate) fn resize(&mut self, capacity: usize) -> Result<(), PostError> {
        if self.is_shut_down {
            return Err(PostError::ShutDown);
        }
        if self.posted.len() > capacity {
            return Err(PostError::Full { capacity });
        }
        self.capacity = saturate(capacity);
        Ok(())
    }

    /// Appends a receive. Fails if it has too many elements, or if the queue is full.
    pub(crate) fn post(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let sges = request.buffers.as_slice().len();
        if sges > self.max_sges() {
            return Err(PostError::TooManySges { have: sges, limit: self.max_sges() });
        }
        if self.posted.len() >= self.capacity() {
            return Err(self.full());
        }
        self.posted.push_back(request);
        Ok(())
    }

    /// Refuses all further receives, because the adapter was shut down (requirement N11).
    pub(crate) fn shut_down(&mut self) {
        self.capacity = 0;
        self.is_shut_down = true;
    }

    /// Returns the error for a receive that does not fit.
    #[cold]
    fn full(&self) -> PostError {
        match self.is_frozen {
            true => PostError::Frozen,
            false if self.is_shut_down => PostError::ShutDown,
            false => PostError::Full { capacity: self.capacity() },
        }
    }

    /// Takes the queue out, and leaves one that refuses receives (requirement X2). Its elements are limited as before, so
    /// that a receive with too many gets the same error.
    pub(crate) fn freeze(&mut self) -> Self {
        let mut substitute = Self::new(self.domain, 0, self.max_sges());
        substitute.is_frozen = true;
        std::mem::replace(self, substitute)
    }

    /// Makes the buffers those of another domain.
    pub(crate) fn set_domain(&mut self, domain: Domain) {
        self.domain = domain;
    }

    /// Returns whether a queue that was loaded is one that receives could have been posted to.
    pub(crate) fn is_consistent(&self) -> bool {
        let fits = |request: &ReceiveRequest| request.buffers.as_slice().len() <= self.max_sges();
        self.posted.len() <= self.capacity() && self.posted.iter().all(fits)
    }

    /// Takes the oldest receive, for a message that begins, if `ready` returns true for it.
    pub(crate) fn take_if(&mut self, ready: impl FnOnce(&ReceiveRequest) -> bool) -> Option<Receive> {
        if self.posted.front().is_some_and(ready) { self.take() } else { None }
    }

    /// Returns the oldest receive and the protection domain of its buffers, without taking it.
    pub(crate) fn oldest(&self) -> Option<(&ReceiveRequest, Domain)> {
        Some((self.posted.front()?, self.domain))
    }

    /// Takes the oldest receive, for a message that begins.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Receive> {
        let request = self.posted.pop_front()?;
        let room = request.buffers.len();
        Some(Receive { request, room, domain: self.domain, cq: None })
    }

    /// Removes all receives.
    pub(crate) fn clear(&mut self) {
        self.posted.clear();
    }

    /// Removes all receives, and returns a flushed completion for each of them.
    pub(crate) fn flush(&mut self, qp: u32, cause: &Arc<QpError>) -> Vec<Completion> {
        self.posted.drain(..).map(|request| flushed_completion(&request, qp, cause)).collect()
    }
}

/// Converts a count to `u32`. Saturates, which is harmless: 2^32 entries are never posted.
pub(super) fn saturate(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Creates the completion of a receive that is flushed.
pub(crate) fn flushed_completion(request: &ReceiveRequest, qp: u32, cause: &Arc<QpError>) -> Completion {
    Completion::failed(request.id, Opcode::Receive, qp, Status::Flushed, Some(Arc::clone(cause)))
}

/// Stores the number of a completion queue. A loaded queue is one without room, to be [replaced](Receive::resolve_cq) by the
/// queue with the same number.
mod cq_number {
    use super::Cq;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(super) fn serialize<S: Serializer>(cq: &Option<Arc<Cq>>, to: S) -> Result<S::Ok, S::Error> {
        cq.as_ref().map(|cq| cq.id()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<Cq>>, D::Error> {
        Ok(Option::deserialize(from)?.map(|id| Arc::new(Cq::new(id, 0))))
    }
}
