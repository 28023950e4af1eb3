//! Memory that is registered with the adapter, and copying between it and the program's.
#![expect(unsafe_code, reason = "memory that peers write to, and buffers of C")]

use crate::errno::Errno;
use ironwarp_engine::Engine;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// Zeroed memory of our own, registered from offset 0 on, until it is dropped.
pub(super) struct Buffer {
    at: *mut u8,
    len: usize,
    tag: Tag,
    engine: Arc<Engine>,
}

// SAFETY: it owns its memory, and hands out no reference to it. A peer may write to it at any time, also where it has no reason
// to, but does so by the adapter, for which the kernel copies: no thread of Rust's writes there but by `fill`, whose caller has
// the buffer to itself. Bytes that change during a copy are copied in any mixture, and nothing here depends on their values.
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
        // Dropped, it is freed, whether or not it was registered.
        let mut buffer = Self { at, len: len.max(1), tag: Tag(0), engine: Arc::clone(engine) };
        buffer.tag = register(engine, domain, (at as u64, buffer.len), rights)?;
        Ok(buffer)
    }

    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes `len` bytes from the program, and puts them at `offset`.
    pub(super) fn fill(&self, offset: usize, len: usize, from: &mut Pieces<'_>) {
        assert!(offset + len <= self.len, "a copy stays within its buffer");
        // SAFETY: within the memory, as just checked.
        let at = unsafe { self.at.add(offset) };
        from.each(len, |done, piece, len| {
            // SAFETY: `len` bytes of the program's that the caller gave us, and there is room for them here.
            unsafe { std::ptr::copy_nonoverlapping(piece, at.add(done), len) };
        });
    }

    /// Gives `len` bytes from `offset` on to the program.
    pub(super) fn drain(&self, offset: usize, len: usize, to: &mut Pieces<'_>) {
        assert!(offset + len <= self.len, "a copy stays within its buffer");
        // SAFETY: within the memory, as just checked.
        let at = unsafe { self.at.add(offset) };
        to.each(len, |done, piece, len| {
            // SAFETY: `len` bytes of the program's that it wants written.
            unsafe { std::ptr::copy_nonoverlapping(at.add(done), piece, len) };
        });
    }

    /// The bytes from `offset` on.
    pub(super) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.len, "a copy stays within its buffer");
        // SAFETY: as just checked; bytes have no alignment.
        unsafe { self.at.add(offset).cast::<[u8; N]>().read() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.tag != Tag(0) {
            // Returns when no message is being placed any more.
            let _ = self.engine.device().table().deregister(self.tag);
        }
        // SAFETY: it was made of such a box, and nobody else has it.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.at, self.len)) });
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Registers memory so that its first byte is at offset 0.
pub(super) fn register(
    engine: &Engine,
    domain: Domain,
    (addr, len): (u64, usize),
    rights: Rights,
) -> Result<Tag, Errno> {
    let memory = Memory::direct(addr, len as u64, rights).map_err(|_| Errno::INVALID)?;
    Ok(engine.device().register(domain, Memory { start: 0, ..memory })?)
}

/// Buffers of the program's, one after the other, and how far they are used. It has no destructor: a thread may be cancelled
/// while it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'l> {
    list: &'l [libc::iovec],
    skip: usize,
}

impl<'l> Pieces<'l> {
    /// Of a list of C.
    ///
    /// # Safety
    /// Each element is memory of the program's that may be read, or written, as the call has it, until the call returns.
    pub(super) unsafe fn new(list: &'l [libc::iovec]) -> Self {
        Self { list, skip: 0 }
    }

    /// How many bytes are left.
    pub(super) fn len(&self) -> usize {
        self.list.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len)) - self.skip
    }

    /// The next `len` bytes, which there are.
    pub(super) fn copy(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        self.each(len, |_, piece, len| {
            // SAFETY: the word of whoever made it.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece, len) });
        });
        bytes
    }

    /// Calls `each` for the pieces of the next `len` bytes, with how many were before it.
    fn each(&mut self, len: usize, mut each: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while done < len
            && let Some((piece, rest)) = self.list.split_first()
        {
            let take = (piece.iov_len - self.skip).min(len - done);
            if take > 0 {
                // SAFETY: within the piece.
                each(done, unsafe { piece.iov_base.cast::<u8>().add(self.skip) }, take);
            }
            (done, self.skip) = (done + take, self.skip + take);
            if self.skip == piece.iov_len {
                (self.list, self.skip) = (rest, 0);
            }
        }
    }
}
