//! Storage for the entries of the memory table, and the choice of the entry for a new tag. Storage grows as
//! needed. A lookup takes no lock.
//!
//! An entry has a slot, its position in storage, and its tag contains an index. Slots are used in order, so that
//! storage can be allocated in chunks as the table grows. The indices that peers see are derived from the slots by
//! a keyed permutation (`cipher.rs`), which covers all 24 bits, however few entries the table may have.
//!
//! **Reuse.** A freed index is reused late. As long as the table can grow, an index is reused only while more
//! than [`MIN_FREE_INDICES`] are free, and is chosen at random from the half that was freed longest ago: with a
//! fixed order, a peer that saw all tags once could predict the next ones.
//!
//! **Retirement.** The instance has eight bits. An index that has had all 256 instances is retired: it is never used
//! again, so that no old tag is ever honoured again (requirement M4), and the next slot takes its place. When all slots
//! of a chunk are retired, the next slots get its storage: the table takes no more memory than its largest number of
//! entries needs, unless entries that stay keep a chunk of retired slots. A thread that looks up a retired tag
//! meanwhile may find an entry of another index. It sees that in the tag in the state of the entry, which changes only
//! while the entry is invalid, and is refused. So nothing has to wait until such threads are gone.
//!
//! **The end.** A table with all slots has tags for 2³² registrations, less 512. When all are used up, registrations fail
//! with [`RegisterError::UsedUp`], and memory that is registered stays so.
//!
//! **Functions.** The tables of an adapter's functions (requirement X1) use one permutation, and each has slots of its own,
//! from [`Slab::split_off`]. A tag of another function has a slot that the table has no storage for.

use super::cipher::{INDEX_BITS, TagCipher};
use super::entry::Entry;
use super::{INSTANCE_BITS, Limits, RegisterError, index_of, tag_of};
use crate::broken;
use crate::quota::{Account, Resource};
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::SIGNAL_TAG;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::size_of_val;
use std::ops::Range;
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
/// Number of slots. Few under loom, where tables are created often and live briefly.
const SLOTS: u32 = if cfg!(loom) { 1 << 12 } else { 1 << INDEX_BITS };
/// Maximum number of entries of a table.
pub(super) const MAX_ENTRIES: u32 = SLOTS - RESERVED_LEN;

/// Entries in the order of their slots.
type Chunk = [Entry; CHUNK];

/// The entries of a table, found by index.
#[derive(Debug)]
pub(super) struct Slab {
    /// Translates indices to slots and back.
    cipher: Arc<TagCipher>,
    /// The first slot of the table.
    first_slot: u32,
    /// Storage in the order of slots. A chunk is set when its first slot is used. A chunk of retired slots shares its
    /// storage with the chunk that uses the storage now.
    chunks: Box<[OnceLock<Arc<Chunk>>]>,
    /// Storage for indices of other functions that have moved here, by slot. Allocated when the first one does.
    foreign: OnceLock<Box<[OnceLock<Arc<Chunk>>]>>,
    free: Mutex<Free>,
    /// Maximum number of entries in use at once.
    pub(super) max_entries: u32,
    /// The function, for its quota of entries.
    account: Arc<Account>,
    /// Number of instances of an index after the first.
    more_instances: u8,
}

/// The indices that can be taken, and those that no longer can.
#[derive(Debug, Default)]
struct Free {
    /// Freed indices, oldest first.
    indices: VecDeque<u32>,
    /// The lowest slot that was never used.
    next_slot: u32,
    /// The slot after the last one.
    end_slot: u32,
    /// Maximum number of indices that are ever used: all slots without those of reserved indices.
    max_indices: u32,
    /// Number of indices that have ever been used: slots below `next_slot` without those of reserved indices.
    allocated: u32,
    /// Number of times that an index was reused. Input of the random choice among free indices.
    reused: u32,
    /// Number of retired indices.
    retired: u32,
    /// For each chunk in use, the number of its slots that are retired, if there are any.
    retired_slots: HashMap<usize, usize>,
    /// Storage of chunks whose slots are all retired.
    spare: Vec<Arc<Chunk>>,
    /// Number of chunks that have storage of their own, the spare ones included.
    stored: usize,
}

/// Which indices are used, retired and free.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SlabImage {
    /// The slots that the slab may use.
    pub(super) slots: Range<u32>,
    next_slot: u32,
    allocated: u32,
    reused: u32,
    retired: u32,
    /// Freed indices, oldest first.
    free: Vec<u32>,
}

