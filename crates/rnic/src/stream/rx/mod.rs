//! The receiving half of a stream: turns bytes of the link into FPDUs, places their payload in memory, and completes
//! receives and Reads. The sending half is `tx`.
//!
//! One round receives bytes from the link: large payload goes directly to its destination, everything else into a
//! staging buffer of the thread. The bytes in the staging buffer are then [parsed](self::Rx::parse). Each segment is
//! [checked](segment) against the state of the stream and the memory table before any byte of it is placed.
//!
//! If an FPDU does not arrive in one piece, its payload is placed before its CRC arrives. After a CRC failure, memory
//! may therefore contain wrong bytes, but only where the peer was allowed to write. The message never completes, and
//! the stream ends.

mod deliver;
mod failure;
mod frozen;
mod offer;
mod parse;
mod place;
mod response;
mod route;
mod segment;
mod straight;

use super::park::Park;
use super::{MIN_DIRECT, SMALL_RECV};
use crate::blocked::NoLink;
use crate::connect::{Agreed, Role, Rtr};
use crate::context::{PEER_ENDED, QpContext, READABLE};
use crate::error::QpError;
use crate::half::Left;
use crate::host::Span;
use crate::link::{Link, LinkError, Route};
use crate::memory::{Guards, Spans, Touch};
use crate::queue::{BlamedRequest, Receive};
use crate::sync::lock;
use failure::{RxFailure, Target};
use ironwarp_wire::mpa::{Fpdu, FpduReader, Framing, RtrSet};
use ironwarp_wire::{Dialect, Header, MAX_HEADER, RemoteAddr, Terminate};
use offer::OfferParts;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Number of calls to the link after which a turn ends.
const CALLS_PER_TURN: usize = 16;
/// Number of received bytes after which a turn ends.
const BYTES_PER_TURN: usize = 1 << 20;
/// Maximum number of calls to the link while the payload of a large segment is expected: more data is about to arrive,
/// and calling again costs less than sleeping.
const MAX_SPINS: usize = 8;

/// The result of one call to the link.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    /// Number of bytes received, without those that the link has to return again because they follow a switch signal.
    len: usize,
    /// The link returned fewer bytes than there was room for.
    short: bool,
}

/// The receiving half of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rx {
    #[serde(skip, default = "NoLink::shared")]
    link: Arc<dyn Link>,
    /// Takes the bytes of the stream apart into FPDUs.
    reader: FpduReader,
    /// A switch signal to this route was parsed, and not followed yet.
    switch_to: Option<Route>,
    /// The parts of an offer that have arrived. `None` if none is in progress.
    #[serde(skip)]
    offer: Option<Box<OfferParts>>,
    /// Maximum number of remote Reads and atomic operations pending at this end.
    ird: u16,
    /// The kinds of RTR that were agreed for the first FPDU. An RTR completes no receive. Empty at an initiator.
    rtr: RtrSet,
    /// No FPDU has arrived yet.
    awaiting_first: bool,
    /// Whether the FPDU in progress opens the stream.
    opens: Opens,
    /// The next message sequence number expected on DDP queue 0, for Sends.
    send_msn: u32,
    /// The next message sequence number expected on DDP queue 1, for Read and Atomic Requests.
    read_msn: u32,
    /// The next message sequence number expected on DDP queue 3, for Atomic Responses.
    atomic_msn: u32,
    /// The next message sequence number expected on the private queue for Read V2 Responses.
    read_v2_msn: u32,
    /// Which headers the parser accepts: private ones only after the peer's signal has arrived.
    dialect: Dialect,
    /// The peer has sent a message without announcing its capabilities first.
    standard_peer: bool,
    /// This end opened the stream with an empty Read, so the peer may send before it has seen this end's
    /// signal.
    read_rtr: bool,
    /// Number of bytes of the Write in progress, or of the last Write if no other message of the request class followed
    /// it. Immediate Data that follows completes the receive with this length.
    written: u64,
    /// The message of the request class of which some segments have arrived.
    message: Message,
    /// The one-touch memory claimed by the current message of the request class.
    touch: Touch,
    /// A response is partly received. The send queue counts its bytes. Not part of `message`, because responses go on
    /// while a message of the request class waits for a receive.
    response_in_progress: bool,
    /// The segment whose header has arrived but not its end. Boxed because most segments arrive in one piece.
    segment: Option<Box<Segment>>,
    /// If the last segment was large, or ended a large message: number of bytes between its payload and the payload of
    /// the next segment. Otherwise zero. While it is not zero, only these bytes are received into the staging buffer,
    /// because another large segment is expected, whose payload can then be received directly into its destination.
    gap: u8,
    /// If Immediate Data followed the last large Write: length of its FPDU, which is part of the gap. Otherwise zero.
    #[serde(skip)]
    immediate: u8,
    /// The last call to the link received only a few bytes, and so will probably the next.
    expects_small: bool,
    /// Number of messages of the request class delivered.
    delivered: u64,
    /// The number of delivered messages has changed since it was last published to the tx half.
    unpublished: bool,
    /// The driver was told that a request was delivered.
    reported_traffic: bool,
    /// The peer wants to know how many messages were delivered.
    acks_wanted: bool,
    /// Messages that wait for a receive.
    park: Park,
    /// Number of messages acknowledged although the last of them are still parked: see [`Rx::ack_parked`]. Zero if that
    /// never happened.
    acked_parked: u64,
    /// Bytes that arrived together with the MPA startup frame, or at the host from which the stream has moved, and were not
    /// parsed yet.
    early: Box<[u8]>,
    /// The link has reported an event that it reports only once: receive until the link is empty. Not stored: see
    /// [`Rx::set_link`].
    #[serde(skip)]
    until_empty: bool,
    /// The link has ended: the peer sends nothing more.
    ended: bool,
    /// The end of the link was reported to the queue pair.
    closed: bool,
    /// The stream has failed: received bytes are discarded until the peer closes the link.
    discarding: bool,
    /// The rx half has given the tx half something to do.
    tx_has_work: bool,
}

