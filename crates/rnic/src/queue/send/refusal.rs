//! A registration by work request that was refused, on a queue pair that outlives it (requirement M7, the reactive option): it fails
//! when it has its turn, what is behind it is flushed, and so is what is posted until the consumer moves the queue pair back.

use super::SendQueue;
use crate::error::Fault;
use crate::queue::Status;
use std::sync::Arc;

/// How a request ended that was never begun, and why.
pub(super) type Refused = Box<(Status, Arc<Fault>)>;

impl SendQueue {
    /// The request `seq` was refused. Returns the sequence number of the next to be posted.
    pub(crate) fn refuse(&mut self, seq: u64, status: Status, cause: &Arc<Fault>) -> u64 {
        self.refusal = Some(Arc::clone(cause));
        // If the stream failed meanwhile, it is gone, and all are.
        let at = self.index(seq).unwrap_or(self.entries.len());
        self.flush_from(at);
        if let Some(entry) = self.entries.get_mut(at) {
            entry.refused = Some(Box::new((status, Arc::clone(cause))));
        }
        self.first + self.entries.len() as u64
    }

    /// Whether what is posted is flushed.
    pub(crate) fn is_refusing(&self) -> bool {
        self.refusal.is_some()
    }

    /// These were posted, and the consumer has not moved the queue pair back.
    pub(super) fn flush_from(&mut self, at: usize) {
        let Some(cause) = &self.refusal else { return };
        for entry in self.entries.iter_mut().skip(at) {
            entry.refused = Some(Box::new((Status::Flushed, Arc::clone(cause))));
        }
    }

    /// The consumer has moved the queue pair back: what is posted from now on has its turn.
    pub(crate) fn restore(&mut self) {
        self.refusal = None;
    }

    /// The first request that has its turn after that. Those before it are complete, refused or flushed, but for some that wait for
    /// their answer: these are before all that were refused.
    pub(crate) fn resumes_at(&self) -> u64 {
        let last = self.entries.iter().rposition(|entry| entry.refused.is_some());
        self.first + last.map_or(0, |last| last as u64 + 1)
    }
}
