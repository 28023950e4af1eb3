//! Fast copies between a buffer's atomic words and ordinary memory.
//!
//! Rust has no atomic copy, and a loop of atomic loads and stores takes twice as long for 64 KiB. So the words are
//! copied by a string instruction, which is opaque to the compiler, as if the kernel had copied them.
#![expect(unsafe_code, reason = "copies memory by address")]

use std::sync::atomic::AtomicU64;

/// Size of a word, in bytes.
pub(super) const WORD: usize = size_of::<u64>();

/// Copies `words` to `into`, which must have the same length. Copies nothing and returns false if the processor has no
/// such instruction.
#[inline]
pub(super) fn copy_from_words(words: &[AtomicU64], into: &mut [[u8; WORD]]) -> bool {
    assert_eq!(words.len(), into.len());
    // SAFETY: both are valid for this length, and `into` is borrowed exclusively.
    unsafe { copy(words.as_ptr().cast(), into.as_mut_ptr().cast(), words.len() * WORD) }
}

/// Copies `from` to `words`, which must have the same length. Copies nothing and returns false if the processor has no
/// such instruction.
#[inline]
pub(super) fn copy_to_words(from: &[[u8; WORD]], words: &[AtomicU64]) -> bool {
    assert_eq!(words.len(), from.len());
    // SAFETY: both are valid for this length. Atomics may be changed through a shared reference.
    unsafe { copy(from.as_ptr().cast(), words.as_ptr().cast_mut().cast(), words.len() * WORD) }
}

/// Copies `len` bytes. Returns false if the processor has no string instruction.
///
/// # Safety
/// `from` and `to` must be valid for `len` bytes, and must not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    // SAFETY: the instruction accesses only what the caller guarantees, in ascending order (the ABI keeps the direction
    // flag clear). Concurrent writes are seen byte by byte, old or new; the compiler assumes nothing about memory
    // across the assembly.
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

/// Copies nothing, and returns false.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(_: *const u8, _: *mut u8, _: usize) -> bool {
    false
}
