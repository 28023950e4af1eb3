//! From offsets to addresses (requirement M3): one run of memory, pages of one size, or buffers of any length.
//!
//! `access.rs` has checked the range; the spans that come out of here go to the link. A translation says nothing of rights:
//! several entries of the table may share one (requirement M5).

use super::Spans;
use crate::host::{Held, Host, Span, Unmapped};
use std::fmt;
use std::sync::Arc;

/// Where the bytes of a region are.
pub struct Translation {
    form: Form,
    /// How many bytes it covers.
    len: u64,
    /// The memory itself, if it is there as long as this.
    held: Option<Arc<dyn Held>>,
}

enum Form {
    Direct {
        addr: u64,
    },
    /// First-order indirect: a table of pages.
    Pages {
        layout: Layout,
        pages: Box<[u64]>,
    },
    /// Second-order indirect: a table of such tables, each but the last with `1 << order` pages.
    PageTables {
        layout: Layout,
        order: u32,
        tables: Box<[Box<[u64]>]>,
    },
    /// Sorted by where they end.
    Buffers(Box<[Buffer]>),
}

/// How a table of pages is read.
#[derive(Clone, Copy, Debug)]
struct Layout {
    size: PageSize,
    /// Where in the first page the first byte is.
    first: u64,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// The offset behind its last byte.
    end: u64,
    /// The address behind its last byte.
    end_addr: u64,
}

/// The size of a page: a power of two from 4 KiB to 256 MiB (requirement M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    order: u32,
}

/// Why these addresses make no translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranslationError {
    /// There are no bytes, or a part has none.
    #[error("memory of no length cannot be registered")]
    Empty,
    /// A part reaches beyond the last address.
    #[error("memory at {addr:#x} reaches beyond the last address")]
    Wrap {
        /// Where that part begins.
        addr: u64,
    },
    /// All parts together have more bytes than can be counted.
    #[error("the parts are too long together")]
    TooLong,
    /// A page does not begin at a multiple of its size.
    #[error("the page at {addr:#x} does not begin at a multiple of its size")]
    Unaligned {
        /// Where it begins.
        addr: u64,
    },
    /// The first byte is not in the first page.
    #[error("the first byte, at {first:#x}, is not in the first page")]
    FirstByte {
        /// Where it would be.
        first: u64,
    },
    /// The tables are not of one size, a power of two; only the last may be shorter.
    #[error("page table {table} is not as long as the first, or that length is no power of two")]
    Shape {
        /// Which one.
        table: usize,
    },
}

impl PageSize {
    /// A page of so many bytes, if there are such.
    pub const fn new(bytes: u64) -> Option<Self> {
        let order = bytes.trailing_zeros();
        if bytes.is_power_of_two() && order >= 12 && order <= 28 { Some(Self { order }) } else { None }
    }

    /// How many bytes it has.
    pub const fn bytes(self) -> u64 {
        1 << self.order
    }
}

