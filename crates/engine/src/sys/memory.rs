//! Copies between the program's memory and the adapter's buffers: [`ProgramMemory`] is the [`Host`] of the real
//! process. Streams use it for small payloads. Large payloads are moved between socket and program memory without a
//! copy (`socket.rs`).
//!
//! Registration does not pin memory, so any address may be unmapped by the time it is used, and a plain copy would
//! raise SIGSEGV. So only the kernel accesses the program's addresses: a system call returns EFAULT for an unmapped
//! address. The adapter's end of such a copy is a *window*: a small file in memory (memfd) that the adapter has also
//! mapped. A gather writes the program's bytes to the file (pwrite) and copies them out of the mapping; a scatter
//! copies bytes into the mapping and reads the file into the program's memory (pread). Each takes one system call, and
//! no signal handler in the program's process. Staging buffers (`staged.rs`) are such files themselves, so bytes in
//! them need no window.
#![expect(unsafe_code, reason = "passes addresses of the program's memory to the kernel")]

use super::byte_count;
use super::fork::{Creator, Fd};
use ironwarp_rnic::host::{Buffer, Host, Span, Unmapped};
use rustix::fd::{AsRawFd, RawFd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags};
use rustix::pipe::PipeFlags;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

mod descriptor;
pub(super) mod map;
mod pool;
mod staged;
#[cfg(test)]
mod tests;

pub use descriptor::{read_from, write_to};
use map::{Map, WINDOW_NAME, file_in_memory};
use pool::Pool;
use staged::StagingBuffers;

/// Size of a window in bytes, which limits the bytes that one system call copies. By measurement: half or twice as much
/// makes copies of 64 KiB 10 to 30 % slower, and makes no difference for small copies.
const WINDOW: usize = 16 << 10;

/// Maximum number of spans of one system call. More would save little: 16 spans share the cost of the call already.
const MAX_SPANS: usize = 16;

/// Maximum number of iovecs of a system call: the kernel's UIO_MAXIOV.
pub(super) const MAX_VECTORS: usize = 1024;

/// Maximum number of bytes that a system call moves: the kernel's MAX_RW_COUNT. If the lengths of all iovecs add up to
/// more than `isize::MAX`, the kernel refuses the call.
pub(super) const MAX_BYTES: usize = 0x7fff_f000;

/// The memory of this process.
///
/// The windows belong to the process that created them: a forked child must not copy with this value, because it has no
/// copy of the mappings.
#[derive(Debug)]
pub struct ProgramMemory {
    pool: Pool<Window>,
    staging: Arc<StagingBuffers>,
    /// Size of a page in bytes.
    page_size: usize,
    /// The process that has the windows.
    creator: Creator,
}

impl ProgramMemory {
    /// Creates the first window. Fails only if the process may create neither a file in memory nor a pipe.
    pub fn new() -> io::Result<Self> {
        Self::with_windows(Window::new)
    }

    /// Creates the first window with `make`, which also creates further windows when they are needed.
    fn with_windows(make: fn() -> io::Result<Window>) -> io::Result<Self> {
        // SAFETY: `sysconf` has no precondition: it takes a number and accesses no memory of the caller.
        let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_size = usize::try_from(page_size).map_err(|_| io::Error::last_os_error())?;
        Ok(Self { pool: Pool::new(make)?, staging: Arc::default(), page_size, creator: Creator::this() })
    }

    /// Returns the address and the length in bytes of the whole pages that contain a span. `None` if the span exceeds
    /// the address space.
    fn whole_pages(&self, span: Span) -> Option<(usize, usize)> {
        let addr = usize::try_from(span.addr).ok()?;
        let start = addr - addr % self.page_size;
        // The kernel rounds the length up, too, but treats a length that overflows as zero.
        let len = span.len.checked_add(addr - start)?.checked_next_multiple_of(self.page_size)?;
        Some((start, len))
    }
}

