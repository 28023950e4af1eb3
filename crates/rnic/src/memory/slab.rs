//! Where the entries of the table live. They never move, so that finding one takes no lock; room is made as it is needed.
//!
//! An entry has a slot, and its tag an index. Slots are used in order, so that chunks of them are allocated as the table grows;
//! the indices that peers see follow from them by a keyed permutation (`cipher.rs`). Its domain is all 24 bits, however few
//! entries the table may have.
//!
//! An index that was given back is used again late. The instance has eight bits (requirement M4): the tag of an entry comes
//! back only when its index was used 256 times more. As long as the table has room to grow, at least [`RESERVE`] indices wait
//! to be used again, and the next one is drawn at random from the half that waited longest: a fixed order would let a
//! peer that saw one round of tags predict the next. So an index rests for at least 512 registrations, and an old tag for
//! 131,072. In a table that is nearly full fewer wait: with one free index, an old tag comes back after 256
//! registrations.

use super::cipher::{INDEX_BITS, TagCipher};
use super::entry::Entry;
use super::{INSTANCE_BITS, RegisterError};
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::SIGNAL_TAG;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Entries are allocated in chunks of this size. Small under loom, which tracks each entry.
const CHUNK_BITS: u32 = if cfg!(loom) {
    1
} else if cfg!(fuzzing) {
    3
} else {
    10
};
const CHUNK: usize = 1 << CHUNK_BITS;
/// How many indices wait before one is used again, if there is room for new ones.
pub(super) const RESERVE: usize = 1024;
/// No tag has one of these indices. Tags below 256 are never valid; and an empty Write to [`SIGNAL_TAG`] is a signal,
/// which a program's own empty Write must not be mistaken for.
const RESERVED: [u32; RESERVED_LEN as usize] = [0, SIGNAL_TAG.0 >> INSTANCE_BITS];
const RESERVED_LEN: u32 = 2;
/// The most entries that a table can have.
pub(super) const MOST: u32 = (1 << INDEX_BITS) - RESERVED_LEN;

/// Entries by index.
#[derive(Debug)]
pub(super) struct Slab {
    cipher: Arc<TagCipher>,
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    free: Mutex<Free>,
    /// How many entries there may be at once.
    pub(super) entries: u32,
}

#[derive(Debug, Default)]
struct Free {
    /// Indices that were given back, in this order.
    line: VecDeque<u32>,
    /// The lowest slot that was never used.
    fresh: u32,
    /// How many entries have ever been used.
    made: u32,
    /// How many were used again.
    reused: u32,
}

impl Slab {
    pub(super) fn new(entries: usize, cipher: Arc<TagCipher>) -> Self {
        let entries = u32::try_from(entries).unwrap_or(MOST).min(MOST);
        // The slots of reserved indices may be among the first.
        let slots = entries + RESERVED_LEN;
        let chunks = (0..slots.div_ceil(1 << CHUNK_BITS)).map(|_| OnceLock::new()).collect();
        Self { cipher, chunks, free: Mutex::default(), entries }
    }

    /// The entry with this index, if it was ever used.
    #[inline]
    pub(super) fn entry(&self, index: u32) -> Option<&Entry> {
        let slot = self.cipher.slot(index);
        let chunk = self.chunks.get((slot >> CHUNK_BITS) as usize)?.get()?;
        chunk.get(slot as usize % CHUNK)
    }

    /// An index that nobody uses, and its entry.
    pub(super) fn take(&self) -> Result<(u32, &Entry), RegisterError> {
        let mut free = lock(&self.free);
        let index = if free.made < self.entries && free.line.len() <= RESERVE {
            self.make(&mut free)
        } else {
            self.reuse(&mut free).ok_or(RegisterError::Full { entries: self.entries as usize })?
        };
        Ok((index, self.entry(index).expect("the chunk of an index that was made")))
    }

    /// The index of a slot that was never used.
    fn make(&self, free: &mut Free) -> u32 {
        loop {
            let slot = free.fresh;
            free.fresh += 1;
            let index = self.cipher.index(slot);
            if !RESERVED.contains(&index) {
                free.made += 1;
                let chunk = slot >> CHUNK_BITS;
                self.chunks[chunk as usize].get_or_init(|| self.chunk(chunk << CHUNK_BITS));
                return index;
            }
        }
    }

    /// The entries from this slot on.
    fn chunk(&self, slot: u32) -> Box<[Entry]> {
        (slot..).take(CHUNK).map(|slot| Entry::new(self.cipher.first_instance(slot))).collect()
    }

    /// An index that was given back long ago.
    fn reuse(&self, free: &mut Free) -> Option<u32> {
        let oldest = free.line.len().div_ceil(2);
        free.reused = free.reused.wrapping_add(1);
        free.line.swap_remove_front(self.cipher.choose(free.reused, oldest))
    }

    /// Nobody uses this index any more.
    pub(super) fn give_back(&self, index: u32) {
        lock(&self.free).line.push_back(index);
    }

    /// How many indices are in use.
    pub(super) fn len(&self) -> usize {
        let free = lock(&self.free);
        free.made as usize - free.line.len()
    }
}