/// Whether the FPDU in progress opens the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Opens {
    /// It does not: it is not the first FPDU.
    #[default]
    No,
    /// It is the first FPDU, which lets this end send once it is complete. It is also an ordinary message.
    Yes,
    /// It is the first FPDU, which lets this end send once it is complete. It has no other meaning.
    Rtr,
}

/// A message of the request class of which some segments have arrived.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    None,
    /// A Write. The next segment must name this address.
    Write(RemoteAddr),
    /// A Send or Immediate Data, which use a receive.
    Send {
        /// The receive in use.
        receive: Receive,
        /// Number of payload bytes in complete segments.
        received: u64,
        /// The immediate data of a Send with Immediate.
        immediate: Option<u32>,
    },
}

/// A segment whose header has arrived.
#[derive(Debug, Serialize, Deserialize)]
struct Segment {
    fpdu: Fpdu,
    /// Where its payload goes.
    target: Target,
    /// Number of payload bytes that were placed, parked or discarded.
    done: usize,
}

impl Rx {
    /// Creates the receiving half of a stream. `early` holds the bytes that arrived together with the startup frame.
    pub(crate) fn new(link: Arc<dyn Link>, agreed: &Agreed, early: Vec<u8>) -> Self {
        Self {
            link,
            reader: FpduReader::new(agreed.receive),
            switch_to: None,
            offer: None,
            ird: agreed.ird,
            rtr: match agreed.role {
                Role::Responder { rtr } => rtr,
                Role::Initiator { .. } => RtrSet::empty(),
            },
            awaiting_first: true,
            opens: Opens::No,
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            read_v2_msn: 1,
            dialect: Dialect::Standard,
            standard_peer: false,
            read_rtr: agreed.role == Role::Initiator { rtr: Some(Rtr::Read) },
            written: 0,
            message: Message::None,
            touch: Touch::default(),
            response_in_progress: false,
            segment: None,
            gap: 0,
            immediate: 0,
            expects_small: false,
            delivered: 0,
            unpublished: false,
            reported_traffic: false,
            acks_wanted: false,
            park: Park::default(),
            acked_parked: 0,
            early: early.into(),
            until_empty: false,
            ended: false,
            closed: false,
            discarding: false,
            tx_has_work: false,
        }
    }

