//! The messages that the rx half asks the tx half to send: responses, acknowledgements, signals and the Terminate.

use super::UNUSED_ADDR;
use crate::connect::{Agreed, Role, Rtr};
use crate::link::Route;
use crate::memory::Touch;
use crate::queue::MAX_COUNT;
use crate::sync::{Mutex, MutexGuard, lock};
use bitflags::bitflags;
use ironwarp_wire::private::{Capabilities, OFFER_LEN, ReadV2Request, Signal};
use ironwarp_wire::{AtomicRequest, Header, ReadRequest, Tagged, Terminate};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A Write without payload.
const EMPTY_WRITE: Header = Header::Write(Tagged { last: true, addr: UNUSED_ADDR });

/// Maximum number of offers of shared memory in each direction of a stream, so that a peer cannot keep this end busy with
/// them. An end that cannot use the first one has few reasons to make another.
pub(crate) const MAX_OFFERS: u8 = 16;

/// The obligations of a stream, as its threads share them. Counts the changes, so that the tx half need not lock the
/// obligations to learn that nothing has changed.
#[derive(Debug, Default)]
pub(crate) struct SharedObligations {
    /// Number of changes. Written with `current` locked.
    changes: AtomicU32,
    current: Mutex<TxObligations>,
}

/// The locked obligations. Mutable access counts as a change.
#[derive(Debug)]
pub(crate) struct ObligationsGuard<'a> {
    changes: &'a AtomicU32,
    current: MutexGuard<'a, TxObligations>,
}

impl SharedObligations {
    /// Locks the obligations.
    pub(crate) fn lock(&self) -> ObligationsGuard<'_> {
        ObligationsGuard { changes: &self.changes, current: lock(&self.current) }
    }

    /// Number of changes so far, modulo 2^32. The thread that makes a change drives the tx half afterwards, so the half
    /// may act on a number that is out of date.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }
}

impl Deref for ObligationsGuard<'_> {
    type Target = TxObligations;

    fn deref(&self) -> &TxObligations {
        &self.current
    }
}

impl DerefMut for ObligationsGuard<'_> {
    fn deref_mut(&mut self) -> &mut TxObligations {
        let changes = self.changes.load(Ordering::Relaxed); // no other thread writes it: `current` is locked
        self.changes.store(changes.wrapping_add(1), Ordering::Release);
        &mut self.current
    }
}

/// What the tx half has to send apart from work requests, and what it has to know about the peer. The halves share it
/// under a lock that is held for a few instructions only.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TxObligations {
    /// This end may send. A responder must have received a message first (RFC 5044 §7.1.2).
    pub(crate) open: bool,
    /// This end, a responder, may send although nothing was received, because it has waited long enough.
    pub(crate) open_anyway: bool,
    /// The stream must be opened with an empty Read, the only RTR that the peer accepts (RFC 6581 §9.2).
    pub(crate) read_rtr: bool,
    /// The first message: the signal with this end's capabilities, or an empty Write if an RTR is due. `None` if the
    /// first message can be any.
    pub(crate) opening: Option<Opening>,
    /// A message from the peer has arrived.
    pub(crate) received_any: bool,
    /// The opening message is to be sent again, because the peer may have missed it.
    pub(crate) nudge: bool,
    /// The peer's capabilities, once its signal has arrived.
    pub(crate) peer: Option<Capabilities>,
    /// The peer does not implement the private protocol: it sent a message without announcing its
    /// capabilities.
    pub(crate) standard_peer: bool,
    /// Read and Atomic Requests to be answered, in order (requirement M11). The first may be partly answered.
    pub(crate) responses: VecDeque<Response>,
    /// Number of remote Reads and atomic operations that count against this end's IRD. The last segment of a response
    /// is counted as sent before the call that sends it, because the next request may arrive before that call
    /// returns.
    pub(crate) inbound_reads: usize,
    /// Number of messages delivered before the last message that had to wait for a receive. `None` if none had to wait.
    pub(crate) not_ready: Option<u64>,
    /// Number of delivered messages that were acknowledged, or are about to be.
    pub(crate) acknowledged: u64,
    /// A thread has listed the stream, because an acknowledgement is due, and will call `Qp::acknowledge` before going
    /// idle.
    pub(crate) ack_noticed: bool,
    /// Send the acknowledgement now, even if no other message accompanies it.
    pub(crate) ack_now: bool,
    /// The Terminate, the last message of the stream. Boxed because few streams need it.
    pub(crate) terminate: Option<Box<Terminate>>,
    /// Close this direction of the link once everything is sent.
    pub(crate) finish: bool,
    /// The route by which this end has to send.
    pub(crate) route: Route,
    /// Markers were agreed in a direction of the stream, so shared memory is not used.
    markers: bool,
    /// CRCs were agreed for the TCP bytes that the peer sends.
    pub(crate) peer_sends_crcs: bool,
    /// Number of offers of shared memory that this end has made, at most [`MAX_OFFERS`].
    pub(crate) offers: u8,
    /// Number of offers that the peer has made.
    pub(crate) peer_offers: u8,
    /// The last offer, until it is sent.
    #[serde(skip)]
    pub(crate) offer: Option<Box<[u8; OFFER_LEN]>>,
    /// The signals about routes that are to be sent, apart from the switch.
    pub(crate) route_signals: RouteSignals,
    /// How far the stream has left shared memory.
    pub(crate) leaving: Leaving,
}

