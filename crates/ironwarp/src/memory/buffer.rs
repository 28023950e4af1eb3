//! Buffers: memory that programs allocate, in order to register it.
//!
//! # Why there are no references
//! A peer may write to registered memory at any time. Rust assumes that memory behind a `&[u8]` does not change, so
//! there is no way to get such a reference. Programs copy bytes out of a region with
//! [`Contents::read`](super::Contents::read) and into a region with [`Contents::write`](super::Contents::write).
//!
//! # Why these copies are sound
//! A [`Buffer`]'s memory is accessed in two ways only. Large payloads are copied outside of Rust's memory model: by the
//! kernel, or by an instruction that is opaque to the compiler. All other accesses, by the device and by programs, are
//! relaxed atomic loads and stores of whole aligned words, always of the same size. So there is no data race: a read of
//! a word during a write returns the old or the new value. Relaxed is enough, because the lock of the completion queue
//! orders the copies: a thread that has polled the completion of a message sees all bytes of the message.
//!
//! # Why the memory outlives its users
//! Three things can reach the memory: the table entry of a region, a window bound to the region, and a posted
//! registration. Each of them holds a reference to the memory's [`Translation`](ironwarp_rnic::memory::Translation),
//! which holds the buffers. So the buffers are freed when the last of them is gone.
//!
//! # Why other processes may map a buffer
//! What another process does to shared memory is outside of Rust's memory model, as the kernel's copies are, and a file
//! that is sealed cannot shrink, so that the words stay accessible. Whoever maps the file in this process uses `unsafe`
//! for that, and must not create references either.
#![expect(unsafe_code, reason = "allocates memory that must not be referenced, and copies to and from it")]

use super::error::OutOfMemory;
use super::{copy, memfd};
use ironwarp_rnic::host::Span;
use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a page, in bytes.
pub(super) const PAGE: usize = 4096;
/// Size of a word, in bytes.
const WORD: usize = copy::WORD;
/// Minimum number of words to copy with one string instruction, which is slower than a loop for fewer words.
const MIN_STRING_COPY: usize = 128;

/// Page-aligned memory, initially zero, to be registered as a region. Programs access the bytes through the region.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// use ironwarp::prelude::*;
///
/// let region = domain.register(Buffer::new(1 << 20)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    /// The first of the `word_count(len)` words of the buffer, at the start of a page.
    start: NonNull<u64>,
    /// The memory that contains the words.
    memory: Memory,
    /// Length of the buffer, in bytes.
    len: usize,
}

/// The memory of a buffer.
#[derive(Debug)]
enum Memory {
    /// The allocation that starts here, with its layout. It contains the words from its first aligned address on.
    Private(NonNull<u8>, Layout),
    /// A mapping of this file, which starts with the first word. Other processes can map the file as well.
    Shared(OwnedFd),
}

