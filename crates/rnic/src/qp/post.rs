//! Posts requests and receives to a queue pair.

use super::{Qp, Receives};
use crate::error::PostError;
use crate::half::ROUNDS;
use crate::queue::{QueueOwner, ReceiveRequest, SendQueue, SharedSendQueue, WorkRequest};
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
        let mut sq = lock(&self.sq);
        sq.post(requests)?;
        self.send_posted(sq);
        Ok(())
    }

    /// Posts requests to the shared send queue `from`, which must feed the queue pair (requirement X7).
    fn post_shared(
        &self,
        from: &SharedSendQueue,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<(), PostError> {
        self.check_may_post()?;
        let mut sq = lock(&self.sq);
        sq.post_shared(from, requests)?;
        self.send_posted(sq);
        Ok(())
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
            _ if self.is_closing() => return Err(PostError::NotConnected),
            _ => {}
        }
        Ok(())
    }

    /// Sends the requests that were just posted, as far as possible. Flushes them if the stream has ended, or after a
    /// refused registration.
    #[inline]
    fn send_posted(&self, mut sq: MutexGuard<'_, SendQueue>) {
        if let Some(error) = self.error() {
            sq.fail(self.id(), None, error, |completion| self.complete_send(completion));
            return;
        }
        if sq.is_refusing() {
            sq.flush_posted();
            self.retire_from(&mut sq);
        }
        self.transmit_posted(ROUNDS, Some(sq));
    }

    /// Posts a receive.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        if !matches!(self.attributes().receives, Receives::Own(_)) {
            return Err(PostError::NoReceiveQueue);
        }
        if self.state() == State::Reset {
            return Err(PostError::State(State::Reset));
        }
        lock(&self.rq).post(request)?;
        // Drive the rx half if a message waits for the receive, or if the stream has ended and the receive has to be
        // flushed. No message is missed: the rx half sets `message_waiting` and then tries to take a receive again,
        // with `rq` locked. Either it finds this receive, or it set `message_waiting` before this receive was added.
        if self.message_waiting.load(Ordering::Acquire) || self.error().is_some() {
            self.on_receive_posted();
        }
        Ok(())
    }
}
