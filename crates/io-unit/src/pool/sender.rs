//! Pools as their sender sees them.

use super::bits::Bits;
use super::error::PoolError;
use super::limits::MAX_POOLS;
use super::shape::Shape;
use crate::message::{Mode, PoolEntry, SEND_DATA_HEADER, UpdateEntry};
use std::collections::{BTreeMap, VecDeque};

/// Length of a SendData message without its frame.
#[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
const HEADER: u32 = SEND_DATA_HEADER as u32;

/// The pools of the peer, into which this end sends.
#[derive(Debug)]
pub struct Sender {
    mode: Mode,
    pools: BTreeMap<u32, PeerPool>,
    /// In Send mode, the free elements in the order in which the peer has posted them.
    posted: VecDeque<(u32, u32)>,
}

/// An element of the peer, to write a frame to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index of the pool.
    pub pool: u32,
    /// Element in the pool.
    pub element: u32,
    /// Tag of the memory.
    pub tag: u32,
    /// Offset of the element within the tag.
    pub offset: u64,
}

#[derive(Debug)]
struct PeerPool {
    entry: PoolEntry,
    free: Bits,
    /// Writes that were posted and are not acknowledged yet.
    writing: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Frames may be sent to it.
    Open,
    /// The owner flushes it. It disappears when the reply is sent.
    Closing,
    /// This end flushes it, and waits for acknowledgements of its Writes.
    GivingBack,
    /// This end has sent the request.
    GivenBack,
}

impl Sender {
    /// Creates an end whose peer has advertised no pools.
    pub fn new(mode: Mode) -> Self {
        Self { mode, pools: BTreeMap::new(), posted: VecDeque::new() }
    }

    /// Adds a pool that the peer has advertised.
    pub fn add(&mut self, entry: PoolEntry) -> Result<(), PoolError> {
        let PoolEntry { index: pool, count, element_size, offset, .. } = entry;
        let shape = Shape { count, element_size };
        shape.check(pool)?;
        if pool >> 31 != 0 {
            return Err(PoolError::Index { pool });
        }
        if offset.checked_add(shape.bytes()).is_none() {
            return Err(PoolError::Range { pool, bytes: shape.bytes(), offset });
        }
        if self.pools.contains_key(&pool) {
            return Err(PoolError::Duplicate { pool });
        }
        if self.pools.len() >= MAX_POOLS {
            return Err(PoolError::TooMany);
        }
        if self.mode == Mode::Send {
            let expected = self.pools.values().next().map_or(element_size, |first| first.entry.element_size);
            if element_size != expected {
                return Err(PoolError::MixedSizes { pool, element_size, expected });
            }
            self.posted.extend((0..count).map(|element| (pool, element)));
        }
        let free = Bits::full(count);
        self.pools.insert(pool, PeerPool { entry, free, writing: 0, phase: Phase::Open });
        Ok(())
    }

    /// Returns the length of the longest frame that fits in an element, free or not.
    pub fn max_frame(&self) -> Option<u32> {
        let header = match self.mode {
            Mode::Send => HEADER,
            Mode::Rdma => 0,
        };
        self.open().map(|pool| pool.entry.element_size - header).max()
    }

    /// Returns whether a frame of `len` bytes finds a free element.
    pub fn has_room(&self, len: u32) -> bool {
        match self.mode {
            Mode::Rdma => self.open().any(|pool| pool.entry.element_size >= len && pool.free.len() > 0),
            Mode::Send => !self.posted.is_empty() && self.max_frame().is_some_and(|max| max >= len),
        }
    }

    /// Takes the element for a frame of `len` bytes: of the smallest size that holds it, or, in Send mode, the next
    /// that the peer has posted. In RDMA mode, counts a Write.
    pub fn take(&mut self, len: u32) -> Option<Slot> {
        if !self.has_room(len) {
            return None;
        }
        let (index, element) = match self.mode {
            Mode::Send => self.posted.pop_front()?,
            Mode::Rdma => {
                let open = self.pools.iter().filter(|(_, pool)| pool.phase == Phase::Open);
                let fitting = open.filter(|(_, pool)| pool.entry.element_size >= len && pool.free.len() > 0);
                let (index, pool) = fitting.min_by_key(|(_, pool)| pool.entry.element_size)?;
                (*index, pool.free.first()?)
            }
        };
        let pool = self.pools.get_mut(&index)?;
        pool.free.remove(element);
        pool.writing += u32::from(self.mode == Mode::Rdma);
        let PoolEntry { element_size, tag, offset, .. } = pool.entry;
        let offset = offset + u64::from(element) * u64::from(element_size);
        Some(Slot { pool: index, element, tag, offset })
    }