// SAFETY: the memory belongs to this value, not to a thread, and its words are accessed through atomics only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a buffer of `len` zero bytes.
    ///
    /// ```
    /// let buffer = ironwarp::memory::Buffer::new(1 << 20)?;
    /// assert_eq!(buffer.len(), 1 << 20);
    /// assert!(ironwarp::memory::Buffer::new(usize::MAX).is_err());
    /// # Ok::<(), ironwarp::memory::OutOfMemory>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    pub fn new(len: usize) -> Result<Self, OutOfMemory> {
        Self::aligned(len, PAGE)
    }

    /// Allocates a buffer of `len` zero bytes that starts at a multiple of `align`, a power of two that is at least the
    /// size of a page.
    pub(super) fn aligned(len: usize, align: usize) -> Result<Self, OutOfMemory> {
        let layout = layout(len, align).ok_or(OutOfMemory { len })?;
        // SAFETY: the size of the layout is not zero: it has at least two pages.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { len })?;
        // The allocator does not align the block (see `layout`).
        // SAFETY: the layout has `align` extra bytes for this, and fewer are skipped.
        let start = unsafe { block.add(block.align_offset(align)) }.cast();
        Ok(Self { start, memory: Memory::Private(block, layout), len })
    }

    /// Allocates a buffer of `len` zero bytes that other processes can map, and that starts at a multiple of `align`, a
    /// power of two that is at least the size of a page.
    pub(super) fn shared(len: usize, align: usize) -> io::Result<Self> {
        Self::map(memfd::create(len)?, len, align)
    }

    /// Maps a buffer of `len` bytes that another process has created as [shareable](super::BufferBuilder::shareable), from
    /// its file. Fails if the file is shorter, or could become so.
    pub(crate) fn from_file(file: OwnedFd, len: usize) -> io::Result<Self> {
        memfd::check(&file, len)?;
        Self::map(file, len, PAGE)
    }

    /// Maps a file of at least `len` bytes, whose length is sealed, at a multiple of `align`.
    fn map(file: OwnedFd, len: usize, align: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Reserves addresses, of which an aligned part is then replaced by the file.
        let kept = mapped_len(len);
        let reserved = kept.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is requested, so the kernel chooses one that is not in use.
        let block =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags) }?;
        let skipped = block.cast::<u8>().align_offset(align);
        // SAFETY: inside the reserved addresses, because fewer than `align` bytes are skipped.
        let start = unsafe { block.byte_add(skipped) };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a part of the reserved addresses, which nothing else uses.
        let mapped = unsafe { rustix::mm::mmap(start, kept, access, flags, &file, 0) };
        // SAFETY: the rest of the reserved addresses, before and after the mapping, or all if it failed. Nothing uses
        // them. `start` and `kept` are multiples of the page size, as the kernel rounds lengths up.
        unsafe {
            if mapped.is_err() {
                rustix::mm::munmap(block, reserved)?;
            } else {
                if skipped > 0 {
                    rustix::mm::munmap(block, skipped)?;
                }
                if align > skipped {
                    rustix::mm::munmap(start.byte_add(kept), align - skipped)?;
                }
            }
        }
        let start = NonNull::new(mapped?).expect("the kernel maps nothing at zero").cast();
        Ok(Self { start, memory: Memory::Shared(file), len })
    }

    /// Allocates a buffer with a copy of `bytes`.
    ///
    /// ```
    /// let buffer = ironwarp::memory::Buffer::copy_of(b"hello")?;
    /// assert_eq!(buffer.len(), 5);
    /// # Ok::<(), ironwarp::memory::OutOfMemory>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    pub fn copy_of(bytes: &[u8]) -> Result<Self, OutOfMemory> {
        let buffer = Self::new(bytes.len())?;
        buffer.write(0, bytes);
        Ok(buffer)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero. An empty buffer cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the file that other processes map to share the buffer's bytes, from offset 0 of the file on. `None`
    /// unless the buffer was created as [shareable](super::BufferBuilder::shareable).
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            Memory::Private(..) => None,
            Memory::Shared(file) => Some(file.as_fd()),
        }
    }

    /// Returns the address and length of the buffer.
    pub(crate) fn span(&self) -> Span {
        // The address is stored as a number in the translation, from which the kernel receives it.
        Span::new(self.start.as_ptr().expose_provenance() as u64, self.len)
    }

    /// Returns the words of the buffer.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words are aligned and inside the allocation or mapping, which lives as long as `self`. As far as
        // the compiler knows, they are accessed only through atomics of this size.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), word_count(self.len)) }
    }

    /// Copies the bytes at offset `at` to `into`: the end of a word, then whole words, then the start of a word. Panics
    /// if the range is not inside the buffer.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len, "range outside of the buffer");
        let (head, body) = into.split_at_mut(unaligned_len(at, into.len()));
        let read_part = |word: &AtomicU64, within: usize, to: &mut [u8]| {
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            to.copy_from_slice(&word[within..][..to.len()]);
        };
        if !head.is_empty() {
            read_part(&self.words()[at / WORD], at % WORD, head);
        }
        let words = &self.words()[(at + head.len()).div_ceil(WORD)..];
        let (whole, tail) = body.as_chunks_mut::<WORD>();
        let (words, rest) = words.split_at(whole.len());
        if whole.len() < MIN_STRING_COPY || !copy::copy_from_words(words, whole) {
            for (word, to) in words.iter().zip(whole) {
                *to = word.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        if !tail.is_empty() {
            read_part(&rest[0], 0, tail);
        }
    }

    /// Copies `from` to the bytes at offset `at`: to the end of a word, then to whole words, then to the start of a
    /// word. Panics if the range is not inside the buffer.
    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "range outside of the buffer");
        let (head, body) = from.split_at(unaligned_len(at, from.len()));
        if !head.is_empty() {
            self.write_part(at / WORD, at % WORD, head);
        }
        let first = (at + head.len()).div_ceil(WORD);
        let (whole, tail) = body.as_chunks::<WORD>();
        let words = &self.words()[first..][..whole.len()];
        if whole.len() < MIN_STRING_COPY || !copy::copy_to_words(whole, words) {
            for (word, from) in words.iter().zip(whole) {
                word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
            }
        }
        if !tail.is_empty() {
            self.write_part(first + whole.len(), 0, tail);
        }
    }

    /// Replaces bytes of the word with this index, from offset `within` in the word on. The other bytes of the word are
    /// not affected: if a peer changes them meanwhile, the compare-and-swap is tried again with the new value.
    fn write_part(&self, index: usize, within: usize, from: &[u8]) {
        let merge = |word: u64| {
            let mut bytes = word.to_ne_bytes();
            bytes[within..][..from.len()].copy_from_slice(from);
            Some(u64::from_ne_bytes(bytes))
        };
        // Always `Ok`, because `merge` always returns a value.
        let _ = self.words()[index].fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.memory {
            Memory::Private(block, layout) => {
                // SAFETY: `aligned` allocated the block with this layout. No table entry leads to it any more: the entry's
                // translation would hold the buffer.
                unsafe { dealloc(block.as_ptr(), layout) }
            }
            Memory::Shared(_) => {
                // SAFETY: `shared` created exactly this mapping. No table entry leads to it any more, as above.
                let unmapped =
                    unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), mapped_len(self.len)) };
                debug_assert_eq!(unmapped, Ok(()));
            }
        }
    }
}

