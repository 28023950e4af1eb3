//! Completes the requests of a send queue when their stream fails.
//!
//! If the stream fails while another thread passes messages to the link, the requests complete after that call,
//! because only then is it known which of them were sent. The receives are flushed after the requests.

use super::{BlamedRequest, Failure, SendQueue};
use crate::error::QpError;
use crate::queue::entry::{failed_completion, success_completion};
use crate::queue::{Completes, Completion, Receive, Status};
use std::sync::Arc;

impl SendQueue {
    /// Acknowledges all messages before the request `seq`, which the peer refused. The peer works in order, so it has
    /// delivered them.
    pub(crate) fn acknowledge_before(&mut self, seq: u64) {
        if let Some(number) = self.entry(seq).map(|entry| entry.number) {
            self.acknowledge(number.saturating_sub(1));
        }
    }

    /// Marks the begin of a call that passes messages to the link.
    pub(crate) fn begin_sending(&mut self) {
        self.sending = true;
    }

    /// Marks the end of a call that passed messages to the link. If the stream failed meanwhile, completes all
    /// requests.
    pub(crate) fn end_sending(&mut self, qp: u32, complete: impl FnMut(Completion)) {
        self.sending = false;
        if let Some(Failure { blamed, cause }) = self.failure.take().map(|failure| *failure) {
            self.complete_all(qp, blamed, &cause, complete);
        }
    }

    /// Marks the end of a call that passed the request `seq` to the link, and removes the request, if it is the only one
    /// and complete now. Returns its completion, `None` if it needs none. Otherwise returns `None`, and changes nothing.
    pub(crate) fn complete_only(&mut self, qp: u32, seq: u64) -> Option<Option<Completion>> {
        let is_simple = self.completes == Completes::WhenSent && !self.failed && self.feed.is_none();
        if !is_simple || self.first != seq || self.entries.len() != 1 {
            return None;
        }
        let entry = self.entries.front().filter(|entry| !entry.refused)?;
        let completion = entry.request.signaled.then(|| success_completion(&entry.request, qp));
        self.entries.clear();
        self.first += 1;
        self.sending = false;
        Some(completion)
    }

    /// Completes all requests because the stream failed, or has [`end_sending`](Self::end_sending) complete them if a
    /// call to the link is in progress. The request `blamed` gets its own status. Of the others, those that are done
    /// succeed if they precede every failure, and the rest are flushed.
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

    /// Returns whether the receives can be flushed now. If requests have to complete first, takes the receive
    /// `in_use` for [`take_due_flush`](Self::take_due_flush) and returns false: a program expects the completion of
    /// the request that is to blame before those that follow from its failure.
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

    /// Returns the deferred flush of the receives, if there is one and the requests are complete. The inner option is
    /// the receive in use, if any.
    pub(crate) fn take_due_flush(&mut self) -> Option<Option<Receive>> {
        let flush = if self.failed && self.failure.is_none() { self.flush.take() } else { None };
        flush.map(|in_use| *in_use)
    }

    /// Completes all requests, in order, and forgets the outstanding Reads. Refused requests keep the status that was
    /// stored for them.
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
                _ if !flushing && self.is_done(&entry) => Status::Success,
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
