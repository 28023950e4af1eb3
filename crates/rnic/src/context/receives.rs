//! Takes receives for arriving messages, from the receive queue of the queue pair or from a shared one, and has the
//! queue pair wait if there is none.
//!
//! A receive whose memory is still being registered (requirement X6) counts as not posted, so that its message is
//! parked. When the registration is done, the driver of the queue pair drives both halves. Work requests wait for a
//! registration in the same way; responses are sent meanwhile.

use super::QpContext;
use super::attributes::{Owner, Receives};
use crate::error::Protocol;
use crate::memory::RegistrationWaiter;
use crate::queue::{QueueOwner, Receive, ReceiveRequest};
use crate::recording::{Kind, record};
use crate::sync::lock;
use ironwarp_wire::{Header, SendWord, Tag};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl QpContext {
    /// Takes the receive for a message that begins. `srq` is the shared receive queue that the message names, which
    /// counts for XRC only. `None` if no receive is available, so that the message has to wait.
    pub(crate) fn take_receive(&self, srq: u32) -> Result<Option<Receive>, Protocol> {
        if self.receive_faults.get().is_some_and(|faults| faults.should_withhold_receive()) {
            return Ok(None);
        }
        let taken = if self.device.table().has_pending() {
            self.take_registered_receive(srq)?
        } else {
            match &self.attributes.receives {
                Receives::Own(_) => return Ok(lock(&self.rq).take()),
                Receives::Shared(queue) => queue.take(|| self.lane()),
                Receives::Named(domain) => match domain.find(srq) {
                    Some(queue) => queue.take(|| self.lane()),
                    None => return Err(Protocol::NoSharedQueue(srq)),
                },
            }
        };
        if taken.is_some() && !matches!(self.attributes.receives, Receives::Own(_)) {
            self.shared_receives.fetch_add(1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Takes the receive for a message that begins from the queue pair's own receive queue, if that is as simple as it
    /// usually is. If it returns `None`, call [`take_receive`](Self::take_receive).
    #[inline]
    pub(crate) fn take_own_receive(&self) -> Option<Receive> {
        let simple = matches!(self.attributes.receives, Receives::Own(_))
            && self.receive_faults.get().is_none()
            && !self.device.table().has_pending();
        if simple { lock(&self.rq).take() } else { None }
    }

    /// Number of receives that the stream has taken from shared receive queues. It shows which queue pair of a shared
    /// queue takes more than its share (RFC 5042 §6.4.3.1).
    pub fn shared_receives(&self) -> u64 {
        self.shared_receives.load(Ordering::Relaxed)
    }

    /// Marks that the message with this header waits for a receive, so that a thread that posts one drives the rx half.
    /// The caller must try to take a receive again afterwards, because one may have been posted before the mark.
    pub(crate) fn wait_for_receive(&self, header: &Header) {
        self.message_waiting.store(true, Ordering::Release);
        record(Kind::NoReceive, self.id(), 0);
        let queue = match &self.attributes.receives {
            Receives::Own(_) => None,
            Receives::Shared(queue) => Some(Arc::clone(queue)),
            Receives::Named(domain) => domain.find(named_queue(header)),
        };
        // The swap makes sure that the queue pair is added once per wait. It may still be listed at another queue: the
        // rx half took a receive from there without being called.
        if let Some(queue) = queue
            && self.listed_at.swap(u64::from(queue.id()) + 1, Ordering::AcqRel) != u64::from(queue.id()) + 1
        {
            let waiter: Weak<dyn QueueOwner> = Weak::<dyn Owner>::clone(&self.owner);
            queue.add_waiter(waiter);
        }
    }

    /// Removes the mark that a message waits for a receive.
    pub(crate) fn stop_waiting_for_receive(&self) {
        self.message_waiting.store(false, Ordering::Release);
    }

    /// Records that the shared receive queue `srq` has removed the queue pair from its list. Has no effect if another
    /// queue was recorded since.
    pub(crate) fn clear_listed(&self, srq: u32) {
        let (listed, none) = (u64::from(srq) + 1, 0);
        let _ = self.listed_at.compare_exchange(listed, none, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether the registration of this tag is in progress. If so, both halves are driven when it ends.
    pub(crate) fn defer_until_registered(&self, tag: Tag) -> bool {
        let waiter: Weak<dyn RegistrationWaiter> = Weak::<dyn Owner>::clone(&self.owner);
        self.device().table().defer_until_registered(tag, &waiter)
    }

    /// Takes the receive for a message that begins, if all of its memory is registered. For the time in which some
    /// registration is in progress.
    #[cold]
    fn take_registered_receive(&self, srq: u32) -> Result<Option<Receive>, Protocol> {
        let ready = |request: &ReceiveRequest| {
            request.buffers.as_slice().iter().all(|sge| sge.len == 0 || !self.defer_until_registered(sge.tag))
        };
        match &self.attributes.receives {
            Receives::Own(_) => Ok(lock(&self.rq).take_if(ready)),
            Receives::Shared(queue) => Ok(queue.take_if(|| self.lane(), ready)),
            Receives::Named(domain) => match domain.find(srq) {
                Some(queue) => Ok(queue.take_if(|| self.lane(), ready)),
                None => Err(Protocol::NoSharedQueue(srq)),
            },
        }
    }
}

/// Returns the number of the shared receive queue that a message names. Zero, which no queue has, if it names none:
/// `take_receive` refuses such a message of an XRC queue pair.
const fn named_queue(header: &Header) -> u32 {
    match header {
        Header::Send(send) => match send.word {
            SendWord::Srq(srq) => srq,
            SendWord::Invalidate(_) => 0,
        },
        Header::SendImmediate(message) => match message.send.word {
            SendWord::Srq(srq) => srq,
            SendWord::Invalidate(_) => 0,
        },
        Header::Immediate(immediate) => immediate.srq,
        _ => 0,
    }
}