    /// Receives until the link was found empty `polls` times or the turn is over. Returns [`Left::Work`] only if the
    /// turn is over. `events` holds the flags [`READABLE`] and [`PEER_ENDED`] that the link has reported. Sets
    /// `tx_has_work` if the tx half has something to do.
    pub(crate) fn drive(&mut self, qp: &QpContext, events: u8, polls: usize, tx_has_work: &mut bool) -> Left {
        if events != 0 {
            // If a short receive means that the link is empty, further calls are needed only to find the end of the
            // link.
            let reported_once = if self.link.is_empty_after_short_recv() { PEER_ENDED } else { READABLE };
            self.until_empty |= events & reported_once != 0;
        }
        let left = self.run_small_turn(qp, polls).unwrap_or_else(|| {
            let mut staging = qp.device().take_staging();
            let room = staging.len().min(qp.device().max_recv_len());
            let left = self.run_turn(qp, polls, &mut staging[..room]);
            qp.device().put_staging(staging);
            left
        });
        let bulk = self.gap > 0;
        if qp.receives_bulk() != bulk {
            qp.set_receives_bulk(bulk);
        }
        self.publish_delivered(qp);
        *tx_has_work |= std::mem::take(&mut self.tx_has_work);
        left
    }

    /// Receives the bytes that have arrived by now, because this end is about to close. Bytes that arrive meanwhile
    /// do not count, so that a peer that keeps sending cannot delay the close. Returns whether the tx half has
    /// something to do.
    pub(crate) fn drain_link(&mut self, qp: &QpContext) -> bool {
        let mut staging = qp.device().take_staging();
        let room = staging.len().min(qp.device().max_recv_len());
        let mut left = self.link.arrived();
        self.take_early(qp);
        self.handle_changes(qp);
        while left > 0 && !self.ended && !self.discarding && !self.park.is_full(qp.device().config().park) {
            let Some(received) = self.receive(qp, &mut staging[..room]) else { break };
            left = left.saturating_sub(received.len);
            self.handle_changes(qp);
        }
        qp.device().put_staging(staging);
        self.publish_delivered(qp);
        std::mem::take(&mut self.tx_has_work)
    }

    /// Tells the tx half how many messages were delivered, which it acknowledges to the peer.
    pub(crate) fn publish_delivered(&mut self, qp: &QpContext) {
        if std::mem::take(&mut self.unpublished) {
            if !std::mem::replace(&mut self.reported_traffic, true) {
                qp.report_traffic();
            }
            qp.set_delivered(self.delivered.max(self.acked_parked));
            if self.acks_wanted {
                qp.set_ack_may_be_due();
            }
        }
    }

    /// Receives for one turn: see [`drive`](Self::drive).
    fn run_turn(&mut self, qp: &QpContext, mut polls: usize, staging: &mut [u8]) -> Left {
        self.take_early(qp);
        self.handle_changes(qp);
        let mut bytes = 0;
        for _ in 0..CALLS_PER_TURN {
            if self.ended {
                return Left::Nothing;
            }
            let limit = qp.device().config().park;
            if self.park.is_full(limit) && self.park.wait_for_room(limit, &qp.room_waiter()) {
                // No call to `recv` would report a lost connection while the park is full, so check for one.
                if self.until_empty
                    && let Some(errno) = self.link.lost()
                {
                    self.handle_recv_error(qp, LinkError::Lost(errno));
                    self.handle_changes(qp);
                }
                return Left::Nothing;
            }
            let received = self.receive(qp, staging);
            self.handle_changes(qp);
            match received {
                Some(Received { len, short }) if !short || self.until_empty => {
                    bytes += len;
                    if bytes >= BYTES_PER_TURN {
                        break;
                    }
                }
                Some(_) => return Left::Nothing, // the link is empty
                None if polls > 1 => polls -= 1,
                None => {
                    self.until_empty = false;
                    return Left::Nothing;
                }
            }
        }
        Left::Work
    }

