//! Errors that only the native API has. The crate re-exports the device's and the engine's errors of connections, posts
//! and completions.

use ironwarp_rnic::error::PostError;
use ironwarp_rnic::memory::{RegisterError, ReregisterError};

/// An allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to allocate {len} bytes")]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The requested size, in bytes.
    pub len: usize,
}

/// Reasons why a buffer with [options](crate::BufferBuilder) cannot be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The memory cannot be allocated.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The file for a shareable buffer cannot be created or mapped.
    #[error("failed to allocate {len} bytes of shared memory: {source}")]
    Shared {
        /// The requested size, in bytes.
        len: usize,
        /// The error of the system call.
        source: std::io::Error,
    },
}

/// Reasons why the bytes of a region or a chunk cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range is not completely inside the region or chunk.
    #[error("range out of bounds: {len} bytes at offset {at} of {size} bytes")]
    OutOfBounds {
        /// Offset of the range's first byte.
        at: usize,
        /// Length of the range, in bytes.
        len: usize,
        /// Length of the region or chunk, in bytes.
        size: usize,
    },
    /// The range is too long for one scatter/gather element, which covers at most 4 GiB.
    #[error("scatter/gather element of {len} bytes exceeds the maximum of 4 GiB: split it")]
    TooLong {
        /// Length of the range, in bytes.
        len: usize,
    },
    /// The program unmapped or write-protected memory that it had registered with
    /// [`register_raw`](crate::ProtectionDomain::register_raw).
    #[error("the program unmapped or write-protected this memory while it was registered")]
    Unmapped,
}

/// Reasons why a queue pair or a control queue cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A completion queue or the shared receive queue belongs to another adapter than the new object.
    #[error("a queue and the protection domain belong to different adapters")]
    OtherAdapter,
    /// The shared send queue belongs to another protection domain than the queue pair.
    #[error("the shared send queue and the queue pair belong to different protection domains")]
    OtherDomain,
    /// The queue pair would use another completion queue than that of its [driver](crate::tokio::Driver).
    #[cfg(feature = "tokio")]
    #[error("the queue pair must use the completion queue of its driver")]
    OtherCompletionQueue,
    /// No queue pair number or port is available ([`Config::ports`](crate::Config::ports)), or the kernel refused a
    /// resource.
    #[error("{0}")]
    NoNumber(#[from] std::io::Error),
}

/// Reasons why an operation was not posted to a control queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The protection domain belongs to another adapter than the control queue.
    #[error("the protection domain and the control queue belong to different adapters")]
    OtherAdapter,
    /// The operation cannot be posted: the control queue is full.
    #[error(transparent)]
    Post(#[from] PostError),
    /// No tag is available, or the memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reasons why [`MemoryRegion::reregister`](crate::MemoryRegion::reregister) did not change a region. The region stays
/// as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The new protection domain belongs to another adapter than the region.
    #[error("the protection domain and the region belong to different adapters")]
    OtherAdapter,
    /// The region cannot be changed, for example because windows are bound to it, or the new memory cannot be
    /// registered.
    #[error(transparent)]
    Refused(#[from] ReregisterError),
}
