//! The memory of the program that uses the adapter, as the device sees it: addresses, never references.
//!
//! A program may write to memory while the device reads it, and may unmap what it registered (registration pins
//! nothing). A Rust reference promises that neither happens, so the device holds none: it names memory by [`Span`] and
//! asks the [`Host`] to copy. The engine copies through the kernel, which answers for memory that is gone; the simulator
//! copies within an arena of its own.

use std::fmt;

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

/// Copies from and to the program's memory. A bad address is an error, never a signal.
pub trait Host: Send + Sync + fmt::Debug {
    /// Copies the spans, one after another, to `into`, which is as long as all of them together.
    fn gather(&self, from: &[Span], into: &mut [u8]) -> Result<(), Unmapped>;

    /// Copies `from` to the spans, one after another, which are together as long as it.
    fn scatter(&self, from: &[u8], to: &[Span]) -> Result<(), Unmapped>;

    /// Whether all of the span is mapped now; its cost does not depend on its length.
    fn is_mapped(&self, span: Span) -> bool;
}
