//! The program's memory: the [`Host`] of the real process. Streams call it for small payloads; large ones go from and to
//! the socket without a copy (`socket.rs`).
//!
//! Registration pins nothing, so any address may be bad by the time it is used, and a plain copy would die of SIGSEGV.
//! Only the kernel copies from and to such addresses, as it does for any system call, and answers EFAULT for a bad one.
//! What it copies to or from on the other side is a *window*: a small file in memory that is mapped here too. A gather
//! writes the program's bytes to the file and finds them in the mapping; a scatter puts bytes into the mapping and
//! reads the file into the program's memory. One system call each, and no signal handler in somebody else's process.
//! What the device stages (`staged.rs`) before it goes to the program lies in such a file from the start.
#![expect(unsafe_code, reason = "names memory by address, for the kernel to copy")]

use super::fork::Fd;
use super::size;
use ironwarp_rnic::host::{Buffer, Host, Span, Unmapped};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use rustix::pipe::PipeFlags;
use rustix::process::Resource;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

mod pool;
mod staged;
#[cfg(test)]
mod tests;

use pool::Pool;
use staged::Staged;

/// How much one system call copies at most. By measurement: half of this or twice it makes copies of 64 KiB 10 to 30 %
/// slower; small copies do not notice.
const WINDOW: usize = 16 << 10;

/// How many spans one system call takes. More save little: the call's cost is shared by so many already.
const BATCH: usize = 16;

/// The memory of this process.
///
/// Its windows belong to the process that made it: a child that was forked off has none of their mappings.
#[derive(Debug)]
pub struct ProgramMemory {
    pool: Pool,
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

    /// The pages of a span: where they begin, and how many bytes they are. `None` if there are no such addresses.
    fn pages(&self, span: Span) -> Option<(usize, usize)> {
        let addr = usize::try_from(span.addr).ok()?;
        let start = addr - addr % self.page;
        // The kernel rounds up, too, but takes what overflows then for nothing.
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

    /// One `msync`: it looks at the mappings, not at their pages, and answers ENOMEM for a hole. That is 0.15 µs for 64 GiB
    /// in one mapping as for 4 KiB, and 0.1 µs for each further mapping. MS_ASYNC starts no I/O. Where the call is refused,
    /// memory is taken to be mapped: registration then succeeds, and the first access to the hole finds it.
    fn is_mapped(&self, span: Span) -> bool {
        let Some((start, len)) = self.pages(span) else { return false };
        // SAFETY: no bit of the memory is read or changed, mapped or not; the kernel checks the range.
        let answer = unsafe { rustix::mm::msync(at(start), len, MsyncFlags::ASYNC) };
        span.len == 0 || answer != Err(Errno::NOMEM)
    }
}

/// Has pages made and writable, without a change to their bytes. A kernel before 5.14 cannot: there they are made when they are
/// first used.
fn populate(start: usize, len: usize) -> Result<(), Unmapped> {
    // SAFETY: no bit of the memory is read or changed, mapped or not; the kernel checks the range.
    match unsafe { rustix::mm::madvise(at(start), len, Advice::LinuxPopulateWrite) } {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(_) => Err(Unmapped),
    }
}

/// Where in a list of spans a copy is.
#[derive(Debug)]
struct Cursor<'a> {
    spans: &'a [Span],
    /// How much of the first is done.
    done: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of spans that are `len` bytes together, as [`Host`] asks for.
    fn new(spans: &'a [Span], len: usize) -> Self {
        let total = spans.iter().try_fold(0_usize, |sum, span| sum.checked_add(span.len));
        assert_eq!(total, Some(len), "the spans are together as long as the slice");
        Self { spans, done: 0 }
    }

    /// What comes next, in the kernel's terms.
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

/// The memory that a system call is to copy from or to: no more than `N` runs of bytes.
pub(super) struct Vectors<const N: usize> {
    /// Only the first `count` are there: writing all of them would cost more than a small copy.
    vectors: [MaybeUninit<libc::iovec>; N],
    count: usize,
    room: usize,
    most: usize,
}

impl<const N: usize> Vectors<N> {
    /// Together no more than `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { vectors: [MaybeUninit::uninit(); N], count: 0, room: most, most }
    }

    pub(super) fn clear(&mut self) {
        (self.count, self.room) = (0, self.most);
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == N || self.room == 0
    }

    /// What does not fit is left out: the call then moves less.
    pub(super) fn push(&mut self, base: *mut c_void, len: usize) {
        let iov_len = len.min(self.room);
        if iov_len > 0 && self.count < N {
            self.vectors[self.count].write(libc::iovec { iov_base: base, iov_len });
            self.count += 1;
            self.room -= iov_len;
        }
    }

    /// No address is judged here: the kernel refuses those in its own half, and ranges that wrap.
    pub(super) fn push_span(&mut self, span: Span) {
        // One that this machine does not have is as bad.
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
    /// A file in memory, all of it mapped. It has a file of its own, because a write locks the file.
    File { file: Fd, map: Map },
    /// Where files in memory are refused (sandboxes filter `memfd_create`): two system calls instead of one. It is empty
    /// between copies.
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
        // Non-blocking: what does not fit is left for the next round.
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = Fd::open_both(|| rustix::pipe::pipe_with(flags))?;
        Ok(Self::Pipe { reader, writer })
    }