/// The number of indices in use and retired, and the memory of the table, for queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Number of entries in use.
    pub entries: usize,
    /// Number of indices that have had all of their instances, and are never used again.
    pub retired: usize,
    /// Number of indices that can be retired before registrations fail with [`RegisterError::UsedUp`].
    pub indices: usize,
    /// Size of the entries in bytes, used or not, and of the directory by which they are found.
    pub bytes: usize,
}

impl Slab {
    /// Creates an empty slab. The limits are capped, the number of entries also by the quota of the function.
    pub(super) fn new(limits: Limits, cipher: Arc<TagCipher>, account: Arc<Account>) -> Self {
        let first_slot = limits.slots.start.min(SLOTS);
        let end_slot = limits.slots.end.clamp(first_slot, SLOTS);
        let chunks =
            (0..(end_slot - first_slot).div_ceil(1 << CHUNK_BITS)).map(|_| OnceLock::new()).collect();
        let more_instances = u8::try_from(limits.instances.saturating_sub(1)).unwrap_or(u8::MAX);
        let quota = usize::try_from(account.quotas().get(Resource::Tags)).unwrap_or(usize::MAX);
        let max_entries =
            u32::try_from(limits.entries.min(quota)).map_or(MAX_ENTRIES, |entries| entries.min(MAX_ENTRIES));
        let max_indices = usable_slots(&cipher, first_slot..end_slot);
        let free = Free { next_slot: first_slot, end_slot, max_indices, ..Free::default() };
        let (foreign, free) = (OnceLock::new(), Mutex::new(free));
        Self { cipher, first_slot, chunks, foreign, free, max_entries, account, more_instances }
    }

    /// Returns the permutation from which tags are derived.
    pub(super) fn cipher(&self) -> &Arc<TagCipher> {
        &self.cipher
    }

    /// Removes the last `count` slots, rounded up to whole chunks, and returns them. `None` if fewer are unused.
    pub(super) fn split_off(&self, count: u32) -> Option<Range<u32>> {
        let mut free = lock(&self.free);
        let unused = free.next_slot..free.end_slot;
        let start = unused.end.checked_sub(count.checked_next_multiple_of(1 << CHUNK_BITS)?)?;
        if start < unused.start {
            return None;
        }
        let slots = start..unused.end;
        free.end_slot = start;
        free.max_indices -= usable_slots(&self.cipher, slots.clone());
        Some(slots)
    }

    /// Returns the slots that were never used.
    pub(super) fn unused_slots(&self) -> Range<u32> {
        let free = lock(&self.free);
        free.next_slot..free.end_slot
    }

    /// Returns the storage for this index: `None` if there is none yet. The entry may belong to another index by now,
    /// which its [state](super::entry::State::tag) tells. A slot of another function is out of bounds.
    #[inline]
    pub(super) fn entry(&self, index: u32) -> Option<&Entry> {
        let slot = self.cipher.slot(index);
        let own = slot.wrapping_sub(self.first_slot);
        match self.chunks.get((own >> CHUNK_BITS) as usize) {
            Some(chunk) => Some(&chunk.get()?[own as usize % CHUNK]),
            None => self.foreign_entry(slot),
        }
    }

    /// Returns the storage for a slot of another function, if its index has moved here.
    #[cold]
    fn foreign_entry(&self, slot: u32) -> Option<&Entry> {
        let chunk = self.foreign.get()?.get((slot >> CHUNK_BITS) as usize)?.get()?;
        Some(&chunk[slot as usize % CHUNK])
    }

    /// Provides storage for an index that moves here from the slab of another function (requirement X2). From now on this
    /// slab assigns it.
    pub(super) fn adopt(&self, index: u32) -> Result<&Entry, RegisterError> {
        let mut free = lock(&self.free);
        let kept = (free.allocated - free.retired) as usize;
        if kept - free.indices.len() >= self.max_entries as usize {
            return Err(self.full());
        }
        let slot = self.cipher.slot(index);
        if self.chunks.get((slot.wrapping_sub(self.first_slot) >> CHUNK_BITS) as usize).is_none() {
            let directory =
                self.foreign.get_or_init(|| (0..SLOTS >> CHUNK_BITS).map(|_| OnceLock::new()).collect());
            directory[(slot >> CHUNK_BITS) as usize].get_or_init(|| {
                free.stored += 1;
                new_chunk()
            });
            free.allocated += 1;
            free.max_indices += 1;
        } else {
            free.retired -= 1; // it comes back
        }
        drop(free);
        Ok(self.used_entry(index))
    }

