//! Translation of offsets to addresses (requirement M3): to a contiguous range, to pages of one size (`pages.rs`), or to
//! buffers of any length.
//!
//! Ranges must have been checked in `access.rs` before they are translated. A translation has no rights, so several
//! entries of the table may share one (requirement M5).

use super::pages::{HeldTable, PageTable};
use super::{PageSize, Spans, TranslationError};
use crate::host::{Held, HeldPages, Host, Span, Unmapped};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A snapshot names memory that was not carried over with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the snapshot names {len} bytes at {addr:#x}, which were not carried over: use buffers in files (memfd)"
)]
pub struct NotCarried {
    /// The first address, in the process that was left.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Translates offsets to addresses. An offset counts bytes from the beginning of the memory.
pub struct Translation {
    /// How the memory is laid out.
    form: Form,
    /// Length in bytes.
    len: u64,
    /// The memory itself, if the translation keeps it alive. Then it is always mapped.
    held: Option<Arc<dyn Held>>,
}

/// The layout of the memory of a translation.
enum Form {
    /// Contiguous bytes that start at `addr`.
    Direct { addr: u64 },
    /// Pages of one size, listed in tables of the first or second order.
    Pages(Arc<PageTable>),
    /// Separate buffers, in the order of their offsets.
    Buffers(Box<[Buffer]>),
}

/// A part of a translation, to be joined with others.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) translation: Arc<Translation>,
    /// The offset of the first byte.
    pub(super) at: u64,
    /// Length in bytes.
    pub(super) len: u64,
}

/// The memory of several parts, one after another, each of which its translation keeps alive.
#[derive(Debug)]
struct HeldParts(Box<[HeldPart]>);

/// One of several parts.
#[derive(Debug)]
struct HeldPart {
    memory: Arc<dyn Held>,
    /// The offset of the first byte.
    at: u64,
    /// Length in bytes.
    len: u64,
}

/// One of several buffers. Its first offset is the end of the previous buffer; its address is unrelated.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// The offset just past the last byte.
    end: u64,
    /// The address just past the last byte.
    end_addr: u64,
}

