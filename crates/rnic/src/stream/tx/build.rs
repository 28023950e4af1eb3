//! How a train is put together: which message has its turn, how it is cut, and where its payload comes from.

use super::payload::{Source, check};
use super::{Cursor, Did, Doing, Tx};
use crate::error::Fault;
use crate::memory::{Check, Denied, Rights};
use crate::qp::Qp;
use crate::queue::{Asked, Data, Operation, OutstandingRead, Status, WorkRequest};
use crate::stream::{Guards, NOWHERE, Opening, Train, advance};
use crate::sync::lock;
use ironwarp_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use ironwarp_wire::mpa::{MAX_ULPDU, max_ulpdu};
use ironwarp_wire::private::{ReadV2Request, SendImmediate, Signal};
use ironwarp_wire::{
    AtomicRequest, Header, Immediate, ImmediateData, Place, ReadRequest, Send, SendWord, Tag, Tagged,
    Terminate,
};
use std::sync::atomic::Ordering;

/// Why no frame was added.
pub(super) enum Stop {
    /// Nothing to send, or nothing that may be sent now.
    Idle,
    /// What is in the train has to leave first.
    Full,
    /// The stream cannot go on.
    Failed(Box<Failure>),
}

/// What went wrong while a frame was put together.
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// The last word to the peer.
    pub(super) terminate: Terminate,
    /// The work request, if it was one.
    pub(super) request: Option<(u64, Status)>,
}

/// What a segment of a work request is made of.
struct Segment<'a> {
    seq: u64,
    data: &'a Data,
    len: usize,
    last: bool,
    /// Immediate Data follows the last one.
    immediate: bool,
}

/// What the immediate data of a Send takes of its message.
const IMMEDIATE_LEN: u32 = 8;

