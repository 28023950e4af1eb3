//! Limits of pools.

/// Maximum number of pools that an end owns.
pub const MAX_POOLS: usize = 256;
/// Maximum number of elements of a pool.
pub const MAX_ELEMENTS: u32 = 4096;
/// Smallest size of an element, in bytes.
pub const MIN_ELEMENT_SIZE: u32 = 64;
/// Largest size of an element, in bytes.
pub const MAX_ELEMENT_SIZE: u32 = 1 << 20;
