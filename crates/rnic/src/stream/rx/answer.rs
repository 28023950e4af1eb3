//! Answers that this end asked for, of Reads and atomic operations: the first and the third step of their segments. Beside
//! `segment.rs`, which has those of all other messages; the second step is in `place.rs`.

use super::Rx;
use super::segment::{Failure, Judged};
use crate::error::{Fault, Protocol};
use crate::memory::{Rights, Spans};
use crate::qp::Qp;
use crate::queue::{Asked, Data, MAX_MESSAGE};
use crate::stream::{Guards, advance};
use crate::sync::lock;
use ironwarp_wire::private::ReadV2Response;
use ironwarp_wire::{AtomicResponse, Tagged};

/// The queue of Read V2 Responses (`docs/wire.md`).
const V2_QUEUE: u32 = 0x8000_0001;

impl Rx {
    pub(super) fn begin_atomic_response(&self, qp: &Qp, response: &AtomicResponse) -> Judged {
        let mut sq = lock(&qp.sq);
        let due = sq.read().map(|read| read.kind);
        if due != Some(Asked::Atomic(response.id)) {
            return Err(Protocol::Unasked.into());
        }
        let (expected, found) = (self.atomic_msn, response.msn);
        if found != expected {
            return Err(Protocol::Sequence { queue: 3, expected, found }.into());
        }
        Ok(())
    }

    pub(super) fn begin_response(&self, qp: &Qp, tagged: &Tagged, len: usize) -> Judged {
        let mut sq = lock(&qp.sq);
        let Some(read) = sq.read().filter(|read| read.kind == Asked::Read) else {
            return Err(Protocol::Unasked.into());
        };
        let expected = advance(read.sink, read.received.into());
        if tagged.place != expected {
            return Err(Protocol::ResponsePlace { expected, found: tagged.place }.into());
        }
        let found = u64::from(read.received) + len as u64;
        // Linux siw, when it is busy, answers an empty Read with the payload of an earlier request of its own. That is discarded; what
        // counts is that it answered. It is one message all the same, and no message is longer than this.
        let most = if read.len == 0 { MAX_MESSAGE } else { read.len };
        if found > most.into() || (tagged.last && found < read.len.into()) {
            return Err(Protocol::ResponseLength { expected: read.len, found }.into());
        }
        Ok(())
    }

    /// Read V2 (requirement X4): the answer names no memory. It must be the next one, and all of it as long as was asked for.
    pub(super) fn begin_v2_response(&self, qp: &Qp, response: &ReadV2Response, len: usize) -> Judged {
        let mut sq = lock(&qp.sq);
        let Some(read) = sq.read().filter(|read| read.kind == Asked::ReadV2) else {
            return Err(Protocol::Unasked.into());
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

    pub(super) fn end_v2_response(&mut self, qp: &Qp, response: &ReadV2Response, len: u16) {
        self.read_v2_msn = self.read_v2_msn.wrapping_add(u32::from(response.last));
        self.end_response(qp, response.last, len);
    }

    /// What the word was goes to the memory of the request that asked for it.
    pub(super) fn end_atomic_response(&mut self, qp: &Qp, response: &AtomicResponse) -> Judged {
        let mut sq = lock(&qp.sq);
        let sges = match sq.read().cloned().and_then(|read| sq.sink(&read).cloned()) {
            Some(Data::Memory(sges)) => sges,
            _ => return Ok(()), // the stream failed meanwhile
        };
        drop(sq);
        let original = response.original.to_ne_bytes();
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        sges.range(0, original.len(), |sge| {
            let (domain, need) = (qp.stream().domain, Rights::LOCAL_WRITE);
            let table = qp.device().table();
            let guard = table.local(domain, sge.tag, sge.addr, sge.len as usize, need, &mut spans);
            guards.push(guard.map_err(|denied| Failure::local(Fault::Local(denied)))?);
            Judged::Ok(())
        })?;
        let (place, len) = (sges.place(), original.len());
        qp.device()
            .host()
            .scatter(&original, &spans)
            .map_err(|_| Failure::local(Fault::Unmapped { place, len, remote: false }))?;
        drop(guards);
        self.atomic_msn = self.atomic_msn.wrapping_add(1);
        self.answered(qp);
        Ok(())
    }

    /// The oldest question was answered in full.
    fn answered(&mut self, qp: &Qp) {
        lock(&qp.sq).answered();
        qp.retire();
        // A request may have waited for this one: for its place in ORD, or behind a fence.
        self.owes = true;
    }

    pub(super) fn end_response(&mut self, qp: &Qp, last: bool, len: u16) {
        let mut sq = lock(&qp.sq);
        if let Some(read) = sq.read() {
            read.received += u32::from(len);
        }
        self.answering = !last;
        drop(sq);
        if last {
            self.answered(qp);
        }
    }
}
