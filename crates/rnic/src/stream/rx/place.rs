//! The second step of receiving a segment: places its payload in memory, in one copy or several. `segment.rs` has the
//! first step, and `deliver.rs` the third.

use super::failure::{Checked, RxFailure, Target};
use super::{Message, Rx, Segment};
use crate::context::QpContext;
use crate::error::{QpError, UNMAPPED};
use crate::memory::Guards;
use crate::memory::{CachedGuard, Domain, Rights, Spans, Touch, Translation};
use crate::queue::{Data, Sge};
use crate::sync::lock;
use ironwarp_wire::mpa::Fpdu;
use ironwarp_wire::{Header, RemoteAddr};

/// A range of memory for payload, which was not checked yet.
enum Destination {
    /// Memory that a work request of this end names: a part of a receive, or of the sink of a Read.
    Local { domain: Domain, sge: Sge },
    /// Memory that the peer names in a Write.
    Remote { addr: RemoteAddr, len: usize },
}

impl Rx {
    /// Places the next part of the payload of the segment in progress, which arrives in several parts.
    pub(super) fn place_current(&mut self, qp: &QpContext, payload: &[u8]) -> Checked {
        // Taken out of `self`, which `place` borrows as a whole. It is there: the header before the payload began it.
        let Some(mut segment) = self.segment.take() else { return Ok(()) };
        // The guard is not kept for the next part, for which this end may have to wait.
        let placed = self.place(qp, &mut segment, payload, &mut None);
        self.segment = Some(segment);
        placed
    }

    /// Places the next part of the payload of `segment` at its target: in memory, in the buffer of a segment that will
    /// be parked, or nowhere. The part may be all of the payload. `cached` holds the guard of the last access to
    /// memory, which the next one uses again if it names the same tag.
    pub(super) fn place<'q>(
        &mut self,
        qp: &'q QpContext,
        segment: &mut Segment,
        payload: &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> Checked {
        match &mut segment.target {
            Target::Discard => {}
            Target::Park(parked) => parked.extend_from_slice(payload),
            Target::Memory => self.place_in_memory(qp, segment, payload, cached)?,
        }
        segment.done += payload.len();
        Ok(())
    }

    /// Checks the destination of a part of the payload, and copies the part there. Leaves the guard in `cached`, unless
    /// the part has several destinations or the memory is one-touch.
    fn place_in_memory<'q>(
        &mut self,
        qp: &'q QpContext,
        segment: &Segment,
        payload: &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> Checked {
        // Most payload has one destination, which needs no list of spans. `more` is set if there is a second one.
        let (mut first, mut more) = (None, false);
        self.for_each_destination(qp, segment, payload.len(), |destination, _| {
            more = first.replace(destination).is_some();
            Ok(())
        })?;
        let Some(only) = first else { return Ok(()) };
        let host = qp.device().host();
        let placed = if more {
            // Check all destinations before a byte is placed.
            let (mut spans, mut guards) = (Spans::new(), Guards::default());
            self.resolve(qp, segment, payload.len(), &mut spans, &mut guards)?;
            host.scatter(payload, &spans)
        } else {
            let write = |memory: &Translation, at| memory.write(at, host, payload);
            match only {
                Destination::Local { domain, sge: Sge { tag, addr, .. } } => qp
                    .device()
                    .table()
                    .with_local(cached, domain, (tag, addr), payload.len(), Rights::LOCAL_WRITE, write)
                    .map_err(|denied| RxFailure::local(QpError::Local(denied)))?,
                Destination::Remote { addr, len } => qp
                    .with_remote(cached, addr, len, Rights::REMOTE_WRITE, &mut self.touch, write)
                    .map_err(|denied| RxFailure::remote(denied, denied.write_cause()))?,
            }
        };
        placed.map_err(|_| self.unmapped_failure(qp, &segment.fpdu, segment.done, payload.len()))
    }