impl ProgramMemory {
    /// Copies a short span with one system call, without the lists that longer copies need. Returns `Ok(false)` if not
    /// all of it was copied.
    fn gather_short(&self, from: Span, into: &mut [u8]) -> Result<bool, Unmapped> {
        let vector = [as_vector(from)];
        let moved = match self.staging.find(into) {
            Some(position) => {
                std::hint::black_box(into.as_mut_ptr()); // as in `gather_spans`
                write_file(position.file, position.offset, &vector)?
            }
            None => self.pool.with(|window| window.gather(&vector, into))?,
        };
        Ok(moved == into.len())
    }

    /// Copies to a short span, as [`gather_short`](Self::gather_short) does.
    fn scatter_short(&self, from: &[u8], to: Span) -> Result<bool, Unmapped> {
        let vector = [as_vector(to)];
        let moved = match self.staging.find(from) {
            Some(position) => read_file(position.file, position.offset, &vector)?,
            None => self.pool.with(|window| window.scatter(from, &vector))?,
        };
        Ok(moved == from.len())
    }

    /// Copies from any spans. Not inlined: a short copy would have to make room for the iovecs of this one.
    #[inline(never)]
    fn gather_spans(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        let (mut cursor, mut vectors) = (Cursor::new(from, into.len()), Vectors::<MAX_SPANS>::new(WINDOW));
        if let Some(mut position) = self.staging.find(into) {
            // The kernel writes to `into` through the file, without its address: the compiler must not assume that
            // `into` is unchanged.
            std::hint::black_box(into.as_mut_ptr());
            let end = position.offset + into.len();
            while position.offset < end {
                let moved = write_file(position.file, position.offset, cursor.fill(&mut vectors))?;
                cursor.advance(moved);
                position.offset += moved;
            }
            return Ok(());
        }
        self.pool.with(|window| {
            while !into.is_empty() {
                let moved = window.gather(cursor.fill(&mut vectors), into)?;
                cursor.advance(moved);
                into = &mut std::mem::take(&mut into)[moved..];
            }
            Ok(())
        })
    }

    /// Copies to any spans, as [`gather_spans`](Self::gather_spans) does.
    #[inline(never)]
    fn scatter_spans(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let (mut cursor, mut vectors) = (Cursor::new(to, from.len()), Vectors::<MAX_SPANS>::new(WINDOW));
        if let Some(mut position) = self.staging.find(from) {
            while !from.is_empty() {
                let moved = read_file(position.file, position.offset, cursor.fill(&mut vectors))?;
                cursor.advance(moved);
                from = &from[moved..];
                position.offset += moved;
            }
            return Ok(());
        }
        self.pool.with(|window| {
            while !from.is_empty() {
                let moved = window.scatter(from, cursor.fill(&mut vectors))?;
                cursor.advance(moved);
                from = &from[moved..];
            }
            Ok(())
        })
    }
}

impl Host for ProgramMemory {
    fn gather(&self, from: &[Span], into: &mut [u8]) -> Result<(), Unmapped> {
        if let [span] = from
            && is_short(*span, into.len())
            && self.gather_short(*span, into)?
        {
            return Ok(());
        }
        self.gather_spans(from, into)
    }

    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        if let [span] = to
            && is_short(*span, from.len())
            && self.scatter_short(from, *span)?
        {
            return Ok(());
        }
        self.scatter_spans(from, to)
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.staging.create(len).unwrap_or_else(|_| Box::new(vec![0; len]))
    }

    fn prefault(&self, memory: Span) -> Result<(), Unmapped> {
        let (start, len) = self.whole_pages(memory).ok_or(Unmapped)?;
        populate(start, len)
    }

    /// Returns whether all pages of the span are mapped. If the call is denied (a sandbox), returns true: registration
    /// then succeeds, and the first access to unmapped memory fails.
    ///
    /// Makes one `msync`, which checks only the list of mappings and returns ENOMEM for a hole between them. That takes
    /// 0.15 µs, for 64 GiB in one mapping as for 4 KiB, and 0.1 µs more for each further mapping. With MS_ASYNC it
    /// starts no I/O.
    fn is_mapped(&self, span: Span) -> bool {
        let Some((start, len)) = self.whole_pages(span) else { return false };
        // SAFETY: `msync` with MS_ASYNC neither reads nor changes the memory, and checks whether the range is mapped.
        let answer = unsafe { rustix::mm::msync(as_pointer(start), len, MsyncFlags::ASYNC) };
        span.len == 0 || answer != Err(Errno::NOMEM)
    }

    fn is_inherited(&self) -> bool {
        self.creator.is_parent()
    }
}

