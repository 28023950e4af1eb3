//! Page tables (requirement M3): lists of pages of one size, in any order, by their addresses.
//!
//! A list that fits one table is *first-order indirect*. A longer one is *second-order indirect*: a table of tables. A
//! table has as many entries as fit 4 KiB, so that a list takes no allocation larger than that.

use super::{PageSize, TranslationError};
use crate::host::{Held, HeldPages};
use std::fmt;
use std::sync::Arc;

/// Binary logarithm of the number of entries of a table: addresses of pages, or tables.
const TABLE_BITS: u32 = 9;
const TABLE_LEN: usize = 1 << TABLE_BITS;
/// Maximum number of pages: as many as a table of tables lists.
pub(super) const MAX_PAGES: usize = TABLE_LEN * TABLE_LEN;

/// The pages of a translation, and where the memory starts in the first of them.
#[derive(Debug)]
pub(super) struct PageTable {
    size: PageSize,
    /// Offset of the memory's first byte within the first page.
    first: u64,
    order: Order,
}

/// The addresses of the pages.
enum Order {
    /// First-order indirect: one table.
    First(Box<[u64]>),
    /// Second-order indirect: a table of tables, all full except the last.
    Second(Box<[Box<[u64]>]>),
}

/// Omits the addresses, which may be many.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First(pages) => write!(f, "First({} pages)", pages.len()),
            Self::Second(tables) => write!(f, "Second({} tables)", tables.len()),
        }
    }
}

impl PageTable {
    /// Creates a table of pages, from byte `first` of the first page to the end of the last, and returns it with its
    /// length in bytes. Checks that there are pages, that they are aligned to their size and within the address space,
    /// and that the first byte is in the first page.
    pub(super) fn new(size: PageSize, first: u64, pages: &[u64]) -> Result<(Self, u64), TranslationError> {
        if pages.is_empty() {
            return Err(TranslationError::Empty);
        }
        if pages.len() > MAX_PAGES {
            return Err(TranslationError::TooManyPages { pages: pages.len(), max: MAX_PAGES });
        }
        for &addr in pages {
            if !addr.is_multiple_of(size.bytes()) {
                return Err(TranslationError::Unaligned { addr, size });
            }
            addr.checked_add(size.bytes()).ok_or(TranslationError::Wrap { addr })?;
        }
        if first >= size.bytes() {
            return Err(TranslationError::FirstByte { first, size });
        }
        let order = if pages.len() <= TABLE_LEN {
            Order::First(pages.into())
        } else {
            Order::Second(pages.chunks(TABLE_LEN).map(Into::into).collect())
        };
        // At most 2^18 pages of 2^28 bytes.
        Ok((Self { size, first, order }, pages.len() as u64 * size.bytes() - first))
    }

    /// Returns the address of the byte at `offset`, and the number of bytes from there to the end of its page.
    pub(super) fn contiguous_at(&self, offset: u64) -> (u64, u64) {
        let at = self.first + offset;
        let within = at & (self.size.bytes() - 1);
        #[expect(clippy::cast_possible_truncation, reason = "a page index is within a table in memory")]
        let page = (at / self.size.bytes()) as usize;
        let addr = match &self.order {
            Order::First(pages) => pages[page],
            Order::Second(tables) => tables[page >> TABLE_BITS][page % TABLE_LEN],
        };
        (addr + within, self.size.bytes() - within)
    }
}

/// Memory that a page table lists, and that stays mapped.
#[derive(Debug)]
pub(super) struct HeldTable {
    pub(super) table: Arc<PageTable>,
    pub(super) memory: Arc<dyn HeldPages>,
}

impl HeldTable {
    /// Calls `copy` for each page that contains some of the `len` bytes at offset `at`: with the address of the first of
    /// these bytes, the number of bytes that are done, and their number.
    fn for_each_page(&self, at: u64, len: usize, mut copy: impl FnMut(u64, usize, usize)) {
        let mut done = 0;
        while done < len {
            let (addr, contiguous) = self.table.contiguous_at(at + done as u64);
            let n = usize::try_from(contiguous).map_or(len - done, |contiguous| contiguous.min(len - done));
            copy(addr, done, n);
            done += n;
        }
    }
}

impl Held for HeldTable {
    fn read(&self, at: u64, into: &mut [u8]) {
        self.for_each_page(at, into.len(), |addr, done, n| {
            self.memory.read_page(addr, &mut into[done..][..n]);
        });
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.for_each_page(at, from.len(), |addr, done, n| self.memory.write_page(addr, &from[done..][..n]));
    }
}
