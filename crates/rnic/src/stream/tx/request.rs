//! Adds work requests to a batch: decides whether the next one may start, and cuts messages into segments. `local.rs`
//! executes the local operations.

use super::payload::{Source, check_memory};
use super::stop::Stop;
use super::{Tx, mulpdu_of};
use crate::context::QpContext;
use crate::error::QpError;
use crate::memory::{Guards, Rights};
use crate::outbound::{FrameKind, InProgress, TxBatch, UNUSED_ADDR};
use crate::queue::{BlamedRequest, Data, Operation, Status, WorkRequest};
use crate::sync::lock;
use ironwarp_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use ironwarp_wire::private::{ReadV2Request, SendImmediate};
use ironwarp_wire::{AtomicRequest, Header, Immediate, ImmediateData, ReadRequest, Send, SendWord, Tagged};

/// One segment of a work request.
struct Segment<'a> {
    /// The sequence number of the request.
    seq: u64,
    /// The payload of the whole message.
    data: &'a Data,
    /// Number of payload bytes of this segment.
    len: usize,
    /// This is the last segment of the message.
    last: bool,
    /// The request is a Write with Immediate: an Immediate Data message follows the last segment.
    immediate: bool,
}

/// Number of message bytes that the immediate data of a Send takes.
const IMMEDIATE_LEN: u32 = 8;

