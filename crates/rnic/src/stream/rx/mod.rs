//! The receiving half of a stream: link → FPDUs → memory and completions. It mirrors the sending half, `tx`.
//!
//! One round asks the link for bytes: large payload goes directly to its destination, everything else into a
//! staging buffer supplied by the thread. The received bytes are then [parsed](self::Rx::parse). Each segment
//! is [checked](segment) against the state of the stream and the memory table before any byte of it is
//! placed.
//!
//! Memory contents after a CRC failure: if an FPDU does not arrive in one piece, payload is placed before its
//! CRC is seen. Such bytes may be wrong, but they are where the peer was allowed to write; the message never
//! completes, and the stream ends.

mod deliver;
mod failure;
mod parse;
mod place;
mod response;
mod segment;

use super::MIN_DIRECT;
use super::park::Park;
use crate::connect::{Agreed, Role, Rtr};
use crate::context::{PEER_ENDED, QpContext, READABLE};
use crate::error::QpError;
use crate::half::Left;
use crate::host::Span;
use crate::link::{Link, LinkError};
use crate::memory::{Guards, Spans, Touch};
use crate::queue::{BlamedRequest, Receive};
use crate::sync::lock;
use failure::{RxFailure, Target};
use ironwarp_wire::mpa::{Fpdu, FpduReader, RtrSet};
use ironwarp_wire::{Dialect, Header, MAX_HEADER, Place, Terminate};
use std::sync::Arc;

/// A turn ends after this many calls to the link, or after [`BYTES_PER_TURN`] bytes.
const CALLS_PER_TURN: usize = 16;
const BYTES_PER_TURN: usize = 1 << 20;
/// Maximum number of calls to the link for one piece of a large segment: more data is about to arrive, and
/// polling costs less than sleeping.
const MAX_SPINS: usize = 8;

/// The result of one call to the link.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    len: usize,
    /// The link returned less than there was room for.
    short: bool,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct Rx {
    link: Arc<dyn Link>,
    reader: FpduReader,
    crc: bool,
    /// Maximum number of remote Reads and atomic operations pending at this end.
    ird: u16,
    /// The forms of RTR that the first FPDU may take. An RTR gives no completion.
    rtr: RtrSet,
    /// No FPDU has arrived yet.
    awaiting_first: bool,
    /// The FPDU in progress is the first, which lets this end send once it is complete.
    opens: Opens,
    /// The next message sequence numbers expected on DDP queues 0 and 1.
    send_msn: u32,
    read_msn: u32,
    /// The next message sequence numbers expected on queue 3 and on the queue of Read V2 Responses.
    atomic_msn: u32,
    read_v2_msn: u32,
    /// The messages understood: private ones only after the peer's signal has arrived.
    dialect: Dialect,
    /// The peer has sent a message without announcing its capabilities first.
    standard_peer: bool,
    /// This end opened the stream with an empty Read, so the peer may send before it has seen this end's
    /// signal.
    read_rtr: bool,
    /// Length of the current Write, or of the one that precedes the next message.
    written: u64,
    /// The message of the request class that is partly received.
    message: Message,
    /// The one-touch memory claimed by the current message of the request class.
    touch: Touch,
    /// A response is partly received; the send queue knows how much of it. Tracked apart from `message`,
    /// because responses continue while requests wait for a receive.
    response_in_progress: bool,
    /// The segment of which the header has arrived but not the end. Boxed because most segments arrive in one
    /// piece.
    segment: Option<Box<Segment>>,
    /// If the last segment was large, or the end of a large message, the number of bytes between its payload
    /// and the payload of the next segment, else zero. More large segments usually follow, so no more than
    /// these bytes are staged and all payload goes directly to its destination.
    gap: u8,
    /// Number of messages of the request class delivered.
    delivered: u64,
    /// Number of delivered messages that the tx half knows of.
    published: u64,
    park: Park,
    /// Number of messages acknowledged although the last of them are still parked: see [`Rx::ack_parked`].
    acked_parked: u64,
    /// Bytes received after the MPA startup frame.
    early: Box<[u8]>,
    /// The link has reported an event that it reports only once: keep receiving until the link is found
    /// empty.
    until_empty: bool,
    /// The peer will send nothing more.
    ended: bool,
    /// The end of the stream was reported to the queue pair.
    closed: bool,
    /// Received bytes are discarded: the stream has failed and only waits until the peer notices.
    discarding: bool,
    /// The tx half has something new to do.
    tx_has_work: bool,
}