/// Allocates pages and makes them writable, without changing their bytes. On kernels before 5.14 (EINVAL) it does
/// nothing, and the pages are allocated when they are first used.
fn populate(start: usize, len: usize) -> Result<(), Unmapped> {
    // SAFETY: MADV_POPULATE_WRITE does not change the bytes of the memory, and checks whether the range is mapped.
    match unsafe { rustix::mm::madvise(as_pointer(start), len, Advice::LinuxPopulateWrite) } {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(_) => Err(Unmapped),
    }
}

/// The position of a copy in a list of spans.
#[derive(Debug)]
struct Cursor<'a> {
    /// The spans that are not copied completely yet.
    spans: &'a [Span],
    /// Number of bytes of the first span that are copied already.
    done: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte. Panics unless the spans have `len` bytes in total, as [`Host`] requires.
    fn new(spans: &'a [Span], len: usize) -> Self {
        let total = spans.iter().try_fold(0_usize, |sum, span| sum.checked_add(span.len));
        assert_eq!(total, Some(len), "the spans are together as long as the slice");
        Self { spans, done: 0 }
    }

    /// Fills `vectors` with the bytes that are to be copied next, as many as fit, and returns them. Does not advance
    /// the cursor.
    fn fill<'v>(&self, vectors: &'v mut Vectors<MAX_SPANS>) -> &'v [libc::iovec] {
        vectors.clear();
        let mut done = self.done;
        for &Span { addr, len, .. } in self.spans {
            if vectors.is_full() {
                break;
            }
            vectors.push_span(Span::new(addr.saturating_add(done as u64), len - done));
            done = 0;
        }
        vectors.as_slice()
    }

    /// Advances by the number of bytes that a system call has copied.
    fn advance(&mut self, mut by: usize) {
        while let [first, rest @ ..] = self.spans
            && by >= first.len - self.done
        {
            by -= first.len - self.done;
            (self.spans, self.done) = (rest, 0);
        }
        self.done += by;
    }
}

/// The iovecs of a system call: at most `N`.
pub(super) struct Vectors<const N: usize> {
    /// Only the first `count` are initialized: writing all of them would cost more than a small copy.
    vectors: [MaybeUninit<libc::iovec>; N],
    count: usize,
    /// Number of bytes that may still be added.
    room: usize,
    /// Maximum number of bytes in all vectors together.
    max_bytes: usize,
}

impl<const N: usize> Vectors<N> {
    /// Creates an empty list that takes at most `max_bytes` bytes in total.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { vectors: [MaybeUninit::uninit(); N], count: 0, room: max_bytes, max_bytes }
    }

    /// Removes all vectors.
    pub(super) fn clear(&mut self) {
        (self.count, self.room) = (0, self.max_bytes);
    }

    /// Returns whether nothing more can be added.
    pub(super) fn is_full(&self) -> bool {
        self.count == N || self.room == 0
    }

    /// Adds `len` bytes at `base`, or as many of them as fit, which may be none. The system call then moves fewer
    /// bytes, and the caller makes another one for the rest.
    pub(super) fn push(&mut self, base: *mut c_void, len: usize) {
        let iov_len = len.min(self.room);
        if iov_len > 0 && self.count < N {
            self.vectors[self.count].write(libc::iovec { iov_base: base, iov_len });
            self.count += 1;
            self.room -= iov_len;
        }
    }

    /// Adds a span, or as much of it as fits. The address is not checked: the kernel refuses addresses in its own half
    /// of the address space, and ranges that wrap around.
    pub(super) fn push_span(&mut self, span: Span) {
        // On a 32-bit machine a larger address is invalid, as is usize::MAX.
        self.push(as_pointer(usize::try_from(span.addr).unwrap_or(usize::MAX)), span.len);
    }

    /// Returns the vectors.
    pub(super) fn as_slice(&self) -> &[libc::iovec] {
        // SAFETY: `push` has initialized the first `count` elements.
        unsafe { std::slice::from_raw_parts(self.vectors.as_ptr().cast(), self.count) }
    }
}