bitflags! {
    /// How far a stream has left shared memory for good (requirement X2). Each end sends a [leave](Signal::Leave) once its
    /// own direction is on TCP, and a [left](Signal::Left) when it has received the peer's leave. When an end has received
    /// both, neither end has anything in shared memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct Leaving: u8 {
        /// This end sends by TCP for the rest of the connection, and neither makes nor accepts offers.
        const BEGUN = 1 << 0;
        /// The peer's leave has arrived.
        const PEER_LEAVES = 1 << 1;
        /// The peer's left has arrived.
        const PEER_LEFT = 1 << 2;
        /// Both signals have arrived.
        const DONE = Self::PEER_LEAVES.bits() | Self::PEER_LEFT.bits();
    }

    /// The signals about routes that are to be sent, apart from the switch.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct RouteSignals: u8 {
        /// The number of offers that this end has made, if the last one is to be sent.
        const OFFERS = 0x1f;
        /// The leave signal.
        const LEAVE = 1 << 6;
        /// The left signal.
        const LEFT = 1 << 7;
    }
}

/// The first message that this end sends on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Opening {
    /// A signal with this end's capabilities.
    Signal(Capabilities),
    /// A Write without payload, as an RTR.
    EmptyWrite,
}

impl Opening {
    /// Returns the header of the message, which has no payload.
    pub(crate) fn header(self) -> Header {
        match self {
            Self::Signal(capabilities) => Signal::Capabilities(capabilities).to_header(),
            Self::EmptyWrite => EMPTY_WRITE,
        }
    }
}

/// A response to be sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Response {
    /// The request to respond to.
    pub(crate) request: RemoteRequest,
    /// The one-touch memory that the request has claimed. It is invalidated once the response is sent.
    pub(crate) touch: Touch,
}

/// A request from the peer that needs a response.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum RemoteRequest {
    Read(ReadRequest),
    ReadV2(ReadV2Request),
    Atomic(AtomicRequest),
    /// An atomic operation that was executed.
    AtomicDone {
        /// The identifier of the request.
        id: u32,
        /// The value of the word before the operation.
        original: u64,
    },
}

impl RemoteRequest {
    /// Number of bytes of the response.
    pub(crate) const fn response_len(&self) -> u32 {
        match self {
            Self::Read(read) => read.len,
            Self::ReadV2(read) => read.len,
            Self::Atomic(_) | Self::AtomicDone { .. } => 0,
        }
    }
}

/// A snapshot of [`TxObligations`] for building one batch. Later changes are for the next batch: the thread that
/// makes a change also drives the tx half again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    /// This end may send.
    pub(crate) open: bool,
    /// The stream must be opened with an empty Read.
    pub(crate) read_rtr: bool,
    /// The stream begins with an [`Opening`].
    pub(crate) opening: bool,
    /// The opening message is to be sent again.
    pub(crate) nudge: bool,
    /// Number of responses due, including those that are in FPDUs already.
    pub(crate) responses: usize,
    /// Whether the peer accepts FPDUs that are larger than a TCP segment.
    pub(crate) large: bool,
    /// Whether the peer understands a Send with Immediate. `None` until that is known.
    pub(crate) immediate: Option<bool>,
    /// Whether the peer understands Read V2.
    pub(crate) read_v2: bool,
    /// The number of messages before the one that waits for a receive, if the peer wants to know it.
    pub(crate) not_ready: Option<u64>,
    /// The number of delivered messages, if the peer wants to know it.
    pub(crate) delivered: Option<u64>,
    /// Send an acknowledgement even if no other message accompanies it.
    pub(crate) ack_now: bool,
    /// Close this direction of the link once everything is sent.
    pub(crate) finish: bool,
    /// The route by which this end has to send.
    pub(crate) route: Route,
    /// The signals about routes that are to be sent, apart from the switch.
    pub(crate) route_signals: RouteSignals,
}