/// Whether the FPDU in progress opens the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Opens {
    #[default]
    No,
    /// It does, and is also an ordinary message.
    Yes,
    /// It does, and is nothing but an RTR.
    Rtr,
}

/// A partly received message.
#[derive(Debug)]
enum Message {
    None,
    /// A Write, with the place that the next segment must name.
    Write(Place),
    /// A Send of which `received` bytes are in the receive.
    Send {
        receive: Receive,
        received: u64,
        /// The immediate data received with it.
        immediate: Option<u32>,
    },
}

/// A partly received segment.
#[derive(Debug)]
struct Segment {
    fpdu: Fpdu,
    target: Target,
    /// Number of payload bytes processed.
    done: usize,
}

impl Rx {
    pub(crate) fn new(link: Arc<dyn Link>, agreed: &Agreed, early: Vec<u8>) -> Self {
        Self {
            link,
            reader: FpduReader::new(agreed.receive),
            crc: agreed.receive.crc || agreed.receive.markers,
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
            delivered: 0,
            published: 0,
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

    /// Receives until the link was found empty `polls` times or the turn is over. `events` are those that the
    /// link has reported. Sets `tx_has_work` if the tx half has something to do.
    pub(crate) fn drive(&mut self, qp: &QpContext, events: u8, polls: usize, tx_has_work: &mut bool) -> Left {
        let mut staging = qp.device().take_staging();
        let reported_once = if self.link.is_empty_after_short_recv() { PEER_ENDED } else { READABLE };
        self.until_empty |= events & reported_once != 0;
        let room = staging.len().min(qp.device().max_call_len());
        let left = self.run_turn(qp, polls, &mut staging[..room]);
        qp.device().put_staging(staging);
        let bulk = self.gap > 0;
        if qp.receives_bulk() != bulk {
            qp.set_receives_bulk(bulk);
        }
        self.publish_delivered(qp);
        *tx_has_work |= std::mem::take(&mut self.tx_has_work);
        left
    }

    /// Receives everything that has arrived by now, because this end is about to close. Bounded, so that a
    /// peer that keeps sending cannot delay the close. Returns whether the tx half has something to do.
    pub(crate) fn drain_link(&mut self, qp: &QpContext) -> bool {
        let mut staging = qp.device().take_staging();
        let room = staging.len().min(qp.device().max_call_len());
        let mut due = self.link.arrived();
        self.take_early(qp);
        self.handle_changes(qp);
        while due > 0 && !self.ended && !self.discarding && !self.park.is_full(qp.device().config().park) {
            let Some(received) = self.receive(qp, &mut staging[..room]) else { break };
            due = due.saturating_sub(received.len);
            self.handle_changes(qp);
        }
        qp.device().put_staging(staging);
        self.publish_delivered(qp);
        std::mem::take(&mut self.tx_has_work)
    }

    /// Tells the tx half how many messages were delivered.
    pub(crate) fn publish_delivered(&mut self, qp: &QpContext) {
        let delivered = self.delivered.max(self.acked_parked);
        if delivered != self.published {
            self.published = delivered;
            lock(&qp.obligations).delivered = delivered;
            qp.set_ack_may_be_due();
        }
    }

    fn run_turn(&mut self, qp: &QpContext, mut polls: usize, staging: &mut [u8]) -> Left {
        self.take_early(qp);
        self.handle_changes(qp);
        let mut bytes = 0;
        for _ in 0..CALLS_PER_TURN {
            if self.ended {
                return Left::Nothing;
            }
            if self.park.is_full(qp.device().config().park) {
                // Nothing is received while parked messages fill the limit, so check explicitly for a lost
                // connection.
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
                Some(_) => return Left::Nothing,
                None if polls > 1 => polls -= 1,
                None => {
                    self.until_empty = false;
                    return Left::Nothing;
                }
            }
        }
        Left::Work
    }

    fn take_early(&mut self, qp: &QpContext) {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.parse(qp, &early);
        }
    }

    /// Handles what other threads may have changed: the stream has failed, or a receive was posted.
    fn handle_changes(&mut self, qp: &QpContext) {
        if qp.is_ended() {
            self.stop_delivery(qp); // also drops the parked messages, which kept it open
        } else {
            self.unpark(qp);
        }
        self.close_if_done(qp);
    }

    /// Calls the link once. Returns `None` if nothing arrived.
    fn receive(&mut self, qp: &QpContext, staging: &mut [u8]) -> Option<Received> {
        let large = !self.crc && self.gap > 0;
        let least = if large { 1 } else { MIN_DIRECT };
        if !self.crc && self.reader.run() >= least && !self.discarding {
            return self.receive_directly(qp, staging);
        }
        let room = if large { self.gap.into() } else { staging.len() };
        match self.link.recv(&[], &mut staging[..room]) {
            Ok(n) => {
                self.parse(qp, &staging[..n]);
                Some(Received { len: n, short: n < room })
            }
            Err(error) => self.handle_recv_error(qp, error),
        }
    }

    /// Receives large payload directly into its destination, under a guard.
    fn receive_directly(&mut self, qp: &QpContext, staging: &mut [u8]) -> Option<Received> {
        let run = self.reader.run();
        let segment = self.segment.take()?;
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        let resolved = self.resolve(qp, &segment, run, &mut spans, &mut guards);
        let received = match resolved {
            Ok(()) if spans.is_empty() => self.link.recv(&[], staging), // parked
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
                self.parse(qp, &staging[..n - placed]);
                Some(Received { len: n, short: n < direct })
            }
            Err(LinkError::Unmapped) => {
                let failure = self.unmapped_failure(qp, &fpdu, done, run);
                self.fail(qp, failure, &fpdu);
                Some(Received::default())
            }
            Err(error) => self.handle_recv_error(qp, error),
        }
    }

