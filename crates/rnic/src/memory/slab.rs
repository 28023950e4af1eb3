//! Storage for the entries of the memory table, and the choice of the entry for a new tag. Storage grows as
//! needed. Entries never move, so that a lookup takes no lock.
//!
//! An entry has a slot, its position in storage, and its tag contains an index. Slots are used in order, so that
//! storage can be allocated in chunks as the table grows. The indices that peers see are derived from the slots by
//! a keyed permutation (`cipher.rs`), which covers all 24 bits, however few entries the table may have.
//!
//! A freed index is reused late. The instance has eight bits (requirement M4), so an entry has the same tag again
//! only after its index was used 256 more times. As long as the table can grow, an index is reused only while more
//! than [`MIN_FREE_INDICES`] are free, and is chosen at random from the half that was freed longest ago: with a
//! fixed order, a peer that saw all tags once could predict the next ones. An index is therefore reused after at
//! least 512 other registrations, and a tag after 131,072. In a table that is nearly full, fewer indices are
//! free: with one free index, a tag is reused after 256 registrations.

use super::cipher::{INDEX_BITS, TagCipher};
use super::entry::Entry;
use super::{INSTANCE_BITS, RegisterError};
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::SIGNAL_TAG;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Binary logarithm of the number of entries that are allocated at a time. Small under loom, which tracks each
/// entry, and when fuzzing.
const CHUNK_BITS: u32 = if cfg!(loom) {
    1
} else if cfg!(fuzzing) {
    3
} else {
    10
};
/// Number of entries in a chunk.
const CHUNK: usize = 1 << CHUNK_BITS;
/// As long as the table can grow, no index is reused while this many or fewer are free.
pub(super) const MIN_FREE_INDICES: usize = 1024;
/// Indices that no tag has. Tags below 256 are never valid. An empty Write to [`SIGNAL_TAG`] is a signal, so no
/// memory of a program may have that tag.
const RESERVED: [u32; RESERVED_LEN as usize] = [0, SIGNAL_TAG.0 >> INSTANCE_BITS];
const RESERVED_LEN: u32 = 2;
/// Maximum number of entries of a table.
pub(super) const MAX_ENTRIES: u32 = (1 << INDEX_BITS) - RESERVED_LEN;

/// The entries of a table, found by index.
#[derive(Debug)]
pub(super) struct Slab {
    /// Translates indices to slots and back.
    cipher: Arc<TagCipher>,
    /// Storage in the order of slots. A chunk is allocated when its first slot is used.
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    free: Mutex<Free>,
    /// Maximum number of entries in use at once.
    pub(super) max_entries: u32,
}

/// The indices that can be taken.
#[derive(Debug, Default)]
struct Free {
    /// Freed indices, oldest first.
    indices: VecDeque<u32>,
    /// The lowest slot that was never used.
    next_slot: u32,
    /// Number of entries that have ever been used: slots below `next_slot` without those of reserved indices.
    allocated: u32,
    /// Number of times that an index was reused. Input of the random choice among free indices.
    reused: u32,
}

impl Slab {
    /// Creates an empty slab. `max_entries` is capped at [`MAX_ENTRIES`].
    pub(super) fn new(max_entries: usize, cipher: Arc<TagCipher>) -> Self {
        let max_entries = u32::try_from(max_entries).unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
        // The slots of reserved indices may be among the first, and are skipped.
        let slots = max_entries + RESERVED_LEN;
        let chunks = (0..slots.div_ceil(1 << CHUNK_BITS)).map(|_| OnceLock::new()).collect();
        Self { cipher, chunks, free: Mutex::default(), max_entries }
    }

    /// Returns the entry with this index, in use or free. `None` if its storage was not allocated yet.
    #[inline]
    pub(super) fn entry(&self, index: u32) -> Option<&Entry> {
        let slot = self.cipher.slot(index);
        let chunk = self.chunks.get((slot >> CHUNK_BITS) as usize)?.get()?;
        chunk.get(slot as usize % CHUNK)
    }

    /// Takes a free index, and returns it with its entry.
    pub(super) fn take(&self) -> Result<(u32, &Entry), RegisterError> {
        let mut free = lock(&self.free);
        let index = if free.allocated < self.max_entries && free.indices.len() <= MIN_FREE_INDICES {
            self.take_fresh(&mut free)
        } else {
            self.reuse(&mut free).ok_or(RegisterError::Full { entries: self.max_entries as usize })?
        };
        Ok((index, self.entry(index).expect("a used index has a chunk")))
    }

    /// Takes a slot that was never used, and returns its index.
    fn take_fresh(&self, free: &mut Free) -> u32 {
        loop {
            let slot = free.next_slot;
            free.next_slot += 1;
            let index = self.cipher.index(slot);
            if !RESERVED.contains(&index) {
                free.allocated += 1;
                let chunk = slot >> CHUNK_BITS;
                self.chunks[chunk as usize].get_or_init(|| self.new_chunk(chunk << CHUNK_BITS));
                return index;
            }
        }
    }

    /// Creates the chunk of entries that starts at this slot.
    fn new_chunk(&self, slot: u32) -> Box<[Entry]> {
        (slot..).take(CHUNK).map(|slot| Entry::new(self.cipher.first_instance(slot))).collect()
    }

    /// Takes a random index among those that were freed longest ago.
    fn reuse(&self, free: &mut Free) -> Option<u32> {
        let oldest_half = free.indices.len().div_ceil(2);
        free.reused = free.reused.wrapping_add(1);
        free.indices.swap_remove_front(self.cipher.choose(free.reused, oldest_half))
    }

    /// Frees an index. Its entry must have been released.
    pub(super) fn release(&self, index: u32) {
        lock(&self.free).indices.push_back(index);
    }

    /// Returns the number of indices in use.
    pub(super) fn len(&self) -> usize {
        let free = lock(&self.free);
        free.allocated as usize - free.indices.len()
    }
}
