//! The memory of the program that uses the adapter, as the device sees it: addresses, never references.
//!
//! A program may write to memory while the device reads it, and may unmap what it registered (registration pins
//! nothing). A Rust reference promises that neither happens, so the device holds none: it names memory by [`Span`] and
//! asks the [`Host`] to copy. The engine copies through the kernel, which answers for memory that is gone; the simulator
//! copies within an arena of its own.

use std::fmt;
use std::ops::DerefMut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an atomic operation works on.
const WORD: usize = size_of::<u64>();

/// A run of bytes in the program's memory. It may not be there, or be gone in a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub addr: u64,
    /// How long it is.
    pub len: usize,
}

/// Some of the memory is not mapped, or not with the protection that the copy needs. What part of it was copied is not
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is not mapped, or write-protected")]
pub struct Unmapped;

/// Memory that the device keeps from going away, for as long as it can be found: copies need not ask the kernel whether it is there.
///
/// Its bytes are counted from its first one, wherever it lies.
pub trait Held: Send + Sync + fmt::Debug {
    /// Copies the bytes from `at` on to `into`.
    fn read(&self, at: u64, into: &mut [u8]);

    /// Copies `from` to the bytes from `at` on.
    fn write(&self, at: u64, from: &[u8]);
}

/// Bytes of the device's own, between the link and the program's memory.
pub type Buffer = Box<dyn DerefMut<Target = [u8]> + Send>;

/// Copies from and to the program's memory. A bad address is an error, never a signal.
pub trait Host: Send + Sync + fmt::Debug {
    /// Copies the spans, one after another, to `into`, which is as long as all of them together.
    fn gather(&self, from: &[Span], into: &mut [u8]) -> Result<(), Unmapped>;

    /// Copies `from` to the spans, one after another, which are together as long as it.
    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped>;

    /// Has the pages of this memory made and writable, where there are pages. An error if some of it is not mapped.
    fn prefault(&self, _memory: Span) -> Result<(), Unmapped> {
        Ok(())
    }

    /// Replaces the 64-bit word at `addr`, which is aligned, by what `new` makes of it, and returns what it was. Between
    /// the two no other call of this, on this or another adapter of the process, changes it (RFC 7306 §5.4, rule 2).
    ///
    /// A word that stays as it is is not written: a comparison that fails must not undo what a Write, which takes no turn,
    /// put there since.
    fn update(&self, addr: u64, new: &dyn Fn(u64) -> u64) -> Result<u64, Unmapped> {
        let word = [Span { addr, len: WORD }];
        let _turn = turn(addr);
        let mut bytes = [0; WORD];
        self.gather(&word, &mut bytes)?;
        let before = u64::from_ne_bytes(bytes);
        let after = new(before);
        if after != before {
            self.scatter(&after.to_ne_bytes(), &word)?;
        }
        Ok(before)
    }

    /// A buffer of so many bytes. A host may copy from its own kind in fewer steps than from others.
    fn buffer(&self, len: usize) -> Buffer {
        Box::new(vec![0; len])
    }

    /// Whether all of the span is mapped now; its cost does not depend on its length.
    fn is_mapped(&self, span: Span) -> bool;
}

const LOCKS: usize = 64;
static TURNS: [Mutex<()>; LOCKS] = [const { Mutex::new(()) }; LOCKS];

/// All turns, for a thread that forks: no other thread is in the middle of one.
#[doc(hidden)]
#[derive(Debug)]
pub struct Turns {
    _all: Vec<MutexGuard<'static, ()>>,
}

#[doc(hidden)]
pub fn all_turns() -> Turns {
    Turns { _all: TURNS.iter().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner)).collect() }
}

/// Words take turns, each with those that share its lock.
fn turn(addr: u64) -> MutexGuard<'static, ()> {
    #[expect(clippy::cast_possible_truncation, reason = "any bits of the address will do")]
    let lock = (addr as usize / WORD) % LOCKS;
    TURNS[lock].lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// One word, to which somebody else writes 7 as soon as it was read.
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