    /// A Write to a pool was acknowledged.
    pub fn acknowledged(&mut self, index: u32) {
        if let Some(pool) = self.pools.get_mut(&index) {
            pool.writing = pool.writing.saturating_sub(1);
        }
    }

    /// Takes the elements that an Update returns.
    pub fn update(&mut self, entry: &UpdateEntry) -> Result<(), PoolError> {
        let index = entry.pool;
        let pool = self.pools.get_mut(&index).ok_or(PoolError::Unknown { pool: index })?;
        let count = pool.entry.count;
        for element in entry.elements() {
            if element >= count {
                return Err(PoolError::Element { pool: index, element, count });
            }
            if !pool.free.insert(element) {
                return Err(PoolError::NotConsumed { pool: index, element });
            }
            if self.mode == Mode::Send {
                self.posted.push_back((index, element));
            }
        }
        Ok(())
    }

    /// The owner flushes a pool: no frame is sent to it any more.
    pub fn close(&mut self, index: u32) -> Result<(), PoolError> {
        let pool = self.flushable(index)?;
        match pool.phase {
            // If both flush it, the owner's request is answered, and ours is not sent or means nothing any more.
            Phase::Open | Phase::GivingBack | Phase::GivenBack => pool.phase = Phase::Closing,
            Phase::Closing => return Err(PoolError::Flushing { pool: index }),
        }
        Ok(())
    }

    /// Starts to flush a pool: no frame is sent to it any more.
    pub fn give_back(&mut self, index: u32) -> Result<(), PoolError> {
        let pool = self.flushable(index)?;
        match pool.phase {
            Phase::Open => pool.phase = Phase::GivingBack,
            _ => return Err(PoolError::Flushing { pool: index }),
        }
        Ok(())
    }

    /// Takes the pools that this end flushes and whose Writes are all acknowledged: a FlushRequest is due.
    pub fn take_given_back(&mut self) -> Vec<u32> {
        let due =
            self.pools.iter_mut().filter(|(_, pool)| pool.phase == Phase::GivingBack && pool.writing == 0);
        due.map(|(index, pool)| {
            pool.phase = Phase::GivenBack;
            *index
        })
        .collect()
    }

    /// Returns whether all Writes to a pool are acknowledged.
    pub fn is_quiet(&self, index: u32) -> bool {
        self.pools.get(&index).is_none_or(|pool| pool.writing == 0)
    }

    /// Forgets a pool after the reply to its flush, from either side.
    pub fn remove(&mut self, index: u32) {
        self.pools.remove(&index);
    }

    /// Forgets a pool after the reply to our flush, unless the owner has flushed it as well.
    pub fn remove_given_back(&mut self, index: u32) {
        if self.pools.get(&index).is_some_and(|pool| pool.phase == Phase::GivenBack) {
            self.pools.remove(&index);
        }
    }

    /// Returns the pools that frames may be sent to.
    pub fn usable(&self) -> impl Iterator<Item = u32> + '_ {
        self.open().map(|pool| pool.entry.index)
    }

    /// Number of pools, including those that are being flushed.
    pub fn len(&self) -> usize {
        self.pools.len()
    }

    /// Returns whether there are no pools.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Number of free elements.
    pub fn free(&self) -> u64 {
        self.open().map(|pool| u64::from(pool.free.len())).sum()
    }

    fn open(&self) -> impl Iterator<Item = &PeerPool> {
        self.pools.values().filter(|pool| pool.phase == Phase::Open)
    }

    fn flushable(&mut self, index: u32) -> Result<&mut PeerPool, PoolError> {
        match self.mode {
            Mode::Send => Err(PoolError::FlushInSendMode),
            Mode::Rdma => self.pools.get_mut(&index).ok_or(PoolError::Unknown { pool: index }),
        }
    }
}
