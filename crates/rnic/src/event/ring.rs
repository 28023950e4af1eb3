//! The memory of an event queue (requirements I1, I4): a ring of entries, each one word: an event's code and its parameter.
//!
//! An entry is zero until a writer has put an event there, and again once the reader took it. So the reader needs to look
//! at nothing else.

use super::code::Event;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A ring, and the larger one that took its place.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Box<[AtomicU64]>,
    next: OnceLock<Arc<Self>>,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing, yet or any more.
    Empty,
    /// The ring ends here, and the next begins.
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

    /// The entry at this place; places go round.
    pub(super) fn get(&self, at: usize) -> Entry {
        match self.at(at).load(Ordering::Acquire) {
            0 => Entry::Empty,
            MOVED => Entry::Moved,
            word => Entry::Event(Event::from_word(word)),
        }
    }

    /// The reader took the entry. Writers come to know when the read indicator has passed it.
    pub(super) fn clear(&self, at: usize) {
        self.at(at).store(0, Ordering::Relaxed);
    }

    /// A writer fills an entry that the reader has given back.
    pub(super) fn put(&self, at: usize, event: Event) {
        self.fill(at, event.word());
    }

    /// The last entry of this ring: events go on in `next`.
    pub(super) fn end(&self, at: usize, next: Arc<Self>) {
        assert!(self.next.set(next).is_ok(), "a ring ends once");
        self.fill(at, MOVED);
    }

    /// Where events go on behind [`Entry::Moved`].
    pub(super) fn next(&self) -> Arc<Self> {
        Arc::clone(self.next.get().expect("it was set before the entry that leads here"))
    }

    fn fill(&self, at: usize, word: u64) {
        let entry = self.at(at);
        assert_eq!(entry.load(Ordering::Relaxed), 0, "an entry is cleared before it is given back");
        entry.store(word, Ordering::Release);
    }

    fn at(&self, at: usize) -> &AtomicU64 {
        &self.entries[at % self.entries.len()]
    }
}
