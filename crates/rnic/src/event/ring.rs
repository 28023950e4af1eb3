//! The memory of an event queue (requirements I1, I4): a ring of entries, each a word with the code and the
//! parameter of an event.
//!
//! An entry is zero until a writer stores an event there, and again after the reader has taken it. The reader
//! therefore needs to look at nothing else.

use super::code::Event;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A ring, and the larger one that has replaced it.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Box<[AtomicU64]>,
    next: OnceLock<Arc<Self>>,
}

/// The contents of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// No event.
    Empty,
    /// End marker: events continue in the next ring.
    Moved,
    Event(Event),
}

const MOVED: u64 = 1 << 32;

impl Ring {
    pub(super) fn new(size: usize) -> Arc<Self> {
        let entries = std::iter::repeat_with(|| AtomicU64::new(0)).take(size).collect();
        Arc::new(Self { entries, next: OnceLock::new() })
    }

    pub(super) fn size(&self) -> usize {
        self.entries.len()
    }

    /// The entry at this position, modulo the size of the ring.
    pub(super) fn get(&self, at: usize) -> Entry {
        match self.at(at).load(Ordering::Acquire) {
            0 => Entry::Empty,
            MOVED => Entry::Moved,
            word => Entry::Event(Event::from_word(word)),
        }
    }

    /// Clears an entry that the reader has taken. Writers learn of it when the read indicator has passed the
    /// entry.
    pub(super) fn clear(&self, at: usize) {
        self.at(at).store(0, Ordering::Relaxed);
    }

    /// Stores an event in an entry that the reader has cleared.
    pub(super) fn put(&self, at: usize, event: Event) {
        self.fill(at, event.word());
    }

    /// Stores the end marker of this ring: events continue in `next`.
    pub(super) fn end(&self, at: usize, next: Arc<Self>) {
        assert!(self.next.set(next).is_ok(), "a ring is replaced only once");
        self.fill(at, MOVED);
    }

    /// The ring in which events continue after [`Entry::Moved`].
    pub(super) fn next(&self) -> Arc<Self> {
        Arc::clone(self.next.get().expect("the next ring is set before the end marker"))
    }

    fn fill(&self, at: usize, word: u64) {
        let entry = self.at(at);
        assert_eq!(entry.load(Ordering::Relaxed), 0, "an entry is cleared before it is reused");
        entry.store(word, Ordering::Release);
    }

    fn at(&self, at: usize) -> &AtomicU64 {
        &self.entries[at % self.entries.len()]
    }
}