/// A buffer of the kernel through which the program's bytes are copied. One copy uses it at a time.
#[derive(Debug)]
enum Window {
    /// A mapped file in memory. Each window has a file of its own, because a write locks the file.
    File { file: Fd, map: Map },
    /// A pipe, which needs two system calls for a copy instead of one. Used where files in memory are denied (sandboxes
    /// filter `memfd_create`). The pipe is empty between copies.
    Pipe { reader: Fd, writer: Fd },
}

// SAFETY: a window may be used by several threads, but not at once: its methods copy to and from its mapping without a
// lock. `Pool`, which has all windows, lends each to one thread at a time.
unsafe impl Sync for Window {}

impl Window {
    /// Creates a window: a file, or a pipe if that fails.
    fn new() -> io::Result<Self> {
        Self::file().or_else(|_| Self::pipe())
    }

    /// Creates a window that is a file.
    fn file() -> io::Result<Self> {
        let (file, map) = file_in_memory(WINDOW_NAME, WINDOW)?;
        // Allocates the pages now, so that a lack of memory is not reported in the middle of a copy.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, WINDOW as u64)?;
        Ok(Self::File { file, map })
    }

    /// Creates a window that is a pipe.
    fn pipe() -> io::Result<Self> {
        // Non-blocking: a write to a full pipe is short, and the next round copies the rest.
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = Fd::open_both(|| rustix::pipe::pipe_with(flags))?;
        Ok(Self::Pipe { reader, writer })
    }

    /// Copies from the program's memory at the vectors to the front of `into`. Returns the number of bytes copied: at
    /// least one, and fewer than the vectors have if memory further on is unmapped or a pipe has less room.
    #[inline]
    fn gather(&self, vectors: &[libc::iovec], into: &mut [u8]) -> Result<usize, Unmapped> {
        match self {
            Self::File { file, map } => {
                let moved = write_file(file.as_raw_fd(), 0, vectors)?;
                map.copy_out(&mut into[..moved]);
                Ok(moved)
            }
            Self::Pipe { reader, writer } => gather_through(reader, writer, vectors, into),
        }
    }

    /// Copies from the front of `from`, which is at least as long as the vectors, to the program's memory at the
    /// vectors. Returns the number of bytes copied: at least one, and fewer than the vectors have if memory further on
    /// is unmapped or a pipe has less room.
    #[inline]
    fn scatter(&self, from: &[u8], vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
        let from = &from[..vectors.iter().map(|vector| vector.iov_len).sum()];
        match self {
            Self::File { file, map } => {
                map.copy_in(from);
                read_file(file.as_raw_fd(), 0, vectors)
            }
            Self::Pipe { reader, writer } => scatter_through(reader, writer, from, vectors),
        }
    }
}

/// Does what [`Window::gather`] does, with a pipe. Rarely used: sandboxes that deny files in memory are few.
#[cold]
fn gather_through(
    reader: &Fd,
    writer: &Fd,
    vectors: &[libc::iovec],
    into: &mut [u8],
) -> Result<usize, Unmapped> {
    let fd = writer.as_raw_fd();
    // SAFETY: the kernel only reads the memory that the vectors name, and returns EFAULT if it is not mapped. The
    // vectors outlive the call.
    let moved = move_bytes(|| unsafe { libc::writev(fd, vectors.as_ptr(), vector_count(vectors)) })?;
    drain(reader, &mut into[..moved])?;
    Ok(moved)
}