    fn receive_spinning(&self, spans: &[Span], after: &mut [u8]) -> Result<usize, LinkError> {
        for _ in 0..MAX_SPINS {
            match self.link.recv(spans, after) {
                Err(LinkError::WouldBlock) => std::hint::spin_loop(),
                received => return received,
            }
        }
        Err(LinkError::WouldBlock)
    }

    fn handle_recv_error(&mut self, qp: &QpContext, error: LinkError) -> Option<Received> {
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

    /// Handles the peer's close. Messages that wait for receives are still delivered first, unless this end
    /// closes as well.
    fn close_if_done(&mut self, qp: &QpContext) {
        if self.ended && !self.closed && (self.park.is_empty() || qp.is_ended() || qp.is_closing()) {
            self.closed = true;
            let whole = self.reader.at_boundary()
                && matches!(self.message, Message::None)
                && !self.response_in_progress;
            if !whole {
                qp.fail(QpError::CutShort, None, None);
            }
            qp.handle_peer_close();
            self.stop_delivery(qp);
            self.tx_has_work = true;
            qp.close_receive();
        }
    }

    /// Fails the stream because of a segment with a valid header.
    fn fail(&mut self, qp: &QpContext, mut failure: RxFailure, fpdu: &Fpdu) {
        let mut bytes = [0; MAX_HEADER];
        let n = fpdu.header.emit(usize::from(fpdu.payload_len), &mut bytes).unwrap_or(0);
        let mut blamed = None;
        if let Header::ReadResponse(_) | Header::ReadV2Response(_) | Header::AtomicResponse(_) = fpdu.header {
            // The Read fails, not the receive that a message may be using meanwhile.
            failure.receive = None;
            let read = lock(&qp.sq).oldest_read().and_then(|read| read.entry);
            blamed = read.map(|seq| BlamedRequest { seq, status: failure.read_status() });
        }
        self.fail_with(qp, failure, blamed, &bytes[..n]);
    }

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
        self.publish_delivered(qp); // acknowledge what was delivered before the Terminate is sent
        qp.fail(error, terminate, blamed);
        self.stop_delivery(qp);
        self.tx_has_work = true;
    }

    /// Consumes a half that a panic left in an unknown state. Returns the receive in use, which belongs to
    /// the program.
    pub(crate) fn into_receive(self) -> Option<Receive> {
        match self.message {
            Message::Send { receive, .. } => Some(receive),
            _ => None,
        }
    }

    /// Ends delivery on this stream.
    pub(crate) fn stop_delivery(&mut self, qp: &QpContext) {
        self.discarding = true;
        self.segment = None;
        while self.park.pop().is_some() {}
        let open = match std::mem::replace(&mut self.message, Message::None) {
            Message::Send { receive, .. } => Some(receive),
            _ => None,
        };
        qp.flush_receives(open);
    }
}
