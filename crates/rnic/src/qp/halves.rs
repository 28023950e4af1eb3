//! What the halves of a stream ask of their queue pair while they are driven: memory, receives, and whether to go on.

use super::{Completes, Qp, Receives, State};
use crate::device::Device;
use crate::error::Protocol;
use crate::event::AsyncEvent;
use crate::memory::{Check, Denied, Guard, Hold, Rights, Spans, Stream, Touch, Translation};
use crate::queue::Receive;
use crate::sync::lock;
use ironwarp_wire::private::Capabilities;
use ironwarp_wire::{Header, Place, SendWord};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Qp {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream { domain: self.attributes.domain, qp: self.id }
    }

    pub(crate) fn completes(&self) -> Completes {
        self.attributes.completes
    }

    /// What this end tells others of its kind.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::ACKNOWLEDGE
            | Capabilities::LARGE_FPDU
            | Capabilities::SEND_IMMEDIATE
            | Capabilities::READ_V2;
        capabilities
            .set(Capabilities::WANTS_ACKNOWLEDGE, self.attributes.completes == Completes::WhenAcknowledged);
        capabilities.with_rnr_timer(self.retries().rnr_timer)
    }

    /// The peer says that the message behind the first `found` waits for a receive. It says so once for each message, and messages
    /// are delivered in order, so each count is higher than the last (`docs/wire.md`). With the check of the caller, who knows how
    /// many messages were sent, this bounds the signals by the messages of this end.
    pub(crate) fn peer_not_ready(&self, found: u64) -> Result<(), Protocol> {
        let before = self.peer_waits.swap(found + 1, Ordering::SeqCst);
        if before > found {
            return Err(Protocol::NotReadyAgain { last: before - 1, found });
        }
        if let Some(attendant) = self.attendant.get() {
            attendant.peer_not_ready();
        }
        Ok(())
    }

    /// The message that waits for a receive of the peer's, if one does: the one behind this many.
    pub fn awaits_receive(&self) -> Option<u64> {
        let number = self.peer_waits.load(Ordering::SeqCst).checked_sub(1)?;
        (lock(&self.sq).acknowledged() <= number && !self.is_ended()).then_some(number)
    }

    /// How long it may wait. `None`: for ever.
    pub fn receive_patience(&self) -> Option<Duration> {
        let timer = lock(&self.owed).peer.map_or(0, Capabilities::rnr_timer);
        self.retries().receive_patience(timer)
    }

    /// Memory that the peer names, if both it and the queue pair allow what the peer wants (requirement M9).
    pub(crate) fn remote(
        &self,
        place: Place,
        len: usize,
        need: Rights,
        spans: &mut Spans,
        message: &mut Touch,
    ) -> Result<Guard<'_>, Denied> {
        let table = self.device.table();
        self.as_peer(place, len, need, |stream| table.remote(stream, place, len, need, spans, message))
    }

    /// The same, where `then` uses the memory at once. The guard is left in `hold`, for the next access.
    pub(crate) fn with_remote<'q, R>(
        &'q self,
        hold: &mut Option<Hold<'q>>,
        place: Place,
        len: usize,
        need: Rights,
        message: &mut Touch,
        mut then: impl FnMut(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let table = self.device.table();
        self.as_peer(place, len, need, |stream| {
            table.with_remote(hold, stream, (place, len), need, message, |memory, at| then(memory, at))
        })
    }

    /// Tries what the peer wants as a stream of this queue pair's domain: of XRC, of each domain that its shared queues have.
    #[inline]
    fn as_peer<R>(
        &self,
        place: Place,
        len: usize,
        need: Rights,
        mut attempt: impl FnMut(Stream) -> Result<R, Denied>,
    ) -> Result<R, Denied> {
        let Stream { domain, qp } = self.stream();
        if !self.rights().contains(need) {
            let (tag, offset, len) = (place.tag, place.offset, len as u64);
            let check = Check::QueuePair;
            return Err(Denied { check, tag, offset, len, need, domain, qp: Some(qp), entry: None });
        }
        let Receives::Named(xrc) = &self.attributes.receives else { return attempt(self.stream()) };
        let mut denied = None;
        for domain in xrc.domains() {
            match attempt(Stream { domain, qp }) {
                Err(why) if why.check == Check::Domain => denied = Some(why),
                found => return found,
            }
        }
        match denied {
            Some(denied) => Err(denied),
            None => attempt(self.stream()),
        }
    }

    /// The receive for a message that begins, which names a shared receive queue if this is XRC. `None`: it has to wait.
    pub(crate) fn take_receive(&self, srq: u32) -> Result<Option<Receive>, Protocol> {
        if self.asks.get().is_some_and(|asks| asks.withhold_receive()) {
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

    /// Number of receives that its stream has taken from shared queues so far: whoever compares the queue pairs of a shared queue
    /// finds the one that takes more than its share (RFC 5042 §6.4.3.1).
    pub fn shared_receives(&self) -> u64 {
        self.shared_receives.load(Ordering::Relaxed)
    }

    /// A message waits for a receive: whoever posts one is to see that. The caller looks once more afterwards.
    pub(crate) fn wait_for_receive(&self, header: &Header) {
        self.waiting.store(true, Ordering::Release);
        let queue = match &self.attributes.receives {
            Receives::Own(_) => None,
            Receives::Shared(queue) => Some(Arc::clone(queue)),
            Receives::Named(domain) => domain.find(named_queue(header)),
        };
        // It may still be put down with another queue, which gave it a receive without having to call it.
        if let Some(queue) = queue
            && self.listed.swap(u64::from(queue.id()) + 1, Ordering::AcqRel) != u64::from(queue.id()) + 1
        {
            queue.wait(Weak::clone(&self.me));
        }
    }

    /// No message does any more.
    pub(crate) fn stop_waiting(&self) {
        self.waiting.store(false, Ordering::Release);
    }

    /// A shared receive queue has something for it, and has crossed it off its list.
    pub(crate) fn called_for_receive(&self, srq: u32) {
        let (listed, none) = (u64::from(srq) + 1, 0);
        let _ = self.listed.compare_exchange(listed, none, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether the consumer waits to hear that the send queue is drained.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether requests may be begun.
    pub(crate) fn may_begin(&self) -> bool {
        !matches!(self.state(), State::Drained | State::ReadyToReceive | State::Init) && !self.is_gone()
    }

    /// The peer closed, and this end sends nothing any more.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) != 0
    }

    /// All requests before this one were begun, and none is in the middle: if they are complete, the queue is drained.
    pub(crate) fn drained_to(&self, seq: u64) {
        if self.state() == State::Drained
            && lock(&self.sq).is_complete_to(seq)
            && self.draining.swap(false, Ordering::AcqRel)
        {
            self.device.raise(AsyncEvent::SqDrained(self.id));
        }
    }

    pub(crate) fn set_debt(&self) {
        self.debt.store(true, Ordering::SeqCst);
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state() == State::Error
    }

    pub(crate) fn opened(&self) {
        if self.state() == State::ReadyToReceive {
            self.device.raise(AsyncEvent::Established(self.id));
        }
        if let Some(attendant) = self.attendant.get() {
            attendant.opened();
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