    /// Copies from the vectors to the front of `into`, at least a byte. Short if memory is bad further on.
    fn gather(&self, vectors: &[libc::iovec], into: &mut [u8]) -> Result<usize, Unmapped> {
        match self {
            Self::File { file, map } => {
                let moved = write(file.as_raw_fd(), 0, vectors)?;
                map.copy_out(&mut into[..moved]);
                Ok(moved)
            }
            Self::Pipe { reader, writer } => {
                let fd = writer.as_raw_fd();
                // SAFETY: the kernel reads from the addresses, or says that it cannot; the vectors live as long as the call.
                let moved = progress(|| unsafe { libc::writev(fd, vectors.as_ptr(), count(vectors)) })?;
                drain(reader, &mut into[..moved])?;
                Ok(moved)
            }
        }
    }

    /// Copies from the front of `from` to the vectors, at least a byte. Short if memory is bad further on.
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

/// A file of the given size, and its mapping. Payloads pass through it, so children keep neither.
fn file_in_memory(len: usize) -> io::Result<(Fd, Map)> {
    // Beyond this limit a write raises SIGXFSZ before it fails.
    let most = rustix::process::getrlimit(Resource::Fsize).current;
    if most.is_some_and(|most| most < len as u64) {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = Fd::open(|| rustix::fs::memfd_create(c"ironwarp-window", flags))?;
    // It cannot shrink: the mapping cannot raise SIGBUS. Its pages come when they are used, as those of any memory.
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let map = Map::new(&file, len)?;
    Ok((file, map))
}

/// Writes to a file of ours from the vectors, at least a byte. Short if memory is bad further on.
fn write(file: RawFd, offset: usize, vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Unmapped)?;
    progress(|| match vectors {
        // SAFETY: the kernel reads from the address, or says that it cannot. What it writes to is a window, which nobody else
        // has, or the part of a staging buffer that the caller has to itself.
        &[one] => size(unsafe { libc::syscall(libc::SYS_pwrite64, file, one.iov_base, one.iov_len, offset) }),
        // SAFETY: as above, and the vectors live as long as the call.
        _ => unsafe { libc::pwritev(file, vectors.as_ptr(), count(vectors), offset) },
    })
}

/// Reads from a file of ours to the vectors, at least a byte. Short if memory is bad further on.
fn read(file: RawFd, offset: usize, vectors: &[libc::iovec]) -> Result<usize, Unmapped> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Unmapped)?;
    progress(|| match vectors {
        // SAFETY: the kernel writes to the address, or says that it cannot. It is memory that the program registered for
        // that, and to which the device holds no reference (`host.rs`).
        &[one] => size(unsafe { libc::syscall(libc::SYS_pread64, file, one.iov_base, one.iov_len, offset) }),
        // SAFETY: as above, and the vectors live as long as the call.
        _ => unsafe { libc::preadv(file, vectors.as_ptr(), count(vectors), offset) },
    })
}

/// A file of ours, mapped. Of a window's, bytes go in and out by copy, and nobody has a reference.
#[derive(Debug)]
struct Map {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and to no one but this value.
unsafe impl Send for Map {}

impl Map {
    fn new(file: impl AsFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: no address is asked for, so the kernel takes one that is free.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        let map = Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len };
        // SAFETY: nobody has a reference to the mapping. A forked child would share the file, and mix its copies with ours.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontFork) }?;
        Ok(map)
    }

    /// Nobody writes to the file meanwhile: the kernel does so only for whoever has the bytes to itself.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is there, all of it, as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }

    fn copy_in(&self, from: &[u8]) {
        assert!(from.len() <= self.len);
        // SAFETY: `from` is valid, and no longer than the mapping, which nobody has a reference to.
        unsafe { ptr::copy(from.as_ptr(), self.start.as_ptr().cast(), from.len()) }
    }

    fn copy_out(&self, into: &mut [u8]) {
        assert!(into.len() <= self.len);
        // SAFETY: `into` is valid, and no longer than the mapping, which nobody has a reference to.
        unsafe { ptr::copy(self.start.as_ptr().cast(), into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nobody has a reference to it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// The address for a system call. Nothing here follows it.
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
            // Never, for a window as long as the vectors; but a copy must not go on for ever.
            Ok(0) => return Err(Unmapped),
            Ok(moved) => return Ok(moved),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Unmapped),
        }
    }
}

/// Takes out of a pipe what is known to be in it. Fails if the program has closed the pipe.
fn drain(reader: &Fd, mut into: &mut [u8]) -> Result<(), Unmapped> {
    while !into.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::read(reader, &mut *into)) {
            Ok(read @ 1..) => into = &mut into[read..],
            Ok(_) | Err(_) => return Err(Unmapped),
        }
    }
    Ok(())
}
