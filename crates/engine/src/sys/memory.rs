//! The program's memory: the [`Host`] of the real process. Streams call it for small payloads; large ones go from and to
//! the socket without a copy (`socket.rs`).
//!
//! Registration pins nothing, so any address may be invalid by the time it is used, and a plain copy would raise SIGSEGV. Only the
//! kernel copies from and to such addresses, as for any system call, and answers EFAULT for an invalid one. The other side of such a
//! copy is a *window*: a small file in memory that is mapped here, too. A gather writes the program's bytes to the file and
//! reads them from the mapping; a scatter writes bytes to the mapping and reads the file into the program's memory. That takes one system
//! call each, and no signal handler in the program's process. Bytes that the device stages (`staged.rs`) before they go to the
//! program are in such a file from the start.
#![expect(unsafe_code, reason = "names memory by address, for the kernel to copy")]

use super::fork::Fd;
use super::size;
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

mod map;
mod pool;
mod staged;
#[cfg(test)]
mod tests;

use map::{Map, file_in_memory};
use pool::Pool;
use staged::Staged;

/// Maximum number of bytes that one system call copies. By measurement: half or twice as much makes copies of 64 KiB 10 to 30 %
/// slower, and makes no difference for small copies.
const WINDOW: usize = 16 << 10;

/// Maximum number of spans of one system call. More would save little: the cost of the call is shared by 16 already.
const BATCH: usize = 16;

/// The memory of this process.
///
/// Its windows belong to the process that created it: a forked child has none of their mappings.
#[derive(Debug)]
pub struct ProgramMemory {
    pool: Pool<Window>,
    staged: Arc<Staged>,
    page: usize,
}

impl ProgramMemory {
    /// Fails only if the process may have neither a file in memory nor a pipe.
    pub fn new() -> io::Result<Self> {
        Self::with_windows(Window::new)
    }

    fn with_windows(make: fn() -> io::Result<Window>) -> io::Result<Self> {
        // SAFETY: `sysconf` takes a number and touches no memory.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(|_| io::Error::last_os_error())?;
        Ok(Self { pool: Pool::new(make)?, staged: Arc::default(), page })
    }

    /// The pages of a span: their start and their length. `None` if the addresses do not exist.
    fn pages(&self, span: Span) -> Option<(usize, usize)> {
        let addr = usize::try_from(span.addr).ok()?;
        let start = addr - addr % self.page;
        // The kernel rounds up, too, but takes a length that overflows for zero.
        let len = span.len.checked_add(addr - start)?.checked_next_multiple_of(self.page)?;
        Some((start, len))
    }
}

impl Host for ProgramMemory {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        let (mut cursor, mut vectors) = (Cursor::new(from, into.len()), Vectors::<BATCH>::new(WINDOW));
        if let Some(mut place) = self.staged.find(into) {
            // The call is not told this address, and writes there.
            std::hint::black_box(into.as_mut_ptr());
            let end = place.offset + into.len();
            while place.offset < end {
                let moved = write(place.file, place.offset, cursor.next(&mut vectors))?;
                cursor.advance(moved);
                place.offset += moved;
            }
            return Ok(());
        }
        self.pool.with(|window| {
            while !into.is_empty() {
                let moved = window.gather(cursor.next(&mut vectors), into)?;
                cursor.advance(moved);
                into = &mut std::mem::take(&mut into)[moved..];
            }
            Ok(())
        })
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        let (mut cursor, mut vectors) = (Cursor::new(to, from.len()), Vectors::<BATCH>::new(WINDOW));
        if let Some(mut place) = self.staged.find(from) {
            while !from.is_empty() {
                let moved = read(place.file, place.offset, cursor.next(&mut vectors))?;
                cursor.advance(moved);
                from = &from[moved..];
                place.offset += moved;
            }
            return Ok(());
        }
        self.pool.with(|window| {
            while !from.is_empty() {
                let moved = window.scatter(from, cursor.next(&mut vectors))?;
                cursor.advance(moved);
                from = &from[moved..];
            }
            Ok(())
        })
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.staged.buffer(len).unwrap_or_else(|_| Box::new(vec![0; len]))
    }

    fn prefault(&self, memory: Span) -> Result<(), Unmapped> {
        let (start, len) = self.pages(memory).ok_or(Unmapped)?;
        populate(start, len)
    }

    /// One `msync`: it checks the mappings, not their pages, and answers ENOMEM for a hole. That takes 0.15 µs for 64 GiB in one mapping as
    /// for 4 KiB, and 0.1 µs for each further mapping. MS_ASYNC starts no I/O. Where the call is denied, memory is taken
    /// to be mapped: registration then succeeds, and the first access to the hole fails.
    fn is_mapped(&self, span: Span) -> bool {
        let Some((start, len)) = self.pages(span) else { return false };
        // SAFETY: no bit of the memory is read or changed, mapped or not; the kernel checks the range.
        let answer = unsafe { rustix::mm::msync(at(start), len, MsyncFlags::ASYNC) };
        span.len == 0 || answer != Err(Errno::NOMEM)
    }
}

