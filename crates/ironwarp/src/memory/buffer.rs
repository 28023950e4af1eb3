//! Buffers: memory that peers may read and write.
//!
//! # Why there are no references
//! Data from a peer may arrive at any time. A Rust reference promises the opposite, so none is handed out: programs
//! copy out of a region with [`Contents::read`](super::Contents::read) and into it with
//! [`Contents::write`](super::Contents::write).
//!
//! # Why these copies are sound
//! A [`Buffer`]'s memory is accessed in two ways only. Large payloads are copied outside of Rust's memory model: by the
//! kernel, or by an instruction that is opaque to the compiler. All other accesses, by the device and by programs, are
//! relaxed atomic loads and stores of whole aligned words, always of the same size. So there is no data race, and a
//! word that changes meanwhile has its old or its new value. A thread that polled the completion of a message sees all
//! of its bytes, because the completion queue's lock orders the two.
//!
//! # Why the memory outlives its users
//! Everything that can still reach the memory holds its [`Translation`](ironwarp_rnic::memory::Translation): the table
//! entry of a region, a window bound to it, a posted registration. The translation holds the buffers, so they are freed
//! when nothing can reach them any more.
#![expect(unsafe_code, reason = "allocates memory that must not be referenced, and copies to and from it")]

use super::copy;
use crate::error::OutOfMemory;
use ironwarp_rnic::host::Span;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const PAGE: usize = 4096;
const WORD: usize = copy::WORD;
/// Number of words from which one string instruction is faster than a loop of loads and stores.
const MANY: usize = 128;

/// Page-aligned, zeroed memory, to be registered.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = ironwarp::Adapter::new()?.protection_domain();
/// use ironwarp::{Access, Buffer};
///
/// let region = domain.register(Buffer::new(1 << 20)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    /// The first of the `words(len)` words of the buffer.
    start: NonNull<u64>,
    /// The allocation that contains them.
    block: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value, not to a thread, and is accessed through atomics only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` zero bytes.
    ///
    /// ```
    /// let buffer = ironwarp::Buffer::new(1 << 20)?;
    /// assert_eq!(buffer.len(), 1 << 20);
    /// assert!(ironwarp::Buffer::new(usize::MAX).is_err());
    /// # Ok::<(), ironwarp::OutOfMemory>(())
    /// ```
    pub fn new(len: usize) -> Result<Self, OutOfMemory> {
        let layout = layout(len).ok_or(OutOfMemory { len })?;
        // SAFETY: the layout is at least a page long.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { len })?;
        // SAFETY: the layout has an extra page, and this skips less than a page.
        let start = unsafe { block.add(block.align_offset(PAGE)) }.cast();
        Ok(Self { start, block, len })
    }

    /// Allocates a copy of `bytes`.
    ///
    /// ```
    /// let buffer = ironwarp::Buffer::copy_of(b"hello")?;
    /// assert_eq!(buffer.len(), 5);
    /// # Ok::<(), ironwarp::OutOfMemory>(())
    /// ```
    pub fn copy_of(bytes: &[u8]) -> Result<Self, OutOfMemory> {
        let buffer = Self::new(bytes.len())?;
        buffer.write(0, bytes);
        Ok(buffer)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero. Such a buffer cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn span(&self) -> Span {
        // Exposed: the kernel receives the address as a number, from a table.
        Span { addr: self.start.as_ptr().expose_provenance() as u64, len: self.len }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words are aligned and inside the allocation, which lives as long as `self`. As far as the
        // compiler knows, they are accessed only through atomics of this size.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), words(self.len)) }
    }

    pub(super) fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len, "range outside of the buffer");
        let (head, body) = into.split_at_mut(up_to_word(at, into.len()));
        let part = |word: &AtomicU64, within: usize, to: &mut [u8]| {
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            to.copy_from_slice(&word[within..][..to.len()]);
        };
        if !head.is_empty() {
            part(&self.words()[at / WORD], at % WORD, head);
        }
        let words = &self.words()[(at + head.len()).div_ceil(WORD)..];
        let (whole, tail) = body.as_chunks_mut::<WORD>();
        let (words, rest) = words.split_at(whole.len());
        if whole.len() < MANY || !copy::out(words, whole) {
            for (word, to) in words.iter().zip(whole) {
                *to = word.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        if !tail.is_empty() {
            part(&rest[0], 0, tail);
        }
    }

    pub(super) fn write(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "range outside of the buffer");
        let (head, body) = from.split_at(up_to_word(at, from.len()));
        if !head.is_empty() {
            self.merge(at / WORD, at % WORD, head);
        }
        let first = (at + head.len()).div_ceil(WORD);
        let (whole, tail) = body.as_chunks::<WORD>();
        let words = &self.words()[first..][..whole.len()];
        if whole.len() < MANY || !copy::into(whole, words) {
            for (word, from) in words.iter().zip(whole) {
                word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
            }
        }
        if !tail.is_empty() {
            self.merge(first + whole.len(), 0, tail);
        }
    }

    /// Replaces part of a word. If a peer writes to the rest of the word meanwhile, the exchange fails and is retried.
    fn merge(&self, index: usize, within: usize, from: &[u8]) {
        let merged = |word: u64| {
            let mut bytes = word.to_ne_bytes();
            bytes[within..][..from.len()].copy_from_slice(from);
            Some(u64::from_ne_bytes(bytes))
        };
        let _ = self.words()[index].fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let layout = layout(self.len).expect("allocated with this layout");
        // SAFETY: `new` allocated it with this layout. No table entry leads to it any more: its translation would hold
        // the buffer.
        unsafe { dealloc(self.block.as_ptr(), layout) }
    }
}

/// Whole pages, at least one, and one more for alignment. An allocator that is asked for aligned zeroed memory clears
/// it itself, which touches all pages. This way the kernel provides zero pages on first use.
fn layout(len: usize) -> Option<Layout> {
    let size = len.max(1).checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
    Layout::from_size_align(size, WORD).ok()
}

const fn words(len: usize) -> usize {
    len.div_ceil(WORD)
}

/// Returns how many of the `len` bytes at `at` lie in a word that starts before `at`.
fn up_to_word(at: usize, len: usize) -> usize {
    ((WORD - at % WORD) % WORD).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways to copy, at every alignment. The surrounding bytes must not change.
    #[test]
    fn copies_of_any_length_at_any_alignment() {
        let pattern: Vec<u8> = (0..=250_u8).cycle().take(3 * MANY * WORD).collect();
        let lengths = (0..20).chain([MANY * WORD - 1, MANY * WORD, MANY * WORD + 9, 2 * MANY * WORD + 5]);
        for (len, at) in lengths.flat_map(|len| (0..2 * WORD).map(move |at| (len, at))) {
            let buffer = Buffer::copy_of(&vec![0xee; at + len + 11]).unwrap();
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

    #[test]
    #[should_panic(expected = "outside of the buffer")]
    fn writes_past_the_end_panic() {
        Buffer::new(13).unwrap().write(9, &[0; 5]);
    }
}