impl TxObligations {
    /// Returns whether obligations that were loaded can be those of a stream that has answered `responded` requests.
    pub(crate) fn is_consistent(&self, responded: u32) -> bool {
        let left = self.responses.len().checked_sub(responded as usize);
        left.is_some_and(|left| (left..=self.responses.len()).contains(&self.inbound_reads))
            && self.acknowledged <= MAX_COUNT
            && self.not_ready.is_none_or(|number| number <= MAX_COUNT)
            && self.offers <= MAX_OFFERS
            && self.peer_offers <= MAX_OFFERS
    }

    /// Takes a snapshot for building one batch. `delivered` is the number of messages that were delivered.
    pub(crate) fn snapshot(&self, delivered: u64) -> Snapshot {
        let wants_acks = self.peer_wants_acks();
        Snapshot {
            open: self.open || self.open_anyway,
            read_rtr: self.read_rtr,
            opening: self.opening.is_some(),
            nudge: self.nudge,
            responses: self.responses.len(),
            large: self.accepts_large_fpdus(),
            immediate: self.accepts_immediate(),
            read_v2: self.accepts_read_v2(),
            not_ready: self.not_ready.filter(|_| wants_acks),
            delivered: wants_acks.then_some(delivered),
            ack_now: self.ack_now,
            finish: self.finish,
            route: self.route,
            route_signals: self.route_signals,
        }
    }

    /// Creates the state at the beginning of a stream. `signal` holds this end's capabilities, `None` if the private
    /// protocol is disabled. A responder answers a signal but never sends one first, because its peer may not be
    /// Ironwarp.
    pub(crate) fn new(agreed: &Agreed, signal: Option<Capabilities>) -> Self {
        let markers = agreed.send.markers || agreed.receive.markers;
        let mut obligations = Self {
            standard_peer: signal.is_none(),
            markers,
            peer_sends_crcs: agreed.receive.crc,
            ..Self::default()
        };
        let signal = signal.map(|capabilities| obligations.usable_on_stream(capabilities));
        if let Role::Initiator { rtr } = agreed.role {
            obligations.open = true;
            obligations.read_rtr = rtr == Some(Rtr::Read);
            obligations.opening = match (signal, rtr) {
                (Some(capabilities), _) => Some(Opening::Signal(capabilities)),
                (None, Some(Rtr::Write)) => Some(Opening::EmptyWrite),
                (None, _) => None,
            };
        }
        obligations
    }

    /// Returns the capabilities, of either end, without those that this stream does not allow.
    pub(crate) fn usable_on_stream(&self, capabilities: Capabilities) -> Capabilities {
        let shared = Capabilities::SHARED_MEMORY | Capabilities::LEAVE;
        if self.markers { capabilities.difference(shared) } else { capabilities }
    }

