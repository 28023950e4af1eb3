//! Memory registered with the adapter, and copying between it and buffers of the program.
#![expect(unsafe_code, reason = "memory that peers write to, and buffers of C")]

use crate::support::errno::Errno;
use ironwarp_engine::Engine;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// Zeroed memory, registered from offset 0 until it is dropped.
pub(super) struct Buffer {
    at: *mut u8,
    len: usize,
    tag: Tag,
    engine: Arc<Engine>,
}

// SAFETY: it owns its memory and hands out no reference to it. A peer may write to it at any time and place,
// but through the adapter, which has the kernel copy. No Rust thread writes to it except in `fill`, whose
// caller has exclusive use. A copy of bytes that change meanwhile gets some mixture, and nothing here depends
// on their values.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) fn new(
        engine: &Arc<Engine>,
        domain: Domain,
        len: usize,
        rights: Rights,
    ) -> Result<Self, Errno> {
        let memory: Box<[u8]> = vec![0; len.max(1)].into_boxed_slice();
        let at = Box::into_raw(memory).cast::<u8>();
        // Frees the memory when dropped, whether or not it was registered.
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

    /// Copies `len` bytes from the program to `offset`.
    pub(super) fn fill(&self, offset: usize, len: usize, from: &mut IoSlices<'_>) {
        assert!(offset + len <= self.len, "copy exceeds the buffer");
        // SAFETY: within the memory, as just checked.
        let at = unsafe { self.at.add(offset) };
        from.each(len, |done, piece, len| {
            // SAFETY: `len` bytes of the program by the contract of `IoSlices`, which fit here as just
            // checked.
            unsafe { std::ptr::copy_nonoverlapping(piece, at.add(done), len) };
        });
    }

    /// Copies `len` bytes at `offset` to the program.
    pub(super) fn drain(&self, offset: usize, len: usize, to: &mut IoSlices<'_>) {
        assert!(offset + len <= self.len, "copy exceeds the buffer");
        // SAFETY: within the memory, as just checked.
        let at = unsafe { self.at.add(offset) };
        to.each(len, |done, piece, len| {
            // SAFETY: `len` bytes of the program by the contract of `IoSlices`.
            unsafe { std::ptr::copy_nonoverlapping(at.add(done), piece, len) };
        });
    }

    /// The bytes at `offset`.
    pub(super) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.len, "copy exceeds the buffer");
        // SAFETY: within the memory, as just checked. Bytes need no alignment.
        unsafe { self.at.add(offset).cast::<[u8; N]>().read() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.tag != Tag(0) {
            // Waits until no message is being placed there.
            let _ = self.engine.device().table().deregister(self.tag);
        }
        // SAFETY: made from a box of this length, and no longer in use.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.at, self.len)) });
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Registers memory with its first byte at offset 0.
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

/// A list of the program's buffers, and how far it is used. It has no destructor, because a thread may be
/// cancelled while it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoSlices<'l> {
    list: &'l [libc::iovec],
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

    /// Number of bytes left.
    pub(super) fn len(&self) -> usize {
        self.list.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len)) - self.skip
    }

    /// Copies the next `len` bytes, which must exist.
    pub(super) fn copy(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        self.each(len, |_, piece, len| {
            // SAFETY: guaranteed by the caller of `new`.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece, len) });
        });
        bytes
    }

    /// Calls `each` for every part of the next `len` bytes, with the number of bytes before it.
    fn each(&mut self, len: usize, mut each: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while done < len
            && let Some((piece, rest)) = self.list.split_first()
        {
            let take = (piece.iov_len - self.skip).min(len - done);
            if take > 0 {
                // SAFETY: within the buffer.
                each(done, unsafe { piece.iov_base.cast::<u8>().add(self.skip) }, take);
            }
            (done, self.skip) = (done + take, self.skip + take);
            if self.skip == piece.iov_len {
                (self.list, self.skip) = (rest, 0);
            }
        }
    }
}
