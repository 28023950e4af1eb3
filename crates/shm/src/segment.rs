//! The trait of shared memory.
#![expect(unsafe_code, reason = "its implementations vouch for their memory")]

use std::fmt::Debug;
use std::ptr::NonNull;

/// Memory shared with the peer process, zeroed by the process that created it.
///
/// # Safety
///
/// [`base`](Self::base) always returns the same address, aligned to 4096 bytes. As long as the value lives, the
/// [`SEGMENT_LEN`](crate::SEGMENT_LEN) bytes there can be read and written, whatever the peer does: for example, it
/// cannot truncate the file. No Rust reference to them exists, except to atomics.
pub unsafe trait Segment: Send + Sync + Debug {
    /// The address of the memory in this process.
    fn base(&self) -> NonNull<u8>;
}
