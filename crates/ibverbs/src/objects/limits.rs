//! Limits of the adapter, as programs can query them.

use std::ffi::c_int;

/// Maximum number of entries of a completion queue.
pub(crate) const MAX_CQE: c_int = 1 << 22;
/// Maximum number of requests that a send or receive queue holds.
pub(crate) const MAX_REQUESTS: u32 = 1 << 16;
/// Maximum number of receives that a shared receive queue holds.
pub(crate) const MAX_SRQ_REQUESTS: u32 = 1 << 16;
/// Maximum number of scatter/gather elements of a request.
pub(crate) const MAX_SGES: u32 = 32;
/// Number of bytes that every request can carry inline. Some programs post more than they asked for.
pub(crate) const MIN_INLINE: u32 = 256;
/// Maximum number of bytes that a request carries inline.
pub(crate) const MAX_INLINE: u32 = 4096;
/// Bytes of device memory. It is ordinary memory, so the number is arbitrary.
pub(crate) const DEVICE_MEMORY: u64 = 1 << 20;
