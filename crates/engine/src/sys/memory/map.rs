//! Files in memory (memfd), and their mappings: windows, staging buffers, and memory shared with other processes.
#![expect(unsafe_code, reason = "maps memory")]

use crate::sys::denied::Denied;
use crate::sys::fork::{Creator, Fd};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;
use std::ffi::{CStr, c_void};
use std::io;
use std::ptr::{self, NonNull};

/// The name of windows and staging buffers in /proc.
pub(super) const WINDOW_NAME: &CStr = c"ironwarp-window";

/// The seals of a file in memory: its size is fixed, and so are the seals themselves.
pub(in crate::sys) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a file in memory of `len` bytes, and maps it. Forked children inherit neither the file nor the mapping,
/// because the payload of messages passes through them. The name is for /proc.
pub(in crate::sys) fn file_in_memory(name: &CStr, len: usize) -> io::Result<(Fd, Map)> {
    // A write beyond this limit would not only fail but also raise SIGXFSZ.
    let max_size = rustix::process::getrlimit(Resource::Fsize).current;
    if max_size.is_some_and(|max_size| max_size < len as u64) {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = Denied::check("memfd_create", Fd::open(|| rustix::fs::memfd_create(name, flags)))?;
    // A sealed file cannot shrink, so accessing the mapping cannot raise SIGBUS. Pages are allocated when they are
    // first used.
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    let map = Map::new(&file, len)?;
    Ok((file, map))
}

/// A mapped file. A staging buffer is accessed by reference ([`bytes`](Self::bytes)), a window only by copy
/// ([`copy_in`](Self::copy_in)), so that no reference to a window's bytes exists while the kernel changes them.
#[derive(Debug)]
pub(in crate::sys) struct Map {
    /// Address of the first byte.
    pub(in crate::sys) start: NonNull<c_void>,
    /// Length in bytes.
    len: usize,
    /// The process that has the mapping.
    creator: Creator,
}

// SAFETY: the mapping belongs to the process, not to a thread, and only this value accesses it.
unsafe impl Send for Map {}

impl Map {
    /// Maps the first `len` bytes of a file, for reading and writing.
    pub(in crate::sys) fn new(file: impl AsFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: no address is requested, so the kernel chooses one that is not in use.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        let first = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let map = Self { start: first, len, creator: Creator::this() };
        // A forked child would share the file, and mix its copies with those of the parent.
        // SAFETY: MADV_DONTFORK changes nothing in this process; in a child, nothing uses the mapping
        // (`ProgramMemory`).
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontFork) }?;
        Ok(map)
    }

    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `new` mapped `len` bytes, which stay mapped until this value is dropped. The kernel writes to the
        // file only for a caller that has borrowed the bytes mutably, so they do not change while they are borrowed
        // here.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    /// Returns the bytes, for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` mapped `len` bytes, which stay mapped until this value is dropped. `&mut self` excludes other
        // references.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }

    /// Copies `from` to the start of the mapping.
    pub(super) fn copy_in(&self, from: &[u8]) {
        assert!(from.len() <= self.len);
        // SAFETY: `from` is not longer than the mapping, which stays mapped until this value is dropped. No reference
        // to a window's bytes exists, and only one thread uses a window at a time (`Pool`).
        unsafe { ptr::copy(from.as_ptr(), self.start.as_ptr().cast(), from.len()) }
    }

    /// Copies the start of the mapping to `into`.
    pub(super) fn copy_out(&self, into: &mut [u8]) {
        assert!(into.len() <= self.len);
        // SAFETY: `into` is not longer than the mapping, which stays mapped until this value is dropped. Only one
        // thread uses a window at a time (`Pool`), so nothing writes to it during the copy.
        unsafe { ptr::copy(self.start.as_ptr().cast(), into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.creator.is_parent() {
            return; // a forked child has no copy of the mapping, and may have mapped something else there
        }
        // SAFETY: `new` created exactly this mapping, in this process, and references to its bytes borrow this value, so
        // none is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