impl Tx {
    /// Adds the next segment of the work request in progress, or of the next one that may start. A probe may be added
    /// instead.
    pub(super) fn add_request<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
    ) -> Result<(), Stop> {
        if self.cursor.in_progress == InProgress::Nothing {
            if self.add_short_requests(qp, batch, guards)? {
                return Ok(());
            }
            if self.start_next(qp, batch)? == Started::Probe {
                return Ok(());
            }
            // This request may be the program's reply to a message that it received. The remote Send must complete
            // before the reply arrives, so its acknowledgement is sent first. Adapters that acknowledge at once behave
            // like that, and programs such as tgtd rely on it.
            self.acknowledge(qp, batch);
        }
        let seq = self.cursor.seq;
        let request = match batch.current.take() {
            Some((cached_seq, request)) if cached_seq == seq => request,
            _ => match lock(&qp.sq).request(seq) {
                Some(request) => request.clone(),
                None => return Err(Stop::Idle),
            },
        };
        let added = self.add_request_segment(qp, batch, guards, seq, &request);
        batch.current = (self.cursor.seq == seq).then_some((seq, request));
        added
    }

    /// Starts the next work request that sends a message, and executes local operations before it. Checks all memory of
    /// the request before its first byte is sent (requirement M8). [`Stop::Idle`] if the request may not start yet.
    /// Adds a probe instead if no request may start and an acknowledgement is missing.
    fn start_next(&mut self, qp: &QpContext, batch: &mut TxBatch) -> Result<Started, Stop> {
        loop {
            let seq = self.cursor.seq;
            let mut sq = lock(&qp.sq);
            let Some(request) = sq.request(seq).filter(|_| self.may_begin(qp)) else {
                let needed = sq.needs_probe(self.cursor.requests) && sq.outstanding_reads() < self.ord.into();
                drop(sq);
                return self.add_probe_if(qp, batch, needed);
            };
            if request.fence && sq.has_consumer_read() {
                return Err(Stop::Idle);
            }
            let is_send = request.operation.is_send();
            if is_send && request.immediate.is_some() && batch.obligations.immediate != Some(true) {
                let may_probe = self.ord > 0 && sq.outstanding_reads() == 0;
                drop(sq);
                return self.await_capabilities(qp, batch, seq, may_probe);
            }
            if !request.operation.is_local() {
                let is_read = matches!(request.operation, Operation::Read(_) | Operation::Atomic { .. });
                if is_read && sq.outstanding_reads() >= self.ord.into() {
                    return Err(Stop::Idle);
                }
                let right = if is_read { Rights::LOCAL_WRITE } else { Rights::LOCAL_READ };
                let request = request.clone();
                if !is_read {
                    // The request completes with the last of its messages. Number it now, because the peer may report
                    // an error after the first segment.
                    let messages = 1 + u64::from(!is_send && request.immediate.is_some());
                    sq.assign_number(seq, self.cursor.requests + messages, self.cursor.send_msn);
                }
                drop(sq);
                // Data that fits in one segment is checked when that segment is added.
                if is_read || request.data.len() > self.max_payload(batch, UNTAGGED_LEN) as u64 {
                    self.update_mulpdu(batch, &request.data);
                    check_memory(qp, &request.data, right)
                        .map_err(|error| Stop::denied_locally(error, seq))?;
                }
                batch.current = Some((seq, request));
                return Ok(Started::Request);
            }
            // A local operation may revoke memory, which waits for guards, and the batch holds some: send it first.
            if !batch.is_empty() {
                return Err(Stop::Full);
            }
            let request = request.clone();
            drop(sq);
            self.execute_local(qp, seq, &request)?;
            batch.set_start(self.cursor); // a rollback of the batch must not execute the operation again
        }
    }

    /// Adds a probe if one is `needed` and the peer does not send acknowledgements. A probe is an empty Read. Its
    /// response acknowledges all messages before it, because the peer delivers these first (RFC 5040 §5.5).
    fn add_probe_if(&mut self, qp: &QpContext, batch: &mut TxBatch, needed: bool) -> Result<Started, Stop> {
        if !needed || qp.obligations.lock().peer_sends_acks() {
            return Err(Stop::Idle);
        }
        self.cursor.requests += 1;
        self.add_probe(qp, batch);
        Ok(Started::Probe)
    }

    /// Handles a Send with Immediate whose peer is not known to be Ironwarp: only Ironwarp peers understand the message
    /// (requirement X8). Fails the request if the peer is a standard one, or a setting of either end disables the
    /// message. Otherwise lets the request wait, and adds a probe if `may_probe`: an Ironwarp peer sends its signal
    /// before its first message, the response.
    fn await_capabilities(
        &mut self,
        qp: &QpContext,
        batch: &mut TxBatch,
        seq: u64,
        may_probe: bool,
    ) -> Result<Started, Stop> {
        if batch.obligations.immediate == Some(false) || !qp.device().config().send_immediate {
            let blamed = BlamedRequest { seq, status: Status::LocalQpOperation };
            return Err(Stop::failed_request(QpError::NoImmediate, blamed));
        }
        if !may_probe {
            return Err(Stop::Idle);
        }
        self.cursor.requests += 1;
        self.add_probe(qp, batch);
        Ok(Started::Probe)
    }

    /// Updates the MULPDU if a message longer than that begins, because the path may have changed: a peer that does not
    /// accept large FPDUs must not get one that exceeds a TCP segment.
    fn update_mulpdu(&mut self, batch: &TxBatch, data: &Data) {
        if !batch.obligations.large && data.len() > self.mulpdu.into() {
            self.mulpdu = mulpdu_of(&*self.link, self.cursor.writer.framing());
        }
    }

    /// Adds the next segment of `request`, or the Immediate Data that follows a Write.
    fn add_request_segment<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
        seq: u64,
        request: &WorkRequest,
    ) -> Result<(), Stop> {
        let data = &request.data;
        let offset = self.cursor.offset;
        if self.cursor.in_progress == InProgress::Immediate {
            self.add_immediate(qp, batch, seq, request);
            return Ok(());
        }
        // Cuts the next segment, whose header has this length.
        let cut = |header_len| {
            let left = usize::try_from(data.len()).unwrap_or(usize::MAX) - offset as usize;
            let len = left.min(self.max_payload(batch, header_len));
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
                let added = self.add_request_payload(qp, batch, guards, &segment, &header);
                added.inspect_err(|_| self.cursor.send_msn = msn)
            }
            Operation::Write(to) => {
                let segment = Segment { immediate: request.immediate.is_some(), ..cut(TAGGED_LEN) };
                // An empty Write carries no address, so that it cannot be mistaken for a signal. An empty Write with
                // Immediate is sent as well: without it, the Immediate Data would report an earlier Write.
                let addr = if data.is_empty() { UNUSED_ADDR } else { to.offset_by(offset.into()) };
                let header = Header::Write(Tagged { last: segment.last, addr });
                self.add_request_payload(qp, batch, guards, &segment, &header)
            }
            // Requirement X4: do not reveal the sink address to a peer that does not need it. An empty Read has none.
            Operation::Read(source) if batch.obligations.read_v2 && !data.is_empty() => {
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let read = ReadV2Request { msn: self.cursor.read_msn, len, source };
                self.add_read_or_atomic_request(qp, batch, seq, &Header::ReadV2Request(read));
                Ok(())
            }
            Operation::Read(source) => {
                let sink = match data {
                    Data::Memory(sges) => sges.addr(),
                    Data::Inline(_) => UNUSED_ADDR,
                };
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let read = ReadRequest { msn: self.cursor.read_msn, sink, len, source };
                self.add_read_or_atomic_request(qp, batch, seq, &Header::ReadRequest(read));
                Ok(())
            }
            Operation::Atomic { target, op } => {
                let msn = self.cursor.read_msn;
                // The message sequence number serves as identifier, because it is unique among outstanding requests.
                self.add_read_or_atomic_request(
                    qp,
                    batch,
                    seq,
                    &Header::AtomicRequest(AtomicRequest { msn, id: msn, target, op }),
                );
                Ok(())
            }
            Operation::Bind { .. }
            | Operation::BindAs { .. }
            | Operation::Register { .. }
            | Operation::RegisterSend { .. }
            | Operation::Invalidate(_) => Err(Stop::Idle),
        }
    }

    /// Adds a whole work request, which is a single message (a Read or Atomic Request), and advances the cursor past
    /// it. The next turn belongs to a response, if one is due.
    fn add_read_or_atomic_request(&mut self, qp: &QpContext, batch: &mut TxBatch, seq: u64, header: &Header) {
        self.cursor.requests += 1;
        self.cursor.seq += 1;
        self.cursor.response_next = true;
        self.add_read_or_atomic_message(qp, batch, Some(seq), header);
    }

    /// Adds the second message of a Write with Immediate (RFC 7306 §6), which consumes a receive of the peer
    /// and reports the Write.
    fn add_immediate(&mut self, qp: &QpContext, batch: &mut TxBatch, seq: u64, request: &WorkRequest) {
        let msn = self.cursor.send_msn;
        let data = ImmediateData::new(request.immediate.unwrap_or_default());
        self.cursor.send_msn = msn.wrapping_add(1);
        self.cursor.requests += 1;
        self.cursor.seq += 1;
        self.cursor.response_next = true;
        self.cursor.in_progress = InProgress::Nothing;
        lock(&qp.sq).assign_number(seq, self.cursor.requests, msn);
        let immediate = Immediate { msn, solicited: request.solicited, srq: request.srq, data };
        self.add_empty(batch, &Header::Immediate(immediate), FrameKind::Request(seq));
    }

    /// Adds a segment of a Send or Write with its payload, and advances the cursor.
    fn add_request_payload<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
        segment: &Segment<'_>,
        header: &Header,
    ) -> Result<(), Stop> {
        let &Segment { seq, data, len, last, immediate } = segment;
        let source = match data {
            Data::Memory(sges) => Source::Sges(sges, self.cursor.offset),
            Data::Inline(bytes) => Source::Inline(&bytes[self.cursor.offset as usize..][..len]),
        };
        self.add_payload(qp, batch, guards, header, &source, len)
            .map_err(|error| Stop::denied_locally(error, seq))?;
        if last {
            self.cursor.requests += 1;
        }
        let (then, kind) = match (last, immediate) {
            (true, true) => (InProgress::Immediate, FrameKind::Other),
            (true, false) => (InProgress::Nothing, FrameKind::Request(seq)),
            (false, _) => (InProgress::Request, FrameKind::Other),
        };
        if then == InProgress::Nothing {
            self.cursor.seq += 1;
            self.cursor.response_next = true;
        }
        self.finish_segment(batch, len, last, then, kind);
        Ok(())
    }
}

/// What was started.
#[derive(PartialEq, Eq)]
enum Started {
    /// The work request at the cursor. None of its segments was added yet.
    Request,
    /// A probe, which was added.
    Probe,
}
