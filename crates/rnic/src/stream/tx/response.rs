//! Adds the responses to remote Reads and atomic operations to a batch. `build.rs` lets them take turns with the work
//! requests.

use super::Tx;
use super::payload::Source;
use super::stop::{Stop, TxFailure};
use crate::broken;
use crate::context::QpContext;
use crate::error::{QpError, UNMAPPED};
use crate::memory::Guards;
use crate::memory::Touch;
use crate::outbound::{Cursor, FrameKind, InProgress};
use crate::outbound::{ReadResponses, RemoteRequest, Response, TxBatch};
use crate::stream::atomic;
use ironwarp_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use ironwarp_wire::private::{ReadV2Request, ReadV2Response};
use ironwarp_wire::{
    AtomicRequest, AtomicResponse, Header, MAX_HEADER, ReadRequest, RemoteAddr, Tagged, Terminate,
};

impl Tx {
    /// Adds the next segment of the response to the oldest remote Read or Atomic Request. [`Stop::Idle`] if no
    /// response is due.
    pub(super) fn add_response<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
    ) -> Result<(), Stop> {
        if batch.obligations.responses <= self.cursor.responded as usize {
            return Err(Stop::Idle);
        }
        let Some(response) = qp.obligations.lock().responses.get(self.cursor.responded as usize).copied()
        else {
            return Err(Stop::Idle);
        };
        match response.request {
            RemoteRequest::Read(_) | RemoteRequest::ReadV2(_) => {
                self.add_read_response(qp, batch, guards, &response)
            }
            // Memory that the batch references is read when it is sent, and Reads that are not sent are built again:
            // both would see the new value.
            RemoteRequest::Atomic(_) if batch.read_responses() != ReadResponses::None => Err(Stop::Full),
            RemoteRequest::Atomic(request) => self.serve_atomic(qp, batch, &request, response.touch),
            RemoteRequest::AtomicDone { id, original } => {
                self.add_atomic_response(qp, batch, id, original);
                Ok(())
            }
        }
    }

    /// Executes an atomic operation and adds its response. This happens when the response is due, so that Reads
    /// before it see the old value (RFC 7306 §5.4). The result is recorded, because the response may have to be built
    /// again after a rollback, and the operation must not be executed twice.
    fn serve_atomic(
        &mut self,
        qp: &QpContext,
        batch: &mut TxBatch,
        request: &AtomicRequest,
        touch: Touch,
    ) -> Result<(), Stop> {
        let original = atomic::serve(qp, request, touch).map_err(|error| {
            let mut bytes = [0; MAX_HEADER];
            let n = Header::AtomicRequest(*request).emit(0, &mut bytes).unwrap_or(0);
            let terminate = Terminate::for_segment(atomic::cause(&error), &bytes[..n]);
            Stop::Failed(Box::new(TxFailure { error, terminate, blamed: None }))
        })?;
        let id = request.id;
        if let Some(response) = qp.obligations.lock().responses.get_mut(self.cursor.responded as usize)
            && !broken::is("atomic")
        {
            response.request = RemoteRequest::AtomicDone { id, original };
        }
        self.add_atomic_response(qp, batch, id, original);
        Ok(())
    }

    /// Adds the response to an atomic operation that was executed.
    fn add_atomic_response(&mut self, qp: &QpContext, batch: &mut TxBatch, id: u32, original: u64) {
        let msn = self.cursor.atomic_msn;
        self.cursor.atomic_msn = msn.wrapping_add(1);
        self.finish_response(qp);
        self.add_empty(
            batch,
            &Header::AtomicResponse(AtomicResponse { msn, id, original }),
            FrameKind::Response,
        );
    }

    /// Advances the cursor past a response whose last segment is added to the batch. The next turn belongs to a
    /// request, and the response no longer counts against the IRD; `roll_back` undoes that if the segment is not sent.
    fn finish_response(&mut self, qp: &QpContext) {
        self.cursor.responded += 1;
        self.cursor.response_next = false;
        qp.obligations.lock().inbound_reads -= 1;
    }

    /// Adds the next segment of the response to a remote Read.
    fn add_read_response<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
        response: &Response,
    ) -> Result<(), Stop> {
        let Cursor { offset, read_v2_msn: msn, .. } = self.cursor;
        // Returns the payload length of the segment, and whether it is the last one.
        let cut = |all: u32, header_len| {
            let left = (all - offset) as usize;
            let len = left.min(self.max_payload(batch, header_len));
            (len, len == left)
        };
        let (header, source, len, last) = match response.request {
            RemoteRequest::Read(read) => {
                let (len, last) = cut(read.len, TAGGED_LEN);
                let addr = read.sink.offset_by(offset.into());
                (Header::ReadResponse(Tagged { last, addr }), read.source, len, last)
            }
            RemoteRequest::ReadV2(read) => {
                let (len, last) = cut(read.len, UNTAGGED_LEN);
                (Header::ReadV2Response(ReadV2Response { msn, last, offset }), read.source, len, last)
            }
            RemoteRequest::Atomic(_) | RemoteRequest::AtomicDone { .. } => return Err(Stop::Idle),
        };
        let source = Source::Remote(source.offset_by(offset.into()), response.touch);
        self.add_payload(qp, batch, guards, &header, &source, len)
            .map_err(|error| Stop::Failed(read_failure(error, &response.request, offset)))?;
        if last {
            self.cursor.read_v2_msn =
                msn.wrapping_add(u32::from(matches!(response.request, RemoteRequest::ReadV2(_))));
            self.finish_response(qp);
        }
        let (then, kind) = if last {
            (InProgress::Nothing, FrameKind::Response)
        } else {
            (InProgress::Response, FrameKind::Other)
        };
        self.finish_segment(batch, len, last, then, kind);
        Ok(())
    }
}

/// Creates the failure of a response whose memory the peer may not read, or not any more. The Terminate contains the
/// part of the Read Request that was not served (RFC 5040 §4.8).
fn read_failure(error: QpError, request: &RemoteRequest, served: u32) -> Box<TxFailure> {
    let cause = match &error {
        QpError::Remote(denied) => denied.read_cause(),
        _ => UNMAPPED,
    };
    let unserved = |addr: RemoteAddr| addr.offset_by(served.into());
    let mut bytes = [0; MAX_HEADER];
    let left = match *request {
        RemoteRequest::Read(ReadRequest { msn, sink, len, source }) => {
            let (sink, len, source) = (unserved(sink), len - served, unserved(source));
            Header::ReadRequest(ReadRequest { msn, sink, len, source }).emit(0, &mut bytes)
        }
        RemoteRequest::ReadV2(ReadV2Request { msn, len, source }) => {
            let (len, source) = (len - served, unserved(source));
            Header::ReadV2Request(ReadV2Request { msn, len, source }).emit(0, &mut bytes)
        }
        RemoteRequest::Atomic(_) | RemoteRequest::AtomicDone { .. } => Ok(0),
    };
    let n = left.unwrap_or(0);
    Box::new(TxFailure { error, terminate: Terminate::for_segment(cause, &bytes[..n]), blamed: None })
}
