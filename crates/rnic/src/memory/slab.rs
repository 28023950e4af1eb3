//! Storage for the entries of the table. Entries never move, so that looking one up takes no lock; storage
//! grows as needed.
//!
//! An entry has a slot, and its tag an index. Slots are used in order, so that they can be allocated in
//! chunks as the table grows; the indices that peers see are derived from them by a keyed permutation
//! (`cipher.rs`). The permutation covers all 24 bits, however few entries the table may have.
//!
//! A freed index is reused late. The instance has eight bits (requirement M4), so the tag of an entry comes
//! back only after its index was used 256 more times. As long as the table has room to grow, at least
//! [`RESERVE`] free indices wait for reuse, and the next one is drawn at random from the half that waited
//! longest: a fixed order would let a peer that saw one round of tags predict the next. An index therefore
//! rests for at least 512 registrations, and a tag for 131,072. In a table that is nearly full fewer indices
//! wait: with one free index, a tag comes back after 256 registrations.

use super::cipher::{INDEX_BITS, TagCipher};
use super::entry::Entry;
use super::{INSTANCE_BITS, RegisterError};
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::SIGNAL_TAG;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Entries are allocated in chunks of this size. Small under loom, which tracks each entry, and when fuzzing.
const CHUNK_BITS: u32 = if cfg!(loom) {
    1
} else if cfg!(fuzzing) {
    3
} else {
    10
};
const CHUNK: usize = 1 << CHUNK_BITS;
/// Number of free indices that wait before one is reused, if there is room for new ones.
pub(super) const RESERVE: usize = 1024;
/// Indices that no tag has. Tags below 256 are never valid; and an empty Write to [`SIGNAL_TAG`] is a signal,
/// which a program's own empty Write must not be mistaken for.
const RESERVED: [u32; RESERVED_LEN as usize] = [0, SIGNAL_TAG.0 >> INSTANCE_BITS];
const RESERVED_LEN: u32 = 2;
/// Maximum number of entries of a table.
pub(super) const MAX_ENTRIES: u32 = (1 << INDEX_BITS) - RESERVED_LEN;

/// Entries by index.
#[derive(Debug)]
pub(super) struct Slab {
    cipher: Arc<TagCipher>,
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    free: Mutex<Free>,
    /// Maximum number of entries in use at once.
    pub(super) entries: u32,
}

#[derive(Debug, Default)]
struct Free {
    /// Freed indices, oldest first.
    indices: VecDeque<u32>,
    /// The lowest slot that was never used.
    fresh: u32,
    /// Number of entries that have ever been used.
    allocated: u32,
    /// Number of times that an index was reused.
    reused: u32,
}

impl Slab {
    pub(super) fn new(entries: usize, cipher: Arc<TagCipher>) -> Self {
        let entries = u32::try_from(entries).unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
        // The slots of the reserved indices may be among the first.
        let slots = entries + RESERVED_LEN;
        let chunks = (0..slots.div_ceil(1 << CHUNK_BITS)).map(|_| OnceLock::new()).collect();
        Self { cipher, chunks, free: Mutex::default(), entries }
    }

    /// Returns the entry with this index, if it was ever used.
    #[inline]
    pub(super) fn entry(&self, index: u32) -> Option<&Entry> {
        let slot = self.cipher.slot(index);
        let chunk = self.chunks.get((slot >> CHUNK_BITS) as usize)?.get()?;
        chunk.get(slot as usize % CHUNK)
    }

    /// Takes an unused index and its entry.
    pub(super) fn take(&self) -> Result<(u32, &Entry), RegisterError> {
        let mut free = lock(&self.free);
        let index = if free.allocated < self.entries && free.indices.len() <= RESERVE {
            self.take_fresh(&mut free)
        } else {
            self.reuse(&mut free).ok_or(RegisterError::Full { entries: self.entries as usize })?
        };
        Ok((index, self.entry(index).expect("a used index has a chunk")))
    }

    /// Takes a slot that was never used, and returns its index.
    fn take_fresh(&self, free: &mut Free) -> u32 {
        loop {
            let slot = free.fresh;
            free.fresh += 1;
            let index = self.cipher.index(slot);
            if !RESERVED.contains(&index) {
                free.allocated += 1;
                let chunk = slot >> CHUNK_BITS;
                self.chunks[chunk as usize].get_or_init(|| self.chunk(chunk << CHUNK_BITS));
                return index;
            }
        }
    }

    /// Creates the chunk of entries that starts at this slot.
    fn chunk(&self, slot: u32) -> Box<[Entry]> {
        (slot..).take(CHUNK).map(|slot| Entry::new(self.cipher.first_instance(slot))).collect()
    }

    /// Takes an index that was freed long ago.
    fn reuse(&self, free: &mut Free) -> Option<u32> {
        let oldest = free.indices.len().div_ceil(2);
        free.reused = free.reused.wrapping_add(1);
        free.indices.swap_remove_front(self.cipher.choose(free.reused, oldest))
    }

    /// Frees an index.
    pub(super) fn release(&self, index: u32) {
        lock(&self.free).indices.push_back(index);
    }

    /// Number of indices in use.
    pub(super) fn len(&self) -> usize {
        let free = lock(&self.free);
        free.allocated as usize - free.indices.len()
    }
}