/// Returns the layout of an allocation for `len` bytes: whole pages, at least one, and `align` bytes for alignment. The
/// layout does not demand this alignment, because an allocator clears aligned memory itself, which touches all pages.
/// Without alignment the kernel provides zero pages on first use. Returns `None` if the size overflows.
fn layout(len: usize, align: usize) -> Option<Layout> {
    let size = len.max(1).checked_next_multiple_of(PAGE)?.checked_add(align)?;
    Layout::from_size_align(size, WORD).ok()
}

/// Returns how many bytes of a file are mapped for a buffer of `len` bytes: whole pages, at least one, because a mapping
/// cannot be empty. The last word is inside of the mapping.
fn mapped_len(len: usize) -> usize {
    len.max(1).next_multiple_of(PAGE)
}

/// Returns how many words `len` bytes take.
const fn word_count(len: usize) -> usize {
    len.div_ceil(WORD)
}

/// Returns how many of the `len` bytes at offset `at` lie in a word that starts before `at`.
fn unaligned_len(at: usize, len: usize) -> usize {
    ((WORD - at % WORD) % WORD).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies with the loop and with the string instruction, at every alignment. The surrounding bytes must not change.
    #[test]
    fn copies_of_any_length_at_any_alignment() {
        /// Minimum number of bytes that are copied with the string instruction.
        const STRING: usize = MIN_STRING_COPY * WORD;
        let pattern: Vec<u8> = (0..=250_u8).cycle().take(3 * STRING).collect();
        let lengths = (0..20).chain([STRING - 1, STRING, STRING + 9, 2 * STRING + 5]);
        for (len, at) in lengths.flat_map(|len| (0..2 * WORD).map(move |at| (len, at))) {
            for buffer in [Buffer::new(at + len + 11).unwrap(), Buffer::shared(at + len + 11, PAGE).unwrap()]
            {
                buffer.write(0, &vec![0xee; at + len + 11]);
                buffer.write(at, &pattern[..len]);
                let mut all = vec![0; buffer.len()];
                buffer.read(0, &mut all);
                let expected = [&vec![0xee; at][..], &pattern[..len], &[0xee; 11]].concat();
                assert!(all == expected, "{len} bytes to {at}");
                let mut some = vec![0; len];
                buffer.read(at, &mut some);
                assert!(some == pattern[..len], "{len} bytes from {at}");
            }
        }
    }

    #[test]
    fn buffers_are_aligned_and_keep_their_bytes() {
        for align in [PAGE, 16 * PAGE, 2 << 20] {
            for len in [1, PAGE, PAGE + 1, 3 * align] {
                for buffer in [Buffer::aligned(len, align).unwrap(), Buffer::shared(len, align).unwrap()] {
                    assert!(buffer.span().addr.is_multiple_of(align as u64), "{:?}", buffer.span());
                    buffer.write(0, &[1]);
                    buffer.write(len - 1, &[1]);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside of the buffer")]
    fn writes_past_the_end_panic() {
        Buffer::new(13).unwrap().write(9, &[0; 5]);
    }
}