impl Tx {
    /// Fills the train with what may leave now. All that the peer can answer is written down before it leaves. Returns
    /// whether there is more.
    pub(super) fn build<'q>(&mut self, qp: &'q Qp, train: &mut Train, guards: &mut Guards<'q>) -> bool {
        train.owed = lock(&qp.owed).view();
        if let Some(delivered) = &mut train.owed.delivered {
            // Whoever posted what is about to leave may have seen completions that were not counted above yet.
            *delivered = qp.delivered.load(Ordering::Relaxed).max(*delivered);
        }
        let stop = loop {
            if train.is_full() {
                break Stop::Full;
            }
            match self.add(qp, train, guards) {
                Ok(()) => {}
                Err(stop @ (Stop::Idle | Stop::Full)) => break stop,
                Err(stop) => match stop.pending() {
                    // The request waits, and so do those behind it; the half is driven when it need not. If that is so by now,
                    // it goes on.
                    Some(tag) => {
                        lock(&qp.sq).take_back_numbers(self.cursor.seq);
                        if qp.stalls(tag) {
                            break Stop::Idle;
                        }
                    }
                    None => break stop,
                },
            }
        };
        guards.hold = None; // what was copied needs none
        let more = !matches!(stop, Stop::Idle);
        match stop {
            Stop::Failed(failure) if train.is_empty() => {
                let Failure { fault, terminate, request } = *failure;
                qp.fail(fault, Some(terminate), request);
                self.add_last_word(qp, train);
            }
            // What was built leaves first; the failure will be met again.
            Stop::Failed(_) | Stop::Full => {}
            Stop::Idle => {
                self.add_not_ready(qp, train);
                self.add_acknowledgement(qp, train);
            }
        }
        let mut sq = lock(&qp.sq);
        sq.promise(self.cursor.requests);
        if !train.is_empty() {
            sq.begin_sending();
        }
        drop(sq);
        more
    }

    /// Adds one frame.
    fn add<'q>(&mut self, qp: &'q Qp, train: &mut Train, guards: &mut Guards<'q>) -> Result<(), Stop> {
        if !train.owed.open || qp.is_gone() {
            return Err(Stop::Idle);
        }
        if qp.is_ended() {
            return if self.add_last_word(qp, train) { Ok(()) } else { Err(Stop::Idle) };
        }
        if self.add_opening(qp, train) {
            return Ok(());
        }
        match self.cursor.doing {
            Doing::Request | Doing::Immediate => self.add_request(qp, train, guards),
            Doing::Answer => self.add_answer(qp, train, guards),
            Doing::Nothing if self.cursor.answer_next => match self.add_answer(qp, train, guards) {
                Err(Stop::Idle) => self.add_request(qp, train, guards),
                added => added,
            },
            Doing::Nothing => match self.add_request(qp, train, guards) {
                Err(Stop::Idle) => self.add_answer(qp, train, guards),
                Err(stop) if stop.pending().is_some() => match self.add_answer(qp, train, guards) {
                    Err(Stop::Idle) => Err(stop),
                    added => added,
                },
                added => added,
            },
        }
    }

    /// What opens the stream: the RTR, if it has to be a Read, and the signal, which is an RTR otherwise. A nudge repeats it.
    fn add_opening(&mut self, qp: &Qp, train: &mut Train) -> bool {
        if self.cursor.doing != Doing::Nothing {
            return false;
        }
        if train.owed.read_rtr && !self.cursor.read_rtr {
            self.cursor.read_rtr = true;
            self.add_probe(qp, train);
            return true;
        }
        let opening = train.owed.opening && !self.cursor.opening;
        if !opening && !train.owed.nudge {
            return false;
        }
        let mut owed = lock(&qp.owed);
        let header = if opening { owed.opening.map(Opening::header) } else { owed.take_nudge() };
        drop(owed);
        self.cursor.opening |= opening;
        train.owed.nudge &= opening;
        let Some(header) = header else { return false };
        self.add_empty(train, &header, Did::Other);
        true
    }

    /// The Terminate, if there is one. RFC 5040 §4.8: nothing follows it, and it may cut a message short.
    fn add_last_word(&mut self, qp: &Qp, train: &mut Train) -> bool {
        let Some(terminate) = lock(&qp.owed).terminate.clone().filter(|_| !self.cursor.terminate) else {
            return false;
        };
        // Then the peer knows which of its messages is meant: the first that was not delivered.
        let (told, delivered) = (self.cursor.acknowledged, lock(&qp.owed).counted());
        if let Some(delivered) = delivered.filter(|delivered| *delivered > told) {
            self.cursor.acknowledged = delivered;
            self.add_empty(train, &Signal::Acknowledged(delivered).header(), Did::Other);
        }
        self.cursor.terminate = true;
        self.cursor.doing = Doing::Nothing;
        self.add_empty(train, &Header::Terminate(*terminate), Did::Terminate);
        true
    }

    /// A message of the peer's waits for a receive, of which it is told once.
    fn add_not_ready(&mut self, qp: &Qp, train: &mut Train) {
        let Some(number) = train.owed.not_ready else { return };
        if self.cursor.not_ready != number + 1 && self.may_signal(qp, train) {
            self.cursor.not_ready = number + 1;
            self.add_empty(train, &Signal::NotReady(number).header(), Did::Other);
        }
    }

    /// The acknowledgement travels with company, or alone if it was told to or there will be none.
    fn add_acknowledgement(&mut self, qp: &Qp, train: &mut Train) {
        if !train.is_empty() || train.owed.flush || train.owed.finish {
            self.acknowledge(qp, train);
        }
    }

    /// Tells the peer what was delivered, if there is more to tell than it knows.
    pub(super) fn acknowledge(&mut self, qp: &Qp, train: &mut Train) {
        let Some(delivered) = train.owed.delivered.filter(|count| *count > self.cursor.acknowledged) else {
            return;
        };
        if !self.may_signal(qp, train) && !self.may_end_with_signal(qp, train) {
            return;
        }
        let mut owed = lock(&qp.owed);
        owed.flush = false;
        owed.told = owed.told.max(delivered);
        drop(owed);
        self.cursor.acknowledged = delivered;
        self.add_empty(train, &Signal::Acknowledged(delivered).header(), Did::Other);
    }

    fn may_signal(&self, qp: &Qp, train: &Train) -> bool {
        train.owed.open && !qp.is_gone() && self.cursor.doing == Doing::Nothing && !qp.is_ended()
    }

    /// A stream that this end has ended still says what was delivered, in the middle of a message perhaps, which is cut short anyway:
    /// the peer shall not wait for it.
    fn may_end_with_signal(&self, qp: &Qp, train: &Train) -> bool {
        train.owed.open && !qp.is_gone() && qp.is_ended() && !self.cursor.terminate
    }

    pub(super) fn add_empty(&mut self, train: &mut Train, header: &Header, did: Did) {
        train.empty(&mut self.cursor.writer, header);
        train.seal(self.cursor, did);
    }

    /// An empty Read of the adapter's own.
    fn add_probe(&mut self, qp: &Qp, train: &mut Train) {
        let read = ReadRequest { msn: self.cursor.read_msn, sink: NOWHERE, len: 0, source: NOWHERE };
        self.add_question(qp, train, None, &Header::ReadRequest(read));
    }

    /// A Read or Atomic Request: written down before it leaves, because its answer may be here before the next line runs.
    fn add_question(&mut self, qp: &Qp, train: &mut Train, entry: Option<u64>, header: &Header) {
        let msn = self.cursor.read_msn;
        self.cursor.read_msn = msn.wrapping_add(1);
        let number = self.cursor.requests;
        let (kind, sink, len) = match header {
            Header::AtomicRequest(request) => (Asked::Atomic(request.id), Place::default(), 0),
            Header::ReadRequest(request) => (Asked::Read, request.sink, request.len),
            Header::ReadV2Request(request) => (Asked::ReadV2, Place::default(), request.len),
            _ => (Asked::Read, Place::default(), 0),
        };
        let mut sq = lock(&qp.sq);
        sq.promise_read(OutstandingRead { kind, entry, number, sink, len, received: 0 });
        if let Some(seq) = entry {
            sq.numbered(seq, number, msn);
        }
        drop(sq);
        self.add_empty(train, header, Did::Read(entry));
    }

    // --- Work requests ---

    /// The next segment of the work request that has its turn.
    fn add_request<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
    ) -> Result<(), Stop> {
        if self.cursor.doing == Doing::Nothing {
            if self.add_shorts(qp, train, guards)? {
                return Ok(());
            }
            if self.begin(qp, train)? == Begun::Probe {
                return Ok(());
            }
            // The program may answer a message of the peer's with this one. There, the completion of that message comes
            // before the answer, as where adapters acknowledge at once: programs (tgtd) rely on it.
            self.acknowledge(qp, train);
        }
        let seq = self.cursor.seq;
        let request = match train.current.take() {
            Some((cached, request)) if cached == seq => request,
            _ => match lock(&qp.sq).request(seq) {
                Some(request) => request.clone(),
                None => return Err(Stop::Idle),
            },
        };
        let added = self.add_segment_of(qp, train, guards, seq, &request);
        train.current = (self.cursor.seq == seq).then_some((seq, request));
        added
    }

    /// Whether the next work request may begin; and if it may, whether all of its memory may be used, before its first byte
    /// leaves (requirement M8).
    fn begin(&mut self, qp: &Qp, train: &mut Train) -> Result<Begun, Stop> {
        loop {
            let seq = self.cursor.seq;
            let mut sq = lock(&qp.sq);
            let Some(request) = sq.request(seq).filter(|_| self.may_begin(qp)) else {
                let probe = sq.wants_probe(self.cursor.requests) && sq.reads() < self.ord;
                drop(sq);
                return self.probe(qp, train, probe);
            };
            if request.fence && sq.reads_pending() {
                return Err(Stop::Idle);
            }
            if !request.operation.is_local() {
                let asks = matches!(request.operation, Operation::Read(_) | Operation::Atomic { .. });
                if asks && sq.reads() >= self.ord {
                    return Err(Stop::Idle);
                }
                let right = if asks { Rights::LOCAL_WRITE } else { Rights::LOCAL_READ };
                let is_send = matches!(request.operation, Operation::Send { .. });
                if is_send && request.immediate.is_some() && train.owed.immediate != Some(true) {
                    let probe = self.ord > 0 && sq.reads() == 0;
                    drop(sq);
                    return self.recognise(qp, train, seq, probe);
                }
                let request = request.clone();
                if !asks {
                    // It is complete with the last of its messages; the peer may complain from the first segment on.
                    let messages = 1 + u64::from(!is_send && request.immediate.is_some());
                    sq.numbered(seq, self.cursor.requests + messages, self.cursor.send_msn);
                }
                drop(sq);
                // What fits one segment is checked when that is put together, which is before it leaves.
                if asks || request.data.len() > self.room(train, UNTAGGED_LEN) as u64 {
                    self.measure_path(train, &request.data);
                    check(qp, &request.data, right).map_err(|fault| Stop::local(fault, seq))?;
                }
                train.current = Some((seq, request));
                return Ok(Begun::Request);
            }
            // Revocation waits for guards, and the train holds some.
            if !train.is_empty() {
                return Err(Stop::Full);
            }
            let request = request.clone();
            drop(sq);
            match execute(qp, seq, &request) {
                Ok(()) => self.cursor.seq += 1,
                Err(fault @ Fault::Register { .. }) if qp.survives_refusal() => {
                    self.refused = true;
                    self.cursor.seq = qp.refuse(seq, fault);
                }
                Err(fault) => return Err(Stop::own(fault, (seq, Status::WindowBind))),
            }
            train.set_start(self.cursor); // it is done, whatever becomes of the train
        }
    }

    /// Nothing is left to send. What was sent to a stranger completes when it has it: an empty Read tells, because it is
    /// answered after all that went before (RFC 5040 §5.5).
    fn probe(&mut self, qp: &Qp, train: &mut Train, wanted: bool) -> Result<Begun, Stop> {
        if !wanted || lock(&qp.owed).is_acknowledged() {
            return Err(Stop::Idle);
        }
        self.cursor.requests += 1;
        self.add_probe(qp, train);
        Ok(Begun::Probe)
    }

    /// A Send with Immediate is for others of our kind only (requirement X8), and this peer has not shown that it is one. An
    /// empty Read makes it speak: its signal comes before its first message.
    fn recognise(&mut self, qp: &Qp, train: &mut Train, seq: u64, probe: bool) -> Result<Begun, Stop> {
        if train.owed.immediate == Some(false) {
            let request = Some((seq, Status::LocalQpOperation));
            let terminate = Terminate::LOCAL_CATASTROPHE;
            return Err(Stop::Failed(Box::new(Failure { fault: Fault::NoImmediate, terminate, request })));
        }
        if !probe {
            return Err(Stop::Idle);
        }
        self.cursor.requests += 1;
        self.add_probe(qp, train);
        Ok(Begun::Probe)
    }

    /// The path may have changed, and a stranger must not get an FPDU larger than its segments.
    fn measure_path(&mut self, train: &Train, data: &Data) {
        if !train.owed.large && data.len() > self.mulpdu as u64 {
            self.mulpdu = max_ulpdu(self.link.segment_size(), self.cursor.writer.framing().markers);
        }
    }

    fn add_segment_of<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
        seq: u64,
        request: &WorkRequest,
    ) -> Result<(), Stop> {
        let data = &request.data;
        let offset = self.cursor.offset;
        if self.cursor.doing == Doing::Immediate {
            self.add_immediate(qp, train, seq, request);
            return Ok(());
        }
        let cut = |header_len| {
            let left = usize::try_from(data.len()).unwrap_or(usize::MAX) - offset as usize;
            let len = left.min(self.room(train, header_len));
            Segment { seq, data, len, last: len == left, immediate: false }
        };
        match request.operation {
            Operation::Send { invalidate } => {
                let first = request.immediate.filter(|_| offset == 0).map(ImmediateData::new);
                let segment = cut(UNTAGGED_LEN + first.map_or(0, |data| data.0.len()));
                let msn = self.cursor.send_msn;
                let word = invalidate.map_or(SendWord::Srq(request.srq), SendWord::Invalidate);
                let mut send = Send { msn, last: segment.last, offset, solicited: request.solicited, word };
                let header = if request.immediate.is_some() {
                    // The immediate data counts as the first bytes of the message.
                    send.offset += if offset > 0 { IMMEDIATE_LEN } else { 0 };
                    Header::SendImmediate(SendImmediate { send, immediate: first })
                } else {
                    Header::Send(send)
                };
                self.cursor.send_msn = msn.wrapping_add(u32::from(segment.last));
                let added = self.add_payload_of(qp, train, guards, &segment, &header);
                added.inspect_err(|_| self.cursor.send_msn = msn)
            }
            Operation::Write(to) => {
                let segment = Segment { immediate: request.immediate.is_some(), ..cut(TAGGED_LEN) };
                // An empty Write leaves with nothing in these fields, so that none is taken for a signal. With Immediate it
                // leaves as well: Immediate Data alone would tell of the Write before it.
                let place = if data.is_empty() { NOWHERE } else { advance(to, offset.into()) };
                let header = Header::Write(Tagged { last: segment.last, place });
                self.add_payload_of(qp, train, guards, &segment, &header)
            }
            // Requirement X4: where the answer goes is nobody's business, where the peer can do without. A Read of nothing
            // tells nothing.
            Operation::Read(source) if train.owed.read_v2 && !data.is_empty() => {
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let read = ReadV2Request { msn: self.cursor.read_msn, len, source };
                self.ask(qp, train, seq, &Header::ReadV2Request(read));
                Ok(())
            }
            Operation::Read(source) => {
                let sink = match data {
                    Data::Memory(sges) => sges.place(),
                    Data::Inline(_) => NOWHERE,
                };
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let read = ReadRequest { msn: self.cursor.read_msn, sink, len, source };
                self.ask(qp, train, seq, &Header::ReadRequest(read));
                Ok(())
            }
            Operation::Atomic { target, op } => {
                let msn = self.cursor.read_msn;
                // The sequence number tells requests apart that are outstanding together.
                self.ask(qp, train, seq, &Header::AtomicRequest(AtomicRequest { msn, id: msn, target, op }));
                Ok(())
            }
            Operation::Bind { .. }
            | Operation::BindAs { .. }
            | Operation::Register { .. }
            | Operation::Invalidate(_) => Err(Stop::Idle),
        }
    }

    /// A work request that is one question.
    fn ask(&mut self, qp: &Qp, train: &mut Train, seq: u64, header: &Header) {
        self.cursor.requests += 1;
        self.cursor.seq += 1;
        self.cursor.answer_next = true;
        self.add_question(qp, train, Some(seq), header);
    }

    /// The second message of a Write with Immediate (RFC 7306 §6): it uses up a receive of the peer's, and tells of the Write.
    fn add_immediate(&mut self, qp: &Qp, train: &mut Train, seq: u64, request: &WorkRequest) {
        let msn = self.cursor.send_msn;
        let data = ImmediateData::new(request.immediate.unwrap_or_default());
        self.cursor.send_msn = msn.wrapping_add(1);
        self.cursor.requests += 1;
        self.cursor.seq += 1;
        self.cursor.answer_next = true;
        self.cursor.doing = Doing::Nothing;
        lock(&qp.sq).numbered(seq, self.cursor.requests, msn);
        let immediate = Immediate { msn, solicited: request.solicited, srq: request.srq, data };
        self.add_empty(train, &Header::Immediate(immediate), Did::Request(seq));
    }

    fn add_payload_of<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
        segment: &Segment<'_>,
        header: &Header,
    ) -> Result<(), Stop> {
        let &Segment { seq, data, len, last, immediate } = segment;
        let source = match data {
            Data::Memory(sges) => Source::Sges(sges, self.cursor.offset),
            Data::Inline(bytes) => Source::Inline(&bytes[self.cursor.offset as usize..][..len]),
        };
        self.add_payload(qp, train, guards, header, &source, len).map_err(|fault| Stop::local(fault, seq))?;
        if last {
            self.cursor.requests += 1;
        }
        let (then, did) = match (last, immediate) {
            (true, true) => (Doing::Immediate, Did::Other),
            (true, false) => (Doing::Nothing, Did::Request(seq)),
            (false, _) => (Doing::Request, Did::Other),
        };
        if then == Doing::Nothing {
            self.cursor.seq += 1;
            self.cursor.answer_next = true;
        }
        self.seal(train, len, last, then, did);
        Ok(())
    }

    // --- Segments ---

    /// How much payload a segment may have.
    pub(super) fn room(&self, train: &Train, header_len: usize) -> usize {
        let longest = if train.owed.large { MAX_ULPDU } else { self.mulpdu };
        // Multiples of eight: the segments of an aligned buffer stay aligned.
        (longest - header_len) & !7
    }

    /// The segment is in the train.
    pub(super) fn seal(&mut self, train: &mut Train, len: usize, last: bool, then: Doing, did: Did) {
        #[expect(clippy::cast_possible_truncation, reason = "a segment is shorter than 64 KiB")]
        let len = len as u32;
        let Cursor { offset, doing, .. } = &mut self.cursor;
        *offset = if last { 0 } else { *offset + len };
        *doing = then;
        train.seal(self.cursor, did);
    }
}

