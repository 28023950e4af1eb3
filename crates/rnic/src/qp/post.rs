//! Posts requests and receives to a queue pair.

use super::{Qp, Receives};
use crate::context::{Attributes, QpContext};
use crate::error::PostError;
use crate::half::ROUNDS;
use crate::queue::{
    Completes, InlineData, QueueOwner, ReceiveRequest, SendQueue, SharedSendQueue, WorkRequest, check_request,
};
use crate::recording::{Kind, is_started, low, record};
use crate::state::State;
use crate::sync::{MutexGuard, lock};
use std::sync::atomic::Ordering;

impl SharedSendQueue {
    /// Posts requests for the queue pair `qp`, which this queue feeds, all or none, and sends those that can be sent at
    /// once.
    pub fn post(&self, qp: &Qp, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        qp.post_shared(self, requests)
    }
}

impl Qp {
    /// Posts requests to the send queue, all or none, and sends those that can be sent at once.
    pub fn post_send(&self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        self.check_may_post()?;
        let mut requests = requests.into_iter();
        if requests.size_hint() == (1, Some(1)) {
            return self.post_one(&mut requests.next());
        }
        // Of requests that are refused, because not all of them fit, some are recorded as well.
        let requests = requests.inspect(|request| record(Kind::Posted, self.id(), low(request.id)));
        self.post_queued(lock(&self.sq), |sq| sq.post(requests))
    }

    /// Copies the data of an inline request (requirement X5): `write` writes the `len` bytes. They go to the request itself
    /// or to memory of the send queue, without an allocation for each request. `max` is the maximum for this queue pair,
    /// for which that memory is made: it must be the same in all calls. Longer data gets an allocation.
    pub fn inline_data(&self, len: usize, max: usize, write: impl FnOnce(&mut [u8])) -> InlineData {
        InlineData::embed(len, write).unwrap_or_else(|write| lock(&self.sq).inline_data(len, max, write))
    }

    /// Posts one request, which it takes, and sends it if it can be sent at once.
    #[inline]
    fn post_one(&self, request: &mut Option<WorkRequest>) -> Result<(), PostError> {
        let mut locked = None;
        if request.as_ref().is_some_and(|request| self.may_bypass_queue(request)) {
            // No request that was posted before is missed: a thread that has posted one, or has learned of it, finds
            // `sq_used` set, or cleared after that request was complete.
            if self.sq_used.load(Ordering::Relaxed) {
                let sq = lock(&self.sq);
                self.sq_used.store(!sq.is_idle(), Ordering::Relaxed);
                locked = (!sq.is_idle()).then_some(sq);
            }
            if locked.is_none() {
                self.post_directly(request)?;
                if request.is_none() {
                    return Ok(());
                }
            }
        }
        let sq = locked.unwrap_or_else(|| lock(&self.sq));
        self.post_queued(sq, |sq| {
            if is_started()
                && let Some(request) = request
            {
                record(Kind::Posted, self.id(), low(request.id)); // even if the queue is full
            }
            sq.post_one(request)
        })
    }

    /// Adds requests to the locked send queue with `post`, and sends those that can be sent at once.
    fn post_queued(
        &self,
        sq: MutexGuard<'_, SendQueue>,
        post: impl FnOnce(&mut SendQueue) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if let Some(sq) = self.enqueue(sq, post)? {
            self.transmit_posted(sq);
        }
        Ok(())
    }

