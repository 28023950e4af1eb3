//! Memory that peers may read and write. Before this: a protection domain, in which it is registered; after: work requests
//! and messages to the peer, which name parts of it.
//!
//! # Why no reference is handed out
//! A peer's bytes may arrive at any time. A Rust reference promises that this does not happen, so there is none: a program
//! copies out of a region with [`Contents::read`] and into it with [`Contents::write`].
//!
//! # Why these copies are sound
//! A [`Buffer`]'s memory is touched in two ways only. Large payload is copied outside of Rust's memory model: by the kernel, or by
//! an instruction that the compiler does not look into. All else, of the device and of programs, are relaxed atomic loads and
//! stores of whole aligned words, never of another size, so two threads do not race, and a word that changes meanwhile is old
//! or new, never undefined. Who has seen the completion of a message sees all its bytes: the completion queue's lock orders the
//! two.
//!
//! # Why memory outlives its use
//! Whoever can still find the memory holds its [`Translation`]: the entry of a region, a window that is bound to it, a
//! registration that is posted. The translation holds the buffers, so they are freed when nobody can find them any more.
#![expect(unsafe_code, reason = "allocates memory that no reference may point to, and copies from and to it")]

mod copy;

use crate::error::{AccessError, OutOfMemory};
use crate::protection_domain::ProtectionDomain;
use crate::region::MemoryRegion;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::host::{Held, Span};
use ironwarp_rnic::memory::{Memory, RegisterError, Rights, Translation, TranslationError};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();
/// From so many words on, one instruction for all of them is faster than one for each.
const MANY: usize = 128;

/// Memory of the program, page-aligned and zero, to be registered.
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
    /// The first of `words(len)` words that this value owns.
    start: NonNull<u64>,
    /// The allocation that they are in.
    block: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value, not to a thread, and is reached through atomics only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// So many zeros.
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
        // SAFETY: the layout has a page more than is needed, and this skips less.
        let start = unsafe { block.add(block.align_offset(PAGE)) }.cast();
        Ok(Self { start, block, len })
    }

    /// A copy of these bytes.
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

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none. Such a buffer cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn span(&self) -> Span {
        // Exposed: the kernel gets this address from a table of numbers.
        Span { addr: self.start.as_ptr().expose_provenance() as u64, len: self.len }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words are aligned and all of the allocation, which lives as long as `self`. Nothing that the compiler knows
        // of reaches them but such atomics, all of this size.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), words(self.len)) }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len, "bytes outside of the buffer");
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
        let (words, behind) = words.split_at(whole.len());
        if whole.len() < MANY || !copy::out(words, whole) {
            for (word, to) in words.iter().zip(whole) {
                *to = word.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        if !tail.is_empty() {
            part(&behind[0], 0, tail);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "bytes outside of the buffer");
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

    /// Changes part of a word. What a peer writes to the rest meanwhile stays: the exchange then fails, and is tried again.
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
        let layout = layout(self.len).expect("it was allocated with this layout");
        // SAFETY: `new` allocated it with this layout. No entry of the table leads to it any more: its translation would hold it.
        unsafe { dealloc(self.block.as_ptr(), layout) }
    }
}

/// Whole pages, at least one, and one more to be aligned in: an allocator that is asked to align them writes the zeros itself, and
/// makes all pages for it. Otherwise the kernel has them, and makes them when they are first used.
fn layout(len: usize) -> Option<Layout> {
    let size = len.max(1).checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
    Layout::from_size_align(size, WORD).ok()
}

const fn words(len: usize) -> usize {
    len.div_ceil(WORD)
}

/// How many of `len` bytes from `at` on are in a word that begins before them.
fn up_to_word(at: usize, len: usize) -> usize {
    ((WORD - at % WORD) % WORD).min(len)
}

/// The bytes of a region. They are copied in and out; nobody gets a reference, because peers may write at any time.
pub struct Contents {
    translation: Arc<Translation>,
    /// None if the program keeps the memory. Of its alignment and its other users nothing is known, so the kernel copies.
    parts: Option<Arc<Parts>>,
    len: usize,
    device: Arc<Device>,
}

/// Buffers, and at which byte of the region each begins.
#[derive(Debug)]
struct Parts(Vec<(usize, Buffer)>);

impl Held for Parts {
    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.each(at, into.len(), |part, at, range| part.read(at, &mut into[range]));
    }

    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        self.each(at, from.len(), |part, at, range| part.write(at, &from[range]));
    }
}

impl Parts {
    /// Calls `each` for the parts that hold the `len` bytes from `at` on: with where in the part they begin, and which of the
    /// bytes they are.
    fn each(&self, at: u64, len: usize, mut each: impl FnMut(&Buffer, usize, Range<usize>)) {
        let mut at = usize::try_from(at).expect("the range was checked");
        let mut done = 0;
        let first = self.0.partition_point(|(begin, part)| begin + part.len() <= at);
        for (begin, part) in &self.0[first..] {
            if done == len {
                break;
            }
            let n = (begin + part.len() - at).min(len - done);
            each(part, at - begin, done..done + n);
            (at, done) = (at + n, done + n);
        }
    }
}

