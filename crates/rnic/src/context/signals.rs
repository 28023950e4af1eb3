//! What the halves of a stream ask of their queue pair while they are driven, and what they report to it.

use super::QpContext;
use crate::error::Protocol;
use crate::event::AsyncEvent;
use crate::queue::Completes;
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::private::Capabilities;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl QpContext {
    /// The capabilities that this end announces to other Ironwarp endpoints.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::ACKNOWLEDGE
            | Capabilities::LARGE_FPDU
            | Capabilities::SEND_IMMEDIATE
            | Capabilities::READ_V2;
        capabilities
            .set(Capabilities::WANTS_ACKNOWLEDGE, self.attributes.completes == Completes::WhenAcknowledged);
        capabilities.with_rnr_timer(self.retries().rnr_timer)
    }

    /// The peer reports that the message after the first `found` waits for a receive. It does so once per
    /// message, and messages are delivered in order, so each count exceeds the previous one (`docs/wire.md`).
    /// Together with the caller's check against the number of messages sent, this bounds the number of signals.
    pub(crate) fn record_peer_not_ready(&self, found: u64) -> Result<(), Protocol> {
        let before = self.peer_not_ready.swap(found + 1, Ordering::SeqCst);
        if before > found {
            return Err(Protocol::NotReadyAgain { last: before - 1, found });
        }
        if let Some(driver) = self.driver.get() {
            driver.on_peer_not_ready();
        }
        Ok(())
    }

    /// The message that waits for the peer to post a receive, if any: the number of messages before it.
    pub fn message_awaiting_receive(&self) -> Option<u64> {
        let number = self.peer_not_ready.load(Ordering::SeqCst).checked_sub(1)?;
        (lock(&self.sq).acknowledged() <= number && !self.is_ended()).then_some(number)
    }

    /// How long a message may wait for the peer to post a receive. `None` means forever.
    pub fn rnr_timeout(&self) -> Option<Duration> {
        let timer = lock(&self.obligations).peer.map_or(0, Capabilities::rnr_timer);
        self.retries().rnr_timeout(timer)
    }

    /// Whether the consumer waits for the event that the send queue is drained.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain_requested.load(Ordering::Relaxed)
    }

    /// Whether requests may be started.
    pub(crate) fn may_begin(&self) -> bool {
        !matches!(self.state(), State::Drained | State::ReadyToReceive | State::Init)
            && !self.peer_has_closed()
    }

    /// All requests before `seq` were started and sent in full. If they are complete, the queue is drained.
    pub(crate) fn report_drained(&self, seq: u64) {
        if self.state() == State::Drained
            && lock(&self.sq).is_complete_before(seq)
            && self.drain_requested.swap(false, Ordering::AcqRel)
        {
            self.device.raise(AsyncEvent::SqDrained(self.id()));
        }
    }

    pub(crate) fn report_first_message(&self) {
        if self.state() == State::ReadyToReceive {
            self.device.raise(AsyncEvent::Established(self.id()));
        }
        if let Some(driver) = self.driver.get() {
            driver.on_first_message();
        }
    }
}
