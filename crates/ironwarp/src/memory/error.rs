//! Errors of memory: allocation, access by the program, and changes of a region.

use ironwarp_rnic::memory::{PageSize, ReregisterError, TranslationError};

/// An allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to allocate {len} bytes")]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The requested size, in bytes.
    pub len: usize,
}

/// Reasons why a buffer with [options](super::BufferBuilder) cannot be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The memory cannot be allocated.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The file for a shareable buffer cannot be created or mapped.
    #[error("failed to allocate {len} bytes of shared memory: {source}")]
    Shared {
        /// The requested size, in bytes.
        len: usize,
        /// The error of the system call.
        source: std::io::Error,
    },
}

/// Reasons why the bytes of a region or a chunk cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range is not completely inside the region or chunk.
    #[error("range out of bounds: {len} bytes at offset {at} of {size} bytes")]
    OutOfBounds {
        /// Offset of the range's first byte.
        at: usize,
        /// Length of the range, in bytes.
        len: usize,
        /// Length of the region or chunk, in bytes.
        size: usize,
    },
    /// The range ends before it starts.
    #[error("invalid range: it starts at offset {start} and ends at {end}")]
    Reversed {
        /// Start of the range.
        start: usize,
        /// End of the range.
        end: usize,
    },
    /// The range is too long for one scatter/gather element, which covers at most 4 GiB.
    #[error("scatter/gather element of {len} bytes exceeds the maximum of 4 GiB: split it")]
    TooLong {
        /// Length of the range, in bytes.
        len: usize,
    },
    /// The program unmapped or write-protected memory that it had registered with
    /// [`register_raw`](crate::ProtectionDomain::register_raw).
    #[error("the program unmapped or write-protected this memory while it was registered")]
    Unmapped,
}

/// Reasons why pages of a region do not form a [`PageList`](super::PageList).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageListError {
    /// A page is not completely inside one buffer of the region.
    #[error("page of {size} at offset {at:#x} is not inside one buffer of the region, which has {len} bytes")]
    OutOfBounds {
        /// Offset of the page in the region.
        at: usize,
        /// The size of a page.
        size: PageSize,
        /// Length of the region, in bytes.
        len: usize,
    },
    /// A page does not start at a multiple of its size.
    #[error(
        "page at offset {at:#x} has the address {addr:#x}, which is not a multiple of {size}: allocate the buffer with \
         BufferBuilder::page_size"
    )]
    Unaligned {
        /// Offset of the page in the region.
        at: usize,
        /// Address of the page.
        addr: u64,
        /// The size of a page.
        size: PageSize,
    },
    /// The range is not completely inside the pages.
    #[error(transparent)]
    Range(#[from] AccessError),
    /// The list is empty or too long, or the range does not start in the first page.
    #[error(transparent)]
    Translation(#[from] TranslationError),
}

/// Reasons why [`MemoryRegion::reregister`](crate::memory::MemoryRegion::reregister) did not change a region. The
/// region stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The new protection domain belongs to another adapter than the region.
    #[error("the protection domain and the region belong to different adapters")]
    OtherAdapter,
    /// The region cannot be changed, for example because windows are bound to it, or the new memory cannot be
    /// registered.
    #[error(transparent)]
    Refused(#[from] ReregisterError),
}
