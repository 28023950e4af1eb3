//! Limits of the adapter, which programs can query.

use std::ffi::c_int;

/// Maximum number of entries of a completion queue.
pub(crate) const MAX_CQE: c_int = 1 << 22;
/// Maximum number of requests that a send or receive queue holds.
pub(crate) const MAX_REQUESTS: u32 = 1 << 16;
/// Maximum number of receives that a shared receive queue holds.
pub(crate) const MAX_SRQ_REQUESTS: u32 = 1 << 16;
/// Maximum number of scatter/gather elements of a request.
pub(crate) const MAX_SGES: u32 = 32;
/// Number of bytes that a request of any queue pair can carry inline, because some programs post more than the
/// `max_inline_data` that they requested.
pub(crate) const MIN_INLINE: u32 = 256;
/// Maximum number of bytes that a request can carry inline.
pub(crate) const MAX_INLINE: u32 = 4096;
/// Number of bytes of device memory. The number is arbitrary, because device memory is ordinary memory.
pub(crate) const DEVICE_MEMORY: u64 = 1 << 20;
