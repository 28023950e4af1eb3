//! Stream, rx: link → FPDUs → memory and completions. Steps 5 to 7 of the path; before it the peer's `tx`, which it
//! mirrors; after it `queue/cq.rs`.
//!
//! One round asks the link for bytes: large payload goes straight to its place, everything else into a staging buffer that
//! the thread brings along. Then it [takes apart](self::Rx::feed) what came. Each segment is [judged](segment) against the
//! state of the stream and the memory table before a byte of it is placed.
//!
//! What memory may hold after a CRC failure: payload is placed before the CRC behind it was seen, where the FPDU did not
//! arrive whole. Such bytes may be wrong, but lie where the peer was allowed to write; the message never completes, and
//! the stream ends.

mod answer;
mod place;
mod segment;

use super::park::Park;
use super::{DIRECT, Guards};
use crate::connect::{Agreed, Role, Rtr};
use crate::error::Fault;
use crate::half::Left;
use crate::host::Span;
use crate::link::{Link, LinkError};
use crate::memory::{Hold, Spans, Touch};
use crate::qp::{CAME, ENDED, Qp};
use crate::queue::{Receive, Status};
use crate::sync::lock;
use ironwarp_wire::mpa::{Fpdu, FpduReader, Piece, RtrSet};
use ironwarp_wire::{Dialect, Header, MAX_HEADER, Place, Terminate};
use segment::{Failure, Judged, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// To ask the link so often is a turn, or to have received so many bytes.
const READS: usize = 16;
const SHARE: usize = 1 << 20;
/// In the middle of a large segment more is on its way: asking again costs less than sleeping (limits of the kernel's TCP).
const PATIENCE: usize = 8;

/// What one call of the link brought.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    len: usize,
    /// Less than there was room for.
    short: bool,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct Rx {
    link: Arc<dyn Link>,
    reader: FpduReader,
    crc: bool,
    /// How many of the peer's Reads this end holds.
    ird: u16,
    /// What the first FPDU may be that gives no completion.
    rtr: RtrSet,
    /// Nothing has come yet.
    first: bool,
    /// What has come so far of the first FPDU lets this end send, once it is whole.
    opens: Opens,
    /// The next message sequence numbers due on queues 0 and 1.
    send_msn: u32,
    read_msn: u32,
    /// The same on queue 3, and on that of Read V2 Responses.
    atomic_msn: u32,
    read_v2_msn: u32,
    /// The messages that are understood: private ones since the peer's signal came.
    dialect: Dialect,
    /// The peer has spoken without giving one.
    stranger: bool,
    /// This end opened the stream by an empty Read: the peer may speak before it has seen this end's signal.
    read_rtr: bool,
    /// How long the Write is, or was, that comes before what comes next.
    written: u64,
    /// The message of the request class of which a segment has come, and the last has not.
    message: Message,
    /// What the message of the request class in hand has touched.
    touch: Touch,
    /// A segment of an answer has come, and the last has not. The send queue knows how much. Answers go on while requests
    /// wait for a receive, so they have a place of their own.
    answering: bool,
    /// The segment of which the header has come, and the end has not. Most come whole, and all streams would have the room for one.
    segment: Option<Box<Segment>>,
    /// The last segment was large, or the end of a large message: then more of its kind comes as a rule. What is behind its payload
    /// up to the payload of the next has so many bytes; nothing more is staged, so that all payload goes straight to its place.
    /// None otherwise.
    behind: u8,
    /// How many messages of the request class were delivered.
    delivered: u64,
    /// The same, as far as the tx half knows.
    published: u64,
    park: Park,
    /// So many messages were acknowledged though the last of them wait: see [`Rx::vouch`].
    vouched: u64,
    /// Bytes that came behind the startup frame.
    early: Box<[u8]>,
    /// The link has told something that it tells once, and nobody has found it empty since: this is kept until all is received.
    drain: bool,
    /// The peer will send nothing more.
    ended: bool,
    /// That was made known.
    closed: bool,
    /// What is received is thrown away: the stream is over, and only waits for the peer to see that.
    over: bool,
    /// Whether the tx half got something to do.
    owes: bool,
}

/// Whether the FPDU in progress is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Opens {
    #[default]
    No,
    /// And a message like others.
    Yes,
    /// And no more than that.
    Rtr,
}

