//! How the requests of a send queue end when their stream fails.

use super::{BlamedRequest, Failure, SendQueue};
use crate::error::QpError;
use crate::queue::entry::failed_completion;
use crate::queue::{Completion, Receive, Status};
use std::sync::Arc;

impl SendQueue {
    /// The peer refused this request. It works in order, so it has delivered all requests before it.
    pub(crate) fn acknowledge_before(&mut self, seq: u64) {
        if let Some(number) = self.entry(seq).map(|entry| entry.number) {
            self.acknowledge(number.saturating_sub(1));
        }
    }

    /// Messages are about to be passed to the link.
    pub(crate) fn begin_sending(&mut self) {
        self.sending = true;
    }

    /// What was sent is known. If the stream failed meanwhile, all requests complete now.
    pub(crate) fn end_sending(&mut self, qp: u32, complete: impl FnMut(Completion)) {
        self.sending = false;
        if let Some(Failure { blamed, cause }) = self.failure.take().map(|failure| *failure) {
            self.complete_all(qp, blamed, &cause, complete);
        }
    }

    /// The stream failed: completes all requests, as soon as it is known what was sent. The request `blamed` gets
    /// its status; of the others, those that were done and waited for their turn succeed, and the rest are
    /// flushed.
    pub(crate) fn fail(
        &mut self,
        qp: u32,
        blamed: Option<BlamedRequest>,
        cause: &Arc<QpError>,
        complete: impl FnMut(Completion),
    ) {
        self.failed = true;
        self.stop_refusing();
        if self.sending {
            self.failure.get_or_insert_with(|| Box::new(Failure { blamed, cause: Arc::clone(cause) }));
        } else {
            self.complete_all(qp, blamed, cause, complete);
        }
    }

    /// Whether the receives can be flushed now. If not, requests still have to complete first: a program expects
    /// the request that is to blame before everything that follows from its failure.
    pub(crate) fn may_flush_or_defer(&mut self, in_use: &mut Option<Receive>) -> bool {
        if self.failed && self.failure.is_none() {
            return true;
        }
        let flush = self.flush.get_or_insert_default();
        if in_use.is_some() {
            **flush = in_use.take();
        }
        false
    }

    /// Returns the flush that had to wait, if it can be done now.
    pub(crate) fn take_due_flush(&mut self) -> Option<Option<Receive>> {
        let flush = if self.failed && self.failure.is_none() { self.flush.take() } else { None };
        flush.map(|in_use| *in_use)
    }

    fn complete_all(
        &mut self,
        qp: u32,
        blamed: Option<BlamedRequest>,
        cause: &Arc<QpError>,
        mut complete: impl FnMut(Completion),
    ) {
        self.retire(qp, &mut complete);
        // Completions are in order: nothing succeeds after a failure.
        let mut flushing = false;
        for entry in std::mem::take(&mut self.entries) {
            let seq = self.first;
            self.first += 1;
            let status = match blamed {
                Some(blamed) if blamed.seq == seq => blamed.status,
                _ if !flushing && self.is_complete(&entry) => Status::Success,
                _ => Status::Flushed,
            };
            flushing |= status != Status::Success;
            let completion = if status != Status::Success && !entry.refused {
                Some(failed_completion(&entry.request, qp, &(status, Arc::clone(cause))))
            } else {
                self.take_completion(qp, &entry)
            };
            match &mut self.feed {
                Some(feed) => feed.finish(&entry, completion),
                None => completion.into_iter().for_each(&mut complete),
            }
        }
        self.reads.clear();
    }
}
