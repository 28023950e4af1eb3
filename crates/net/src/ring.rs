//! Registered memory for frames that leave: a ring, whose parts are free again when their requests have completed.

use crate::channel::Failure;
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::prelude::ProtectionDomain;
use ironwarp_io_unit::message::SEND_DATA_HEADER;
use std::sync::Arc;

/// Size of the ring: 15 super-packets. Twice as much is slower: it leaves the processor's cache.
const SIZE: u64 = 1 << 20;
/// Frames start at multiples of this, after room for the header of a SendData.
const ALIGN: u64 = 64;
const HEADER: u64 = SEND_DATA_HEADER as u64;

/// Requests complete in the order in which they were posted, so the part in use is contiguous. Positions only grow.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Arc<MemoryRegion>,
    /// End of the part in use.
    head: u64,
    /// Start of the part in use.
    tail: u64,
}

/// Memory for one frame.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) memory: Arc<MemoryRegion>,
    /// Offset of the frame. The header of a SendData fits before it.
    pub(crate) at: usize,
    /// Position in the ring of `at`.
    position: u64,
}

impl Ring {
    pub(crate) fn new(domain: &ProtectionDomain) -> Result<Self, Failure> {
        let size = usize::try_from(SIZE)?;
        let memory = domain.register(Buffer::new(size)?, Access::LOCAL_READ)?;
        Ok(Self { memory: Arc::new(memory), head: 0, tail: 0 })
    }

    /// Returns memory for a frame of up to `len` bytes, if it is free. It stays free until [`Self::take`].
    pub(crate) fn space(&mut self, len: usize) -> Option<Space> {
        if self.head == self.tail {
            // Start over, with memory that is likely to be in the processor's cache.
            self.head = self.head.next_multiple_of(SIZE);
            self.tail = self.head;
        }
        let len = HEADER + len as u64;
        let mut start = self.head;
        if start % SIZE + len > SIZE {
            start = start.next_multiple_of(SIZE);
        }
        if start + len - self.tail > SIZE {
            return None;
        }
        let position = start + HEADER;
        let at = usize::try_from(position % SIZE).expect("less than the size of the ring");
        Some(Space { memory: Arc::clone(&self.memory), at, position })
    }

    /// Marks the memory of a frame of `len` bytes as used. Returns the position to pass to [`Self::release`].
    pub(crate) fn take(&mut self, space: &Space, len: usize) -> u64 {
        self.head = (space.position + len as u64).next_multiple_of(ALIGN);
        self.head
    }

    /// Frees the memory up to a position: its request has completed.
    pub(crate) fn release(&mut self, position: u64) {
        self.tail = self.tail.max(position.min(self.head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_free_again_when_its_requests_have_completed() {
        let domain = ironwarp::Adapter::new().unwrap().protection_domain();
        let mut ring = Ring::new(&domain).unwrap();
        for round in 0..3 {
            let mut taken = Vec::new();
            while let Some(space) = ring.space(65_561) {
                assert!(space.at >= SEND_DATA_HEADER && space.at + 65_561 <= 1 << 20, "{}", space.at);
                let start = space.at - SEND_DATA_HEADER;
                assert!(taken.iter().all(|(from, to, _)| start >= *to || space.at + 65_561 <= *from));
                let position = ring.take(&space, 65_561);
                taken.push((start, space.at + 65_561, position));
            }
            assert_eq!(taken.len(), 15, "round {round}");
            ring.release(taken[0].2);
            assert!(ring.space(65_561).is_some(), "the oldest is free");
            assert!(ring.space(65_561).is_some(), "asking takes nothing");
            taken.iter().for_each(|(_, _, position)| ring.release(*position));
            assert_eq!(ring.space(60).unwrap().at, SEND_DATA_HEADER, "an empty ring starts over");
        }
        let space = ring.space(100).unwrap();
        let position = ring.take(&space, 100);
        ring.release(0);
        assert_ne!(ring.space(100).unwrap().at, space.at, "a request without memory frees nothing");
        ring.release(position + 1000);
        assert!(ring.space(1 << 19).is_some());
    }
}
