//! How requests and receives complete.

use super::QpContext;
use super::attributes::{Attributes, Receives};
use crate::error::QpError;
use crate::event::AsyncEvent;
use crate::queue::{Completion, Cq, Opcode, Overrun, Receive, SendQueue, Status, flushed_completion};
use crate::sync::lock;
use ironwarp_wire::Terminate;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QpContext {
    /// Ends all completions of the queue pair, which the program destroys, and removes those that were not polled. What was
    /// posted is still sent.
    pub fn suppress_completions(&self) {
        self.stop_completing();
        lock(&self.sq).suppress_completions(self.id());
        let Attributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.purge(self.id());
        receive_cq.purge(self.id());
    }

    /// From now on no request completes.
    pub(crate) fn stop_completing(&self) {
        self.completions_suppressed.store(true, Ordering::SeqCst);
    }

    /// Completes the requests whose turn has come.
    pub(crate) fn retire(&self) {
        self.retire_from(&mut lock(&self.sq));
    }

    pub(crate) fn retire_from(&self, sq: &mut SendQueue) {
        let mut batch = self.attributes.send_cq.push_batch();
        sq.retire(self.id(), |completion| {
            self.push_or_record_overrun(completion, |completion| batch.push(completion))
        });
    }

    /// A call to the link has returned, and what was sent is known. `note` records it; then a failure that had to
    /// wait for that completes the requests.
    pub(crate) fn end_sending<R>(&self, note: impl FnOnce(&mut SendQueue) -> R) -> R {
        let mut sq = lock(&self.sq);
        let noted = note(&mut sq);
        sq.end_sending(self.id(), |completion| self.complete_send(completion));
        let due = sq.take_due_flush();
        drop(sq);
        if let Some(in_use) = due {
            self.flush_receives(in_use);
        }
        noted
    }

    pub(crate) fn complete_send(&self, completion: Completion) {
        self.complete(&self.attributes.send_cq, completion);
    }

    pub(crate) fn complete_receive(&self, receive: &Receive, completion: Completion) {
        self.complete(receive.cq.as_ref().unwrap_or(&self.attributes.receive_cq), completion);
    }

    fn complete(&self, cq: &Cq, completion: Completion) {
        self.push_or_record_overrun(completion, |completion| cq.push(completion));
    }

    /// Requirement I5: a completion that does not fit is never lost silently. The stream ends for it, as soon as
    /// no lock is held.
    fn push_or_record_overrun(
        &self,
        completion: Completion,
        push: impl FnOnce(Completion) -> Result<(), Overrun>,
    ) {
        if !self.completions_suppressed.load(Ordering::SeqCst) && push(completion).is_err() {
            self.cq_overrun.store(true, Ordering::Relaxed);
        }
    }

    /// A completion of this queue pair did not fit when its shared send queue completed it, on whichever thread:
    /// the stream ends.
    pub(crate) fn record_overrun(&self) {
        self.cq_overrun.store(true, Ordering::Relaxed);
        if let Some(driver) = self.driver.get() {
            driver.schedule();
        }
    }

    pub(crate) fn fail_if_overrun(&self) {
        if self.cq_overrun.swap(false, Ordering::Relaxed) {
            let Attributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.has_overrun() { send_cq } else { receive_cq };
            self.fail(QpError::Overrun(cq.id()), Some(Terminate::LOCAL_CATASTROPHE), None);
        }
    }

    pub(crate) fn fail_receive(&self, receive: &Receive, status: Status, error: &QpError) {
        self.request_blamed.store(true, Ordering::Release);
        let cause = Some(Arc::new(error.clone()));
        let completion = Completion::failed(receive.request.id, Opcode::Receive, self.id(), status, cause);
        self.complete_receive(receive, completion);
    }

    /// The stream has ended: flushes all receives, first the one in use.
    pub(crate) fn flush_receives(&self, mut in_use: Option<Receive>) {
        let Some(error) = self.error.get() else { return };
        if !lock(&self.sq).may_flush_or_defer(&mut in_use) {
            return;
        }
        if let Some(receive) = in_use {
            self.complete_receive(&receive, flushed_completion(&receive.request, self.id(), error));
        }
        for completion in lock(&self.rq).flush(self.id(), error) {
            self.complete(&self.attributes.receive_cq, completion);
        }
        let shares = !matches!(self.attributes.receives, Receives::Own(_));
        let heard = !self.completions_suppressed.load(Ordering::SeqCst);
        if shares && heard && !self.last_wqe_raised.swap(true, Ordering::AcqRel) {
            self.device.raise(AsyncEvent::LastWqeReached(self.id()));
        }
    }
}
