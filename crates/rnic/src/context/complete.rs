//! Completes requests and receives: passes their completions to the completion queues.

use super::QpContext;
use super::attributes::{Attributes, Receives};
use crate::error::QpError;
use crate::event::AsyncEvent;
use crate::queue::{
    Begun, Completion, Cq, Opcode, Overrun, Receive, ReceiveQueue, SendQueue, Status, flushed_completion,
};
use crate::recording::{Kind, low, record};
use crate::sync::{MutexGuard, lock};
use ironwarp_wire::Terminate;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QpContext {
    /// Suppresses all further completions of the queue pair, which the program destroys or resets, and removes those
    /// that were not polled. Posted requests are still sent.
    ///
    /// Completions are written with a half of the stream, `sq` or `rq` held. The caller has held both halves since it
    /// called [`stop_completing`](Self::stop_completing), and this locks the queues: so no thread is about to write one
    /// that it found allowed before, and none of this life of the number comes later (requirement N9).
    pub(crate) fn suppress_completions(&self) {
        self.stop_completing();
        lock(&self.sq).suppress_completions(self.id());
        drop(lock(&self.rq));
        let Attributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.purge(self.id());
        receive_cq.purge(self.id());
    }

    /// Suppresses all further completions of the queue pair.
    pub(crate) fn stop_completing(&self) {
        self.completions_suppressed.store(true, Ordering::SeqCst);
    }

    /// Completes the requests at the front of the send queue that are done.
    pub(crate) fn retire(&self) {
        self.retire_from(&mut lock(&self.sq));
    }

    /// Completes the requests at the front of the locked send queue that are done.
    pub(crate) fn retire_from(&self, sq: &mut SendQueue) {
        let mut batch = self.attributes.send_cq.push_batch(|| self.lane());
        sq.retire(self.id(), |completion| {
            self.record(&completion);
            self.push_or_record_overrun(completion, |completion| batch.push(completion));
        });
    }

    /// Ends a call to the link: `record` records what was sent. If the stream failed during the call, then completes
    /// all requests and flushes the receives. Returns the result of `record`.
    pub(crate) fn end_sending<R>(&self, record: impl FnOnce(&mut SendQueue) -> R) -> R {
        let mut sq = lock(&self.sq);
        let result = record(&mut sq);
        sq.end_sending(self.id(), |completion| self.complete_send(completion));
        let due = sq.take_due_flush();
        drop(sq);
        if let Some(in_use) = due {
            self.flush_receives(in_use);
        }
        result
    }

    /// Ends a call to the link that has taken the last byte of the request `seq`, which was started alone.
    pub(crate) fn end_sending_request(&self, seq: u64, begun: Begun) {
        if !matches!(begun, Begun::UntilSent) {
            return;
        }
        let mut sq = lock(&self.sq);
        if let Some(completion) = sq.complete_only(self.id(), seq) {
            if let Some(completion) = completion {
                self.complete_send(completion);
            }
            return;
        }
        drop(sq);
        self.end_sending(|sq| {
            sq.mark_sent(seq);
            self.retire_from(sq);
        });
    }

    /// Ends the attempt to send the request `seq`, which was started alone: it has to be started again.
    pub(crate) fn cancel_request(&self, seq: u64) {
        self.end_sending(|sq| sq.roll_back_numbers(seq));
    }

    /// Adds a completion to the completion queue of the send queue.
    pub(crate) fn complete_send(&self, completion: Completion) {
        self.record(&completion);
        self.complete(&self.attributes.send_cq, completion);
    }

    /// Adds the completion of `receive` to its completion queue.
    pub(crate) fn complete_receive(&self, receive: &Receive, completion: Completion) {
        self.record(&completion);
        self.complete(receive.cq.as_ref().unwrap_or(&self.attributes.receive_cq), completion);
    }

    /// Records a completion, unless the request was flushed, which the end of the stream explains.
    #[inline]
    fn record(&self, completion: &Completion) {
        match completion.status {
            Status::Success => record(Kind::Completed, self.id(), low(completion.wr_id)),
            Status::Flushed => {}
            status => {
                record(Kind::Failed, self.id(), low(completion.wr_id));
                record(Kind::Status, self.id(), status as u32);
            }
        }
    }

    /// Adds the completion of a receive from the queue pair's own receive queue, by a Send of one segment.
    pub(crate) fn complete_own_receive(&self, completion: Completion) {
        record(Kind::Received, completion.qp, low(completion.wr_id));
        self.complete(&self.attributes.receive_cq, completion);
    }

    /// Adds a completion to `cq`.
    fn complete(&self, cq: &Cq, completion: Completion) {
        self.push_or_record_overrun(completion, |completion| cq.push_from(|| self.lane(), completion));
    }

    /// Adds a completion with `push`, unless completions are suppressed. Records an overrun if the completion does
    /// not fit: [`fail_if_overrun`](Self::fail_if_overrun) then ends the stream, once no lock is held (requirement
    /// I5).
    fn push_or_record_overrun(
        &self,
        completion: Completion,
        push: impl FnOnce(Completion) -> Result<(), Overrun>,
    ) {
        if !self.completions_suppressed.load(Ordering::SeqCst) && push(completion).is_err() {
            self.cq_overrun.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a completion of this queue pair, delivered by its shared send queue, did not fit. The stream ends
    /// when the driver drives it next: the calling thread may hold locks of another queue pair.
    pub(crate) fn record_overrun(&self) {
        self.cq_overrun.store(true, Ordering::Relaxed);
        if let Some(driver) = self.driver.get() {
            driver.schedule();
        }
    }

    /// Ends the stream if a completion did not fit into its completion queue. The caller must hold no lock.
    pub(crate) fn fail_if_overrun(&self) {
        // Hardly ever set, so a load comes before the more expensive swap.
        if self.cq_overrun.load(Ordering::Relaxed) && self.cq_overrun.swap(false, Ordering::Relaxed) {
            let Attributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.has_overrun() { send_cq } else { receive_cq };
            self.fail(QpError::Overrun(cq.id()), Some(Terminate::LOCAL_CATASTROPHE), None);
        }
    }

    /// Completes a receive that failed with this status, and marks that its completion tells why the stream ended.
    pub(crate) fn fail_receive(&self, receive: &Receive, status: Status, error: &QpError) {
        self.request_blamed.store(true, Ordering::Release);
        let cause = Some(Arc::new(error.clone()));
        let completion = Completion::failed(receive.request.id, Opcode::Receive, self.id(), status, cause);
        self.complete_receive(receive, completion);
    }

    /// Flushes all receives, first the one in use by a message, if the stream has ended and all requests are complete.
    /// Otherwise the flush happens when the requests complete. With a shared receive queue, also raises the event that
    /// the queue pair uses no more receives.
    pub(crate) fn flush_receives(&self, mut in_use: Option<Receive>) {
        let Some(error) = self.error.get() else { return };
        if lock(&self.sq).may_flush_or_defer(&mut in_use) {
            self.flush_locked_receives(lock(&self.rq), in_use, error);
        }
    }

    /// Flushes all receives of the locked receive queue, first the one in use by a message.
    pub(super) fn flush_locked_receives(
        &self,
        mut rq: MutexGuard<'_, ReceiveQueue>,
        in_use: Option<Receive>,
        error: &Arc<QpError>,
    ) {
        if let Some(receive) = in_use {
            self.complete_receive(&receive, flushed_completion(&receive.request, self.id(), error));
        }
        for completion in rq.flush(self.id(), error) {
            self.complete(&self.attributes.receive_cq, completion);
        }
        drop(rq);
        let has_shared_queue = !matches!(self.attributes.receives, Receives::Own(_));
        let suppressed = self.completions_suppressed.load(Ordering::SeqCst);
        // The swap makes sure that one thread raises the event, once.
        if has_shared_queue && !suppressed && !self.last_wqe_raised.swap(true, Ordering::AcqRel) {
            self.raise(AsyncEvent::LastWqeReached(self.id()));
        }
    }
}