/// Allocates pages and makes them writable, without changing their bytes. A kernel before 5.14 cannot: there they are allocated when
/// they are first used.
fn populate(start: usize, len: usize) -> Result<(), Unmapped> {
    // SAFETY: no bit of the memory is read or changed, mapped or not; the kernel checks the range.
    match unsafe { rustix::mm::madvise(at(start), len, Advice::LinuxPopulateWrite) } {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(_) => Err(Unmapped),
    }
}

/// The position of a copy in a list of spans.
#[derive(Debug)]
struct Cursor<'a> {
    spans: &'a [Span],
    /// Number of bytes of the first span that are done.
    done: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of spans that are `len` bytes together, as [`Host`] requires.
    fn new(spans: &'a [Span], len: usize) -> Self {
        let total = spans.iter().try_fold(0_usize, |sum, span| sum.checked_add(span.len));
        assert_eq!(total, Some(len), "the spans are together as long as the slice");
        Self { spans, done: 0 }
    }

    /// The next vectors for the kernel.
    fn next<'v>(&self, vectors: &'v mut Vectors<BATCH>) -> &'v [libc::iovec] {
        vectors.clear();
        let mut done = self.done;
        for &Span { addr, len } in self.spans {
            if vectors.is_full() {
                break;
            }
            vectors.push_span(Span { addr: addr.saturating_add(done as u64), len: len - done });
            done = 0;
        }
        vectors.as_slice()
    }

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

/// The memory that a system call copies from or to: at most `N` runs of bytes.
pub(super) struct Vectors<const N: usize> {
    /// Only the first `count` are initialized: writing all of them would cost more than a small copy.
    vectors: [MaybeUninit<libc::iovec>; N],
    count: usize,
    room: usize,
    most: usize,
}

impl<const N: usize> Vectors<N> {
    /// Limits them to `most` bytes in total.
    pub(super) fn new(most: usize) -> Self {
        Self { vectors: [MaybeUninit::uninit(); N], count: 0, room: most, most }
    }

    pub(super) fn clear(&mut self) {
        (self.count, self.room) = (0, self.most);
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == N || self.room == 0
    }

    /// A run that does not fit is left out: the call then moves less.
    pub(super) fn push(&mut self, base: *mut c_void, len: usize) {
        let iov_len = len.min(self.room);
        if iov_len > 0 && self.count < N {
            self.vectors[self.count].write(libc::iovec { iov_base: base, iov_len });
            self.count += 1;
            self.room -= iov_len;
        }
    }

    /// Addresses are not checked here: the kernel refuses those in its own half, and ranges that wrap.
    pub(super) fn push_span(&mut self, span: Span) {
        // An address that this machine does not have is invalid, too.
        self.push(at(usize::try_from(span.addr).unwrap_or(usize::MAX)), span.len);
    }

    pub(super) fn as_slice(&self) -> &[libc::iovec] {
        // SAFETY: `push` wrote the first `count`.
        unsafe { std::slice::from_raw_parts(self.vectors.as_ptr().cast(), self.count) }
    }
}

/// What the program's bytes pass through. One copy uses it at a time.
#[derive(Debug)]
enum Window {
    /// A mapped file in memory. Each window has a file of its own, because a write locks the file.
    File { file: Fd, map: Map },
    /// Where files in memory are denied (sandboxes filter `memfd_create`): two system calls instead of one. It is empty between copies.
    Pipe { reader: Fd, writer: Fd },
}

impl Window {
    fn new() -> io::Result<Self> {
        Self::file().or_else(|_| Self::pipe())
    }

    fn file() -> io::Result<Self> {
        let (file, map) = file_in_memory(WINDOW)?;
        // Now, and not in the middle of the first copy.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, WINDOW as u64)?;
        Ok(Self::File { file, map })
    }

