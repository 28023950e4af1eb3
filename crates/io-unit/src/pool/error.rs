//! Violations of the rules for pools.

use super::limits::{MAX_ELEMENT_SIZE, MAX_ELEMENTS, MAX_POOLS, MIN_ELEMENT_SIZE};

/// A violation of the rules for pools. If the peer committed it, its session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PoolError {
    #[error("unknown pool {pool}")]
    Unknown { pool: u32 },
    #[error("element {element} out of range: pool {pool} has {count}")]
    Element { pool: u32, element: u32, count: u32 },
    #[error("element {element} of pool {pool} was used twice without an update")]
    UsedTwice { pool: u32, element: u32 },
    #[error("invalid frame length {len}: elements of pool {pool} hold 1 to {max} bytes")]
    Length { pool: u32, len: u32, max: u32 },
    #[error("frame without a free element: every receive buffer was used")]
    NoCredit,
    #[error("update of element {element} of pool {pool}, which was not consumed")]
    NotConsumed { pool: u32, element: u32 },
    #[error("element {element} of pool {pool} is not held")]
    NotHeld { pool: u32, element: u32 },
    #[error("pool {pool} was advertised twice")]
    Duplicate { pool: u32 },
    #[error("invalid pool index {pool:#x}: indices are 31 bits wide")]
    Index { pool: u32 },
    #[error("too many pools: the maximum is {MAX_POOLS}")]
    TooMany,
    #[error("invalid element count {count} of pool {pool}: expected 1 to {MAX_ELEMENTS}")]
    Count { pool: u32, count: u32 },
    #[error(
        "invalid element size {element_size} of pool {pool}: expected {MIN_ELEMENT_SIZE} to {MAX_ELEMENT_SIZE}"
    )]
    ElementSize { pool: u32, element_size: u32 },
    #[error(
        "element size {element_size} of pool {pool} differs from {expected}: in Send mode all pools must agree"
    )]
    MixedSizes { pool: u32, element_size: u32, expected: u32 },
    #[error("pool {pool} of {bytes} bytes at offset {offset:#x} exceeds the address space")]
    Range { pool: u32, bytes: u64, offset: u64 },
    #[error("pool {pool} is already being flushed")]
    Flushing { pool: u32 },
    #[error("pools cannot be flushed in Send mode: their elements are posted receives")]
    FlushInSendMode,
}