/// Omits the tables, which may be long.
impl fmt::Debug for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Translation").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Translation {
    /// Creates a translation to contiguous memory.
    pub fn direct(addr: u64, len: u64) -> Result<Self, TranslationError> {
        end_of(addr, len)?;
        Ok(Self { form: Form::Direct { addr }, len, held: None })
    }

    /// Creates a translation to pages, in any order, from byte `first` of the first page to the end of the last. `memory`
    /// contains the pages; it is kept alive, and copied through instead of the host.
    pub fn pages(
        size: PageSize,
        first: u64,
        pages: &[u64],
        memory: Arc<dyn HeldPages>,
    ) -> Result<Self, TranslationError> {
        let (table, len) = PageTable::new(size, first, pages)?;
        let table = Arc::new(table);
        let held = HeldTable { table: Arc::clone(&table), memory };
        Ok(Self { form: Form::Pages(table), len, held: Some(Arc::new(held)) })
    }

    /// Creates a translation to the concatenation of separate buffers of any length but zero.
    pub fn buffers(buffers: &[Span]) -> Result<Self, TranslationError> {
        let mut len = 0_u64; // of the buffers so far
        let mut list = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let end_addr = end_of(buffer.addr, buffer.len as u64)?;
            len = len.checked_add(buffer.len as u64).ok_or(TranslationError::TooLong)?;
            list.push(Buffer { end: len, end_addr });
        }
        if list.is_empty() {
            return Err(TranslationError::Empty);
        }
        Ok(Self { form: Form::Buffers(list.into()), len, held: None })
    }

    /// Creates a translation to parts of others, one after another. The memory of all parts must be kept alive by their
    /// translations, or that of none.
    pub(super) fn joined(parts: &[Part]) -> Result<Self, TranslationError> {
        let mut spans = Spans::new();
        for Part { translation, at, len } in parts {
            let len = usize::try_from(*len).map_err(|_| TranslationError::TooLong)?;
            translation.append_spans(*at, len, &mut spans);
        }
        let joined = Self::buffers(&spans)?;
        let held = |&Part { ref translation, at, len }: &Part| {
            Some(HeldPart { memory: Arc::clone(translation.held.as_ref()?), at, len })
        };
        match parts.iter().filter_map(held).collect::<Box<[_]>>() {
            held if held.is_empty() => Ok(joined),
            held if held.len() == parts.len() => Ok(joined.hold(Arc::new(HeldParts(held)))),
            _ => Err(TranslationError::Mixed),
        }
    }

    /// Makes the translation keep `held` alive, and copy through `held` instead of the host. `held` must be the memory
    /// that the addresses of the translation name.
    #[must_use]
    pub fn hold(self, held: Arc<dyn Held>) -> Self {
        Self { held: Some(held), ..self }
    }

    /// Returns the address of the first byte.
    pub(super) fn first_addr(&self) -> u64 {
        self.contiguous_at(0).0
    }

    /// Replaces the address ranges of a loaded translation, which are those of another process, by what `relocate` returns
    /// for them. Fails if that is `None`, or has another length.
    pub(crate) fn relocate(
        &mut self,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<(), NotCarried> {
        let len = usize::try_from(self.len).map_err(|_| NotCarried { addr: 0, len: self.len })?;
        let spans = self.collect_spans(0, len);
        let addr = spans.first().map_or(0, |span| span.addr);
        let here = relocate(&spans).filter(|here| here.len == self.len);
        *self = here.ok_or(NotCarried { addr, len: self.len })?;
        Ok(())
    }

    /// Returns the length in bytes, which is never zero.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the translation keeps the memory alive, so that all of it is mapped.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Appends the address ranges of the `len` bytes at `offset` to `spans`, merging adjacent ranges.
    ///
    /// # Panics
    /// If the range exceeds the translation, which means that it was not checked.
    #[inline]
    pub fn append_spans(&self, offset: u64, len: usize, spans: &mut Spans) {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "range outside of the translation: it was not checked"
        );
        if let Form::Direct { addr } = self.form {
            spans.push(Span { addr: addr + offset, len, held: self.held.is_some() });
        } else {
            self.append_indirect_spans(offset, len, spans);
        }
    }

    /// Copies the bytes at `offset` to `into`, all of which is filled.
    ///
    /// # Panics
    /// If the range exceeds the translation, which means that it was not checked.
    #[inline]
    pub fn read(&self, offset: u64, host: &dyn Host, into: &mut [u8]) -> Result<(), Unmapped> {
        match &self.held {
            Some(held) => {
                held.read(offset, into);
                Ok(())
            }
            None => match self.direct_span(offset, into.len()) {
                Some(span) => host.gather(&[span], into),
                None => host.gather(&self.collect_spans(offset, into.len()), into),
            },
        }
    }

    /// Copies all of `from` to the bytes at `offset`, which counts from the beginning of the translation, not of a region
    /// or window.
    ///
    /// # Panics
    /// If the range exceeds the translation, which means that it was not checked.
    #[inline]
    pub fn write(&self, offset: u64, host: &dyn Host, from: &[u8]) -> Result<(), Unmapped> {
        match &self.held {
            Some(held) => {
                held.write(offset, from);
                Ok(())
            }
            None => match self.direct_span(offset, from.len()) {
                Some(span) => host.scatter(from, &[span]),
                None => host.scatter(from, &self.collect_spans(offset, from.len())),
            },
        }
    }

    /// Returns the address range of the `len` bytes at `offset`, if the memory is contiguous and they are in it, and not
    /// empty.
    #[inline]
    fn direct_span(&self, offset: u64, len: usize) -> Option<Span> {
        let is_within = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        match self.form {
            Form::Direct { addr } if is_within && len > 0 => Some(Span::new(addr + offset, len)),
            _ => None,
        }
    }

    /// Returns the address ranges of the `len` bytes at `offset`.
    fn collect_spans(&self, offset: u64, len: usize) -> Spans {
        let mut spans = Spans::new();
        self.append_spans(offset, len, &mut spans);
        spans
    }

    /// Appends the address ranges of the `len` bytes at `offset`. Works for any form, but `append_spans` calls it only
    /// if the memory is not contiguous.
    fn append_indirect_spans(&self, mut offset: u64, mut len: usize, spans: &mut Spans) {
        while len > 0 {
            let (addr, contiguous) = self.contiguous_at(offset);
            let taken = usize::try_from(contiguous).map_or(len, |contiguous| contiguous.min(len));
            spans.push(Span { addr, len: taken, held: self.held.is_some() });
            offset += taken as u64;
            len -= taken;
        }
    }

    /// Returns the address of the byte at `offset`, and the number of contiguous bytes from there, at least one.
    fn contiguous_at(&self, offset: u64) -> (u64, u64) {
        match &self.form {
            Form::Direct { addr } => (addr + offset, self.len - offset),
            Form::Pages(table) => table.contiguous_at(offset),
            Form::Buffers(buffers) => {
                let buffer = buffers[buffers.partition_point(|buffer| buffer.end <= offset)];
                let run = buffer.end - offset;
                (buffer.end_addr - run, run)
            }
        }
    }
}

