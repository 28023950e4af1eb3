//! The payload of a segment: its memory is checked, and copied into the train or pointed to. Before this: `build.rs` and `short.rs`,
//! which know what leaves; after it, the link.

use super::Tx;
use crate::error::Fault;
use crate::memory::{Hold, Rights, Spans, Touch};
use crate::qp::Qp;
use crate::queue::{Data, Sge, Sges};
use crate::stream::{DIRECT, Guards, Train};
use ironwarp_wire::{Header, Place};

/// Where the payload of a segment comes from.
pub(super) enum Source<'a> {
    Sges(&'a Sges, u32),
    Sge(Sge),
    Inline(&'a [u8]),
    Remote(Place, Touch),
}

impl Tx {
    /// Puts a segment with its payload together: checks the memory, then copies it or points to it.
    pub(super) fn add_payload<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
        header: &Header,
        source: &Source<'_>,
        len: usize,
    ) -> Result<(), Fault> {
        let writer = &mut self.cursor.writer;
        if len == 0 {
            train.empty(writer, header);
            return Ok(());
        }
        let framing = writer.framing();
        let inline = matches!(source, Source::Inline(_));
        if inline || framing.crc || framing.markers || len < DIRECT {
            return train.copied(writer, header, len, |to| fetch(qp, &mut guards.hold, source, to));
        }
        let mut spans = Spans::new();
        let place = resolve(qp, source, len, &mut spans, guards)?;
        if !spans.are_mapped(qp.device().host()) {
            return Err(Fault::Unmapped { place, len, remote: matches!(source, Source::Remote(..)) });
        }
        train.referenced(writer, header, len, &spans);
        Ok(())
    }
}

/// Copies the payload of a segment.
fn fetch<'q>(
    qp: &'q Qp,
    hold: &mut Option<Hold<'q>>,
    source: &Source<'_>,
    into: &mut [u8],
) -> Result<(), Fault> {
    let (host, len) = (qp.device().host(), into.len());
    match source {
        Source::Inline(bytes) => into.copy_from_slice(bytes),
        Source::Remote(place, touch) => {
            let mut touch = *touch; // claimed when the request came
            qp.with_remote(hold, *place, len, Rights::REMOTE_READ, &mut touch, |memory, at| {
                memory.read(at, host, into)
            })
            .map_err(Fault::Remote)?
            .map_err(|_| Fault::Unmapped { place: *place, len, remote: true })?;
        }
        Source::Sge(sge) => fetch_sge(qp, hold, *sge, into)?,
        Source::Sges(sges, offset) => {
            let (mut first, mut more) = (Sge::default(), false);
            sges.range(u64::from(*offset), len, |sge| {
                more = std::mem::replace(&mut first, sge).len > 0;
                Ok::<(), Fault>(())
            })?;
            if !more {
                return fetch_sge(qp, hold, first, into);
            }
            let (mut spans, mut guards) = (Spans::new(), Guards::default());
            let place = resolve(qp, source, len, &mut spans, &mut guards)?;
            host.gather(&spans, into).map_err(|_| Fault::Unmapped { place, len, remote: false })?;
        }
    }
    Ok(())
}

fn fetch_sge<'q>(qp: &'q Qp, hold: &mut Option<Hold<'q>>, sge: Sge, into: &mut [u8]) -> Result<(), Fault> {
    let (device, domain, len) = (qp.device(), qp.stream().domain, into.len());
    let host = device.host();
    device
        .table()
        .with_local(hold, domain, (sge.tag, sge.addr), len, Rights::LOCAL_READ, |memory, at| {
            memory.read(at, host, into)
        })
        .map_err(Fault::Local)?
        .map_err(|_| Fault::Unmapped { place: sge.place(), len, remote: false })
}

/// Finds the memory of a segment, and guards it. Returns where it begins, for messages.
fn resolve<'q>(
    qp: &'q Qp,
    source: &Source<'_>,
    len: usize,
    spans: &mut Spans,
    guards: &mut Guards<'q>,
) -> Result<Place, Fault> {
    let (table, stream) = (qp.device().table(), qp.stream());
    match source {
        Source::Inline(_) | Source::Sge(_) => Ok(Place::default()), // copied, always
        Source::Remote(place, touch) => {
            let mut touch = *touch; // claimed when the request came
            let guard = qp.remote(*place, len, Rights::REMOTE_READ, spans, &mut touch);
            guards.push(guard.map_err(Fault::Remote)?);
            Ok(*place)
        }
        Source::Sges(sges, offset) => {
            let mut begins = None;
            sges.range(u64::from(*offset), len, |sge| {
                begins.get_or_insert(sge.place());
                let right = Rights::LOCAL_READ;
                let guard = table.local(stream.domain, sge.tag, sge.addr, sge.len as usize, right, spans);
                guards.push(guard.map_err(Fault::Local)?);
                Ok(())
            })?;
            Ok(begins.unwrap_or_default())
        }
    }
}

/// Whether all of this memory may be used.
pub(super) fn check(qp: &Qp, data: &Data, right: Rights) -> Result<(), Fault> {
    let Data::Memory(sges) = data else { return Ok(()) };
    let (table, domain) = (qp.device().table(), qp.stream().domain);
    for sge in sges.as_slice().iter().filter(|sge| sge.len > 0) {
        table
            .with_local(&mut None, domain, (sge.tag, sge.addr), sge.len as usize, right, |_, _| ())
            .map_err(Fault::Local)?;
    }
    Ok(())
}
