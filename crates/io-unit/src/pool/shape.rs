//! The shape of a pool.

use super::error::PoolError;
use super::limits::{MAX_ELEMENT_SIZE, MAX_ELEMENTS, MIN_ELEMENT_SIZE};

/// Number and size of the elements of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of elements.
    pub count: u32,
    /// Size of each element, in bytes.
    pub element_size: u32,
}

impl Shape {
    /// Checks the shape of pool `pool` against the limits.
    pub fn check(self, pool: u32) -> Result<(), PoolError> {
        let Self { count, element_size } = self;
        if !(1..=MAX_ELEMENTS).contains(&count) {
            return Err(PoolError::Count { pool, count });
        }
        if !(MIN_ELEMENT_SIZE..=MAX_ELEMENT_SIZE).contains(&element_size) {
            return Err(PoolError::ElementSize { pool, element_size });
        }
        Ok(())
    }

    /// Number of bytes of the whole pool, which is at most 4 GiB.
    pub fn bytes(self) -> u64 {
        u64::from(self.count) * u64::from(self.element_size)
    }
}
