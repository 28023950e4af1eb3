//! The second step of a segment: its payload goes to the memory that the header names, in one copy or several. Before this:
//! `segment.rs`, which judged the header; after it, its end.

use super::segment::{Failure, Judged, Target};
use super::{Message, Rx, Segment};
use crate::error::{Fault, UNMAPPED};
use crate::memory::{Domain, Hold, Rights, Spans, Touch, Translation};
use crate::qp::Qp;
use crate::queue::{Data, Sge};
use crate::stream::{Guards, advance};
use crate::sync::lock;
use ironwarp_wire::mpa::Fpdu;
use ironwarp_wire::{Header, Place};

/// Memory that payload belongs to.
enum Want {
    Local { domain: Domain, sge: Sge },
    Remote { place: Place, len: usize },
}

impl Rx {
    /// Moves payload of the segment in progress to where it belongs.
    pub(super) fn place(&mut self, qp: &Qp, payload: &[u8]) -> Judged {
        let Some(mut segment) = self.segment.take() else { return Ok(()) };
        let placed = self.place_of(qp, &mut segment, payload, &mut None);
        self.segment = Some(segment);
        placed
    }

    /// The same, of a segment that is at hand.
    pub(super) fn place_of<'q>(
        &mut self,
        qp: &'q Qp,
        segment: &mut Segment,
        payload: &[u8],
        hold: &mut Option<Hold<'q>>,
    ) -> Judged {
        match &mut segment.target {
            Target::Nowhere => {}
            Target::Park(parked) => parked.extend_from_slice(payload),
            Target::Memory => self.place_in_memory(qp, segment, payload, hold)?,
        }
        segment.done += payload.len();
        Ok(())
    }

    fn place_in_memory<'q>(
        &mut self,
        qp: &'q Qp,
        segment: &Segment,
        payload: &[u8],
        hold: &mut Option<Hold<'q>>,
    ) -> Judged {
        let (mut first, mut more) = (None, false);
        self.wanted(qp, segment, payload.len(), |want, _| {
            more = first.replace(want).is_some();
            Ok(())
        })?;
        let Some(want) = first else { return Ok(()) };
        let host = qp.device().host();
        let placed = if more {
            // All of it is checked before a byte is placed.
            let (mut spans, mut guards) = (Spans::new(), Guards::default());
            self.resolve(qp, segment, payload.len(), &mut spans, &mut guards)?;
            host.scatter(payload, &spans)
        } else {
            let write = |memory: &Translation, at| memory.write(at, host, payload);
            match want {
                Want::Local { domain, sge: Sge { tag, addr, .. } } => qp
                    .device()
                    .table()
                    .with_local(hold, domain, (tag, addr), payload.len(), Rights::LOCAL_WRITE, write)
                    .map_err(|denied| Failure::local(Fault::Local(denied)))?,
                Want::Remote { place, len } => qp
                    .with_remote(hold, place, len, Rights::REMOTE_WRITE, &mut self.touch, write)
                    .map_err(|denied| Failure::remote(denied, denied.write_cause()))?,
            }
        };
        placed.map_err(|_| self.unmapped(qp, &segment.fpdu, segment.done, payload.len()))
    }

    /// Finds the memory for the next `len` bytes of a segment, and guards it.
    pub(super) fn resolve<'q>(
        &mut self,
        qp: &'q Qp,
        segment: &Segment,
        len: usize,
        spans: &mut Spans,
        guards: &mut Guards<'q>,
    ) -> Judged {
        let table = qp.device().table();
        self.wanted(qp, segment, len, |want, touch| {
            let guard = match want {
                Want::Local { domain, sge: Sge { tag, addr, len } } => table
                    .local(domain, tag, addr, len as usize, Rights::LOCAL_WRITE, spans)
                    .map_err(|denied| Failure::local(Fault::Local(denied)))?,
                Want::Remote { place, len } => qp
                    .remote(place, len, Rights::REMOTE_WRITE, spans, touch)
                    .map_err(|denied| Failure::remote(denied, denied.write_cause()))?,
            };
            guards.push(guard);
            Ok(())
        })
    }

    /// Calls `each` for the memory that the next `len` bytes of a segment belong to, in order. For none, if the stream failed
    /// meanwhile, and the Read that this answers with it.
    fn wanted(
        &mut self,
        qp: &Qp,
        segment: &Segment,
        len: usize,
        mut each: impl FnMut(Want, &mut Touch) -> Judged,
    ) -> Judged {
        // A shared receive queue has a domain of its own.
        let domain = match (&segment.fpdu.header, &self.message) {
            (Header::Send(_) | Header::SendImmediate(_), Message::Send { receive, .. }) => receive.domain,
            _ => qp.stream().domain,
        };
        let touch = &mut self.touch;
        let mut local = |sge| each(Want::Local { domain, sge }, touch);
        match (&segment.target, &segment.fpdu.header, &self.message) {
            (Target::Memory, Header::Write(write), _) => {
                each(Want::Remote { place: advance(write.place, segment.done as u64), len }, touch)
            }
            (
                Target::Memory,
                Header::Send(_) | Header::SendImmediate(_),
                Message::Send { receive, received, .. },
            ) => receive.request.buffers.range(received + segment.done as u64, len, local),
            (Target::Memory, Header::ReadResponse(_) | Header::ReadV2Response(_), _) => {
                let mut sq = lock(&qp.sq);
                let Some(read) = sq.read().cloned() else { return Ok(()) };
                let Some(Data::Memory(sges)) = sq.sink(&read) else { return Ok(()) };
                let sges = sges.clone();
                drop(sq);
                sges.range(u64::from(read.received) + segment.done as u64, len, &mut local)
            }
            _ => Ok(()),
        }
    }

    /// The memory was registered, and is not there.
    pub(super) fn unmapped(&self, qp: &Qp, fpdu: &Fpdu, done: usize, len: usize) -> Failure {
        let fault = |place, remote| Fault::Unmapped { place, len, remote };
        match (&fpdu.header, &self.message) {
            (Header::Write(write), _) => {
                let fault = fault(advance(write.place, done as u64), true);
                Failure { fault, cause: Some(UNMAPPED), receive: None }
            }
            (Header::Send(_) | Header::SendImmediate(_), Message::Send { receive, .. }) => {
                Failure::local(fault(receive.request.buffers.place(), false))
            }
            (Header::ReadResponse(response), _) => Failure::local(fault(response.place, false)),
            (Header::ReadV2Response(response), _) => {
                let mut sq = lock(&qp.sq);
                let sink = match sq.read().cloned().and_then(|read| sq.sink(&read)) {
                    Some(Data::Memory(sges)) => sges.place(),
                    _ => Place::default(),
                };
                Failure::local(fault(advance(sink, response.offset.into()), false))
            }
            _ => Failure::local(fault(Place::default(), false)),
        }
    }
}
