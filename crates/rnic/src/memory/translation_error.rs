//! Errors of translations.

use super::PageSize;

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
    /// Only some of several parts are memory that the adapter keeps alive.
    #[error("memory that the adapter keeps alive cannot be joined with other memory")]
    Mixed,
    /// A page is not aligned to its size.
    #[error("the page at {addr:#x} is not aligned to {size}")]
    Unaligned {
        /// The address of the page.
        addr: u64,
        /// The size of a page.
        size: PageSize,
    },
    /// The first byte is not in the first page.
    #[error("the first byte, at offset {first:#x}, is not in the first page of {size}")]
    FirstByte {
        /// The offset of the first byte.
        first: u64,
        /// The size of a page.
        size: PageSize,
    },
    /// There are more pages than page tables can list.
    #[error("a list of {pages} pages exceeds the maximum of {max}: use larger pages")]
    TooManyPages {
        /// The number of pages.
        pages: usize,
        /// The maximum number of pages.
        max: usize,
    },
}