    /// Whether both ends have announced that they can carry the stream in shared memory.
    pub(crate) fn peer_shares_memory(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::SHARED_MEMORY))
    }

    /// Whether both ends have announced that they leave shared memory when asked to.
    pub(crate) fn peer_leaves_memory(&self) -> bool {
        let both = Capabilities::SHARED_MEMORY | Capabilities::LEAVE;
        self.peer.is_some_and(|peer| peer.contains(both))
    }

    /// Whether this stream may use shared memory: both ends have announced it, and neither has asked to leave it.
    pub(crate) fn may_share_memory(&self) -> bool {
        self.peer_shares_memory() && !self.leaving.contains(Leaving::BEGUN)
    }

    /// Begins to leave shared memory: this end sends by TCP for the rest of the connection, and asks the peer to do the
    /// same. Does nothing if it has begun. The peer must [know the signal](Self::peer_leaves_memory).
    pub(crate) fn begin_leaving(&mut self) {
        if !self.leaving.contains(Leaving::BEGUN) {
            self.leaving |= Leaving::BEGUN;
            self.route = Route::Tcp;
            self.offer = None;
            self.route_signals = RouteSignals::LEAVE;
        }
    }

    /// Has this end send an offer, instead of the last one if that was not sent in full.
    pub(crate) fn set_offer(&mut self, offer: [u8; OFFER_LEN]) {
        self.offers += 1;
        self.offer = Some(Box::new(offer));
        self.route_signals.remove(RouteSignals::OFFERS);
        self.route_signals |= RouteSignals::from_bits_truncate(self.offers);
    }

    /// Drops an offer, because it was sent.
    pub(crate) fn drop_offer(&mut self) {
        self.offer = None;
        self.route_signals.remove(RouteSignals::OFFERS);
    }

    /// Whether the peer may have missed this end's first message.
    pub(crate) fn opening_may_be_lost(&self) -> bool {
        self.open && !self.received_any
    }

    /// Takes the nudge, if one is due: the header of a message that prompts a silent peer and has no effect when
    /// received twice. It is the opening message, or an empty Write if there is none.
    pub(crate) fn take_nudge(&mut self) -> Option<Header> {
        std::mem::take(&mut self.nudge).then(|| self.opening.unwrap_or(Opening::EmptyWrite).header())
    }

    /// Whether the peer wants to know how many messages were delivered.
    pub(crate) fn peer_wants_acks(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::WANTS_ACKNOWLEDGE))
    }

    /// Whether the peer waits for an acknowledgement, if this many messages were `delivered`.
    pub(crate) fn owes_acknowledgement(&self, delivered: u64) -> bool {
        self.peer_wants_acks() && delivered > self.acknowledged
    }

    /// Requests an acknowledgement, if the peer waits for one: the tx half sends it next. Returns false if it does not.
    pub(crate) fn request_acknowledgement(&mut self, delivered: u64) -> bool {
        let owes = self.owes_acknowledgement(delivered);
        if owes {
            self.acknowledged = delivered; // no other thread has to request this acknowledgement
            self.ack_now = true;
        }
        owes
    }

    /// Records that the tx half acknowledges `delivered` messages. If another thread has requested to acknowledge more
    /// since the tx half took its snapshot, that request stays.
    pub(crate) fn record_acknowledgement(&mut self, delivered: u64) {
        self.ack_now &= delivered < self.acknowledged;
        self.acknowledged = self.acknowledged.max(delivered);
    }

    /// Whether the peer acknowledges the messages that it delivered.
    pub(crate) fn peer_sends_acks(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::ACKNOWLEDGE))
    }

    /// Whether the peer understands a Send with Immediate (requirement X8). False for a peer that does not implement
    /// the private protocol. `None` while that is not known: the tx half then holds such a Send back, and may send a
    /// probe.
    fn accepts_immediate(&self) -> Option<bool> {
        match self.peer {
            Some(peer) => Some(peer.contains(Capabilities::SEND_IMMEDIATE)),
            None => self.standard_peer.then_some(false),
        }
    }

    /// Whether the peer understands Read V2, a Read without its sink address (requirement X4). False until the peer's
    /// capabilities are known.
    fn accepts_read_v2(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::READ_V2))
    }

    /// Whether the peer accepts FPDUs that are larger than the TCP segments of the path.
    pub(crate) fn accepts_large_fpdus(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::LARGE_FPDU))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While the tx half builds a batch that acknowledges two messages, another thread delivers a third, and requests to
    /// acknowledge that one as well.
    #[test]
    fn a_request_during_an_acknowledgement_is_not_lost() {
        let peer = Some(Capabilities::WANTS_ACKNOWLEDGE);
        let mut obligations = TxObligations { peer, ..TxObligations::default() };
        assert!(obligations.request_acknowledgement(2) && !obligations.request_acknowledgement(2));
        assert!(obligations.request_acknowledgement(3));
        obligations.record_acknowledgement(2);
        assert!(obligations.ack_now, "the third message");
        obligations.record_acknowledgement(3);
        assert!(!obligations.ack_now && !obligations.request_acknowledgement(3));
    }
}
