//! Translation of offsets to addresses (requirement M3): to a contiguous range, to pages of one size, or to buffers
//! of any length.
//!
//! Ranges must have been checked in `access.rs` before they are translated. A translation has no rights, so several
//! entries of the table may share one (requirement M5).

use super::Spans;
use crate::host::{Held, Host, Span, Unmapped};
use std::fmt;
use std::sync::Arc;

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
    /// First-order indirect: a table of page addresses.
    Pages { layout: Layout, pages: Box<[u64]> },
    /// Second-order indirect: a table of page tables. Each but the last lists `1 << order` pages.
    PageTables { layout: Layout, order: u32, tables: Box<[Box<[u64]>]> },
    /// Separate buffers, in the order of their offsets.
    Buffers(Box<[Buffer]>),
}

/// The size of the pages, and where the memory starts in the first of them.
#[derive(Clone, Copy, Debug)]
struct Layout {
    size: PageSize,
    /// Offset of the memory's first byte within the first page.
    first: u64,
}

/// One of several buffers. Its first offset is the end of the previous buffer; its address is unrelated.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// The offset just past the last byte.
    end: u64,
    /// The address just past the last byte.
    end_addr: u64,
}

/// The size of a page: a power of two from 4 KiB to 256 MiB (requirement M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// The binary logarithm of the size.
    order: u32,
}

/// Why addresses do not form a valid translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranslationError {
    /// The memory, or a part of it, has length zero.
    #[error("cannot register memory of length zero")]
    Empty,
    /// A part extends past the end of the address space.
    #[error("memory at {addr:#x} extends past the end of the address space")]
    Wrap {
        /// The address of that part.
        addr: u64,
    },
    /// The total length exceeds 64 bits.
    #[error("the total length of the parts exceeds 64 bits")]
    TooLong,
    /// A page is not aligned to its size.
    #[error("the page at {addr:#x} is not aligned to its size")]
    Unaligned {
        /// The address of the page.
        addr: u64,
    },
    /// The first byte is not in the first page.
    #[error("the first byte, at offset {first:#x}, is not in the first page")]
    FirstByte {
        /// The offset of the first byte.
        first: u64,
    },
    /// A page table differs in length from the first, or that length is not a power of two. Only the last may be
    /// shorter.
    #[error("page table {table} differs in length from the first, or that length is not a power of two")]
    Shape {
        /// The index of the table.
        table: usize,
    },
}

impl PageSize {
    /// Creates a page size. `None` if `bytes` is not a power of two from 4 KiB to 256 MiB.
    pub const fn new(bytes: u64) -> Option<Self> {
        let order = bytes.trailing_zeros();
        if bytes.is_power_of_two() && order >= 12 && order <= 28 { Some(Self { order }) } else { None }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.order
    }
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

    /// Creates a translation to pages at any address, from byte `first` of the first page to the end of the
    /// last.
    pub fn pages(size: PageSize, first: u64, pages: Vec<u64>) -> Result<Self, TranslationError> {
        let layout = Layout { size, first };
        let len = layout.check(&pages)?;
        Ok(Self { form: Form::Pages { layout, pages: pages.into() }, len, held: None })
    }

    /// Creates a translation to pages that are listed in several page tables, from byte `first` of the first page to
    /// the end of the last. All tables but the last must have the same length, a power of two.
    pub fn page_tables(size: PageSize, first: u64, tables: Vec<Vec<u64>>) -> Result<Self, TranslationError> {
        let layout = Layout { size, first };
        let table_len = tables.first().ok_or(TranslationError::Empty)?.len();
        let last = tables.len() - 1;
        let mut pages = 0;
        for (table, entries) in tables.iter().enumerate() {
            let fits = if table == last { entries.len() <= table_len } else { entries.len() == table_len };
            if !fits || (last > 0 && !table_len.is_power_of_two()) {
                return Err(TranslationError::Shape { table });
            }
            layout.check_pages(entries)?;
            pages += entries.len();
        }
        let len = layout.len(pages)?;
        // A single table may have any length.
        let order = table_len.next_power_of_two().trailing_zeros();
        let tables = tables.into_iter().map(Vec::into_boxed_slice).collect();
        Ok(Self { form: Form::PageTables { layout, order, tables }, len, held: None })
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

    /// Makes the translation keep `held` alive, and copy through `held` instead of the host. `held` must be the memory
    /// that the addresses of the translation name.
    #[must_use]
    pub fn hold(self, held: Arc<dyn Held>) -> Self {
        Self { held: Some(held), ..self }
    }

    /// Returns the length in bytes, which is never zero.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        self.len
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
            Form::Pages { layout, pages } => layout.contiguous_at(offset, |page| pages[page]),
            Form::PageTables { layout, order, tables } => {
                layout.contiguous_at(offset, |page| tables[page >> order][page & ((1 << order) - 1)])
            }
            Form::Buffers(buffers) => {
                let buffer = buffers[buffers.partition_point(|buffer| buffer.end <= offset)];
                let run = buffer.end - offset;
                (buffer.end_addr - run, run)
            }
        }
    }
}

impl Layout {
    /// Checks the pages and the offset of the first byte, and returns the length of the translation.
    fn check(self, pages: &[u64]) -> Result<u64, TranslationError> {
        self.check_pages(pages)?;
        self.len(pages.len())
    }

    /// Checks that there are pages, aligned to their size and within the address space.
    fn check_pages(self, pages: &[u64]) -> Result<(), TranslationError> {
        if pages.is_empty() {
            return Err(TranslationError::Empty);
        }
        for &addr in pages {
            if !addr.is_multiple_of(self.size.bytes()) {
                return Err(TranslationError::Unaligned { addr });
            }
            end_of(addr, self.size.bytes())?;
        }
        Ok(())
    }

    /// Checks the offset of the first byte, and returns the length of a translation to this number of pages.
    fn len(self, pages: usize) -> Result<u64, TranslationError> {
        if self.first >= self.size.bytes() {
            return Err(TranslationError::FirstByte { first: self.first });
        }
        let bytes = (pages as u64).checked_mul(self.size.bytes()).ok_or(TranslationError::TooLong)?;
        Ok(bytes - self.first)
    }

    /// Returns the address of the byte at `offset`, and the number of bytes from there to the end of its page.
    fn contiguous_at(self, offset: u64, page_addr: impl FnOnce(usize) -> u64) -> (u64, u64) {
        let at = self.first + offset;
        let within = at & (self.size.bytes() - 1);
        #[expect(clippy::cast_possible_truncation, reason = "a page index is within a table in memory")]
        let page = (at >> self.size.order) as usize;
        (page_addr(page) + within, self.size.bytes() - within)
    }
}

/// Returns the address just past the last byte of a buffer or page. Fails if its length is zero. Memory that ends
/// exactly at the end of the address space is refused, too, because this address would not fit 64 bits.
fn end_of(addr: u64, len: u64) -> Result<u64, TranslationError> {
    if len == 0 {
        return Err(TranslationError::Empty);
    }
    addr.checked_add(len).ok_or(TranslationError::Wrap { addr })
}