    /// Gives up an index, which moves to the slab of another function. Its slot is not counted as retired in its chunk,
    /// whose storage stays, because the index may come back.
    pub(super) fn surrender(&self) {
        lock(&self.free).retired += 1;
    }

    /// Returns whether indices of other functions have moved here.
    pub(super) fn has_foreign(&self) -> bool {
        self.foreign.get().is_some()
    }

    /// Takes a free index, and returns it with its entry.
    pub(super) fn take(&self) -> Result<(u32, &Entry), RegisterError> {
        self.take_within(self.max_entries)
    }

    /// Takes a free index to replace one that has no instances left. It may exceed the maximum number of entries, because
    /// the other index will be retired.
    pub(super) fn take_successor(&self) -> Result<(u32, &Entry), RegisterError> {
        self.take_within(u32::MAX)
    }

    /// Takes a free index, unless as many as `max_entries` are in use.
    fn take_within(&self, max_entries: u32) -> Result<(u32, &Entry), RegisterError> {
        let mut free = lock(&self.free);
        let kept = free.allocated - free.retired; // in use or free
        if kept as usize - free.indices.len() >= max_entries as usize {
            return Err(self.full());
        }
        let can_grow = kept < max_entries && free.allocated < free.max_indices;
        if can_grow && free.indices.len() <= MIN_FREE_INDICES {
            let slot = self.take_slot(&mut free);
            drop(free);
            let index = self.cipher.index(slot);
            let entry = self.used_entry(index);
            let first = tag_of(index, self.cipher.first_instance(slot));
            entry.begin_change().assign(first, self.more_instances);
            return Ok((index, entry));
        }
        let used_up = RegisterError::UsedUp { indices: free.max_indices as usize };
        let index = self.reuse(&mut free).ok_or(used_up)?;
        Ok((index, self.used_entry(index)))
    }

    /// Returns the error for a table without room: the quota of its function is reached, or the maximum of all tables.
    #[cold]
    fn full(&self) -> RegisterError {
        match u64::from(self.max_entries) == self.account.quotas().get(Resource::Tags) {
            true => RegisterError::Quota(self.account.exceeded(Resource::Tags)),
            false => RegisterError::Full { entries: self.max_entries as usize },
        }
    }

    /// Returns the entry of an index that has been taken.
    fn used_entry(&self, index: u32) -> &Entry {
        self.entry(index).expect("a used index has a chunk")
    }

    /// Takes a slot that was never used, and provides its storage.
    fn take_slot(&self, free: &mut Free) -> u32 {
        loop {
            let slot = free.next_slot;
            free.next_slot += 1;
            self.provide_storage(free, slot);
            if !RESERVED.contains(&self.cipher.index(slot)) {
                free.allocated += 1;
                return slot;
            }
            self.retire_slot(free, slot);
        }
    }

    /// Allocates the storage of a slot, or takes spare storage, unless its chunk has some.
    fn provide_storage(&self, free: &mut Free, slot: u32) {
        self.chunks[self.chunk_of(slot)].get_or_init(|| {
            free.spare.pop().unwrap_or_else(|| {
                free.stored += 1;
                new_chunk()
            })
        });
    }

    /// Counts a slot that was retired before its table was loaded. Its chunk may have no storage.
    fn retire_loaded_slot(&self, free: &mut Free, slot: u32) {
        let chunk = self.chunk_of(slot);
        let retired = free.retired_slots.entry(chunk).or_default();
        *retired += 1;
        if *retired == CHUNK {
            free.retired_slots.remove(&chunk);
        }
    }

    /// Takes a random index among those that were freed longest ago.
    fn reuse(&self, free: &mut Free) -> Option<u32> {
        let oldest_half = free.indices.len().div_ceil(2);
        free.reused = free.reused.wrapping_add(1);
        free.indices.swap_remove_front(self.cipher.choose(free.reused, oldest_half))
    }

    /// Frees an index whose entry has been released. If not `is_reusable`, the index is retired.
    pub(super) fn release(&self, index: u32, is_reusable: bool) {
        if !is_reusable && broken::is("retire") {
            let first = tag_of(index, self.cipher.first_instance(self.cipher.slot(index)));
            self.used_entry(index).begin_change().assign(first, self.more_instances);
            return lock(&self.free).indices.push_back(index);
        }
        let mut free = lock(&self.free);
        if is_reusable {
            free.indices.push_back(index);
        } else {
            free.retired += 1;
            self.retire_slot(&mut free, self.cipher.slot(index));
        }
    }

