//! Handles a refused registration by work request on a queue pair that survives the refusal (requirement M7, the
//! reactive option). The registration fails in its turn. Requests after it are flushed, and so are those that are
//! posted until the consumer moves the queue pair back to ready-to-send.

use super::SendQueue;
use crate::error::QpError;
use crate::queue::entry::{Entry, Refusals, failed_completion, success_completion};
use crate::queue::{Completion, Status};
use std::sync::Arc;

impl SendQueue {
    /// Marks the request `seq` as refused, and all later ones as flushed. From now on, posted requests are flushed as
    /// well. Returns the sequence number of the next request to be posted.
    pub(crate) fn refuse(&mut self, seq: u64, status: Status, cause: &Arc<QpError>) -> u64 {
        let at = self.index(seq);
        let refusals = &mut self.extra.get_or_insert_default().refusals;
        refusals.refusing = Some(Arc::clone(cause));
        // There is no entry if the stream failed meanwhile: all requests are complete.
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            entry.refused = true;
            refusals.ends.push_back((status, Arc::clone(cause)));
        }
        self.flush_posted();
        self.first + self.entries.len() as u64
    }

    /// Whether posted requests are flushed.
    #[inline]
    pub(crate) fn is_refusing(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.refusals.refusing.is_some())
    }

    /// Marks the requests after the last refused one as flushed, if posted requests are to be flushed. If no entry is
    /// marked as refused, that covers all entries: those before the refused request are complete.
    #[cold]
    pub(crate) fn flush_posted(&mut self) {
        let Some(Refusals { refusing: Some(cause), ends }) =
            self.extra.as_mut().map(|extra| &mut extra.refusals)
        else {
            return;
        };
        let behind = self.entries.iter().rposition(|entry| entry.refused).map_or(0, |last| last + 1);
        for entry in self.entries.iter_mut().skip(behind) {
            entry.refused = true;
            ends.push_back((Status::Flushed, Arc::clone(cause)));
        }
    }

    /// Stops flushing posted requests: those posted from now on are executed. Called when the consumer has moved the
    /// queue pair back to ready-to-send, or when the stream fails.
    pub(crate) fn stop_refusing(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.refusals.refusing = None;
        }
    }

    /// Returns the sequence number after the last refused request: the first to execute once the consumer has moved the
    /// queue pair back. Requests before the refused ones may still wait for a response.
    pub(crate) fn first_unrefused(&self) -> u64 {
        let last = self.entries.iter().rposition(|entry| entry.refused);
        self.first + last.map_or(0, |last| last as u64 + 1)
    }

    /// Returns the completion of a request that is removed from the queue. `None` if it succeeded and is not signaled.
    /// Must be called in the order of the requests, because the statuses of refused ones are stored in that order.
    pub(super) fn take_completion(&mut self, qp: u32, entry: &Entry) -> Option<Completion> {
        let extra = if entry.refused { self.extra.as_mut() } else { None };
        match extra.and_then(|extra| extra.refusals.ends.pop_front()) {
            Some(end) => Some(failed_completion(&entry.request, qp, &end)),
            None => entry.request.signaled.then(|| success_completion(&entry.request, qp)),
        }
    }
}
