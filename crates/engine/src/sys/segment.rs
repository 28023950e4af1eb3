//! Memory that two processes share: a sealed file in memory (memfd), mapped by both ([`MappedSegment`]), for the rings
//! of `ironwarp-shm`.
//!
//! The other process is not trusted. The file is sealed before it is used, so that it cannot shrink: an access to the
//! mapping can then not raise SIGBUS. A file that the other process has created is checked for its seals, its type and
//! its size. Forked children inherit neither the file nor the mapping.
#![expect(
    unsafe_code,
    reason = "hands out mapped memory, and passes addresses of the program's memory to the kernel"
)]

use super::fork::Fd;
use super::memory::map::{Map, SEALS, file_in_memory};
use ironwarp_rnic::host::Span;
use ironwarp_shm::{SEGMENT_LEN, Segment};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

/// The type of the file system that memfds are in (`TMPFS_MAGIC`, statfs(2)). Huge pages are in another one, whose
/// pages can run out.
const TMPFS: u64 = 0x0102_1994;

/// A segment of shared memory, mapped in this process.
///
/// It belongs to the process that mapped it: a forked child has no copy of the mapping.
#[derive(Debug)]
pub(crate) struct MappedSegment {
    file: Fd,
    map: Map,
}

/// The program's memory at an address is not mapped, or write-protected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault;

// SAFETY: the mapping belongs to the process, not to a thread. It is accessed only through raw pointers, and
// `ironwarp-shm` sees to it that threads do not write to the same bytes.
unsafe impl Send for MappedSegment {}
// SAFETY: as above.
unsafe impl Sync for MappedSegment {}

// SAFETY: `Map` has mapped `SEGMENT_LEN` bytes for reading and writing, at a page boundary. They stay mapped until this
// value is dropped, and the file cannot shrink. No reference to these bytes is ever made.
unsafe impl Segment for MappedSegment {
    fn base(&self) -> NonNull<u8> {
        self.map.start.cast()
    }
}

impl MappedSegment {
    /// Creates a segment whose bytes are zero.
    pub(crate) fn create() -> io::Result<Self> {
        let (file, map) = file_in_memory(c"ironwarp-ring", SEGMENT_LEN)?;
        Ok(Self { file, map })
    }

    /// Maps a segment that another process has created. Fails unless the file has the right type, size and seals.
    pub(crate) fn join(file: OwnedFd) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| invalid("not a file in memory"))?;
        if seals != SEALS {
            return Err(invalid("the seals of the file are wrong"));
        }
        if u64::try_from(rustix::fs::fstatfs(&file)?.f_type) != Ok(TMPFS) {
            return Err(invalid("the file is not in a tmpfs"));
        }
        if u64::try_from(rustix::fs::fstat(&file)?.st_size) != Ok(SEGMENT_LEN as u64) {
            return Err(invalid("the size of the file is wrong"));
        }
        let file = Fd::open(|| Ok::<_, Errno>(file))?;
        let map = Map::new(&file, SEGMENT_LEN)?;
        Ok(Self { file, map })
    }

    /// Copies the program's memory at `span` to the segment, at `to`.
    /// The kernel copies, unless the memory is held: the program may have unmapped it. It does so by address, not by a
    /// write to the file: the other process could hold the lock of the file as long as it wants.
    pub(crate) fn copy_in(&self, span: Span, to: *mut u8) -> Result<(), Fault> {
        let Ok(addr) = usize::try_from(span.addr) else { return Err(Fault) };
        let from = ptr::with_exposed_provenance::<u8>(addr);
        if span.held {
            // SAFETY: the memory is held, so it is mapped and the caller has a guard on it. `to` has room for
            // `span.len` bytes of the segment, which this process does not use for anything else meanwhile.
            unsafe { ptr::copy_nonoverlapping(from, to, span.len) };
            fence(Ordering::Acquire); // what is sent later is read later
            return Ok(());
        }
        // SAFETY: the kernel reads the program's memory, and returns EFAULT if it is not mapped. It writes to `to`, which
        // has room for `span.len` bytes of the segment.
        move_by_kernel(span.len, || unsafe {
            let (local, remote) = (vector(to, span.len), vector(from.cast_mut(), span.len));
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        })
    }

    /// Copies from the segment, at `from`, to the program's memory at `span`.
    pub(crate) fn copy_out(&self, from: *const u8, span: Span) -> Result<(), Fault> {
        let Ok(addr) = usize::try_from(span.addr) else { return Err(Fault) };
        let to = ptr::with_exposed_provenance_mut::<u8>(addr);
        if span.held {
            fence(Ordering::Release); // what was received before is visible before
            // SAFETY: the memory is held, so it is mapped and the caller has a guard on it. The program has registered
            // it for writing, and the device holds no reference to it (`host.rs`). `from` has `span.len` bytes of the
            // segment; the other process may change them meanwhile, which yields other bytes, but nothing else.
            unsafe { ptr::copy_nonoverlapping(from, to, span.len) };
            return Ok(());
        }
        // SAFETY: the kernel writes only to the program's memory, which was registered for that and to which the device
        // holds no reference, and returns EFAULT if it is not mapped. It reads `span.len` bytes of the segment.
        move_by_kernel(span.len, || unsafe {
            let (local, remote) = (vector(from.cast_mut(), span.len), vector(to, span.len));
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        })
    }
}

/// Returns the vector for these bytes.
fn vector(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// Makes a system call that moves `len` bytes, again if a signal interrupts it. Fails if it moves fewer.
fn move_by_kernel(len: usize, mut call: impl FnMut() -> libc::ssize_t) -> Result<(), Fault> {
    loop {
        match usize::try_from(call()) {
            Ok(moved) if moved == len => return Ok(()),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return Err(Fault),
        }
    }
}

/// Returns whether the kernel lets this process copy to and from its own memory ([`MappedSegment::copy_in`]). A sandbox
/// may deny it.
pub(crate) fn may_copy() -> bool {
    let (from, mut to) = ([1_u8], [0_u8]);
    // SAFETY: the kernel reads one byte of `from` and writes one of `to`.
    let copied = move_by_kernel(1, || unsafe {
        let (local, remote) = (vector(to.as_mut_ptr(), 1), vector(from.as_ptr().cast_mut(), 1));
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    });
    copied.is_ok()
}

impl AsFd for MappedSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