/// Without its tables, which may be long.
impl fmt::Debug for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Translation").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Translation {
    /// One run of memory.
    pub fn direct(addr: u64, len: u64) -> Result<Self, TranslationError> {
        end_of(addr, len)?;
        Ok(Self { form: Form::Direct { addr }, len, held: None })
    }

    /// Pages, wherever they are, from byte `first` of the first one to the end of the last.
    pub fn pages(size: PageSize, first: u64, pages: Vec<u64>) -> Result<Self, TranslationError> {
        let layout = Layout { size, first };
        let len = layout.check(&pages)?;
        Ok(Self { form: Form::Pages { layout, pages: pages.into() }, len, held: None })
    }

    /// Pages as above, in a table of tables, so that no table is long. All tables but the last have the same length, a
    /// power of two.
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
        let order = table_len.next_power_of_two().trailing_zeros();
        let tables = tables.into_iter().map(Vec::into_boxed_slice).collect();
        Ok(Self { form: Form::PageTables { layout, order, tables }, len, held: None })
    }

    /// Separate buffers of any length, one behind another.
    pub fn buffers(buffers: &[Span]) -> Result<Self, TranslationError> {
        let mut len = 0_u64;
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

    /// Keeps the memory from going away, and copies through it: the very bytes that these addresses name.
    #[must_use]
    pub fn hold(self, held: Arc<dyn Held>) -> Self {
        Self { held: Some(held), ..self }
    }

    /// How many bytes it covers; never zero.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Appends where `len` bytes from `offset` on are; what adjoins is one span.
    ///
    /// # Panics
    /// If they are not all within the translation: the range was not checked.
    #[inline]
    pub fn spans(&self, offset: u64, len: usize, spans: &mut Spans) {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len), "a range outside of the translation was let through");
        if self.held.is_none() {
            spans.doubt();
        }
        if let Form::Direct { addr } = self.form {
            spans.push(Span { addr: addr + offset, len });
        } else {
            self.indirect_spans(offset, len, spans);
        }
    }

    /// Copies the bytes from `offset` on to `into`.
    ///
    /// # Panics
    /// As [`spans`](Self::spans) does.
    #[inline]
    pub fn read(&self, offset: u64, host: &dyn Host, into: &mut [u8]) -> Result<(), Unmapped> {
        match &self.held {
            Some(held) => {
                held.read(offset, into);
                Ok(())
            }
            None => host.gather(&self.all_spans(offset, into.len()), into),
        }
    }

    /// Copies `from` to the bytes from `offset` on.
    ///
    /// # Panics
    /// As [`spans`](Self::spans) does.
    #[inline]
    pub fn write(&self, offset: u64, host: &dyn Host, from: &[u8]) -> Result<(), Unmapped> {
        match &self.held {
            Some(held) => {
                held.write(offset, from);
                Ok(())
            }
            None => host.scatter(from, &self.all_spans(offset, from.len())),
        }
    }

    fn all_spans(&self, offset: u64, len: usize) -> Spans {
        let mut spans = Spans::new();
        self.spans(offset, len, &mut spans);
        spans
    }

    fn indirect_spans(&self, mut offset: u64, mut len: usize, spans: &mut Spans) {
        while len > 0 {
            let (addr, run) = self.run(offset);
            let taken = usize::try_from(run).map_or(len, |run| run.min(len));
            spans.push(Span { addr, len: taken });
            offset += taken as u64;
            len -= taken;
        }
    }

    /// The address of the byte at `offset`, and how many bytes lie there in one run, at least one.
    fn run(&self, offset: u64) -> (u64, u64) {
        match &self.form {
            Form::Direct { addr } => (addr + offset, self.len - offset),
            Form::Pages { layout, pages } => layout.run(offset, |page| pages[page]),
            Form::PageTables { layout, order, tables } => {
                layout.run(offset, |page| tables[page >> order][page & ((1 << order) - 1)])
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
    /// Checks the pages and the place of the first byte; returns the length from there.
    fn check(self, pages: &[u64]) -> Result<u64, TranslationError> {
        self.check_pages(pages)?;
        self.len(pages.len())
    }

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

    fn len(self, pages: usize) -> Result<u64, TranslationError> {
        if self.first >= self.size.bytes() {
            return Err(TranslationError::FirstByte { first: self.first });
        }
        let bytes = (pages as u64).checked_mul(self.size.bytes()).ok_or(TranslationError::TooLong)?;
        Ok(bytes - self.first)
    }

    fn run(self, offset: u64, page_addr: impl FnOnce(usize) -> u64) -> (u64, u64) {
        let at = self.first + offset;
        let within = at & (self.size.bytes() - 1);
        #[expect(clippy::cast_possible_truncation, reason = "fewer pages than a table in memory has entries")]
        let page = (at >> self.size.order) as usize;
        (page_addr(page) + within, self.size.bytes() - within)
    }
}

/// The address behind the last byte. Memory that ends with the very last address is refused too, for simplicity.
fn end_of(addr: u64, len: u64) -> Result<u64, TranslationError> {
    if len == 0 {
        return Err(TranslationError::Empty);
    }
    addr.checked_add(len).ok_or(TranslationError::Wrap { addr })
}
