//! Receives responses to this end's Reads and atomic operations: the first and the third step of their segments. Those
//! of all other messages are in `segment.rs` and `deliver.rs`, and the second step is in `place.rs`.

use super::Rx;
use super::failure::{Checked, RxFailure};
use crate::context::QpContext;
use crate::error::{Protocol, QpError};
use crate::memory::Guards;
use crate::memory::{Rights, Spans};
use crate::queue::{Data, MAX_MESSAGE, ReadKind};
use crate::sync::lock;
use ironwarp_wire::private::ReadV2Response;
use ironwarp_wire::{AtomicResponse, Tagged};

/// DDP queue number of Read V2 Responses (`docs/wire.md`).
const V2_QUEUE: u32 = 0x8000_0001;

impl Rx {
    /// Checks an Atomic Response: it must answer the oldest outstanding request.
    pub(super) fn begin_atomic_response(&self, qp: &QpContext, response: &AtomicResponse) -> Checked {
        let mut sq = lock(&qp.sq);
        let oldest = sq.oldest_read().map(|read| read.kind);
        if oldest != Some(ReadKind::Atomic(response.id)) {
            return Err(Protocol::UnexpectedResponse.into());
        }
        let (expected, found) = (self.atomic_msn, response.msn);
        if found != expected {
            return Err(Protocol::Sequence { queue: 3, expected, found }.into());
        }
        Ok(())
    }

    /// Checks a segment of a Read Response: it must answer the oldest outstanding request, name the next place of the
    /// requested sink, and not exceed the requested length. The last segment must reach it.
    pub(super) fn begin_response(&self, qp: &QpContext, tagged: &Tagged, len: usize) -> Checked {
        let mut sq = lock(&qp.sq);
        let Some(read) = sq.oldest_read().filter(|read| read.kind == ReadKind::Read) else {
            return Err(Protocol::UnexpectedResponse.into());
        };
        let expected = read.sink.offset_by(read.received.into());
        if tagged.addr != expected {
            return Err(Protocol::ResponseAddr { expected, found: tagged.addr }.into());
        }
        let found = u64::from(read.received) + len as u64;
        // A busy Linux siw answers an empty Read with the payload of one of its own earlier requests. That payload is
        // discarded, and limited only by the maximum size of a message.
        let limit = if read.len == 0 { MAX_MESSAGE } else { read.len };
        if found > limit.into() || (tagged.last && found < read.len.into()) {
            return Err(Protocol::ResponseLength { expected: read.len, found }.into());
        }
        Ok(())
    }

    /// Checks a segment of a Read V2 Response (requirement X4): it must answer the oldest outstanding request,
    /// continue at the next offset, and not exceed the requested length. The last segment must reach it.
    pub(super) fn begin_v2_response(&self, qp: &QpContext, response: &ReadV2Response, len: usize) -> Checked {
        let mut sq = lock(&qp.sq);
        let Some(read) = sq.oldest_read().filter(|read| read.kind == ReadKind::ReadV2) else {
            return Err(Protocol::UnexpectedResponse.into());
        };
        let (expected, found) = (self.read_v2_msn, response.msn);
        if found != expected {
            return Err(Protocol::Sequence { queue: V2_QUEUE, expected, found }.into());
        }
        let (expected, found) = (read.received, response.offset);
        if found != expected {
            return Err(Protocol::Offset { expected, found }.into());
        }
        let (expected, found) = (read.len, u64::from(read.received) + len as u64);
        if found > u64::from(expected) || (response.last && found < u64::from(expected)) {
            return Err(Protocol::V2ResponseLength { expected, found }.into());
        }
        Ok(())
    }

    /// Ends a segment of a Read V2 Response. Completes the Read after the last one.
    pub(super) fn end_v2_response(&mut self, qp: &QpContext, response: &ReadV2Response, len: u16) {
        self.read_v2_msn = self.read_v2_msn.wrapping_add(u32::from(response.last));
        self.end_response(qp, response.last, len);
    }

    /// Stores the original value of the word in the memory of the work request, and completes the atomic operation.
    pub(super) fn end_atomic_response(&mut self, qp: &QpContext, response: &AtomicResponse) -> Checked {
        let mut sq = lock(&qp.sq);
        let sges = match sq.oldest_read().cloned().and_then(|read| sq.sink(&read).cloned()) {
            Some(Data::Memory(sges)) => sges,
            _ => return Ok(()), // the stream failed meanwhile
        };
        drop(sq);
        let original = response.original.to_ne_bytes();
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        sges.range(0, original.len(), |sge| {
            let (domain, need) = (qp.stream().domain, Rights::LOCAL_WRITE);
            let table = qp.device().table();
            let guard = table.admit_local(domain, sge.tag, sge.addr, sge.len as usize, need, &mut spans);
            guards.push(guard.map_err(|denied| RxFailure::local(QpError::Local(denied)))?);
            Checked::Ok(())
        })?;
        let (addr, len) = (sges.addr(), original.len());
        qp.device()
            .host()
            .scatter(&original, &spans)
            .map_err(|_| RxFailure::local(QpError::Unmapped { addr, len, remote: false }))?;
        drop(guards);
        self.atomic_msn = self.atomic_msn.wrapping_add(1);
        self.complete_oldest_read(qp);
        Ok(())
    }

    /// Records that the oldest outstanding Read, atomic operation or probe was answered in full, and completes the
    /// requests that are done because of that.
    fn complete_oldest_read(&mut self, qp: &QpContext) {
        lock(&qp.sq).complete_oldest_read();
        qp.retire();
        // Another work request may have waited for this one, because of ORD or behind a fence.
        self.tx_has_work = true;
    }

    /// Ends a segment of a Read Response with `len` bytes of payload. Completes the Read after the last one.
    pub(super) fn end_response(&mut self, qp: &QpContext, last: bool, len: u16) {
        let mut sq = lock(&qp.sq);
        if let Some(read) = sq.oldest_read() {
            read.received += u32::from(len);
        }
        self.response_in_progress = !last;
        drop(sq);
        if last {
            self.complete_oldest_read(qp);
        }
    }
}
