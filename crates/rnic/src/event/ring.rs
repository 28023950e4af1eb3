//! The memory of an event queue (requirements I1, I4): a ring of 64-bit entries, each with the code and the
//! parameter of one event.
//!
//! An entry is zero until a writer stores an event there, and again after the reader has taken the event. The reader
//! can therefore tell from the entry alone whether there is an event.

use super::code::Event;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A ring of entries.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Box<[AtomicU64]>,
    /// The ring that has replaced this one. Unset while this ring is in use by writers.
    next: OnceLock<Arc<Self>>,
}

/// The contents of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// No event.
    Empty,
    /// End marker: events continue in the next ring.
    Moved,
    /// An event.
    Event(Event),
}

/// The end marker. Differs from all events: its upper half is not the code of an event.
const MOVED: u64 = 1 << 32;

impl Ring {
    /// Creates a ring without room for events: its only entry is for the end marker. An undefined queue has it in place
    /// of memory.
    pub(super) fn none() -> Arc<Self> {
        Self::new(1)
    }

    /// Creates an empty ring with `size` entries.
    pub(super) fn new(size: usize) -> Arc<Self> {
        let entries = std::iter::repeat_with(|| AtomicU64::new(0)).take(size).collect();
        Arc::new(Self { entries, next: OnceLock::new() })
    }

    /// Returns the number of entries.
    pub(super) fn size(&self) -> usize {
        self.entries.len()
    }

    /// Returns the contents of the entry at this position, modulo the size of the ring.
    pub(super) fn get(&self, at: usize) -> Entry {
        match self.entry(at).load(Ordering::Acquire) {
            0 => Entry::Empty,
            MOVED => Entry::Moved,
            word => Entry::Event(Event::from_word(word)),
        }
    }

    /// Clears the entry of an event that the reader has taken. Relaxed suffices: a writer reuses the entry only after
    /// the reader has advanced the read indicator, which synchronises.
    pub(super) fn clear(&self, at: usize) {
        self.entry(at).store(0, Ordering::Relaxed);
    }

    /// Stores an event in an entry that the reader has cleared.
    pub(super) fn store_event(&self, at: usize, event: Event) {
        self.store(at, event.to_word());
    }

    /// Stores the end marker in an entry that the reader has cleared: events continue in `next`.
    pub(super) fn store_end_marker(&self, at: usize, next: Arc<Self>) {
        assert!(self.next.set(next).is_ok(), "a ring is replaced only once");
        self.store(at, MOVED);
    }

    /// Returns the ring in which events continue after [`Entry::Moved`].
    pub(super) fn next(&self) -> Arc<Self> {
        Arc::clone(self.next.get().expect("the next ring is set before the end marker"))
    }

    /// Stores a value in an entry that the reader has cleared.
    fn store(&self, at: usize, word: u64) {
        let entry = self.entry(at);
        assert_eq!(entry.load(Ordering::Relaxed), 0, "an entry is cleared before it is reused");
        entry.store(word, Ordering::Release);
    }

    /// Returns the entry at this position, modulo the size of the ring.
    fn entry(&self, at: usize) -> &AtomicU64 {
        &self.entries[at % self.entries.len()]
    }
}

/// Drops the rings that follow one after another, because there may be too many for a recursion.
impl Drop for Ring {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut ring) = next.and_then(Arc::into_inner) {
            next = ring.next.take();
        }
    }
}