    fn pipe() -> io::Result<Self> {
        // Non-blocking: bytes that do not fit are left for the next round.
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = Fd::open_both(|| rustix::pipe::pipe_with(flags))?;
        Ok(Self::Pipe { reader, writer })
    }

    /// Copies from the vectors to the front of `into`, at least a byte. Short if memory further on is invalid.
    fn gather(&self, vectors: &[libc::iovec], into: &mut [u8]) -> Result<usize, Unmapped> {
        match self {
            Self::File { file, map } => {
                let moved = write(file.as_raw_fd(), 0, vectors)?;
                map.copy_out(&mut into[..moved]);
                Ok(moved)
            }
            Self::Pipe { reader, writer } => {
                let fd = writer.as_raw_fd();
                // SAFETY: the kernel reads from the addresses, or reports that it cannot; the vectors outlive the call.
                let moved = progress(|| unsafe { libc::writev(fd, vectors.as_ptr(), count(vectors)) })?;
                drain(reader, &mut into[..moved])?;
                Ok(moved)
            }
        }
    }

    /// Copies from the front of `from` to the vectors, at least a byte. Short if memory further on is invalid.
    fn scatter(&self, from: &[u8], vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
        let from = &from[..vectors.iter().map(|vector| vector.iov_len).sum()];
        match self {
            Self::File { file, map } => {
                map.copy_in(from);
                read(file.as_raw_fd(), 0, vectors)
            }
            Self::Pipe { reader, writer } => {
                let held =
                    rustix::io::retry_on_intr(|| rustix::io::write(writer, from)).map_err(|_| Unmapped)?;
                let fd = reader.as_raw_fd();
                // SAFETY: as for the file.
                let moved = progress(|| unsafe { libc::readv(fd, vectors.as_ptr(), count(vectors)) });
                let left = held - moved.unwrap_or(0);
                if left > 0 {
                    drain(reader, &mut [0; WINDOW][..left])?;
                }
                moved
            }
        }
    }
}

/// Writes to a file of the adapter from the vectors, at least a byte. Short if memory further on is invalid.
fn write(file: RawFd, offset: usize, vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Unmapped)?;
    progress(|| match vectors {
        // SAFETY: the kernel reads from the address, or reports that it cannot. It writes to a window, which no other thread
        // uses, or to the part of a staging buffer that the caller owns.
        &[one] => size(unsafe { libc::syscall(libc::SYS_pwrite64, file, one.iov_base, one.iov_len, offset) }),
        // SAFETY: as above, and the vectors live as long as the call.
        _ => unsafe { libc::pwritev(file, vectors.as_ptr(), count(vectors), offset) },
    })
}

/// Reads from a file of the adapter to the vectors, at least a byte. Short if memory further on is invalid.
fn read(file: RawFd, offset: usize, vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Unmapped)?;
    progress(|| match vectors {
        // SAFETY: the kernel writes to the address, or reports that it cannot. It is memory that the program registered for
        // that, and to which the device holds no reference (`host.rs`).
        &[one] => size(unsafe { libc::syscall(libc::SYS_pread64, file, one.iov_base, one.iov_len, offset) }),
        // SAFETY: as above, and the vectors live as long as the call.
        _ => unsafe { libc::preadv(file, vectors.as_ptr(), count(vectors), offset) },
    })
}

/// The address for a system call. It is not dereferenced here.
fn at(addr: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "at most BATCH")]
fn count(vectors: &[libc::iovec]) -> libc::c_int {
    vectors.len() as libc::c_int
}

/// How far a system call got: at least a byte. Any error but an interruption means that the memory could not be used.
fn progress(call: impl Fn() -> libc::ssize_t) -> Result<usize, Unmapped> {
    loop {
        match usize::try_from(call()) {
            // Never, for a window as long as the vectors; but a copy must not go on forever.
            Ok(0) => return Err(Unmapped),
            Ok(moved) => return Ok(moved),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Unmapped),
        }
    }
}

/// Reads from a pipe what is known to be in it. Fails if the program has closed the pipe.
fn drain(reader: &Fd, mut into: &mut [u8]) -> Result<(), Unmapped> {
    while !into.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::read(reader, &mut *into)) {
            Ok(read @ 1..) => into = &mut into[read..],
            Ok(_) | Err(_) => return Err(Unmapped),
        }
    }
    Ok(())
}
