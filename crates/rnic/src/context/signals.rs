//! Functions that the halves of a stream call while they are driven: for capabilities, the signal that the peer is not
//! ready (RNR), and the draining of the send queue.

use super::QpContext;
use crate::error::Protocol;
use crate::event::AsyncEvent;
use crate::queue::Completes;
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::private::{Capabilities, OFFER_LEN};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl QpContext {
    /// Returns the capabilities that this end announces to an Ironwarp peer.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let config = self.device.config();
        let mut capabilities = Capabilities::ACKNOWLEDGE | Capabilities::LARGE_FPDU;
        capabilities.set(Capabilities::SEND_IMMEDIATE, config.send_immediate);
        capabilities.set(Capabilities::READ_V2, config.read_v2);
        capabilities.set(Capabilities::SHARED_MEMORY | Capabilities::LEAVE, config.shared_memory);
        capabilities
            .set(Capabilities::WANTS_ACKNOWLEDGE, self.attributes.completes == Completes::WhenAcknowledged);
        capabilities.with_rnr_timer(self.retries().rnr_timer)
    }

    /// Returns the capabilities of the peer without the features that a setting disables at this end: none of these is
    /// used, whatever the peer understands.
    pub(crate) fn usable_capabilities(&self, peer: Capabilities) -> Capabilities {
        let optional = Capabilities::SEND_IMMEDIATE
            | Capabilities::READ_V2
            | Capabilities::SHARED_MEMORY
            | Capabilities::LEAVE;
        peer.difference(optional.difference(self.capabilities()))
    }

    /// Records the peer's signal that a message waits for a receive, and informs the driver, which starts the RNR
    /// timer. `count` is the number of messages before that one. Called by the rx half.
    ///
    /// The peer sends the signal once per message, and messages are delivered in order, so each count must exceed the
    /// previous one (`docs/wire.md`). Together with the caller's check against the number of messages sent, this limits
    /// the number of signals.
    pub(crate) fn record_peer_not_ready(&self, count: u64) -> Result<(), Protocol> {
        // The count is stored plus one: zero means that there was no signal. The sum cannot overflow, because the
        // caller has checked that this many messages were sent. An invalid count is stored, too, but the stream then
        // fails.
        let before = self.peer_not_ready.swap(count + 1, Ordering::SeqCst);
        if before > count {
            return Err(Protocol::NotReadyAgain { last: before - 1, found: count });
        }
        if let Some(driver) = self.driver.get() {
            driver.on_peer_not_ready();
        }
        Ok(())
    }

    /// Returns the number of messages before the one that waits for the peer to post a receive. `None` if no message
    /// waits.
    pub fn message_awaiting_receive(&self) -> Option<u64> {
        let number = self.peer_not_ready.load(Ordering::SeqCst).checked_sub(1)?;
        (lock(&self.sq).acknowledged() <= number && !self.is_ended()).then_some(number)
    }

    /// How long a message may wait for the peer to post a receive. `None` means forever.
    pub fn rnr_timeout(&self) -> Option<Duration> {
        let timer = self.obligations.lock().peer.map_or(0, Capabilities::rnr_timer);
        self.retries().rnr_timeout(timer)
    }

    /// Whether the consumer has moved the queue pair to the drained state, and the event for that was not raised yet.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain_requested.load(Ordering::Relaxed)
    }

    /// Whether the state of the queue pair and of its connection allow to start requests.
    pub(crate) fn may_begin(&self) -> bool {
        !matches!(self.state(), State::Drained | State::ReadyToReceive | State::Init)
            && !self.peer_has_closed()
    }

    /// Raises the event that the send queue is drained, if the consumer waits for it and all requests before `seq`,
    /// which are those that were started, are complete.
    pub(crate) fn report_drained(&self, seq: u64) {
        // The swap comes last, and returns true for one thread only.
        if self.state() == State::Drained
            && lock(&self.sq).is_complete_before(seq)
            && self.drain_requested.swap(false, Ordering::AcqRel)
        {
            self.raise(AsyncEvent::SqDrained(self.id()));
        }
    }

    /// Reports the capabilities of the peer to the driver.
    pub(crate) fn report_peer_capabilities(&self, peer: Capabilities) {
        if let Some(driver) = self.driver.get() {
            driver.on_peer_capabilities(peer);
        }
    }

    /// Reports an offer of shared memory by the peer to the driver.
    pub(crate) fn report_offer(&self, offer: [u8; OFFER_LEN]) {
        if let Some(driver) = self.driver.get() {
            driver.on_offer(offer);
        }
    }

    /// Reports to the driver that the stream leaves shared memory, or has left it.
    pub(crate) fn report_leaving(&self, has_left: bool) {
        if let Some(driver) = self.driver.get() {
            driver.on_leaving(has_left);
        }
    }

    /// Tells the driver that a message waits for a receive.
    #[cold]
    pub(crate) fn report_receive_missing(&self) {
        if let Some(driver) = self.driver.get() {
            driver.on_receive_missing();
        }
    }

    /// Tells the driver that the stream is in use. Called once by each half.
    #[cold]
    pub(crate) fn report_traffic(&self) {
        if let Some(driver) = self.driver.get() {
            driver.on_traffic();
        }
    }

    /// Reports that the first message of the peer has arrived: to the program, if its queue pair is ready to receive,
    /// by an event, and to the driver.
    pub(crate) fn report_first_message(&self) {
        if self.state() == State::ReadyToReceive {
            self.raise(AsyncEvent::Established(self.id()));
        }
        if let Some(driver) = self.driver.get() {
            driver.on_first_message();
        }
    }
}
