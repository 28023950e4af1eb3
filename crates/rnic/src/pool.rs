//! What all functions of an adapter share (requirement X1): unused buffers, the numbers of protection domains, and tag
//! slots that a closed function has left.

use crate::host::{Buffer, Host};
use crate::memory::Domain;
use crate::outbound::TxBatch;
use crate::sync::{Mutex, lock};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of a staging buffer: the maximum number of bytes that one call receives into it.
const STAGING: usize = if cfg!(fuzzing) { 4 << 10 } else { 256 << 10 };
/// Maximum number of unused batches, and of unused staging buffers, that are kept. Threads need them while they drive a
/// queue pair, so there is no need for one per queue pair.
const MAX_SPARE: usize = 8;

/// State that all devices of an adapter share.
#[derive(Default)]
pub(crate) struct AdapterPool {
    /// Unused batches.
    #[expect(clippy::vec_box, reason = "they are handed around for each message")]
    batches: Mutex<Vec<Box<TxBatch>>>,
    /// Unused staging buffers.
    staging: Mutex<Vec<Buffer>>,
    /// Number of protection domains created. Their numbers are unique in the adapter.
    domains: AtomicU32,
    /// Number of functions created, without the adapter itself.
    functions: AtomicU32,
    /// Tag slots of closed functions that were never used, in order and not adjacent.
    spare_slots: Mutex<Vec<Range<u32>>>,
}

impl AdapterPool {
    /// Creates the pool of an adapter in which `next` is the number of the next protection domain.
    pub(crate) fn with_domains(next: u32) -> Self {
        Self { domains: AtomicU32::new(next.saturating_sub(1)), ..Self::default() }
    }

    /// The number of the next protection domain.
    pub(crate) fn next_domain(&self) -> u32 {
        self.domains.load(Ordering::Relaxed) + 1
    }

    /// Takes an unused batch, or creates one.
    pub(crate) fn take_batch(&self, host: &dyn Host) -> Box<TxBatch> {
        let spare = lock(&self.batches).pop();
        spare.unwrap_or_else(|| Box::new(TxBatch::new(host)))
    }

    /// Puts a batch back after use.
    pub(crate) fn put_batch(&self, batch: Box<TxBatch>) {
        put_back(&self.batches, batch);
    }

    /// Takes an unused staging buffer, or creates one.
    pub(crate) fn take_staging(&self, host: &dyn Host) -> Buffer {
        let spare = lock(&self.staging).pop();
        spare.unwrap_or_else(|| host.buffer(STAGING))
    }

    /// Puts a staging buffer back after use.
    pub(crate) fn put_staging(&self, staging: Buffer) {
        put_back(&self.staging, staging);
    }

    /// Returns a protection domain that no function of the adapter has.
    pub(crate) fn allocate_domain(&self) -> Domain {
        Domain(self.domains.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns the number of a new function.
    pub(crate) fn next_function(&self) -> u32 {
        self.functions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes up to `count` tag slots in a row that closed functions have left, and at least `min`. `None` if there are
    /// fewer.
    pub(crate) fn take_slots(&self, min: u32, count: u32) -> Option<Range<u32>> {
        let mut spare = lock(&self.spare_slots);
        let at = spare.iter().position(|slots| slots.end - slots.start >= min)?;
        let Range { start, end } = spare[at];
        let taken = start..end.min(start + count);
        spare[at].start = taken.end;
        if spare[at].is_empty() {
            spare.remove(at);
        }
        Some(taken)
    }

    /// Puts the tag slots of a closed function back that were never used. Those that were used stay unused: no tag is
    /// assigned twice (requirement M4).
    pub(crate) fn put_slots(&self, slots: Range<u32>) {
        if slots.is_empty() {
            return;
        }
        let mut spare = lock(&self.spare_slots);
        spare.push(slots);
        spare.sort_by_key(|slots| slots.start);
        spare.dedup_by(|next, slots| {
            let adjacent = slots.end == next.start;
            if adjacent {
                slots.end = next.end;
            }
            adjacent
        });
    }
}

/// Adds an item to a list of unused ones. Drops it if the list is full.
fn put_back<T>(spare: &Mutex<Vec<T>>, item: T) {
    let mut spare = lock(spare);
    if spare.len() < MAX_SPARE {
        spare.push(item);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn adjacent_slots_are_taken_as_one() {
        let pool = AdapterPool::default();
        assert_eq!(pool.take_slots(1, 1), None);
        for slots in [100..200, 300..400, 200..300, 7..7] {
            pool.put_slots(slots);
        }
        assert_eq!(pool.take_slots(301, 400), None);
        assert_eq!(pool.take_slots(250, 250), Some(100..350));
        pool.put_slots(150..350);
        assert_eq!(pool.take_slots(250, 400), Some(150..400), "fewer, but enough");
        assert_eq!(pool.take_slots(1, 1), None);
    }
}
