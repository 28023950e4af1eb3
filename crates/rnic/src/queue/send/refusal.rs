//! A registration by work request that was refused, on a queue pair that outlives it (requirement M7, the reactive option): it fails
//! when it has its turn, what is behind it is flushed, and so is what is posted until the consumer moves the queue pair back.

use super::{Entry, SendQueue, failed, succeeded};
use crate::error::Fault;
use crate::queue::{Completion, Status};
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests that were refused, or flushed for it. Made for the first.
#[derive(Debug)]
pub(super) struct Refusals {
    /// Why what is posted is flushed; nothing, once the consumer has moved the queue pair back.
    refusing: Option<Arc<Fault>>,
    /// How those end that are not complete yet, in their order.
    ends: VecDeque<(Status, Arc<Fault>)>,
}

impl SendQueue {
    /// The request `seq` was refused. Returns the sequence number of the next to be posted.
    pub(crate) fn refuse(&mut self, seq: u64, status: Status, cause: &Arc<Fault>) -> u64 {
        let at = self.index(seq);
        let refusals =
            self.refusals.get_or_insert_with(|| Box::new(Refusals { refusing: None, ends: VecDeque::new() }));
        refusals.refusing = Some(Arc::clone(cause));
        // If the stream failed meanwhile, it is gone, and all are.
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            entry.refused = true;
            refusals.ends.push_back((status, Arc::clone(cause)));
        }
        self.flush_posted();
        self.first + self.entries.len() as u64
    }

    /// Whether what is posted is flushed.
    #[inline]
    pub(crate) fn is_refusing(&self) -> bool {
        self.refusals.as_ref().is_some_and(|refusals| refusals.refusing.is_some())
    }

    /// What was posted behind the last that was refused will never be begun, if that is so now. (If none that was refused is there any
    /// more, nor is anything that was posted before it.)
    #[cold]
    pub(crate) fn flush_posted(&mut self) {
        let Some(Refusals { refusing: Some(cause), ends }) = self.refusals.as_deref_mut() else { return };
        let behind = self.entries.iter().rposition(|entry| entry.refused).map_or(0, |last| last + 1);
        for entry in self.entries.iter_mut().skip(behind) {
            entry.refused = true;
            ends.push_back((Status::Flushed, Arc::clone(cause)));
        }
    }

    /// The consumer has moved the queue pair back: what is posted from now on has its turn.
    pub(crate) fn restore(&mut self) {
        if let Some(refusals) = &mut self.refusals {
            refusals.refusing = None;
        }
    }

    /// The first request that has its turn after that. Those before it are complete, refused or flushed, but for some that wait for
    /// their answer: these are before all that were refused.
    pub(crate) fn resumes_at(&self) -> u64 {
        let last = self.entries.iter().rposition(|entry| entry.refused);
        self.first + last.map_or(0, |last| last as u64 + 1)
    }

    /// What is told of a request that is complete, if anything. Requests are complete in their order.
    pub(super) fn ended(&mut self, qp: u32, entry: &Entry) -> Option<Completion> {
        let refusals = if entry.refused { self.refusals.as_mut() } else { None };
        match refusals.and_then(|refusals| refusals.ends.pop_front()) {
            Some(end) => Some(failed(&entry.request, qp, &end)),
            None => entry.request.signaled.then(|| succeeded(&entry.request, qp)),
        }
    }
}
