//! Copies of many words at once, by an instruction that the compiler does not look into: as if the kernel had copied them.
//!
//! Rust has no atomic copy. What it has, a load and a store for each word, moves 64 KiB in twice the time.
#![expect(unsafe_code, reason = "copies between memory by address")]

use super::WORD;
use std::sync::atomic::AtomicU64;

/// Copies the words to `into`, which is as long. False: this processor has no such instruction.
#[inline]
pub(super) fn out(words: &[AtomicU64], into: &mut [[u8; WORD]]) -> bool {
    assert_eq!(words.len(), into.len());
    // SAFETY: both are so many words long, all of it theirs; and `into` is nobody else's.
    unsafe { copy(words.as_ptr().cast(), into.as_mut_ptr().cast(), words.len() * WORD) }
}

/// Copies `from` to the words, which are as many. False: this processor has no such instruction.
#[inline]
pub(super) fn into(from: &[[u8; WORD]], words: &[AtomicU64]) -> bool {
    assert_eq!(words.len(), from.len());
    // SAFETY: both are so many words long. The words may change under a shared reference: they are atomics.
    unsafe { copy(from.as_ptr().cast(), words.as_ptr().cast_mut().cast(), words.len() * WORD) }
}

/// # Safety
/// `from` and `to` have `len` bytes each, and do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    // SAFETY: the instruction reads and writes what the caller vouches for, forward (the ABI keeps the direction flag clear). What
    // another thread writes meanwhile is seen byte by byte, old or new; the compiler assumes nothing of memory across it.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    true
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(_: *const u8, _: *mut u8, _: usize) -> bool {
    false
}