impl Contents {
    pub(crate) fn owned(device: &Arc<Device>, buffers: Vec<Buffer>) -> Result<Arc<Self>, TranslationError> {
        let spans: Vec<Span> = buffers.iter().map(Buffer::span).collect();
        let translation = match spans[..] {
            [one] => Translation::direct(one.addr, one.len as u64)?,
            _ => Translation::buffers(&spans)?,
        };
        let mut len = 0;
        let parts = buffers.into_iter().map(|buffer| {
            let at = len;
            len += buffer.len();
            (at, buffer)
        });
        let parts = Arc::new(Parts(parts.collect()));
        let translation = Arc::new(translation.hold(Arc::clone(&parts) as Arc<dyn Held>));
        Ok(Arc::new(Self { translation, parts: Some(parts), len, device: Arc::clone(device) }))
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes from `at` on to `into`.
    ///
    /// While a peer writes them, some may be old and some new. Those of a message are all there once its completion was
    /// polled.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::Buffer::new(16)?, ironwarp::Access::LOCAL_READ)?;
    /// region.write(3, b"hello")?;
    /// let mut five = [0; 5];
    /// region.read(3, &mut five)?;
    /// assert_eq!(&five, b"hello");
    /// assert!(region.read(12, &mut five).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(at, into.len())?;
        match &self.parts {
            Some(parts) => {
                parts.read(at as u64, into);
                Ok(())
            }
            None => {
                let gathered = self.device.host().gather(&self.spans(at, into.len()), into);
                gathered.map_err(|_| AccessError::Unmapped)
            }
        }
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, AccessError, Buffer};
    /// let region = domain.register(Buffer::new(8)?, Access::LOCAL_READ)?;
    /// region.write(3, b"hello")?;
    /// assert_eq!(region.to_vec()?, b"\0\0\0hello");
    /// assert_eq!(region.write(4, b"hello"), Err(AccessError::OutOfBounds { at: 4, len: 5, size: 8 }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check(at, from.len())?;
        match &self.parts {
            Some(parts) => {
                parts.write(at as u64, from);
                Ok(())
            }
            None => {
                let scattered = self.device.host().scatter(from, &self.spans(at, from.len()));
                scattered.map_err(|_| AccessError::Unmapped)
            }
        }
    }

    /// Sets all bytes to `byte`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::Buffer::new(4)?, ironwarp::Access::LOCAL_READ)?;
    /// region.fill(7)?;
    /// assert_eq!(region.to_vec()?, [7; 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fill(&self, byte: u8) -> Result<(), AccessError> {
        let page = [byte; PAGE];
        for at in (0..self.len).step_by(PAGE) {
            self.write(at, &page[..PAGE.min(self.len - at)])?;
        }
        Ok(())
    }

    /// A copy of all bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, Buffer};
    /// let region = domain.register(Buffer::copy_of(b"hello")?, Access::LOCAL_READ)?;
    /// assert_eq!(region.to_vec()?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn check(&self, at: usize, len: usize) -> Result<(), AccessError> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        if inside { Ok(()) } else { Err(AccessError::OutOfBounds { at, len, size: self.len }) }
    }

    pub(crate) fn memory(&self, start: u64, rights: Rights) -> Memory {
        let translation = Arc::clone(&self.translation);
        Memory { start, len: self.len as u64, rights, one_touch: false, translation }
    }

    fn spans(&self, at: usize, len: usize) -> ironwarp_rnic::memory::Spans {
        let mut spans = ironwarp_rnic::memory::Spans::new();
        self.translation.spans(at as u64, len, &mut spans);
        spans
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("len", &self.len).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Registers memory that the program keeps: mapped by itself, shared with another process, or a C program's. Peers name
    /// its bytes by their addresses.
    ///
    /// # Safety
    /// From now on until the region is dropped, and any region [shared](MemoryRegion::share) from it, peers and requests of
    /// this program may read and write this memory at any time, as far as `access` lets them. Until then nothing may rely
    /// on it not to change or not to be read: there must be no Rust reference to it, but to atomics or cells, and it must
    /// not become memory of anything else. If it is unmapped and nothing else is mapped there, accesses fail, and nothing
    /// worse happens.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::Access;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// static COUNTER: AtomicU64 = AtomicU64::new(0);
    /// // SAFETY: it is never freed, and reached through atomics only.
    /// let region = unsafe { domain.register_raw(COUNTER.as_ptr().cast(), 8, Access::LOCAL_WRITE)? };
    /// region.write(0, &7_u64.to_ne_bytes())?;
    /// assert_eq!(COUNTER.load(Ordering::Relaxed), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        access: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let addr = start.expose_provenance() as u64;
        let translation = Arc::new(Translation::direct(addr, len as u64)?);
        let device = Arc::clone(self.shared.device());
        let contents = Arc::new(Contents { translation, parts: None, len, device });
        MemoryRegion::register(self, contents, addr, access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways to copy, at every alignment: what is around the bytes stays as it was.
    #[test]
    fn copies_of_any_length_from_and_to_any_byte() {
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
    fn no_byte_behind_the_last_is_reached() {
        Buffer::new(13).unwrap().write(9, &[0; 5]);
    }
}
