//! Access to the memory of the program that uses the adapter: by address, never by reference.
//!
//! A program may write to memory while the device reads it, and may unmap memory that it registered (registration
//! pins nothing). A Rust reference promises that neither happens, so the device holds none: it refers to memory by
//! [`Span`] and has the [`Host`] copy. The engine copies through the kernel, which reports unmapped memory. The
//! simulator copies within an arena of its own.

use std::fmt;
use std::ops::DerefMut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size of the operand of an atomic operation.
const WORD: usize = size_of::<u64>();

/// A range of the program's memory. It may be unmapped at any time, unless it is [held](Self::held).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first address.
    pub addr: u64,
    /// The length in bytes.
    pub len: usize,
    /// The memory stays mapped while the caller holds its guard, so it may be accessed directly, without the kernel.
    pub held: bool,
}

impl Span {
    /// Creates a span of memory that may be unmapped at any time.
    ///
    /// ```
    /// # use ironwarp_rnic::host::Span;
    /// let span = Span::new(0x1000, 64);
    /// assert_eq!((span.addr, span.len, span.held), (0x1000, 64, false));
    /// ```
    pub const fn new(addr: u64, len: usize) -> Self {
        Self { addr, len, held: false }
    }
}

/// Some of the memory is not mapped, or its page protection forbids the copy. A part of the bytes may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is not mapped, or write-protected")]
pub struct Unmapped;

/// Memory that stays mapped for as long as the device can access it, so that it can be copied without the kernel.
///
/// Offsets count from the first byte of the memory.
pub trait Held: Send + Sync + fmt::Debug {
    /// Copies the bytes at offset `at` to `into`.
    fn read(&self, at: u64, into: &mut [u8]);

    /// Copies `from` to the bytes at offset `at`.
    fn write(&self, at: u64, from: &[u8]);
}

/// Memory that stays mapped, like [`Held`] memory, and of which page tables list pages by their addresses.
pub trait HeldPages: Send + Sync + fmt::Debug {
    /// Copies the bytes at `addr`, which are in one page, to `into`.
    fn read_page(&self, addr: u64, into: &mut [u8]);

    /// Copies `from` to the bytes at `addr`, which are in one page.
    fn write_page(&self, addr: u64, from: &[u8]);
}

/// A buffer of the device, for bytes on their way between the link and the program's memory.
pub type Buffer = Box<dyn DerefMut<Target = [u8]> + Send>;

/// Copies from and to the program's memory. A bad address causes an error, never a signal.
pub trait Host: Send + Sync + fmt::Debug {
    /// Copies the spans, one after another, to `into`. Their total length equals that of `into`.
    fn gather(&self, from: &[Span], into: &mut [u8]) -> Result<(), Unmapped>;

    /// Copies `from` to the spans, one after another. Their total length equals that of `from`.
    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped>;

    /// Faults the pages of this memory in, writable. Fails if some of it is not mapped.
    fn prefault(&self, _memory: Span) -> Result<(), Unmapped> {
        Ok(())
    }

    /// Replaces the aligned 64-bit word at `addr` by the result of `new`, which gets the old value, and returns the old
    /// value. Atomic with respect to all other calls of this method, by any adapter of the process (RFC 7306 §5.4,
    /// rule 2).
    ///
    /// An unchanged word is not written: a comparison that fails must not undo a Write that has arrived since,
    /// because Writes do not take the lock.
    fn update(&self, addr: u64, new: &dyn Fn(u64) -> u64) -> Result<u64, Unmapped> {
        let word = [Span::new(addr, WORD)];
        let _lock = lock_word(addr);
        let mut bytes = [0; WORD];
        self.gather(&word, &mut bytes)?;
        let before = u64::from_ne_bytes(bytes);
        let after = new(before);
        if after != before {
            self.scatter(&after.to_ne_bytes(), &word)?;
        }
        Ok(before)
    }

    /// Allocates a buffer of `len` bytes. A host may copy from its own buffers more cheaply than from others.
    fn buffer(&self, len: usize) -> Buffer {
        Box::new(vec![0; len])
    }

    /// Whether the whole span is mapped now. The cost does not depend on the length of the span.
    fn is_mapped(&self, span: Span) -> bool;

    /// Whether this process is a forked child of the one that the host was created in, whose buffers it does not have.
    fn is_inherited(&self) -> bool {
        false
    }
}

/// Number of locks for atomic operations.
const LOCKS: usize = 64;
/// The locks for atomic operations. Each serves every `LOCKS`-th word of memory.
static WORD_LOCKS: [Mutex<()>; LOCKS] = [const { Mutex::new(()) }; LOCKS];

/// Holds all locks for atomic operations until dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct WordLocks {
    _all: Vec<MutexGuard<'static, ()>>,
}

/// Takes all locks for atomic operations. For a thread that forks: no other thread then holds one, which would stay
/// locked forever in the child.
#[doc(hidden)]
pub fn lock_all_words() -> WordLocks {
    WordLocks {
        _all: WORD_LOCKS.iter().map(|word| word.lock().unwrap_or_else(PoisonError::into_inner)).collect(),
    }
}

/// Takes the lock for atomic operations on the word at `addr`.
fn lock_word(addr: u64) -> MutexGuard<'static, ()> {
    #[expect(clippy::cast_possible_truncation, reason = "any bits of the address will do")]
    let lock = (addr as usize / WORD) % LOCKS;
    WORD_LOCKS[lock].lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A host with one word, to which another thread seems to write 7 as soon as the word was read.
    #[derive(Debug)]
    struct Contended(AtomicU64);

    impl Host for Contended {
        fn gather(&self, _: &[Span], into: &mut [u8]) -> Result<(), Unmapped> {
            into.copy_from_slice(&self.0.swap(7, Ordering::Relaxed).to_ne_bytes());
            Ok(())
        }

        fn scatter(&self, from: &[u8], _: &[Span]) -> Result<(), Unmapped> {
            self.0.store(u64::from_ne_bytes(from.try_into().expect("a word")), Ordering::Relaxed);
            Ok(())
        }

        fn is_mapped(&self, _: Span) -> bool {
            true
        }
    }

    #[test]
    fn an_update_that_changes_nothing_writes_nothing() {
        let host = Contended(AtomicU64::new(3));
        assert_eq!(host.update(0, &|word| word), Ok(3));
        assert_eq!(host.0.load(Ordering::Relaxed), 7);
        assert_eq!(host.update(0, &|word| word + 1), Ok(7));
        assert_eq!(host.0.load(Ordering::Relaxed), 8);
    }
}
