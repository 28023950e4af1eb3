//! Memory that is registered with the adapter, and the copies between it and buffers of the program.
#![expect(unsafe_code, reason = "memory that peers write to, and buffers of C")]

use crate::support::errno::Errno;
use ironwarp_engine::Engine;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// Memory that is registered with the adapter, with its first byte at offset 0, until it is dropped.
pub(super) struct Buffer {
    /// First byte, allocated as a boxed slice.
    at: *mut u8,
    len: usize,
    /// Tag of the registration, or `Tag(0)` if the memory is not registered.
    tag: Tag,
    engine: Arc<Engine>,
}

// SAFETY: the buffer owns its memory and returns no reference to it. A peer may write to any part at any time, but
// through the adapter, where the kernel copies. No Rust thread writes to the memory except in `copy_in`, whose
// caller holds the lock of the connection. A copy of bytes that change meanwhile gets some mixture of old and new
// bytes, and nothing depends on their values.
unsafe impl Send for Buffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates and registers `len` bytes, but at least one, filled with zeros.
    pub(super) fn new(
        engine: &Arc<Engine>,
        domain: Domain,
        len: usize,
        rights: Rights,
    ) -> Result<Self, Errno> {
        let memory: Box<[u8]> = vec![0; len.max(1)].into_boxed_slice();
        let at = Box::into_raw(memory).cast::<u8>();
        // If the registration fails, dropping `buffer` frees the memory.
        let mut buffer = Self { at, len: len.max(1), tag: Tag(0), engine: Arc::clone(engine) };
        buffer.tag = register(engine, domain, at as u64, buffer.len, rights)?;
        Ok(buffer)
    }

    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Copies the next `len` bytes of the program to `offset`.
    pub(super) fn copy_in(&self, offset: usize, len: usize, from: &mut IoSlices<'_>) {
        assert!(offset + len <= self.len, "copy exceeds the buffer");
        // SAFETY: `offset` is within the memory, as just checked.
        let at = unsafe { self.at.add(offset) };
        from.consume(len, |done, part, part_len| {
            // SAFETY: `part` is readable by the contract of `IoSlices`. `done + part_len` is at most `len`, which
            // fits behind `at`, as just checked.
            unsafe { std::ptr::copy_nonoverlapping(part, at.add(done), part_len) };
        });
    }

    /// Copies `len` bytes at `offset` to the next buffers of the program.
    pub(super) fn copy_out(&self, offset: usize, len: usize, to: &mut IoSlices<'_>) {
        assert!(offset + len <= self.len, "copy exceeds the buffer");
        // SAFETY: `offset` is within the memory, as just checked.
        let at = unsafe { self.at.add(offset) };
        to.consume(len, |done, part, part_len| {
            // SAFETY: `part` is writable by the contract of `IoSlices`. `done + part_len` is at most `len`, which is
            // readable behind `at`, as just checked.
            unsafe { std::ptr::copy_nonoverlapping(at.add(done), part, part_len) };
        });
    }

    /// Returns a copy of the `N` bytes at `offset`.
    pub(super) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.len, "copy exceeds the buffer");
        // SAFETY: the `N` bytes are within the memory, as just checked, and an array of bytes needs no alignment.
        unsafe { self.at.add(offset).cast::<[u8; N]>().read() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.tag != Tag(0) {
            // Returns when the adapter no longer places a message in this memory.
            let _ = self.engine.device().table().deregister(self.tag);
        }
        // SAFETY: `new` made `at` from a boxed slice of this length. The registration is over, so that nothing
        // accesses the memory any more.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.at, self.len)) });
    }
}

// Not derived: omits the adapter, which is long.
impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Registers `len` bytes of this process at `addr`: a [`Buffer`], or memory that the program maps for the peer. The
/// remote address of the first byte is 0. Returns the tag, which the caller deregisters. EINVAL if the range is empty
/// or exceeds the address space.
pub(super) fn register(
    engine: &Engine,
    domain: Domain,
    addr: u64,
    len: usize,
    rights: Rights,
) -> Result<Tag, Errno> {
    let memory = Memory::direct(addr, len as u64, rights).map_err(|_| Errno::INVALID)?;
    Ok(engine.device().register(domain, Memory { start: 0, ..memory })?)
}

/// The buffers of the program that a call has not consumed yet. It has no destructor, because the thread may be
/// cancelled while it exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoSlices<'l> {
    list: &'l [libc::iovec],
    /// Number of bytes of the first buffer that were consumed.
    skip: usize,
}

impl<'l> IoSlices<'l> {
    /// Wraps a C list.
    ///
    /// # Safety
    /// Each element is memory of the program that may be read or written, as the call requires, until the
    /// call returns.
    pub(super) unsafe fn new(list: &'l [libc::iovec]) -> Self {
        Self { list, skip: 0 }
    }

    /// Number of bytes that were not consumed yet.
    pub(super) fn len(&self) -> usize {
        self.list.iter().fold(0usize, |sum, buffer| sum.saturating_add(buffer.iov_len)) - self.skip
    }

    /// Consumes the next `len` bytes, and returns a copy of them.
    pub(super) fn copy(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        self.consume(len, |_, part, part_len| {
            // SAFETY: `part` has `part_len` readable bytes, by the contract of `new`.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(part, part_len) });
        });
        bytes
    }

    /// Consumes the next `len` bytes, or all if there are fewer. Calls `visit` for each contiguous part that is not
    /// empty, with the number of bytes that this call consumed before it, its address and its length.
    fn consume(&mut self, len: usize, mut visit: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while done < len
            && let Some((first, rest)) = self.list.split_first()
        {
            let part_len = (first.iov_len - self.skip).min(len - done);
            if part_len > 0 {
                // SAFETY: `skip` is less than the length of the buffer, because `part_len` is not zero.
                visit(done, unsafe { first.iov_base.cast::<u8>().add(self.skip) }, part_len);
            }
            (done, self.skip) = (done + part_len, self.skip + part_len);
            if self.skip == first.iov_len {
                (self.list, self.skip) = (rest, 0);
            }
        }
    }
}
