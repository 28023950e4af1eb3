//! Allocation of buffers with options.

use super::buffer::{Buffer, PAGE};
use super::error::AllocateError;
use ironwarp_rnic::memory::PageSize;

/// Options for a new [`Buffer`]. [`Buffer::new`] allocates one without options.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// # use ironwarp::prelude::*;
/// use std::fs::File;
/// use std::os::unix::fs::FileExt;
///
/// let buffer = Buffer::builder().shareable().allocate(4096)?;
/// let file = buffer.shared_fd().expect("a shareable buffer").try_clone_to_owned()?;
/// let region = domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
///
/// // Another process gets the descriptor, usually over a Unix socket, and maps the file or, as here, reads and writes.
/// let file = File::from(file);
/// file.write_at(b"hello", 100)?;
/// assert_eq!(&region.to_vec()?[100..105], b"hello");
/// assert_eq!(file.metadata()?.len(), 4096);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `allocate` is called"]
pub struct BufferBuilder {
    /// Whether other processes can map the buffer.
    shareable: bool,
    /// The alignment of the buffer. `None` aligns it to the smallest pages.
    page_size: Option<PageSize>,
}

impl BufferBuilder {
    /// Makes the buffer a file in memory (memfd), which other processes can map: they see what peers write, and peers
    /// read what they write, without a copy. [`Buffer::shared_fd`] and [`Contents::shared_fd`](super::Contents) return
    /// the file's descriptor, which is to be given to the other process.
    ///
    /// - The descriptor is close-on-exec. The file is as long as the buffer, and sealed: no process can make it shorter
    ///   or longer.
    /// - Whoever has the descriptor can read and write all bytes at any time, as a peer with all rights can. Access
    ///   rights of the region do not apply to it.
    /// - The file outlives the buffer as long as a process has it open or mapped.
    /// - Atomic operations of peers are atomic with respect to each other, not to other accesses of the bytes.
    /// - Pages are allocated when they are first used. If the kernel is set up to commit no more memory than it has
    ///   (`vm.overcommit_memory` is 2) and none is left, the first use raises SIGBUS.
    ///   [`register_prefaulted`](crate::ProtectionDomain::register_prefaulted) returns an error instead.
    pub fn shareable(mut self) -> Self {
        self.shareable = true;
        self
    }

    /// Aligns the buffer to pages of this size, of which a [`PageList`](super::PageList) can consist. Defaults to 4 KiB.
    /// The kernel still allocates pages of its own size, when they are first used.
    ///
    /// ```
    /// # use ironwarp::memory::{Buffer, PageSize};
    /// let buffer = Buffer::builder().page_size(PageSize::MIB_2).allocate(4 << 20)?;
    /// assert_eq!(buffer.len(), 4 << 20);
    /// # Ok::<(), ironwarp::memory::AllocateError>(())
    /// ```
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.page_size = Some(size);
        self
    }

    /// Allocates a buffer of `len` zero bytes.
    ///
    /// ```
    /// # use ironwarp::memory::Buffer;
    /// let buffer = Buffer::builder().shareable().allocate(4096)?;
    /// assert!(buffer.shared_fd().is_some());
    /// assert!(Buffer::builder().allocate(4096)?.shared_fd().is_none());
    /// # Ok::<(), ironwarp::memory::AllocateError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated. A shareable buffer also needs a file descriptor, and its length must
    /// not exceed the maximum file size of the process (`RLIMIT_FSIZE`).
    pub fn allocate(&self, len: usize) -> Result<Buffer, AllocateError> {
        #[expect(clippy::cast_possible_truncation, reason = "at most 256 MiB")]
        let align = self.page_size.map_or(PAGE, |size| size.bytes() as usize);
        if self.shareable {
            Buffer::shared(len, align).map_err(|source| AllocateError::Shared { len, source })
        } else {
            Ok(Buffer::aligned(len, align)?)
        }
    }
}

impl Buffer {
    /// Returns a builder, to allocate a buffer with options.
    ///
    /// ```
    /// let buffer = ironwarp::memory::Buffer::builder().shareable().allocate(1 << 20)?;
    /// assert_eq!(buffer.len(), 1 << 20);
    /// # Ok::<(), ironwarp::memory::AllocateError>(())
    /// ```
    pub fn builder() -> BufferBuilder {
        BufferBuilder::default()
    }
}
