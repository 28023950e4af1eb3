//! The receive queue: buffers for the messages to come, used in the order they were posted.

use super::{Completion, Opcode, ReceiveRequest, Status};
use crate::error::{Fault, PostError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Posted and not yet used receives.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    capacity: usize,
    max_sges: usize,
    posted: VecDeque<ReceiveRequest>,
}

/// A receive that a message is using up.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) request: ReceiveRequest,
    /// How much the buffers hold.
    pub(crate) room: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: usize, max_sges: usize) -> Self {
        Self { capacity, max_sges, posted: VecDeque::new() }
    }

    pub(crate) fn post(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let sges = request.buffers.as_slice().len();
        if sges > self.max_sges {
            return Err(PostError::TooManySges { have: sges, limit: self.max_sges });
        }
        if self.posted.len() == self.capacity {
            return Err(PostError::Full { capacity: self.capacity });
        }
        self.posted.push_back(request);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// The receive for the message that begins.
    pub(crate) fn take(&mut self) -> Option<Receive> {
        let request = self.posted.pop_front()?;
        let room = request.buffers.len();
        Some(Receive { request, room })
    }

    /// All that are left, as completions that say they were not used.
    pub(crate) fn flush(&mut self, qp: u32, cause: &Arc<Fault>) -> Vec<Completion> {
        self.posted.drain(..).map(|request| flushed(&request, qp, cause)).collect()
    }
}

/// A receive that ends with the stream.
pub(crate) fn flushed(request: &ReceiveRequest, qp: u32, cause: &Arc<Fault>) -> Completion {
    Completion::failed(request.id, Opcode::Receive, qp, Status::Flushed, Some(Arc::clone(cause)))
}
