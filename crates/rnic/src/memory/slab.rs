//! Where the entries of the table live. They never move, so that finding one takes no lock; room is made as it is needed.
//!
//! An index that was given back is used again as late as possible. The instance has eight bits (requirement M4): the tag of an
//! entry comes back only when its index was used 256 times more. As long as the table has room to grow, at least
//! [`RESERVE`] indices wait in line to be used again, so that takes 262,144 registrations. In a table that is nearly full
//! the line is shorter: with one free index, an old tag comes back after 256 registrations.

use super::entry::Entry;
use super::{INSTANCE_BITS, RegisterError};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::OnceLock;

/// Entries are made so many at a time. Few under loom, which keeps books of each.
const CHUNK_BITS: u32 = if cfg!(loom) {
    1
} else if cfg!(fuzzing) {
    3
} else {
    10
};
const CHUNK: usize = 1 << CHUNK_BITS;
/// So many indices wait in line before one is used again, if there is room for new ones.
pub(super) const RESERVE: usize = 1024;
/// An index has 24 bits.
const MOST: u32 = (1 << (u32::BITS - INSTANCE_BITS)) - 1;

/// Entries by index. Index 0 is never used, so no tag below 256 is ever valid.
#[derive(Debug)]
pub(super) struct Slab {
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    free: Mutex<Free>,
    /// The highest index.
    pub(super) highest: u32,
}

#[derive(Debug)]
struct Free {
    /// Indices that were given back, the first to be used again in front.
    line: VecDeque<u32>,
    /// The lowest index that was never used.
    fresh: u32,
}

impl Slab {
    pub(super) fn new(entries: usize) -> Self {
        let highest = u32::try_from(entries).unwrap_or(MOST).min(MOST);
        let chunks = (0..=highest >> CHUNK_BITS).map(|_| OnceLock::new()).collect();
        Self { chunks, free: Mutex::new(Free { line: VecDeque::new(), fresh: 1 }), highest }
    }

    /// The entry with this index, if it was ever used.
    #[inline]
    pub(super) fn entry(&self, index: u32) -> Option<&Entry> {
        let chunk = self.chunks.get((index >> CHUNK_BITS) as usize)?.get()?;
        chunk.get(index as usize % CHUNK)
    }

    /// An index that nobody uses, and its entry.
    pub(super) fn take(&self) -> Result<(u32, &Entry), RegisterError> {
        let mut free = lock(&self.free);
        let index = if free.fresh <= self.highest && free.line.len() <= RESERVE {
            free.fresh += 1;
            free.fresh - 1
        } else {
            free.line.pop_front().ok_or(RegisterError::Full { entries: self.highest as usize })?
        };
        let chunk = self.chunks[(index >> CHUNK_BITS) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| Entry::default()).collect());
        Ok((index, &chunk[index as usize % CHUNK]))
    }

    /// Nobody uses this index any more.
    pub(super) fn give_back(&self, index: u32) {
        lock(&self.free).line.push_back(index);
    }

    /// How many indices are in use.
    pub(super) fn len(&self) -> usize {
        let free = lock(&self.free);
        free.fresh as usize - 1 - free.line.len()
    }
}