    /// Posts requests to the shared send queue `from`, which must feed the queue pair (requirement X7).
    fn post_shared(
        &self,
        from: &SharedSendQueue,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<(), PostError> {
        self.check_may_post()?;
        let requests = requests.into_iter();
        let requests = requests.inspect(|request| record(Kind::Posted, self.id(), low(request.id)));
        self.post_queued(lock(&self.sq), |sq| sq.post_shared(from, requests))
    }

    /// Whether a request is complete as soon as the link has taken it, without a completion, so that the send queue need
    /// not know it.
    #[inline]
    fn may_bypass_queue(&self, request: &WorkRequest) -> bool {
        let Attributes { send_depth, shared_send, completes, .. } = self.attributes();
        !request.signaled && *completes == Completes::WhenSent && *send_depth > 0 && shared_send.is_none()
    }

    /// Posts a request that [may bypass](Self::may_bypass_queue) the send queue, which is empty: passes it to the link, or
    /// else adds it to the queue. Takes the request, unless there is no stream, or another thread holds the tx half.
    fn post_directly(&self, request: &mut Option<WorkRequest>) -> Result<(), PostError> {
        if let Some(request) = request {
            let Attributes { max_sges, registration_by_request, .. } = self.attributes();
            check_request(request, *max_sges, *registration_by_request)?;
        }
        let mut posted = Ok(());
        let left = self
            .tx
            .run(ROUNDS, |half| self.run_tx_round(half, |tx| tx.post_directly(self, request, &mut posted)));
        self.finish_turn(left);
        posted
    }

    /// Checks that requests may be posted in the current state: once the queue pair is ready to send, and until
    /// this end disconnects. In the error state they may be posted, too, and are flushed.
    #[inline]
    fn check_may_post(&self) -> Result<(), PostError> {
        match self.state() {
            // The program does not know the states of a queue pair that it does not move itself.
            State::Init if !self.attributes().manual => return Err(PostError::NotConnected),
            state @ (State::Reset | State::Init | State::ReadyToReceive) => {
                return Err(PostError::State(state));
            }
            State::Error => {}
            _ if self.is_closing() => return Err(self.not_connected()),
            _ => {}
        }
        Ok(())
    }

    /// Returns the error for requests that are posted while this end disconnects.
    #[cold]
    fn not_connected(&self) -> PostError {
        if self.device().is_shut_down() { PostError::ShutDown } else { PostError::NotConnected }
    }

    /// Posts a receive.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        if !matches!(self.attributes().receives, Receives::Own(_)) {
            return Err(PostError::NoReceiveQueue);
        }
        if self.state() == State::Reset {
            return Err(PostError::State(State::Reset));
        }
        let mut rq = lock(&self.rq);
        // With `rq` locked: if the stream ends later, its end flushes this receive.
        let has_ended = self.error().is_some();
        if has_ended && self.device().is_shut_down() {
            return Err(PostError::ShutDown);
        }
        record(Kind::PostedReceive, self.id(), low(request.id)); // even if the queue is full
        rq.post(request)?;
        drop(rq);
        // Drive the rx half if a message waits for the receive, or if the stream has ended and the receive has to be
        // flushed. No message is missed: the rx half sets `message_waiting` and then tries to take a receive again,
        // with `rq` locked. Either it finds this receive, or it set `message_waiting` before this receive was added.
        if self.message_waiting.load(Ordering::Acquire) || has_ended {
            self.on_receive_posted();
        }
        Ok(())
    }
}

impl QpContext {
    /// Adds requests to the locked send queue with `post`. Returns the queue if requests can be sent. Flushes the requests
    /// if the stream has ended, or after a refused registration.
    #[inline]
    pub(crate) fn enqueue<'q>(
        &self,
        mut sq: MutexGuard<'q, SendQueue>,
        post: impl FnOnce(&mut SendQueue) -> Result<(), PostError>,
    ) -> Result<Option<MutexGuard<'q, SendQueue>>, PostError> {
        let error = self.error();
        if error.is_some() {
            self.check_not_shut_down()?;
        }
        post(&mut sq)?;
        self.sq_used.store(true, Ordering::Relaxed);
        if let Some(error) = error {
            sq.fail(self.id(), None, error, |completion| self.complete_send(completion));
            return Ok(None);
        }
        if sq.is_refusing() {
            sq.flush_posted();
            self.retire_from(&mut sq);
        }
        Ok(Some(sq))
    }

    /// Refuses requests once the adapter is shut down. Called with the send queue locked, which [`Qp::shut_down`] locks
    /// after that was recorded: so each request is either flushed before that returns, or refused.
    #[cold]
    fn check_not_shut_down(&self) -> Result<(), PostError> {
        if self.device().is_shut_down() { Err(PostError::ShutDown) } else { Ok(()) }
    }

    /// Adds the request `seq` to the send queue, of which the link has taken a part. The number and the message sequence
    /// number of its message are `numbers`.
    pub(crate) fn enqueue_started(&self, request: &mut Option<WorkRequest>, seq: u64, numbers: (u64, u32)) {
        let mut sq = lock(&self.sq);
        sq.insert_started(request, seq, numbers);
        self.sq_used.store(true, Ordering::Relaxed);
    }
}
