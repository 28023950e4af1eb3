//! A refused registration by work request on a queue pair that survives it (requirement M7, the reactive option):
//! the registration fails in its turn, the requests after it are flushed, and so are those posted until the
//! consumer moves the queue pair back.

use super::SendQueue;
use crate::error::QpError;
use crate::queue::entry::{Entry, Refusals, failed_completion, success_completion};
use crate::queue::{Completion, Status};
use std::sync::Arc;

impl SendQueue {
    /// The request `seq` was refused. Returns the sequence number of the next request to be posted.
    pub(crate) fn refuse(&mut self, seq: u64, status: Status, cause: &Arc<QpError>) -> u64 {
        let at = self.index(seq);
        let refusals = self.refusals.get_or_insert_default();
        refusals.refusing = Some(Arc::clone(cause));
        // If the stream failed meanwhile, all requests are gone.
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
        self.refusals.as_ref().is_some_and(|refusals| refusals.refusing.is_some())
    }

    /// If posted requests are flushed, marks those after the last refused one as flushed. (If no refused request
    /// is left, neither is any that was posted before it.)
    #[cold]
    pub(crate) fn flush_posted(&mut self) {
        let Some(Refusals { refusing: Some(cause), ends }) = self.refusals.as_deref_mut() else { return };
        let behind = self.entries.iter().rposition(|entry| entry.refused).map_or(0, |last| last + 1);
        for entry in self.entries.iter_mut().skip(behind) {
            entry.refused = true;
            ends.push_back((Status::Flushed, Arc::clone(cause)));
        }
    }

    /// The consumer has moved the queue pair back: requests posted from now on are executed.
    pub(crate) fn stop_refusing(&mut self) {
        if let Some(refusals) = &mut self.refusals {
            refusals.refusing = None;
        }
    }

    /// The first request to execute then. The requests before it are complete, refused or flushed, except for
    /// some that wait for their response: these are before all refused ones.
    pub(crate) fn first_unrefused(&self) -> u64 {
        let last = self.entries.iter().rposition(|entry| entry.refused);
        self.first + last.map_or(0, |last| last as u64 + 1)
    }

    /// The completion of a request that is done, if one is due. Requests are done in order.
    pub(super) fn take_completion(&mut self, qp: u32, entry: &Entry) -> Option<Completion> {
        let refusals = if entry.refused { self.refusals.as_mut() } else { None };
        match refusals.and_then(|refusals| refusals.ends.pop_front()) {
            Some(end) => Some(failed_completion(&entry.request, qp, &end)),
            None => entry.request.signaled.then(|| success_completion(&entry.request, qp)),
        }
    }
}
