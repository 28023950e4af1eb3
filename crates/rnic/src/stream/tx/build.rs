//! Builds a batch of FPDUs: decides whether a request, a response or a message of the adapter itself is next, and adds
//! the messages of the adapter: signals, probes and the Terminate. `request.rs` and `response.rs` add the others.

use super::Tx;
use super::stop::{Stop, TxFailure};
use crate::context::QpContext;
use crate::error::VendorError;
use crate::memory::Guards;
use crate::outbound::{Cursor, FrameKind, InProgress, Opening, TxBatch, UNUSED_ADDR};
use crate::queue::{OutstandingRead, ReadKind};
use crate::recording::{Kind, low, record};
use crate::sync::lock;
use ironwarp_wire::mpa::MAX_ULPDU;
use ironwarp_wire::private::Signal;
use ironwarp_wire::{Header, ReadRequest, RemoteAddr};

impl Tx {
    /// Fills the batch with everything that may be sent now. Records each request before it is sent, because the peer's
    /// response may arrive before the call to the link returns. Returns whether there is more to send.
    pub(super) fn build<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
    ) -> bool {
        // A thread that posted a request of this batch may have polled receives. `delivered` counts them, so that their
        // acknowledgement precedes that request: see `add_request`.
        batch.obligations = qp.obligations.lock().snapshot(qp.delivered());
        let stop = loop {
            if batch.is_full() {
                break Stop::Full;
            }
            match self.add(qp, batch, guards) {
                Ok(()) => {}
                Err(stop @ (Stop::Idle | Stop::Full)) => break stop,
                Err(stop) => match stop.pending_registration() {
                    // The request waits for a registration, and so do the requests after it. The half is driven
                    // again when the registration is done. If it is done by now, continue.
                    Some(tag) => {
                        lock(&qp.sq).roll_back_numbers(self.cursor.seq);
                        if qp.defer_until_registered(tag) {
                            break Stop::Idle;
                        }
                    }
                    None => break stop,
                },
            }
        };
        guards.cached = None; // all payload under the cached guard was copied
        let more = !matches!(stop, Stop::Idle);
        match stop {
            Stop::Failed(failure) if batch.is_empty() => {
                let TxFailure { error, terminate, blamed } = *failure;
                qp.fail(error, Some(terminate), blamed);
                self.add_terminate(qp, batch);
            }
            // Send the batch. If a request failed, it fails again when the next batch is built.
            Stop::Failed(_) | Stop::Full => {}
            Stop::Idle => {
                self.add_not_ready(qp, batch);
                self.add_acknowledgement(qp, batch);
            }
        }
        qp.set_acknowledgeable(self.cursor.requests);
        if !batch.is_empty() {
            lock(&qp.sq).begin_sending();
        }
        more
    }

    /// Adds the frame that is next. An unfinished message goes on; between messages, requests and responses take turns.
    fn add<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
    ) -> Result<(), Stop> {
        if !batch.obligations.open || qp.peer_has_closed() {
            return Err(Stop::Idle);
        }
        if qp.is_ended() {
            return if self.add_terminate(qp, batch) { Ok(()) } else { Err(Stop::Idle) };
        }
        if self.add_opening(qp, batch) || self.add_route_signals(qp, batch) {
            return Ok(());
        }
        self.add_switch(batch)?;
        match self.cursor.in_progress {
            InProgress::Request | InProgress::Immediate => self.add_request(qp, batch, guards),
            InProgress::Response => self.add_response(qp, batch, guards),
            InProgress::Nothing if self.cursor.response_next => match self.add_response(qp, batch, guards) {
                Err(Stop::Idle) => self.add_request(qp, batch, guards),
                added => added,
            },
            InProgress::Nothing => match self.add_request(qp, batch, guards) {
                Err(Stop::Idle) => self.add_response(qp, batch, guards),
                // A request that waits for a registration does not hold up responses.
                Err(stop) if stop.pending_registration().is_some() => {
                    match self.add_response(qp, batch, guards) {
                        Err(Stop::Idle) => Err(stop),
                        added => added,
                    }
                }
                added => added,
            },
        }
    }

    /// Adds one of the messages that open the stream, if it is due: first the RTR, if that has to be a Read, then the
    /// signal, which otherwise serves as the RTR. A nudge repeats the signal. Returns whether a message was added.
    fn add_opening(&mut self, qp: &QpContext, batch: &mut TxBatch) -> bool {
        if self.cursor.in_progress != InProgress::Nothing {
            return false;
        }
        if batch.obligations.read_rtr && !self.cursor.read_rtr {
            self.cursor.read_rtr = true;
            self.add_probe(qp, batch);
            return true;
        }
        let opening = batch.obligations.opening && !self.cursor.opening;
        if !opening && !batch.obligations.nudge {
            return false;
        }
        let mut obligations = qp.obligations.lock();
        let header =
            if opening { obligations.opening.map(Opening::header) } else { obligations.take_nudge() };
        drop(obligations);
        self.cursor.opening |= opening;
        batch.obligations.nudge &= opening; // the nudge was taken above, unless the opening came first
        let Some(header) = header else { return false };
        self.add_empty(batch, &header, FrameKind::Other);
        true
    }

    /// Adds the Terminate, if there is one that was not added before. Returns whether it was added. Nothing follows the
    /// Terminate, and it may cut a message short (RFC 5040 §4.8).
    fn add_terminate(&mut self, qp: &QpContext, batch: &mut TxBatch) -> bool {
        let Some(terminate) = qp.obligations.lock().terminate.clone().filter(|_| !self.cursor.terminate)
        else {
            return false;
        };
        // Acknowledge first, so that the peer knows which of its messages failed: the first that was not
        // delivered.
        let delivered = qp.delivered();
        if delivered > self.cursor.acknowledged && qp.obligations.lock().peer_sends_acks() {
            self.cursor.acknowledged = delivered;
            self.add_empty(batch, &Signal::Acknowledged(delivered).to_header(), FrameKind::Other);
        }
        self.cursor.terminate = true;
        record(Kind::TerminateSent, qp.id(), VendorError::Violation(terminate.cause).to_u32());
        self.cursor.in_progress = InProgress::Nothing;
        self.add_empty(batch, &Header::Terminate(*terminate), FrameKind::Terminate);
        true
    }

    /// Adds the signal that a message of the peer waits for a receive, once per message.
    fn add_not_ready(&mut self, qp: &QpContext, batch: &mut TxBatch) {
        let Some(number) = batch.obligations.not_ready else { return };
        // The cursor stores the number plus one: zero means none.
        if self.cursor.not_ready != number + 1 && self.may_signal(qp, batch) {
            self.cursor.not_ready = number + 1;
            self.add_empty(batch, &Signal::NotReady(number).to_header(), FrameKind::Other);
        }
    }

    /// Adds an acknowledgement if other frames accompany it, if it was requested, or if this end is closing.
    fn add_acknowledgement(&mut self, qp: &QpContext, batch: &mut TxBatch) {
        if !batch.is_empty() || batch.obligations.ack_now || batch.obligations.finish {
            self.acknowledge(qp, batch);
        }
    }

    /// Adds an acknowledgement if more messages were delivered than the peer knows of.
    pub(super) fn acknowledge(&mut self, qp: &QpContext, batch: &mut TxBatch) {
        let Some(delivered) = batch.obligations.delivered.filter(|count| *count > self.cursor.acknowledged)
        else {
            return;
        };
        if !self.may_signal(qp, batch) && !self.may_end_with_signal(qp, batch) {
            return;
        }
        qp.obligations.lock().record_acknowledgement(delivered);
        record(Kind::Acknowledging, qp.id(), low(delivered));
        self.cursor.acknowledged = delivered;
        self.add_empty(batch, &Signal::Acknowledged(delivered).to_header(), FrameKind::Other);
    }

    /// Whether a signal may be sent: the stream is open in this direction, and no message is unfinished.
    fn may_signal(&self, qp: &QpContext, batch: &TxBatch) -> bool {
        batch.obligations.open
            && !qp.peer_has_closed()
            && self.cursor.in_progress == InProgress::Nothing
            && !qp.is_ended()
    }

    /// Whether an acknowledgement may be the last message of a stream that this end has ended without a Terminate. It
    /// may cut an unfinished message short, which is lost anyway. The peer must not wait for the acknowledgement
    /// forever.
    fn may_end_with_signal(&self, qp: &QpContext, batch: &TxBatch) -> bool {
        batch.obligations.open && !qp.peer_has_closed() && qp.is_ended() && !self.cursor.terminate
    }

    /// Adds a frame without payload.
    pub(super) fn add_empty(&mut self, batch: &mut TxBatch, header: &Header, kind: FrameKind) {
        batch.push_empty(&mut self.cursor.writer, header);
        batch.finish_frame(self.cursor, kind);
    }

    /// Adds a probe: an empty Read that belongs to no work request.
    pub(super) fn add_probe(&mut self, qp: &QpContext, batch: &mut TxBatch) {
        let read = ReadRequest { msn: self.cursor.read_msn, sink: UNUSED_ADDR, len: 0, source: UNUSED_ADDR };
        self.add_read_or_atomic_message(qp, batch, None, &Header::ReadRequest(read));
    }

    /// Adds a Read or Atomic Request, of the work request `entry` or of the adapter itself. Records the request
    /// before it is sent, because the response may arrive before the call to the link returns.
    pub(super) fn add_read_or_atomic_message(
        &mut self,
        qp: &QpContext,
        batch: &mut TxBatch,
        entry: Option<u64>,
        header: &Header,
    ) {
        let msn = self.cursor.read_msn;
        self.cursor.read_msn = msn.wrapping_add(1);
        let number = self.cursor.requests;
        let (kind, sink, len) = match header {
            Header::AtomicRequest(request) => (ReadKind::Atomic(request.id), RemoteAddr::default(), 0),
            Header::ReadRequest(request) => (ReadKind::Read, request.sink, request.len),
            Header::ReadV2Request(request) => (ReadKind::ReadV2, RemoteAddr::default(), request.len),
            _ => (ReadKind::Read, RemoteAddr::default(), 0),
        };
        let mut sq = lock(&qp.sq);
        sq.add_outstanding_read(OutstandingRead { kind, entry, number, sink, len, received: 0 });
        if let Some(seq) = entry {
            sq.assign_number(seq, number, msn);
        }
        drop(sq);
        self.add_empty(batch, header, FrameKind::Read(entry));
    }

    /// Returns the maximum length of a segment's payload.
    pub(super) fn max_payload(&self, batch: &TxBatch, header_len: usize) -> usize {
        let max_ulpdu = if batch.obligations.large { MAX_ULPDU } else { self.mulpdu.into() };
        // Round down to a multiple of eight, so that the segments of an aligned buffer stay aligned.
        (max_ulpdu - header_len) & !7
    }

    /// Completes the segment of `len` payload bytes that was just added to the batch. `last` tells whether it is the
    /// last one of its message, and `then` what is unfinished after it.
    pub(super) fn finish_segment(
        &mut self,
        batch: &mut TxBatch,
        len: usize,
        last: bool,
        then: InProgress,
        kind: FrameKind,
    ) {
        #[expect(clippy::cast_possible_truncation, reason = "a segment is shorter than 64 KiB")]
        let len = len as u32;
        let Cursor { offset, in_progress, .. } = &mut self.cursor;
        *offset = if last { 0 } else { *offset + len };
        *in_progress = then;
        batch.finish_frame(self.cursor, kind);
    }
}
