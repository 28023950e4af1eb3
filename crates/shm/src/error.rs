//! What a peer can do wrong.

use crate::layout::{HEADER, MAX_RECORD, RING_LEN};
use thiserror::Error;

/// The peer violated the protocol of a ring. The ring cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A position is not a multiple of 8.
    #[error("corrupt ring: position {position} is not a multiple of {HEADER}")]
    Misaligned {
        /// The head or tail that the peer wrote.
        position: u64,
    },
    /// A position went backwards.
    #[error("corrupt ring: position went backwards, from {from} to {to}")]
    Backwards {
        /// The previous value.
        from: u64,
        /// The value that the peer wrote.
        to: u64,
    },
    /// More was published than the ring holds.
    #[error("corrupt ring: head {head} is more than {RING_LEN} bytes after tail {tail}")]
    Overrun {
        /// The head that the peer wrote.
        head: u64,
        /// The bytes that we have released.
        tail: u64,
    },
    /// More was released than published.
    #[error("corrupt ring: tail {tail} is after head {head}")]
    TailAfterHead {
        /// The tail that the peer wrote.
        tail: u64,
        /// The bytes that we have published.
        head: u64,
    },
    /// A record is longer than allowed.
    #[error("corrupt ring: record of {len} bytes exceeds the maximum of {MAX_RECORD}")]
    TooLong {
        /// Length of the payload, according to the header.
        len: u32,
    },
    /// A record ends after the head.
    #[error("corrupt ring: record of {len} bytes, but only {published} bytes are published")]
    Incomplete {
        /// Length of the payload, according to the header.
        len: u32,
        /// Number of bytes from the header to the head.
        published: usize,
    },
}
