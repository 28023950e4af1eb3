//! What a caller can do wrong. Errors of connections, posts and completions are the device's, and re-exported.

use ironwarp_rnic::error::PostError;
use ironwarp_rnic::memory::{RegisterError, ReregisterError};

/// Memory that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of memory cannot be had: ask for less")]
pub struct OutOfMemory {
    /// How many bytes were asked for.
    pub len: usize,
}

/// Bytes of a region that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// They are not all in the region.
    #[error("{len} bytes at {at} are not all in the region, which has {size}: ask for what is inside")]
    OutOfBounds {
        /// The first byte.
        at: usize,
        /// How many bytes.
        len: usize,
        /// How many bytes the region has.
        size: usize,
    },
    /// One element of a list names at most 4 GiB.
    #[error("{len} bytes are too many for one element of a list: use several")]
    TooLong {
        /// How many bytes.
        len: usize,
    },
    /// The program unmapped or write-protected memory that it registered by address.
    #[error("the program unmapped or write-protected this memory: keep it as it was while it is registered")]
    Unmapped,
}

/// Why a queue pair cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A completion queue is another adapter's.
    #[error("a completion queue is of another adapter than the protection domain: take all from one adapter")]
    OtherAdapter,
    /// The shared send queue is another protection domain's.
    #[error(
        "the shared send queue is of another protection domain than the queue pair: take both from one domain"
    )]
    OtherDomain,
    /// There is no number for it, or no port to go into the number ([`Config::ports`](crate::Config::ports)).
    #[error("{0}")]
    NoNumber(#[from] std::io::Error),
}

/// Why an operation was not posted to a control queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The protection domain is another adapter's.
    #[error("the protection domain is of another adapter than the control queue: take both from one adapter")]
    OtherAdapter,
    /// The queue has no room.
    #[error(transparent)]
    Post(#[from] PostError),
    /// There is no tag for the memory, or it cannot be registered at all.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Why a region was not changed. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The protection domain is another adapter's.
    #[error("the protection domain is of another adapter than the region: take both from one adapter")]
    OtherAdapter,
    /// The region cannot be changed, or what it is to become cannot be registered.
    #[error(transparent)]
    Refused(#[from] ReregisterError),
}