    /// Parses the bytes that arrived before the link carried any, once.
    fn take_early(&mut self, qp: &QpContext) {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.parse(qp, &early);
        }
    }

    /// Handles changes by other threads: stops delivery if the stream has ended, otherwise delivers parked messages for
    /// which a receive was posted.
    #[inline]
    fn handle_changes(&mut self, qp: &QpContext) {
        // Most of the time there is nothing to handle.
        if qp.is_ended() || self.ended || !self.park.is_empty() {
            self.apply_changes(qp);
        }
    }

    /// Does what [`handle_changes`](Self::handle_changes) does.
    #[inline(never)]
    fn apply_changes(&mut self, qp: &QpContext) {
        if qp.is_ended() {
            self.stop_delivery(qp); // also drops the parked messages, for which `close_if_done` waits
        } else {
            self.unpark(qp);
        }
        self.close_if_done(qp);
    }

    /// Receives bytes with one call to the link, and parses them. Returns `None` if nothing arrived, or on an error.
    fn receive(&mut self, qp: &QpContext, staging: &mut [u8]) -> Option<Received> {
        let Framing { crc, markers } = self.reader.framing();
        let staged_only = crc || markers; // payload with CRCs or markers has to go through the staging buffer
        let expects_large = !staged_only && self.gap > 0;
        let min_direct = if expects_large { 1 } else { MIN_DIRECT };
        // The run is the number of payload bytes that come next. It is zero between segments.
        if !staged_only && self.reader.run_len() >= min_direct && !self.discarding {
            return self.receive_directly(qp, staging);
        }
        // Before a large segment, receive only up to its payload.
        let room = if expects_large { self.gap.into() } else { staging.len() };
        match self.link.recv(&[], &mut staging[..room]) {
            Ok(n) => {
                self.expects_small = n < SMALL_RECV;
                let unread = self.parse(qp, &staging[..n]);
                Some(Received { len: n - unread, short: n < room })
            }
            Err(error) => self.handle_recv_error(qp, error),
        }
    }

    /// Receives payload of the segment in progress directly into its destination, under guards, and the bytes after it
    /// into the staging buffer.
    fn receive_directly(&mut self, qp: &QpContext, staging: &mut [u8]) -> Option<Received> {
        let run = self.reader.run_len();
        let segment = self.segment.take()?;
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        let resolved = self.resolve(qp, &segment, run, &mut spans, &mut guards);
        let received = match resolved {
            Ok(()) if spans.is_empty() => self.link.recv(&[], staging), // parked or discarded
            Ok(()) => self.receive_spinning(&spans, &mut staging[..self.gap.into()]),
            Err(failure) => {
                drop(guards);
                self.fail(qp, failure, &segment.fpdu);
                return Some(Received::default());
            }
        };
        drop(guards);
        let direct = if spans.is_empty() { 0 } else { run };
        let fpdu = segment.fpdu;
        let done = segment.done;
        self.segment = Some(segment);
        match received {
            Ok(n) => {
                let placed = n.min(direct);
                self.reader.skip(placed).expect("payload is received directly only if no CRC covers it");
                if let Some(segment) = &mut self.segment {
                    segment.done += placed;
                }
                let unread = self.parse(qp, &staging[..n - placed]);
                // The link also returns fewer bytes if memory further on is not mapped, which the next call finds.
                let short = n < direct && (spans.are_verified() || self.link.arrived() == 0);
                Some(Received { len: n - unread, short })
            }
            Err(LinkError::Unmapped) => {
                let failure = self.unmapped_failure(qp, &fpdu, done, run);
                self.fail(qp, failure, &fpdu);
                Some(Received::default())
            }
            Err(error) => self.handle_recv_error(qp, error),
        }
    }

    /// Receives into `spans` and then into `after`. Retries a few times if nothing has arrived.
    fn receive_spinning(&self, spans: &[Span], after: &mut [u8]) -> Result<usize, LinkError> {
        for _ in 0..MAX_SPINS {
            match self.link.recv(spans, after) {
                Err(LinkError::WouldBlock) => std::hint::spin_loop(),
                received => return received,
            }
        }
        Err(LinkError::WouldBlock)
    }

    /// Handles the failure of a call to the link. Returns `None`, the result for the caller.
    fn handle_recv_error(&mut self, qp: &QpContext, error: LinkError) -> Option<Received> {
        let error = match error {
            LinkError::Lost(errno) if qp.outlives_peer(errno) => LinkError::Ended,
            error => error,
        };
        match error {
            LinkError::WouldBlock | LinkError::Unmapped => {}
            LinkError::Ended => {
                self.ended = true;
                self.close_if_done(qp);
            }
            LinkError::Lost(errno) => {
                self.ended = true;
                qp.fail(QpError::Lost(errno), None, None);
                qp.close_both();
            }
        }
        None
    }

    /// Handles the end of the link, once. Waits until all parked messages are delivered, unless the stream has failed
    /// or this end closes as well.
    fn close_if_done(&mut self, qp: &QpContext) {
        if self.ended && !self.closed && (self.park.is_empty() || qp.is_ended() || qp.is_closing()) {
            self.closed = true;
            let at_message_boundary = self.reader.is_at_boundary()
                && matches!(self.message, Message::None)
                && !self.response_in_progress;
            if !at_message_boundary {
                qp.fail(QpError::CutShort, None, None);
            }
            qp.handle_peer_close();
            self.stop_delivery(qp);
            self.tx_has_work = true;
            qp.close_receive();
        }
    }

    /// Fails the stream because of a segment whose header was parsed. If the segment is a response, the Read or atomic
    /// operation that it answers is blamed.
    fn fail(&mut self, qp: &QpContext, mut failure: RxFailure, fpdu: &Fpdu) {
        // The Terminate contains the header, whose bytes may be gone: encode it again. This cannot fail for a header
        // that was parsed; if it did, the Terminate would contain none.
        let mut bytes = [0; MAX_HEADER];
        let n = fpdu.header.emit(usize::from(fpdu.payload_len), &mut bytes).unwrap_or(0);
        let mut blamed = None;
        if let Header::ReadResponse(_) | Header::ReadV2Response(_) | Header::AtomicResponse(_) = fpdu.header {
            // The Read or atomic operation fails, not the receive that a message may be using meanwhile. A
            // Read of the adapter itself (a probe) is no work request, and cannot be blamed.
            failure.receive = None;
            let read = lock(&qp.sq).oldest_read().and_then(|read| read.entry);
            blamed = read.map(|seq| BlamedRequest { seq, status: failure.read_status() });
        }
        self.fail_with(qp, failure, blamed, &bytes[..n]);
    }

    /// Fails the stream. `blamed` is the work request of this end whose response was wrong, if any; if there is none,
    /// [`QpContext::fail`] decides which request is blamed. `offender` holds the bytes of the header that the Terminate
    /// refers to: as received, if they could not be parsed.
    fn fail_with(
        &mut self,
        qp: &QpContext,
        failure: RxFailure,
        blamed: Option<BlamedRequest>,
        offender: &[u8],
    ) {
        let RxFailure { error, cause, receive } = failure;
        let terminate = cause.map(|cause| Terminate::for_segment(cause, offender));
        if std::mem::take(&mut self.opens) != Opens::No {
            self.open_sending(qp); // so that the Terminate can be sent
        }
        if let (Message::Send { receive: used, .. }, Some(status)) = (&self.message, receive) {
            qp.fail_receive(used, status, &error);
            self.message = Message::None;
        }
        self.publish_delivered(qp); // the tx half acknowledges these messages before it sends the Terminate
        qp.fail(error, terminate, blamed);
        self.stop_delivery(qp);
        self.tx_has_work = true;
    }

    /// Drops a half that a panic left in an unknown state. Returns the receive in use by a message, which the caller
    /// has to flush.
    pub(crate) fn into_receive(self) -> Option<Receive> {
        match self.message {
            Message::Send { receive, .. } => Some(receive),
            _ => None,
        }
    }

    /// Ends delivery on this stream: drops all unfinished and parked messages, and flushes the receives if the stream
    /// has failed. Bytes that arrive later are discarded.
    pub(crate) fn stop_delivery(&mut self, qp: &QpContext) {
        self.discarding = true;
        self.segment = None;
        while self.park.pop().is_some() {}
        let in_use = match std::mem::replace(&mut self.message, Message::None) {
            Message::Send { receive, .. } => Some(receive),
            _ => None,
        };
        qp.flush_receives(in_use);
    }
}
