//! Adds the payload of segments to a batch: checks the memory, then copies the payload or references it.

use super::Tx;
use crate::context::QpContext;
use crate::error::QpError;
use crate::memory::Guards;
use crate::memory::{CachedGuard, Rights, Spans, Touch};
use crate::outbound::{ReadResponses, TxBatch};
use crate::queue::{Data, Sge, Sges};
use crate::stream::MIN_DIRECT;
use ironwarp_wire::{Header, RemoteAddr, Tag};

/// Where the payload of a segment comes from.
pub(super) enum Source<'a> {
    /// A scatter/gather list, and the offset of the segment in it.
    Sges(&'a Sges, u32),
    /// One scatter/gather element, shorter than [`MIN_DIRECT`].
    Sge(Sge),
    /// Bytes of the request itself.
    Inline(&'a [u8]),
    /// Memory that the peer reads, and the one-touch memory that its request has claimed.
    Remote(RemoteAddr, Touch),
}

impl Tx {
    /// Adds a segment with `len` bytes of payload: checks the memory, then copies or references it. Adds nothing if a
    /// check fails.
    pub(super) fn add_payload<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
        header: &Header,
        source: &Source<'_>,
        len: usize,
    ) -> Result<(), QpError> {
        let writer = &mut self.cursor.writer;
        if len == 0 {
            batch.push_empty(writer, header);
            return Ok(());
        }
        let framing = writer.framing();
        let inline = matches!(source, Source::Inline(_));
        let is_response = matches!(source, Source::Remote(..));
        // Reads are executed in order. If this response was copied, its memory would be read before that of the
        // responses that are referenced, which is read when the batch is sent.
        let is_short =
            len < MIN_DIRECT && !(is_response && batch.read_responses() == ReadResponses::Referenced);
        if inline || framing.crc || framing.markers || is_short {
            batch.push_copied(writer, header, len, |to| fetch(qp, &mut guards.cached, source, to))?;
            if is_response {
                batch.add_read_response(ReadResponses::Copied);
            }
            return Ok(());
        }
        let mut spans = Spans::new();
        let addr = resolve(qp, source, len, &mut spans, guards)?;
        if !spans.are_mapped(qp.device().host()) {
            return Err(QpError::Unmapped { addr, len, remote: is_response });
        }
        batch.push_referenced(writer, header, len, &spans);
        if is_response {
            batch.add_read_response(ReadResponses::Referenced);
        }
        Ok(())
    }
}

/// Checks the memory of a segment's payload, and copies the payload to `into`. Leaves the guard in `cached`.
fn fetch<'q>(
    qp: &'q QpContext,
    cached: &mut Option<CachedGuard<'q>>,
    source: &Source<'_>,
    into: &mut [u8],
) -> Result<(), QpError> {
    let (host, len) = (qp.device().host(), into.len());
    match source {
        Source::Inline(bytes) => into.copy_from_slice(bytes),
        Source::Remote(addr, touch) => {
            let mut touch = *touch; // claimed when the request arrived
            qp.with_remote(cached, *addr, len, Rights::REMOTE_READ, &mut touch, |memory, at| {
                memory.read(at, host, into)
            })
            .map_err(QpError::Remote)?
            .map_err(|_| QpError::Unmapped { addr: *addr, len, remote: true })?;
        }
        Source::Sge(sge) => fetch_sge(qp, cached, *sge, into)?,
        Source::Sges(sges, offset) => {
            // Most segments lie in one element, which needs no list of spans. `more` is set if there is a second one.
            let (mut first, mut more) = (Sge::default(), false);
            sges.range(u64::from(*offset), len, |sge| {
                more = std::mem::replace(&mut first, sge).len > 0;
                Ok::<(), QpError>(())
            })?;
            if !more {
                return fetch_sge(qp, cached, first, into);
            }
            let (mut spans, mut guards) = (Spans::new(), Guards::default());
            let addr = resolve(qp, source, len, &mut spans, &mut guards)?;
            host.gather(&spans, into).map_err(|_| QpError::Unmapped { addr, len, remote: false })?;
        }
    }
    Ok(())
}

/// Checks the memory of `sge`, and copies its bytes to `into`, which has the same length.
fn fetch_sge<'q>(
    qp: &'q QpContext,
    cached: &mut Option<CachedGuard<'q>>,
    sge: Sge,
    into: &mut [u8],
) -> Result<(), QpError> {
    let (device, domain, len) = (qp.device(), qp.stream().domain, into.len());
    let host = device.host();
    device
        .table()
        .with_local(cached, domain, (sge.tag, sge.addr), len, Rights::LOCAL_READ, |memory, at| {
            memory.read(at, host, into)
        })
        .map_err(QpError::Local)?
        .map_err(|_| QpError::Unmapped { addr: sge.addr(), len, remote: false })
}

/// Checks the memory of a segment, adds its address ranges to `spans` and its guards to `guards`. Returns the first
/// address, for error messages.
fn resolve<'q>(
    qp: &'q QpContext,
    source: &Source<'_>,
    len: usize,
    spans: &mut Spans,
    guards: &mut Guards<'q>,
) -> Result<RemoteAddr, QpError> {
    let (table, stream) = (qp.device().table(), qp.stream());
    match source {
        Source::Inline(_) | Source::Sge(_) => Ok(RemoteAddr::default()), // never called: these are always copied
        Source::Remote(addr, touch) => {
            let mut touch = *touch; // claimed when the request arrived
            let guard = qp.admit_remote(*addr, len, Rights::REMOTE_READ, spans, &mut touch);
            guards.push(guard.map_err(QpError::Remote)?);
            Ok(*addr)
        }
        Source::Sges(sges, offset) => {
            let mut begins = None;
            sges.range(u64::from(*offset), len, |sge| {
                begins.get_or_insert(sge.addr());
                let right = Rights::LOCAL_READ;
                let guard =
                    table.admit_local(stream.domain, sge.tag, sge.addr, sge.len as usize, right, spans);
                guards.push(guard.map_err(QpError::Local)?);
                Ok(())
            })?;
            Ok(begins.unwrap_or_default())
        }
    }
}

/// Checks that the work request may access all memory of its data with this right.
pub(super) fn check_memory(qp: &QpContext, data: &Data, right: Rights) -> Result<(), QpError> {
    check_memory_of(qp, data, right, |_| true)
}

/// Checks that the work request may access the memory of its data with this right, as far as `is_meant` returns true
/// for its tag.
pub(super) fn check_memory_of(
    qp: &QpContext,
    data: &Data,
    right: Rights,
    is_meant: impl Fn(Tag) -> bool,
) -> Result<(), QpError> {
    let Data::Memory(sges) = data else { return Ok(()) };
    let (table, domain) = (qp.device().table(), qp.stream().domain);
    for sge in sges.as_slice().iter().filter(|sge| sge.len > 0 && is_meant(sge.tag)) {
        table
            .with_local(&mut None, domain, (sge.tag, sge.addr), sge.len as usize, right, |_, _| ())
            .map_err(QpError::Local)?;
    }
    Ok(())
}