#[derive(PartialEq, Eq)]
enum Begun {
    Request,
    Probe,
}

/// An operation of the adapter's own: nothing leaves, but it has its turn.
fn execute(qp: &Qp, seq: u64, request: &WorkRequest) -> Result<(), Fault> {
    let (device, stream) = (qp.device(), qp.stream());
    match &request.operation {
        Operation::Bind { window, binding } => {
            device.table().bind(stream, *window, *binding).map(drop).map_err(Fault::Local)
        }
        Operation::BindAs { tag, binding } => {
            device.table().bind_as(stream, *tag, *binding).map_err(Fault::Local)
        }
        Operation::Register { tag, memory } => {
            device.fill(stream, *tag, memory.clone()).map_err(|error| Fault::Register { tag: *tag, error })
        }
        Operation::Invalidate(tag) => device.table().invalidate(stream, *tag).map_err(Fault::Local),
        _ => Ok(()), // not an operation of the adapter's own
    }?;
    lock(&qp.sq).executed(seq);
    qp.retire();
    Ok(())
}

impl Stop {
    /// A request named memory that it may not use.
    pub(super) fn local(fault: Fault, seq: u64) -> Self {
        Self::own(fault, (seq, Status::LocalProtection))
    }

    /// A request of this end's cannot be done; or [not yet](Self::pending).
    #[cold]
    fn own(fault: Fault, request: (u64, Status)) -> Self {
        let terminate = Terminate::LOCAL_CATASTROPHE;
        Self::Failed(Box::new(Failure { fault, terminate, request: Some(request) }))
    }

    /// If it is that the next work request names memory whose registration is under way (requirement X6): its tag.
    fn pending(&self) -> Option<Tag> {
        match self {
            Self::Failed(failure) => match failure.fault {
                Fault::Local(Denied { check: Check::Pending, tag, .. }) => Some(tag),
                _ => None,
            },
            Self::Idle | Self::Full => None,
        }
    }
}
