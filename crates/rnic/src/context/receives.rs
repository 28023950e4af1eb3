//! Receives for arriving messages, and what happens while there is none.
//!
//! A receive whose memory is still being registered (requirement X6) counts as not posted, so that its message is parked.
//! When the registration is done, the driver of the queue pair drives both halves. The send queue waits in the same way, and
//! goes on with responses meanwhile.

use super::QpContext;
use super::attributes::{Owner, Receives};
use crate::error::Protocol;
use crate::memory::RegistrationWaiter;
use crate::queue::{QueueOwner, Receive, ReceiveRequest};
use crate::sync::lock;
use ironwarp_wire::{Header, SendWord, Tag};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl QpContext {
    /// Takes the receive for a message that begins, from the shared receive queue that it names if this is XRC.
    /// `None` if it has to wait.
    pub(crate) fn take_receive(&self, srq: u32) -> Result<Option<Receive>, Protocol> {
        if self.receive_faults.get().is_some_and(|faults| faults.should_withhold_receive()) {
            return Ok(None);
        }
        let taken = if self.device.table().has_pending() {
            self.take_registered_receive(srq)?
        } else {
            match &self.attributes.receives {
                Receives::Own(_) => return Ok(lock(&self.rq).take()),
                Receives::Shared(queue) => queue.take(),
                Receives::Named(domain) => match domain.find(srq) {
                    Some(queue) => queue.take(),
                    None => return Err(Protocol::NoSharedQueue(srq)),
                },
            }
        };
        if taken.is_some() && !matches!(self.attributes.receives, Receives::Own(_)) {
            self.shared_receives.fetch_add(1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Number of receives that the stream has taken from shared queues. Comparing the queue pairs of a shared
    /// queue shows which one takes more than its share (RFC 5042 §6.4.3.1).
    pub fn shared_receives(&self) -> u64 {
        self.shared_receives.load(Ordering::Relaxed)
    }

    /// Marks that a message waits for a receive, so that a thread that posts one sees it. The caller must look
    /// for a receive again afterwards.
    pub(crate) fn wait_for_receive(&self, header: &Header) {
        self.message_waiting.store(true, Ordering::Release);
        let queue = match &self.attributes.receives {
            Receives::Own(_) => None,
            Receives::Shared(queue) => Some(Arc::clone(queue)),
            Receives::Named(domain) => domain.find(named_queue(header)),
        };
        // It may still be listed at another queue, which has supplied a receive without having to call it.
        if let Some(queue) = queue
            && self.listed_at.swap(u64::from(queue.id()) + 1, Ordering::AcqRel) != u64::from(queue.id()) + 1
        {
            let waiter: Weak<dyn QueueOwner> = Weak::<dyn Owner>::clone(&self.owner);
            queue.add_waiter(waiter);
        }
    }

    /// No message waits for a receive any more.
    pub(crate) fn stop_waiting_for_receive(&self) {
        self.message_waiting.store(false, Ordering::Release);
    }

    /// A shared receive queue has taken the queue pair off its list.
    pub(crate) fn clear_listed(&self, srq: u32) {
        let (listed, none) = (u64::from(srq) + 1, 0);
        let _ = self.listed_at.compare_exchange(listed, none, Ordering::AcqRel, Ordering::Acquire);
    }

    /// If the registration of this tag is in progress, has the halves driven when it ends and returns true.
    pub(crate) fn defer_until_registered(&self, tag: Tag) -> bool {
        let waiter: Weak<dyn RegistrationWaiter> = Weak::<dyn Owner>::clone(&self.owner);
        self.device().table().defer_until_registered(tag, &waiter)
    }

    /// Takes the receive for a message that begins, if its memory is registered.
    #[cold]
    fn take_registered_receive(&self, srq: u32) -> Result<Option<Receive>, Protocol> {
        let ready = |request: &ReceiveRequest| {
            request.buffers.as_slice().iter().all(|sge| sge.len == 0 || !self.defer_until_registered(sge.tag))
        };
        match &self.attributes.receives {
            Receives::Own(_) => Ok(lock(&self.rq).take_if(ready)),
            Receives::Shared(queue) => Ok(queue.take_if(ready)),
            Receives::Named(domain) => match domain.find(srq) {
                Some(queue) => Ok(queue.take_if(ready)),
                None => Err(Protocol::NoSharedQueue(srq)),
            },
        }
    }
}

/// The shared receive queue that a message names.
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