impl HeldParts {
    /// Calls `each` for the pieces of the `len` bytes at `at`: the memory, the offset in it, and the range of the bytes.
    fn pieces(&self, at: u64, len: usize, mut each: impl FnMut(&dyn Held, u64, Range<usize>)) {
        let (mut skip, mut done) = (at, 0);
        for part in &self.0 {
            if skip >= part.len {
                skip -= part.len;
                continue;
            }
            let take = usize::try_from(part.len - skip).map_or(len - done, |rest| rest.min(len - done));
            each(&*part.memory, part.at + skip, done..done + take);
            (skip, done) = (0, done + take);
            if done == len {
                return;
            }
        }
    }
}

impl Held for HeldParts {
    fn read(&self, at: u64, into: &mut [u8]) {
        self.pieces(at, into.len(), |held, at, range| held.read(at, &mut into[range]));
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.pieces(at, from.len(), |held, at, range| held.write(at, &from[range]));
    }
}

/// Returns the address just past the last byte of a buffer. Fails if its length is zero. Memory that ends
/// exactly at the end of the address space is refused, too, because this address would not fit 64 bits.
fn end_of(addr: u64, len: u64) -> Result<u64, TranslationError> {
    if len == 0 {
        return Err(TranslationError::Empty);
    }
    addr.checked_add(len).ok_or(TranslationError::Wrap { addr })
}

/// A translation is stored as its address ranges. A loaded one names addresses of the process that stored it, until it is
/// relocated.
impl Serialize for Translation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut offset = 0;
        let ranges = std::iter::from_fn(|| {
            (offset < self.len).then(|| {
                let (addr, len) = self.contiguous_at(offset);
                offset += len;
                (addr, len)
            })
        });
        to.collect_seq(ranges.collect::<Vec<_>>())
    }
}

impl<'de> Deserialize<'de> for Translation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let ranges = Vec::<(u64, u64)>::deserialize(from)?;
        let span = |&(addr, len): &(u64, u64)| Some(Span::new(addr, usize::try_from(len).ok()?));
        let loaded = match *ranges {
            [(addr, len)] => Self::direct(addr, len),
            _ => ranges
                .iter()
                .map(span)
                .collect::<Option<Vec<_>>>()
                .ok_or(TranslationError::TooLong)
                .and_then(|spans| Self::buffers(&spans)),
        };
        loaded.map_err(serde::de::Error::custom)
    }
}
