//! Files in memory, and their mappings.
#![expect(unsafe_code, reason = "maps memory")]

use crate::sys::fork::Fd;
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;
use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

/// Creates a file in memory of this size, and maps it. Payloads pass through it, so children keep neither.
pub(super) fn file_in_memory(len: usize) -> io::Result<(Fd, Map)> {
    // Beyond this limit a write raises SIGXFSZ before it fails.
    let most = rustix::process::getrlimit(Resource::Fsize).current;
    if most.is_some_and(|most| most < len as u64) {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = Fd::open(|| rustix::fs::memfd_create(c"ironwarp-window", flags))?;
    // It cannot shrink, so the mapping cannot raise SIGBUS. Its pages are allocated when they are used.
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let map = Map::new(&file, len)?;
    Ok((file, map))
}

/// A mapped file. Bytes of a window go in and out by copy, and nothing has a reference to them.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and to this value alone.
unsafe impl Send for Map {}

impl Map {
    fn new(file: impl AsFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: no address is requested, so the kernel chooses a free one.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        let map = Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len };
        // SAFETY: nothing has a reference to the mapping. A forked child would share the file, and mix its copies with ours.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontFork) }?;
        Ok(map)
    }

    /// Nothing writes to the file meanwhile: the kernel does so only for the owner of the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: all of the mapping exists as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nothing else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }

    pub(super) fn copy_in(&self, from: &[u8]) {
        assert!(from.len() <= self.len);
        // SAFETY: `from` is valid, and not longer than the mapping, to which nothing has a reference.
        unsafe { ptr::copy(from.as_ptr(), self.start.as_ptr().cast(), from.len()) }
    }

    pub(super) fn copy_out(&self, into: &mut [u8]) {
        assert!(into.len() <= self.len);
        // SAFETY: `into` is valid, and not longer than the mapping, to which nothing has a reference.
        unsafe { ptr::copy(self.start.as_ptr().cast(), into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` created, and nothing has a reference to it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
