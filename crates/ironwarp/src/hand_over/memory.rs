//! The memory of an adapter that moves: its buffers as files, and the translation of addresses of the process that had them.

use crate::memory::{Buffer, Parts};
use crate::shared::RegionBuffers;
use ironwarp_engine::hand_over::Name;
use ironwarp_rnic::host::{Held, Span};
use ironwarp_rnic::memory::Translation;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Returns the names and files of the buffers of a region. `None` if a buffer is not shareable.
pub(super) fn files(buffers: &dyn RegionBuffers) -> Option<Vec<(Name, BorrowedFd<'_>)>> {
    let files = buffers.files();
    let first = files.first()?.0.addr;
    files
        .into_iter()
        .map(|(span, file)| Some((Name::Buffer { first, addr: span.addr, len: span.len as u64 }, file?)))
        .collect()
}

/// The memory of the other process, mapped in this one.
#[derive(Debug, Default)]
pub(super) struct CarriedMemory {
    /// The buffers that arrived, by the region and in the order of arrival: their addresses in the other process.
    arrived: BTreeMap<u64, Vec<(u64, Buffer)>>,
    /// For each buffer, by its address in the other process: its length, its region, and its place in that.
    places: BTreeMap<u64, (u64, Arc<Parts>, usize)>,
}

/// A part of a translation: a range of a buffer.
#[derive(Clone, Debug)]
struct Piece {
    /// The offset after its last byte.
    end: u64,
    parts: Arc<Parts>,
    part: usize,
    /// Offset of its first byte in the buffer.
    at: usize,
    len: usize,
}

/// The memory of a translation that is not just that of a region.
#[derive(Debug)]
struct Pieces(Vec<Piece>);

impl CarriedMemory {
    /// Maps the file of a buffer.
    pub(super) fn add(&mut self, first: u64, addr: u64, len: u64, file: OwnedFd) -> std::io::Result<()> {
        let len = usize::try_from(len).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        let buffer = Buffer::from_file(file, len)?;
        self.arrived.entry(first).or_default().push((addr, buffer));
        Ok(())
    }

    /// Puts the buffers of each region together. All have arrived.
    pub(super) fn assemble(&mut self) {
        for buffers in std::mem::take(&mut self.arrived).into_values() {
            let (addrs, buffers): (Vec<_>, Vec<_>) = buffers.into_iter().unzip();
            let parts = Parts::new(buffers);
            for ((part, addr), buffer) in addrs.into_iter().enumerate().zip(parts.buffers()) {
                self.places.insert(addr, (buffer.len() as u64, Arc::clone(&parts), part));
            }
        }
    }

    /// Returns the region whose first byte is at this address of this process.
    pub(super) fn region_at(&self, addr: u64) -> Option<Arc<Parts>> {
        let starts = |parts: &Parts| parts.buffers().next().is_some_and(|buffer| buffer.span().addr == addr);
        self.places.values().find(|(_, parts, _)| starts(parts)).map(|(_, parts, _)| Arc::clone(parts))
    }

    /// Translates memory of the other process. `None` if some of it did not arrive.
    pub(super) fn relocate(&self, spans: &[Span]) -> Option<Translation> {
        let pieces = self.pieces(spans)?;
        let first = pieces.first()?;
        // Usually the memory is that of a region.
        let is_whole = first.parts.buffers().count() == pieces.len()
            && pieces.iter().enumerate().all(|(index, piece)| {
                let is_there =
                    Arc::ptr_eq(&piece.parts, &first.parts) && piece.part == index && piece.at == 0;
                is_there && first.parts.buffers().nth(index).is_some_and(|buffer| buffer.len() == piece.len)
            });
        if is_whole {
            return first.parts.translation().ok();
        }
        let here: Option<Vec<Span>> = pieces.iter().map(Piece::span).collect();
        let translation = match here?[..] {
            [one] => Translation::direct(one.addr, one.len as u64),
            ref spans => Translation::buffers(spans),
        };
        Some(translation.ok()?.hold(Arc::new(Pieces(pieces))))
    }

    /// Returns the ranges of buffers that are at these addresses of the other process, in order.
    fn pieces(&self, spans: &[Span]) -> Option<Vec<Piece>> {
        let (mut pieces, mut end) = (Vec::new(), 0);
        for span in spans {
            let (mut addr, mut left) = (span.addr, span.len as u64);
            while left > 0 {
                let (start, (len, parts, part)) = self.places.range(..=addr).next_back()?;
                let at = addr - start;
                let taken = len.checked_sub(at).filter(|room| *room > 0)?.min(left);
                end += taken;
                let (at, len) = (usize::try_from(at).ok()?, usize::try_from(taken).ok()?);
                pieces.push(Piece { end, parts: Arc::clone(parts), part: *part, at, len });
                (addr, left) = (addr.checked_add(taken)?, left - taken);
            }
        }
        Some(pieces)
    }
}

impl Piece {
    fn buffer(&self) -> Option<&Buffer> {
        self.parts.buffers().nth(self.part)
    }

    /// Returns where the piece is in this process.
    fn span(&self) -> Option<Span> {
        let Span { addr, .. } = self.buffer()?.span();
        Some(Span::new(addr + self.at as u64, self.len))
    }
}

impl Pieces {
    /// Calls `copy` for each range of a buffer that has some of the `len` bytes at offset `at`.
    fn for_each(
        &self,
        mut at: u64,
        len: usize,
        mut copy: impl FnMut(&Buffer, usize, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        let first = self.0.partition_point(|piece| piece.end <= at);
        for piece in &self.0[first..] {
            if done == len {
                break;
            }
            let skipped = piece.len - usize::try_from(piece.end - at).unwrap_or(piece.len);
            let count = (piece.len - skipped).min(len - done);
            let buffer = piece.buffer().expect("a piece is in a buffer");
            copy(buffer, piece.at + skipped, done..done + count);
            (at, done) = (at + count as u64, done + count);
        }
    }
}

impl Held for Pieces {
    fn read(&self, at: u64, into: &mut [u8]) {
        self.for_each(at, into.len(), |buffer, at, range| buffer.read(at, &mut into[range]));
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.for_each(at, from.len(), |buffer, at, range| buffer.write(at, &from[range]));
    }
}
