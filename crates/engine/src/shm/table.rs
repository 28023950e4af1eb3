//! The channels of a carrier by number. A number contains a generation, so that a record for a channel that was closed is
//! not mistaken for one of its successor.

use super::channel::Channel;
use std::sync::{Arc, Weak};

/// Number of bits of the index; the others are the generation.
const INDEX_BITS: u32 = 20;
/// Maximum number of channels of a carrier.
const MAX_CHANNELS: usize = 1 << INDEX_BITS;

/// The channels of a carrier.
#[derive(Debug, Default)]
pub(super) struct ChannelTable {
    slots: Vec<Slot>,
    /// Indexes of free slots. The one that was free for the longest time is used first.
    free: std::collections::VecDeque<u32>,
}

/// A place for a channel.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// `None` if the slot is free.
    channel: Option<Weak<Channel>>,
}

impl ChannelTable {
    /// Creates a channel with `make`, which gets its number. Returns `None` if the table is full.
    pub(super) fn insert(&mut self, make: impl FnOnce(u32) -> Arc<Channel>) -> Option<Arc<Channel>> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() == MAX_CHANNELS => return None,
            None => {
                self.slots.push(Slot::default());
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        // Generation 0 is not used, so that no number is zero.
        slot.generation = (slot.generation + 1) % (1 << (u32::BITS - INDEX_BITS));
        slot.generation = slot.generation.max(1);
        let channel = make(slot.generation << INDEX_BITS | index);
        slot.channel = Some(Arc::downgrade(&channel));
        Some(channel)
    }

    /// Returns the channel with this number.
    pub(super) fn get(&self, id: u32) -> Option<Arc<Channel>> {
        let slot = self.slots.get((id % (1 << INDEX_BITS)) as usize)?;
        slot.channel.as_ref().filter(|_| slot.generation == id >> INDEX_BITS)?.upgrade()
    }

    /// Removes the channel with this number. Returns whether the table is empty now; false if it had no such channel.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        let index = id % (1 << INDEX_BITS);
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        if slot.generation != id >> INDEX_BITS || slot.channel.take().is_none() {
            return false;
        }
        self.free.push_back(index);
        self.is_empty()
    }

    /// Returns whether there are no channels.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Returns all channels.
    pub(super) fn all(&self) -> Vec<Arc<Channel>> {
        self.slots.iter().filter_map(|slot| slot.channel.as_ref()?.upgrade()).collect()
    }
}