    /// Checks the memory for the next `len` bytes of a segment, adds its address ranges to `spans` and its guards to
    /// `guards`. Adds none if the payload goes elsewhere.
    pub(super) fn resolve<'q>(
        &mut self,
        qp: &'q QpContext,
        segment: &Segment,
        len: usize,
        spans: &mut Spans,
        guards: &mut Guards<'q>,
    ) -> Checked {
        let table = qp.device().table();
        self.for_each_destination(qp, segment, len, |destination, touch| {
            let guard = match destination {
                Destination::Local { domain, sge: Sge { tag, addr, len } } => table
                    .admit_local(domain, tag, addr, len as usize, Rights::LOCAL_WRITE, spans)
                    .map_err(|denied| RxFailure::local(QpError::Local(denied)))?,
                Destination::Remote { addr, len } => qp
                    .admit_remote(addr, len, Rights::REMOTE_WRITE, spans, touch)
                    .map_err(|denied| RxFailure::remote(denied, denied.write_cause()))?,
            };
            guards.push(guard);
            Ok(())
        })
    }

    /// Calls `each` with the destinations in memory of the next `len` bytes of a segment, in order. Does not call it
    /// if the segment belongs to a Read that is gone, because the stream has failed meanwhile.
    fn for_each_destination(
        &mut self,
        qp: &QpContext,
        segment: &Segment,
        len: usize,
        mut each: impl FnMut(Destination, &mut Touch) -> Checked,
    ) -> Checked {
        // A shared receive queue has its own protection domain.
        let domain = match (&segment.fpdu.header, &self.message) {
            (Header::Send(_) | Header::SendImmediate(_), Message::Send { receive, .. }) => receive.domain,
            _ => qp.stream().domain,
        };
        let touch = &mut self.touch;
        let mut local = |sge| each(Destination::Local { domain, sge }, touch);
        match (&segment.target, &segment.fpdu.header, &self.message) {
            (Target::Memory, Header::Write(write), _) => {
                each(Destination::Remote { addr: write.addr.offset_by(segment.done as u64), len }, touch)
            }
            (
                Target::Memory,
                Header::Send(_) | Header::SendImmediate(_),
                Message::Send { receive, received, .. },
            ) => receive.request.buffers.range(received + segment.done as u64, len, local),
            (Target::Memory, Header::ReadResponse(_) | Header::ReadV2Response(_), _) => {
                let mut sq = lock(&qp.sq);
                let Some(read) = sq.oldest_read().cloned() else { return Ok(()) };
                let Some(Data::Memory(sges)) = sq.sink(&read) else { return Ok(()) };
                let sges = sges.clone();
                drop(sq);
                sges.range(u64::from(read.received) + segment.done as u64, len, &mut local)
            }
            _ => Ok(()),
        }
    }

    /// Creates the failure of a segment whose destination is registered but not mapped. Called when placing its payload
    /// failed with EFAULT, by a copy or by the link. `done` is the number of payload bytes placed before, and `len` the
    /// number of bytes that could not be placed.
    ///
    /// The reported address is exact for a Write only. For other segments, it is where the segment, or the receive,
    /// begins.
    pub(super) fn unmapped_failure(&self, qp: &QpContext, fpdu: &Fpdu, done: usize, len: usize) -> RxFailure {
        let error = |addr, remote| QpError::Unmapped { addr, len, remote };
        match (&fpdu.header, &self.message) {
            (Header::Write(write), _) => {
                let error = error(write.addr.offset_by(done as u64), true);
                RxFailure { error, cause: Some(UNMAPPED), receive: None }
            }
            (Header::Send(_) | Header::SendImmediate(_), Message::Send { receive, .. }) => {
                RxFailure::local(error(receive.request.buffers.addr(), false))
            }
            (Header::ReadResponse(response), _) => RxFailure::local(error(response.addr, false)),
            (Header::ReadV2Response(response), _) => {
                let mut sq = lock(&qp.sq);
                let sink = match sq.oldest_read().cloned().and_then(|read| sq.sink(&read)) {
                    Some(Data::Memory(sges)) => sges.addr(),
                    _ => RemoteAddr::default(),
                };
                RxFailure::local(error(sink.offset_by(response.offset.into()), false))
            }
            // No other segment is placed in memory.
            _ => RxFailure::local(error(RemoteAddr::default(), false)),
        }
    }
}