/// Does what [`Window::scatter`] does, with a pipe. `from` is as long as the vectors.
#[cold]
fn scatter_through(
    reader: &Fd,
    writer: &Fd,
    from: &[u8],
    vectors: &[libc::iovec],
) -> Result<usize, Unmapped> {
    // Fails only if the program has closed the pipe: it is empty, so there is room.
    let in_pipe = rustix::io::retry_on_intr(|| rustix::io::write(writer, from)).map_err(|_| Unmapped)?;
    let fd = reader.as_raw_fd();
    // SAFETY: the kernel writes only to the memory that the vectors name, and returns EFAULT if it is not mapped. The
    // program has registered that memory for writing, and the device holds no reference to it (`host.rs`). The vectors
    // outlive the call.
    let moved = move_bytes(|| unsafe { libc::readv(fd, vectors.as_ptr(), vector_count(vectors)) });
    // Bytes that were not copied, all of them after an error, must not stay in the pipe, where the next copy would find
    // them.
    let left = in_pipe - moved.unwrap_or(0);
    if left > 0 {
        drain(reader, &mut [0; WINDOW][..left])?;
    }
    moved
}

/// Copies from the program's memory at the vectors to a file of the adapter. Returns the number of bytes copied: at
/// least one, and fewer than the vectors have if memory further on is unmapped.
#[inline]
fn write_file(file: RawFd, offset: usize, vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Unmapped)?;
    move_bytes(|| match vectors {
        // One vector needs no iovec.
        &[one] => {
            // SAFETY: the kernel only reads the memory at the address, and returns EFAULT if it is not mapped. It
            // changes bytes of the mapped file: a window, which no other thread uses, or the part of a staging buffer
            // that the caller has borrowed mutably.
            byte_count(unsafe { libc::syscall(libc::SYS_pwrite64, file, one.iov_base, one.iov_len, offset) })
        }
        // SAFETY: as above, for each vector; the vectors outlive the call.
        _ => unsafe { libc::pwritev(file, vectors.as_ptr(), vector_count(vectors), offset) },
    })
}

/// Copies from a file of the adapter to the program's memory at the vectors. Returns the number of bytes copied: at
/// least one, and fewer than the vectors have if memory further on is unmapped.
#[inline]
fn read_file(file: RawFd, offset: usize, vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Unmapped)?;
    move_bytes(|| match vectors {
        // One vector needs no iovec.
        &[one] => {
            // SAFETY: the kernel writes only to the memory at the address, and returns EFAULT if it is not mapped. The
            // program has registered that memory for writing, and the device holds no reference to it (`host.rs`).
            byte_count(unsafe { libc::syscall(libc::SYS_pread64, file, one.iov_base, one.iov_len, offset) })
        }
        // SAFETY: as above, for each vector; the vectors outlive the call.
        _ => unsafe { libc::preadv(file, vectors.as_ptr(), vector_count(vectors), offset) },
    })
}

/// Returns whether a span can be copied from or to `len` bytes with one system call.
fn is_short(span: Span, len: usize) -> bool {
    span.len == len && (1..=WINDOW).contains(&len)
}

/// Returns the iovec of a span, whose address is not checked: see [`Vectors::push_span`].
fn as_vector(span: Span) -> libc::iovec {
    let addr = usize::try_from(span.addr).unwrap_or(usize::MAX);
    libc::iovec { iov_base: as_pointer(addr), iov_len: span.len }
}

/// Converts an address of the program to a pointer, which is only passed to the kernel and never dereferenced.
fn as_pointer(addr: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr)
}

/// Returns the number of vectors, in the type that system calls take.
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "at most MAX_SPANS")]
fn vector_count(vectors: &[libc::iovec]) -> libc::c_int {
    vectors.len() as libc::c_int
}

/// Makes a system call, and repeats it while it fails with EINTR. Returns the number of bytes moved, at least one. Any
/// other error means that the program's memory could not be accessed.
fn move_bytes(call: impl Fn() -> libc::ssize_t) -> Result<usize, Unmapped> {
    loop {
        match usize::try_from(call()) {
            // Cannot happen, because a window is as long as the vectors; but then the caller's loop would never end.
            Ok(0) => return Err(Unmapped),
            Ok(moved) => return Ok(moved),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Unmapped),
        }
    }
}

/// Fills `into` from a pipe, which has at least that many bytes. Fails if the program has closed the pipe.
fn drain(reader: &Fd, mut into: &mut [u8]) -> Result<(), Unmapped> {
    while !into.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::read(reader, &mut *into)) {
            Ok(read @ 1..) => into = &mut into[read..],
            Ok(_) | Err(_) => return Err(Unmapped),
        }
    }
    Ok(())
}