    /// Returns which indices are used, retired and free, and what `each` returns for the entry of each index that is not
    /// retired, in the order of the slots.
    pub(super) fn image<T, E>(
        &self,
        mut each: impl FnMut(&Entry) -> Result<T, E>,
    ) -> Result<(SlabImage, Vec<T>), E> {
        let free = lock(&self.free);
        let is_free: HashSet<u32> = free.indices.iter().copied().collect();
        let mut entries = Vec::new();
        for slot in self.first_slot..free.next_slot {
            let index = self.cipher.index(slot);
            let Some(entry) = self.entry(index) else { continue };
            // The storage of a retired slot may belong to another, or to none.
            let is_kept = entry.state().is_taken() || entry.begin_change().control.predecessor.is_some();
            if index_of(entry.state().tag()) == index && (is_kept || is_free.contains(&index)) {
                entries.push(each(entry)?);
            }
        }
        let Free { next_slot, end_slot, allocated, reused, retired, .. } = *free;
        let slots = self.first_slot..end_slot;
        let free = free.indices.iter().copied().collect();
        Ok((SlabImage { slots, next_slot, allocated, reused, retired, free }, entries))
    }

    /// Provides storage for the entries of an image, in a slab that was never used. `entries` has their indices, in the
    /// order of the slots, and whether each is free. Returns `None` if the image contradicts itself, or exceeds the limits.
    pub(super) fn load(
        &self,
        image: &SlabImage,
        entries: impl Iterator<Item = (u32, bool)> + Clone,
    ) -> Option<()> {
        let mut free = lock(&self.free);
        if !(free.next_slot..=free.end_slot).contains(&image.next_slot) {
            return None;
        }
        let mut kept = entries.clone().map(|(index, _)| index).peekable();
        while free.next_slot < image.next_slot {
            let slot = free.next_slot;
            free.next_slot += 1;
            let index = self.cipher.index(slot);
            free.allocated += u32::from(!RESERVED.contains(&index));
            if kept.next_if_eq(&index).is_some() {
                self.provide_storage(&mut free, slot);
            } else {
                free.retired += u32::from(!RESERVED.contains(&index));
                self.retire_loaded_slot(&mut free, slot);
            }
        }
        let is_free: HashSet<u32> = entries.filter_map(|(index, is_free)| is_free.then_some(index)).collect();
        let listed: HashSet<u32> = image.free.iter().copied().collect();
        let is_consistent = kept.next().is_none()
            && (free.allocated, free.retired) == (image.allocated, image.retired)
            && image.free.len() == listed.len()
            && listed == is_free;
        free.reused = image.reused;
        free.indices = image.free.iter().copied().collect();
        is_consistent.then_some(())
    }

    /// Counts a slot that is never used again. If all slots of its chunk are, the storage becomes spare.
    #[cold]
    fn retire_slot(&self, free: &mut Free, slot: u32) {
        let chunk = self.chunk_of(slot);
        let retired = free.retired_slots.entry(chunk).or_default();
        *retired += 1;
        if *retired == CHUNK {
            free.retired_slots.remove(&chunk);
            free.spare.extend(self.chunks[chunk].get().cloned());
        }
    }

    /// Returns the number of the chunk that a slot of this table belongs to.
    fn chunk_of(&self, slot: u32) -> usize {
        ((slot - self.first_slot) >> CHUNK_BITS) as usize
    }

    /// Returns the number of indices in use.
    pub(super) fn len(&self) -> usize {
        let free = lock(&self.free);
        (free.allocated - free.retired) as usize - free.indices.len()
    }

    /// Returns the number of indices in use and retired, and the memory of the table.
    pub(super) fn usage(&self) -> Usage {
        let entries = self.len();
        let free = lock(&self.free);
        let bytes = size_of_val(&*self.chunks) + free.stored * size_of::<Chunk>();
        Usage { entries, retired: free.retired as usize, indices: free.max_indices as usize, bytes }
    }
}

/// Returns the number of these slots whose index is not reserved.
fn usable_slots(cipher: &TagCipher, slots: Range<u32>) -> u32 {
    let reserved = RESERVED.iter().filter(|index| slots.contains(&cipher.slot(**index))).count();
    (slots.end - slots.start).saturating_sub(u32::try_from(reserved).unwrap_or(RESERVED_LEN))
}

/// Creates storage for the entries of a chunk.
fn new_chunk() -> Arc<Chunk> {
    // Collected on the heap, because program threads may have small stacks.
    let entries: Arc<[Entry]> = (0..CHUNK).map(|_| Entry::default()).collect();
    entries.try_into().expect("a chunk of entries")
}
