//! Pools as their owner sees them.

use super::bits::Bits;
use super::error::PoolError;
use super::limits::MAX_POOLS;
use super::shape::Shape;
use crate::message::{Indication, Mode, PoolEntry, SEND_DATA_HEADER, UpdateEntry, WINDOW};
use std::collections::{BTreeMap, VecDeque};

/// Length of a SendData message without its frame.
#[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
const HEADER: u32 = SEND_DATA_HEADER as u32;

/// The pools that this end owns.
#[derive(Debug)]
pub struct Owner {
    mode: Mode,
    pools: BTreeMap<u32, OwnPool>,
    /// In Send mode, the elements that are posted as receives, in the order in which they are consumed.
    posted: VecDeque<(u32, u32)>,
}

#[derive(Debug)]
struct OwnPool {
    shape: Shape,
    phase: Phase,
    /// Elements that hold a frame which the application has not released.
    held: Bits,
    /// Elements that were released and not returned to the sender yet.
    released: Bits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The driver is registering memory.
    Registering,
    /// The sender may use it.
    Advertised,
    /// The sender was asked to stop. Frames may still arrive until it replies.
    Flushing {
        /// The sender has asked for a flush at the same time.
        given_back: bool,
    },
    /// No more frames arrive. Its memory is freed when the last element has been released.
    Draining,
}

impl OwnPool {
    /// Number of elements that the sender can use, as far as this end knows.
    fn free(&self) -> u32 {
        self.shape.count - self.held.len() - self.released.len()
    }

    /// An Update is due when a quarter has been released, or when the sender has none left.
    fn update_due(&self) -> bool {
        let released = self.released.len();
        self.phase == Phase::Advertised
            && released > 0
            && (released >= self.shape.count / 4 || self.free() == 0)
    }
}

impl Owner {
    /// Creates an end that owns no pools.
    pub fn new(mode: Mode) -> Self {
        Self { mode, pools: BTreeMap::new(), posted: VecDeque::new() }
    }

    /// Adds a pool whose memory is to be registered. Returns its index.
    pub fn create(&mut self, shape: Shape) -> Result<u32, PoolError> {
        if self.pools.len() >= MAX_POOLS {
            return Err(PoolError::TooMany);
        }
        let index = (0..).find(|index| !self.pools.contains_key(index)).ok_or(PoolError::TooMany)?;
        shape.check(index)?;
        let (held, released) = (Bits::empty(shape.count), Bits::empty(shape.count));
        self.pools.insert(index, OwnPool { shape, phase: Phase::Registering, held, released });
        Ok(index)
    }

    /// Lets the sender use a pool whose memory is registered. Returns the entry to advertise, or `None` if the pool is
    /// not needed any more. In Send mode, appends its elements to the posted receives.
    pub fn advertise(&mut self, index: u32, tag: u32, offset: u64, context: u64) -> Option<PoolEntry> {
        let pool = self.pools.get_mut(&index).filter(|pool| pool.phase == Phase::Registering)?;
        pool.phase = Phase::Advertised;
        let Shape { count, element_size } = pool.shape;
        let (tag, offset) = match self.mode {
            Mode::Rdma => (tag, offset),
            Mode::Send => (0, 0),
        };
        if self.mode == Mode::Send {
            self.posted.extend((0..count).map(|element| (index, element)));
        }
        Some(PoolEntry { index, count, element_size, tag, offset, context })
    }

    /// Forgets a pool whose memory could not be registered.
    pub fn failed(&mut self, index: u32) {
        self.pools.remove(&index);
    }

    /// Takes over the element that a Write has consumed.
    pub fn consume(&mut self, indication: Indication) -> Result<(), PoolError> {
        let Indication { pool: index, element, len } = indication;
        let pool = self
            .pools
            .get_mut(&index)
            .filter(|pool| matches!(pool.phase, Phase::Advertised | Phase::Flushing { .. }));
        let pool = pool.ok_or(PoolError::Unknown { pool: index })?;
        let Shape { count, element_size } = pool.shape;
        if element >= count {
            return Err(PoolError::Element { pool: index, element, count });
        }
        if !(1..=element_size).contains(&len) {
            return Err(PoolError::Length { pool: index, len, max: element_size });
        }
        if pool.released.contains(element) || !pool.held.insert(element) {
            return Err(PoolError::UsedTwice { pool: index, element });
        }
        Ok(())
    }

    /// Takes over the next posted receive, in Send mode, which holds a frame of `len` bytes behind the header.
    pub fn consume_posted(&mut self, len: u32) -> Result<(u32, u32), PoolError> {
        let (pool, element) = self.posted.pop_front().ok_or(PoolError::NoCredit)?;
        let element_size = self.pools.get(&pool).map_or(0, |pool| pool.shape.element_size);
        let max = element_size.saturating_sub(HEADER);
        if !(1..=max).contains(&len) {
            return Err(PoolError::Length { pool, len, max });
        }
        self.consume(Indication { pool, element, len: len + HEADER })?;
        Ok((pool, element))
    }

