//! What the reader and the writer of one end tell its watch. Private to the process, so the peer cannot change it.

use crate::sync::{AtomicU64, Ordering};

/// No writer waits. Not a valid position.
const NOT_WAITING: u64 = u64::MAX;

/// The positions that a watch compares with those of the peer. They only save calls: a thread that acts on them holds the
/// reader or the writer, which have their own. So all accesses are relaxed.
#[derive(Debug)]
pub(crate) struct Progress {
    /// End of the last record that the reader consumed.
    consumed: AtomicU64,
    /// The tail at which the writer found no room, or `NOT_WAITING`.
    full_at: AtomicU64,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { consumed: AtomicU64::new(0), full_at: AtomicU64::new(NOT_WAITING) }
    }

    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_consumed(&self, position: u64) {
        self.consumed.store(position, Ordering::Relaxed);
    }

    /// Records that the writer found no room.
    pub(crate) fn set_full_at(&self, tail: u64) {
        self.full_at.store(tail, Ordering::Relaxed);
    }

    /// The tail at which the writer found no room, until this is reported.
    #[inline]
    pub(crate) fn full_at(&self) -> Option<u64> {
        Some(self.full_at.load(Ordering::Relaxed)).filter(|&tail| tail != NOT_WAITING)
    }

    /// Ends the waiting. Returns whether it lasted until now: of several threads, one is told so.
    pub(crate) fn end_waiting(&self) -> bool {
        self.full_at.swap(NOT_WAITING, Ordering::Relaxed) != NOT_WAITING
    }
}