/// A message in the middle.
#[derive(Debug)]
enum Message {
    None,
    /// The next segment belongs here.
    Write(Place),
    /// So much of it is in the receive.
    Send {
        receive: Receive,
        received: u64,
        /// What came with it.
        immediate: Option<u32>,
    },
}

/// A segment in the middle.
#[derive(Debug)]
struct Segment {
    fpdu: Fpdu,
    target: Target,
    /// How much of its payload has come.
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
            first: true,
            opens: Opens::No,
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            read_v2_msn: 1,
            dialect: Dialect::Standard,
            stranger: false,
            read_rtr: agreed.role == Role::Initiator { rtr: Some(Rtr::Read) },
            written: 0,
            message: Message::None,
            touch: Touch::default(),
            answering: false,
            segment: None,
            behind: 0,
            delivered: 0,
            published: 0,
            park: Park::default(),
            vouched: 0,
            early: early.into(),
            drain: false,
            ended: false,
            closed: false,
            over: false,
            owes: false,
        }
    }

    /// Receives until nothing is there, at so many looks, or a fair share is done. Returns whether the tx half got something to
    /// do.
    pub(crate) fn drive(&mut self, qp: &Qp, news: u8, looks: usize, owes: &mut bool) -> Left {
        let mut staging = qp.device().take_staging();
        let told = if self.link.tells_of_more() { ENDED } else { CAME };
        self.drain |= news & told != 0;
        let room = staging.len().min(qp.device().longest_call());
        let left = self.rounds(qp, looks, &mut staging[..room]);
        qp.device().put_staging(staging);
        let bulk = self.behind > 0;
        if qp.receives_bulk() != bulk {
            qp.bulk.store(bulk, Ordering::Relaxed);
        }
        self.publish(qp);
        *owes |= std::mem::take(&mut self.owes);
        left
    }

    /// Receives what has arrived by now, because this end is about to close: a peer that keeps sending cannot hold it here. Returns
    /// whether the tx half got something to do.
    pub(crate) fn drain(&mut self, qp: &Qp) -> bool {
        let mut staging = qp.device().take_staging();
        let room = staging.len().min(qp.device().longest_call());
        let mut due = self.link.arrived();
        self.take_early(qp);
        self.attend(qp);
        while due > 0 && !self.ended && !self.over && !self.park.is_full(qp.device().config().park) {
            let Some(came) = self.receive(qp, &mut staging[..room]) else { break };
            due = due.saturating_sub(came.len);
            self.attend(qp);
        }
        qp.device().put_staging(staging);
        self.publish(qp);
        std::mem::take(&mut self.owes)
    }

    /// Tells the tx half how many messages were delivered.
    pub(crate) fn publish(&mut self, qp: &Qp) {
        let delivered = self.delivered.max(self.vouched);
        if delivered != self.published {
            self.published = delivered;
            lock(&qp.owed).delivered = delivered;
            qp.set_debt();
        }
    }

    fn rounds(&mut self, qp: &Qp, mut looks: usize, staging: &mut [u8]) -> Left {
        self.take_early(qp);
        self.attend(qp);
        let mut came = 0;
        for _ in 0..READS {
            if self.ended {
                return Left::Nothing;
            }
            if self.park.is_full(qp.device().config().park) {
                // Nothing is received, so a connection that is gone would not be found out.
                if self.drain
                    && let Some(errno) = self.link.lost()
                {
                    self.nothing_came(qp, LinkError::Lost(errno));
                    self.attend(qp);
                }
                return Left::Nothing;
            }
            let received = self.receive(qp, staging);
            self.attend(qp);
            match received {
                Some(Came { len, short }) if !short || self.drain => {
                    came += len;
                    if came >= SHARE {
                        break;
                    }
                }
                Some(_) => return Left::Nothing,
                None if looks > 1 => looks -= 1,
                None => {
                    self.drain = false;
                    return Left::Nothing;
                }
            }
        }
        Left::Work
    }

    fn take_early(&mut self, qp: &Qp) {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.take(qp, &early);
        }
    }

    /// What others changed meanwhile: the stream failed, or a receive was posted.
    fn attend(&mut self, qp: &Qp) {
        if qp.is_ended() {
            self.give_up(qp); // what waited for receives, and kept it open, is gone
        } else {
            self.unpark(qp);
        }
        self.close_if_done(qp);
    }

    /// One call of the link. `None`: nothing came.
    fn receive(&mut self, qp: &Qp, staging: &mut [u8]) -> Option<Came> {
        let large = !self.crc && self.behind > 0;
        let least = if large { 1 } else { DIRECT };
        if !self.crc && self.reader.run() >= least && !self.over {
            return self.receive_directly(qp, staging);
        }
        let room = if large { self.behind.into() } else { staging.len() };
        match self.link.recv(&[], &mut staging[..room]) {
            Ok(n) => {
                self.take(qp, &staging[..n]);
                Some(Came { len: n, short: n < room })
            }
            Err(error) => self.nothing_came(qp, error),
        }
    }

    /// Large payload goes straight to its place, under a guard.
    fn receive_directly(&mut self, qp: &Qp, staging: &mut [u8]) -> Option<Came> {
        let run = self.reader.run();
        let segment = self.segment.take()?;
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        let resolved = self.resolve(qp, &segment, run, &mut spans, &mut guards);
        let received = match resolved {
            Ok(()) if spans.is_empty() => self.link.recv(&[], staging), // parked
            Ok(()) => self.receive_patiently(&spans, &mut staging[..self.behind.into()]),
            Err(failure) => {
                drop(guards);
                self.fail(qp, failure, &segment.fpdu);
                return Some(Came::default());
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
                self.reader.skip(placed).expect("no CRC, or the payload would have been staged");
                if let Some(segment) = &mut self.segment {
                    segment.done += placed;
                }
                self.take(qp, &staging[..n - placed]);
                Some(Came { len: n, short: n < direct })
            }
            Err(LinkError::Unmapped) => {
                let failure = self.unmapped(qp, &fpdu, done, run);
                self.fail(qp, failure, &fpdu);
                Some(Came::default())
            }
            Err(error) => self.nothing_came(qp, error),
        }
    }

    fn receive_patiently(&self, spans: &[Span], behind: &mut [u8]) -> Result<usize, LinkError> {
        for _ in 0..PATIENCE {
            match self.link.recv(spans, behind) {
                Err(LinkError::WouldBlock) => std::hint::spin_loop(),
                received => return received,
            }
        }
        Err(LinkError::WouldBlock)
    }

    fn nothing_came(&mut self, qp: &Qp, error: LinkError) -> Option<Came> {
        match error {
            LinkError::WouldBlock | LinkError::Unmapped => {}
            LinkError::Ended => {
                self.ended = true;
                self.close_if_done(qp);
            }
            LinkError::Lost(errno) => {
                self.ended = true;
                qp.fail(Fault::Lost(errno), None, None);
                qp.link_lost();
            }
        }
        None
    }

    /// The peer closed. What it sent before is still delivered, if it waits for receives; unless this end closes as well.
    fn close_if_done(&mut self, qp: &Qp) {
        if self.ended && !self.closed && (self.park.is_empty() || qp.is_ended() || qp.is_closing()) {
            self.closed = true;
            let whole = self.reader.at_boundary() && matches!(self.message, Message::None) && !self.answering;
            if !whole {
                qp.fail(Fault::CutShort, None, None);
            }
            qp.peer_closed();
            self.give_up(qp);
            self.owes = true;
            qp.link_ended();
        }
    }

    // --- Taking apart ---

    /// Takes bytes of the stream apart.
    fn take(&mut self, qp: &Qp, mut bytes: &[u8]) {
        let mut hold = None;
        while !self.over
            && let Some(more) = self.step(qp, &mut bytes, &mut hold)
        {
            if !more {
                break;
            }
        }
    }

    /// One FPDU, if it is all there, or one piece of it. `None`: the stream failed. `Some(false)`: all bytes are used up.
    fn step<'q>(&mut self, qp: &'q Qp, bytes: &mut &[u8], hold: &mut Option<Hold<'q>>) -> Option<bool> {
        let dialect = self.dialect;
        let before = *bytes;
        let piece = match self.reader.whole(bytes, dialect) {
            Ok(Some((fpdu, payload))) => {
                return self.whole(qp, &fpdu, payload, hold).then_some(true);
            }
            Ok(None) => {
                *hold = None;
                self.reader.next(bytes, dialect)
            }
            Err(violation) => Err(violation),
        };
        let done = match piece {
            Ok(None) => return Some(false),
            Ok(Some(Piece::Header(fpdu))) => match self.begin_and_note(qp, &fpdu, false) {
                Ok(target) => {
                    self.segment = Some(Box::new(Segment { fpdu, target, done: 0 }));
                    Ok(())
                }
                // Its bytes may have come one by one: it is reported as it was read.
                Err(failure) => {
                    self.fail(qp, failure, &fpdu);
                    return None;
                }
            },
            Ok(Some(Piece::Payload(payload))) => self.place(qp, payload),
            Ok(Some(Piece::End)) => self.end(qp),
            Err(violation) => {
                let held = self.reader.held();
                let offender = if held.is_empty() { before } else { held };
                let offender = offender[..offender.len().min(MAX_HEADER)].to_vec();
                self.fail_with(qp, Failure::violation(violation), None, &offender);
                return None;
            }
        };
        if let Err(failure) = done {
            let fpdu = self.segment.as_ref().map(|segment| segment.fpdu).expect("what fails has begun");
            self.fail(qp, failure, &fpdu);
            return None;
        }
        Some(true)
    }

    /// The first step, and what it tells of what will come.
    fn begin_and_note(&mut self, qp: &Qp, fpdu: &Fpdu, whole: bool) -> Judged<Target> {
        let large =
            usize::from(fpdu.payload_len) >= DIRECT || (self.behind > 0 && self.goes_on(&fpdu.header));
        self.behind = if large { behind(fpdu) } else { 0 };
        self.begin(qp, fpdu, whole)
    }

    /// Whether this is not the first segment of its message.
    fn goes_on(&self, header: &Header) -> bool {
        match header {
            Header::Write(_) => matches!(self.message, Message::Write(_)),
            Header::ReadResponse(_) | Header::ReadV2Response(_) => self.answering,
            Header::Send(send) => send.offset > 0,
            _ => false,
        }
    }

    /// A segment that arrived in one piece: the same three steps. Writes that come together share a guard; the end of another
    /// message may have to wait for guards.
    fn whole<'q>(&mut self, qp: &'q Qp, fpdu: &Fpdu, payload: &[u8], hold: &mut Option<Hold<'q>>) -> bool {
        let begun = self.begin_and_note(qp, fpdu, true);
        match fpdu.header {
            Header::Write(_) => self.go_on(qp, fpdu, payload, begun, hold),
            _ => {
                *hold = None;
                self.go_on(qp, fpdu, payload, begun, &mut None)
            }
        }
    }

    /// The second and the third step of a segment that is all there.
    fn go_on<'q>(
        &mut self,
        qp: &'q Qp,
        fpdu: &Fpdu,
        payload: &[u8],
        begun: Judged<Target>,
        hold: &mut Option<Hold<'q>>,
    ) -> bool {
        let done = begun.and_then(|target| {
            let mut segment = Segment { fpdu: *fpdu, target, done: 0 };
            if !payload.is_empty() {
                self.place_of(qp, &mut segment, payload, hold)?;
            }
            self.end_of(qp, segment)
        });
        if let Err(failure) = done {
            self.fail(qp, failure, fpdu);
            return false;
        }
        true
    }

    /// A receive was posted: what waited for it goes on.
    fn unpark(&mut self, qp: &Qp) {
        while let Some(parked) = self.park.front() {
            let header = parked.fpdu.header;
            let supplied = self.supply(qp, &header);
            if matches!(supplied, Ok(false)) {
                qp.wait_for_receive(&header);
                // It may have been posted since the look above, by one who did not see that it is waited for.
                if !matches!(self.supply(qp, &header), Ok(true)) {
                    return;
                }
            }
            let Some(parked) = self.park.pop() else { return };
            if self.park.is_empty() {
                qp.stop_waiting();
            }
            // It has waited: those behind it, which still do, are no reason to wait again.
            let begun = supplied.and_then(|_| self.judge(qp, &parked.fpdu, true));
            if !self.go_on(qp, &parked.fpdu, &parked.payload, begun, &mut None) {
                return;
            }
        }
    }

    // --- Failing ---

    /// The stream failed by a segment that could be read.
    fn fail(&mut self, qp: &Qp, mut failure: Failure, fpdu: &Fpdu) {
        let mut bytes = [0; MAX_HEADER];
        let n = fpdu.header.emit(usize::from(fpdu.payload_len), &mut bytes).unwrap_or(0);
        let mut request = None;
        if let Header::ReadResponse(_) | Header::ReadV2Response(_) | Header::AtomicResponse(_) = fpdu.header {
            // It is the Read that fails, not the receive that a message may be using meanwhile.
            failure.receive = None;
            let read = lock(&qp.sq).read().and_then(|read| read.entry);
            request = read.map(|seq| (seq, failure.read_status()));
        }
        self.fail_with(qp, failure, request, &bytes[..n]);
    }

    fn fail_with(&mut self, qp: &Qp, failure: Failure, request: Option<(u64, Status)>, offender: &[u8]) {
        let Failure { fault, cause, receive } = failure;
        let terminate = cause.map(|cause| Terminate::answer(cause, offender));
        if std::mem::take(&mut self.opens) != Opens::No {
            self.open(qp); // so that the peer can be told
        }
        if let (Message::Send { receive: used, .. }, Some(status)) = (&self.message, receive) {
            qp.complete_receive_failed(used, status, &fault);
            self.message = Message::None;
        }
        self.publish(qp); // the peer is told how far it came before it is told what was wrong
        qp.fail(fault, terminate, request);
        self.give_up(qp);
        self.owes = true;
    }

    /// A panic left it in a state that nobody knows. What is returned is the receive in use, which is the program's.
    pub(crate) fn abandon(self) -> Option<Receive> {
        match self.message {
            Message::Send { receive, .. } => Some(receive),
            _ => None,
        }
    }

    /// Nothing more is delivered on this stream.
    pub(crate) fn give_up(&mut self, qp: &Qp) {
        self.over = true;
        self.segment = None;
        while self.park.pop().is_some() {}
        let open = match std::mem::replace(&mut self.message, Message::None) {
            Message::Send { receive, .. } => Some(receive),
            _ => None,
        };
        qp.flush_receives(open);
    }
}

/// From the end of this payload to the next payload, if the next segment is like this one.
fn behind(fpdu: &Fpdu) -> u8 {
    let len = fpdu.total_len() - usize::from(fpdu.payload_len);
    u8::try_from(len).expect("a header, padding and a CRC")
}