    /// Returns an element whose frame the application has finished with.
    pub fn release(&mut self, index: u32, element: u32) -> Result<(), PoolError> {
        let pool = self.pools.get_mut(&index).ok_or(PoolError::Unknown { pool: index })?;
        if element >= pool.shape.count || !pool.held.remove(element) {
            return Err(PoolError::NotHeld { pool: index, element });
        }
        pool.released.insert(element);
        Ok(())
    }

    /// Takes up to `max` entries of an Update that is due. In Send mode, their elements are to be posted again, in this order.
    pub fn take_update(&mut self, max: usize) -> Vec<UpdateEntry> {
        let mut entries: Vec<UpdateEntry> = Vec::new();
        for (index, pool) in self.pools.iter_mut().filter(|(_, pool)| pool.update_due()) {
            // A pool is returned as a whole, or waits for the next message.
            let windows = pool.shape.count.div_ceil(WINDOW) as usize;
            if entries.len() + windows > max {
                break;
            }
            for element in pool.released.iter() {
                if !entries.last_mut().is_some_and(|last| last.pool == *index && last.add(element)) {
                    entries.push(UpdateEntry::new(*index, element));
                }
            }
            pool.released.clear();
        }
        if self.mode == Mode::Send {
            self.posted.extend(
                entries.iter().flat_map(|entry| entry.elements().map(|element| (entry.pool, element))),
            );
        }
        entries
    }

    /// Starts to flush a pool: it gets no Update from now on, and a FlushRequest is due.
    pub fn flush(&mut self, index: u32) -> Result<(), PoolError> {
        if self.mode == Mode::Send {
            return Err(PoolError::FlushInSendMode);
        }
        let pool = self.pools.get_mut(&index).ok_or(PoolError::Unknown { pool: index })?;
        match pool.phase {
            Phase::Advertised => pool.phase = Phase::Flushing { given_back: false },
            Phase::Registering => return Err(PoolError::Unknown { pool: index }),
            Phase::Flushing { .. } | Phase::Draining => return Err(PoolError::Flushing { pool: index }),
        }
        Ok(())
    }

    /// Lets no more frames into a pool: the sender has replied to its flush, or never learned of it.
    pub fn drain(&mut self, index: u32) {
        if let Some(pool) = self.pools.get_mut(&index) {
            pool.phase = Phase::Draining;
        }
    }

    /// The sender flushes a pool: it has stopped using it.
    pub fn given_back(&mut self, index: u32) -> Result<(), PoolError> {
        if self.mode == Mode::Send {
            return Err(PoolError::FlushInSendMode);
        }
        let pool = self.pools.get_mut(&index).ok_or(PoolError::Unknown { pool: index })?;
        match pool.phase {
            Phase::Advertised => pool.phase = Phase::Draining,
            // Both flush it. The reply to our request is on its way, and the memory is freed after it.
            Phase::Flushing { given_back: false } => pool.phase = Phase::Flushing { given_back: true },
            Phase::Registering => return Err(PoolError::Unknown { pool: index }),
            Phase::Flushing { given_back: true } | Phase::Draining => {
                return Err(PoolError::Flushing { pool: index });
            }
        }
        Ok(())
    }

    /// Lets no more frames in, because both connections are closed.
    pub fn close(&mut self) {
        let registered = self.pools.values_mut().filter(|pool| pool.phase != Phase::Registering);
        registered.for_each(|pool| pool.phase = Phase::Draining);
        self.posted.clear();
    }

    /// Removes the pools whose memory can be freed, and returns their indices.
    pub fn take_drained(&mut self) -> Vec<u32> {
        let drained = |pool: &OwnPool| pool.phase == Phase::Draining && pool.held.len() == 0;
        let indices: Vec<u32> =
            self.pools.iter().filter(|(_, pool)| drained(pool)).map(|(index, _)| *index).collect();
        indices.iter().for_each(|index| drop(self.pools.remove(index)));
        indices
    }

    /// Returns the pools that the sender can use.
    pub fn advertised(&self) -> impl Iterator<Item = u32> + '_ {
        let advertised = self.pools.iter().filter(|(_, pool)| pool.phase == Phase::Advertised);
        advertised.map(|(index, _)| *index)
    }

    /// Number of pools, including those that are being registered or flushed.
    pub fn len(&self) -> usize {
        self.pools.len()
    }

    /// Returns whether there are no pools.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Number of elements that hold a frame.
    pub fn held(&self) -> u64 {
        self.pools.values().map(|pool| u64::from(pool.held.len())).sum()
    }
}
