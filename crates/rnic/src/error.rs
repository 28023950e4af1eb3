//! Why something failed, as data: which check, whose fault, which memory, what the peer said. One `Display` writes the
//! line that every user sees.
//!
//! [`Fault`] ends a stream or a request, and travels in completions and events. [`Protocol`] has the rules that only the
//! state of a stream can show broken (those that a header shows by itself are `wire`'s `Violation`); its table says which
//! Terminate answers each. [`PostError`] is the caller's mistake, returned at once.

mod vendor;

pub use vendor::VendorError;

use crate::bug::Bug;
use crate::memory::{Denied, RegisterError};
use crate::queue::Status;
use ironwarp_wire::private::Unreadable;
use ironwarp_wire::{
    Cause, Operation, Place, Protection, Tag, TaggedBuffer, Terminate, UntaggedBuffer, Violation,
};

/// Why a stream or a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// This end's own request named memory that it may not use like this (requirement M8).
    #[error("this request may not use this memory: {0}")]
    Local(Denied),
    /// The peer named memory that it may not use like this (requirement M9).
    #[error("the peer may not use this memory: {0}")]
    Remote(Denied),
    /// The memory was registered, and is gone now.
    #[error("the program unmapped or write-protected memory that it registered: {len} bytes at {place}")]
    Unmapped {
        /// Where.
        place: Place,
        /// How much was due.
        len: usize,
        /// Whether the peer wanted to reach it.
        remote: bool,
    },
    /// A registration by work request was refused (requirement M6).
    #[error("the registration of {tag} failed: {error}")]
    Register {
        /// The tag it was for.
        tag: Tag,
        /// Why.
        error: RegisterError,
    },
    /// The peer's bytes broke a rule.
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
    /// The peer's message does not fit what went before.
    #[error("the peer broke the protocol: {0}")]
    Protocol(Protocol),
    /// The peer runs another release of Ironwarp, which requires something that this one does not know.
    #[error("{0}")]
    OtherRelease(Unreadable),
    /// The peer ended the stream, and said why.
    #[error("the peer ended the stream: {0}")]
    Terminated(Terminate),
    /// The connection broke.
    #[error("the connection was lost: {}", std::io::Error::from_raw_os_error(*.0))]
    Lost(i32),
    /// The program took memory away of which the front of a segment had already left: nothing could follow, not even the
    /// reason.
    #[error("the program unmapped memory while it was sent; the connection was cut")]
    HalfSent,
    /// A queue pair that was brought up by hand has no connection: its peer is not there, or has gone.
    #[error(
        "the peer could not be reached, or has closed, and did not come back in the time that the retries allow"
    )]
    Unreachable,
    /// The program moved the queue pair to the error state.
    #[error("the program moved the queue pair to the error state")]
    Moved,
    /// The peer posted no receive in the time that the retries allow.
    #[error("the peer posted no receive in the time that the retries allow")]
    NotReady,
    /// The peer closed in the middle of a message.
    #[error("the peer closed the connection in the middle of a message")]
    CutShort,
    /// The peer closed, as it may.
    #[error("the peer closed the connection")]
    Closed,
    /// This end closed.
    #[error("this end closed the connection")]
    Disconnected,
    /// A Send with Immediate for a peer that does not understand it (requirement X8).
    #[error(
        "the peer does not understand Send with Immediate: only Ironwarp does; a Write with Immediate is standard"
    )]
    NoImmediate,
    /// A datagram is one packet, and no longer (requirement P2).
    #[error("a datagram of {len} bytes, {limit} are possible: send several, or connect")]
    DatagramTooLong {
        /// What was given.
        len: u64,
        /// What is possible.
        limit: usize,
    },
    /// A completion queue has no room left (requirement I5).
    #[error("a completion queue overflowed: create queue {0} with room for all that can complete")]
    Overrun(u32),
    /// The adapter has stopped: an event queue overflowed (requirement I5), or one of its threads cannot go on.
    #[error(
        "the adapter has stopped: nobody took the events of one of its event queues, or one of its threads failed, which its log tells"
    )]
    Stopped,
    /// Something had to happen within a time, and did not.
    #[error("{0} took too long")]
    TimedOut(&'static str),
    /// The adapter made a mistake. Only this connection ends for it.
    #[error("{0}")]
    Bug(Bug),
}

/// Whose mistake it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Culprit {
    /// The program on this side.
    Program,
    /// The other end.
    Peer,
    /// What lies between.
    Network,
    /// Nobody's: an end as it should be.
    Nobody,
    /// This adapter.
    Adapter,
}

impl Fault {
    /// Whose mistake it is.
    pub const fn culprit(&self) -> Culprit {
        VendorError::of(self).culprit()
    }

    /// Itself as a number, for `vendor_err` of a C program's completions: `ironwarp explain` tells what it means.
    pub const fn vendor_err(&self) -> u32 {
        VendorError::of(self).to_u32()
    }

    /// The status of the request that this ends; the others are flushed.
    pub(crate) const fn remote_status(&self) -> Status {
        match self {
            Self::Terminated(terminate) => match terminate.cause {
                Cause::Protection(_) | Cause::TaggedBuffer(_) => Status::RemoteAccess,
                Cause::UntaggedBuffer(_) => Status::RemoteInvalidRequest,
                _ => Status::RemoteOperation,
            },
            Self::Lost(_) | Self::Unreachable | Self::CutShort | Self::TimedOut(_) => Status::RetryExceeded,
            Self::NotReady => Status::RnrRetryExceeded,
            _ => Status::Flushed,
        }
    }
}

/// A rule that a message breaks only because of what went before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Protocol {
    /// RFC 5041 §5.2: messages of a queue are numbered without gaps.
    #[error("message {found} on queue {queue}, {expected} is due")]
    Sequence {
        /// The queue.
        queue: u32,
        /// The number due.
        expected: u32,
        /// The number found.
        found: u32,
    },
    /// RFC 5041 §5.2: the segments of a message follow each other.
    #[error("a segment begins at offset {found} of its message, {expected} is due")]
    Offset {
        /// The offset due.
        expected: u32,
        /// The offset found.
        found: u32,
    },
    /// The message does not fit the receive that it got.
    #[error("a message of at least {found} bytes for a receive of {room}")]
    TooLong {
        /// What the receive holds.
        room: u64,
        /// What has come.
        found: u64,
    },
    /// XRC: a shared receive queue that is not there.
    #[error("a message for shared receive queue {0}, which is not there")]
    NoSharedQueue(u32),
    /// No receive is posted, and the adapter was told not to wait for one.
    #[error("a message, and no receive is posted")]
    NoReceive,
    /// Requirement M11: more Reads than this end agreed to hold.
    #[error("one more Read Request than the {ird} that were agreed")]
    ReadsExceeded {
        /// What was agreed.
        ird: u16,
    },
    /// An answer that nobody asked for.
    #[error("a Read or Atomic Response, and none is due")]
    Unasked,
    /// RFC 7306 §8.2: an atomic operation works on an aligned word.
    #[error("an atomic operation on the word at {place}, which is not aligned to 8 bytes")]
    Misaligned {
        /// What was named.
        place: Place,
    },
    /// A Read Response for another place than was asked for.
    #[error("a Read Response for {found}, {expected} is due")]
    ResponsePlace {
        /// The place due.
        expected: Place,
        /// The place found.
        found: Place,
    },
    /// A Read Response that is longer or shorter than was asked for.
    #[error("a Read Response of {found} bytes, {expected} were asked for")]
    ResponseLength {
        /// What was asked for.
        expected: u32,
        /// What came, at least.
        found: u64,
    },
    /// The same of a Read V2 Response, which names no memory.
    #[error("a Read V2 Response of {found} bytes, {expected} were asked for")]
    V2ResponseLength {
        /// What was asked for.
        expected: u32,
        /// What came, at least.
        found: u64,
    },
    /// RFC 5041 §5.1: the segments of two messages are not mixed.
    #[error("a message begins in the middle of another")]
    Interleaved,
    /// More messages acknowledged than were sent.
    #[error("{found} messages acknowledged, {sent} were sent")]
    Acknowledged {
        /// What was sent.
        sent: u64,
        /// What the peer says it has delivered.
        found: u64,
    },
    /// "Not ready" for a message that the peer has said it of, or an earlier one (`docs/wire.md`).
    #[error("\"not ready\" for the message behind {found}, after that behind {last}")]
    NotReadyAgain {
        /// The count of the last such signal.
        last: u64,
        /// The count of this one.
        found: u64,
    },
}

impl Protocol {
    /// The Terminate that answers it.
    pub(crate) const fn cause(self) -> Cause {
        match self {
            Self::Sequence { .. } => Cause::UntaggedBuffer(UntaggedBuffer::Sequence),
            Self::Offset { .. } => Cause::UntaggedBuffer(UntaggedBuffer::Offset),
            Self::TooLong { .. } => Cause::UntaggedBuffer(UntaggedBuffer::TooLong),
            Self::NoReceive | Self::NoSharedQueue(_) | Self::ReadsExceeded { .. } => {
                Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer)
            }
            Self::V2ResponseLength { expected, found } if found > expected as u64 => {
                Cause::UntaggedBuffer(UntaggedBuffer::TooLong)
            }
            Self::Unasked => Cause::Operation(Operation::Opcode),
            Self::ResponsePlace { expected, found } if expected.tag.0 != found.tag.0 => {
                Cause::TaggedBuffer(TaggedBuffer::Tag)
            }
            Self::ResponsePlace { .. } | Self::ResponseLength { .. } => {
                Cause::TaggedBuffer(TaggedBuffer::Bounds)
            }
            Self::Interleaved
            | Self::Acknowledged { .. }
            | Self::NotReadyAgain { .. }
            | Self::Misaligned { .. }
            | Self::V2ResponseLength { .. } => Cause::Operation(Operation::StreamCatastrophic),
        }
    }
}

/// The cause that answers a peer who reaches memory that the program took away.
pub(crate) const UNMAPPED: Cause = Cause::Protection(Protection::Unspecified);

/// A work request that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue has no room.
    #[error("the queue holds {capacity} requests and is full: poll its completion queue first")]
    Full {
        /// How many it holds.
        capacity: usize,
    },
    /// The scatter/gather list is too long.
    #[error("{have} scatter/gather elements, this queue pair was created for {limit}")]
    TooManySges {
        /// What was given.
        have: usize,
        /// What the queue pair allows.
        limit: usize,
    },
    /// The message is too long.
    #[error("a message of {len} bytes, {limit} are possible")]
    MessageTooLong {
        /// What was given.
        len: u64,
        /// What is possible.
        limit: u32,
    },
    /// An atomic operation returns eight bytes, to memory.
    #[error("an atomic operation needs 8 bytes of memory for its result, it has {len}")]
    AtomicData {
        /// What was given.
        len: u64,
    },
    /// A Read has nowhere to put what it fetches.
    #[error("a Read cannot be inline")]
    InlineRead,
    /// The queue pair is not connected, or is being disconnected.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The queue pair cannot take such a request in its state.
    #[error("the queue pair cannot take this in the state \"{0}\"")]
    State(crate::state::State),
    /// The queue pair uses a shared receive queue, or receives nothing.
    #[error("this queue pair has no receive queue of its own")]
    NoReceiveQueue,
    /// The queue pair is fed by a shared send queue (requirement X7).
    #[error("this queue pair has no send queue of its own: post to the shared one that feeds it")]
    NoSendQueue,
    /// The shared send queue does not feed this queue pair.
    #[error("this shared send queue does not feed the queue pair: create the queue pair with it")]
    OtherSendQueue,
    /// A connectionless queue pair has no peer whose memory could be reached.
    #[error("a connectionless queue pair sends plain messages and nothing else")]
    Connectionless,
    /// The address handle begins at an address that the queue pair is not at, or leads to the other IP version.
    #[error("no datagram can go from {from} to {to}: the queue pair has no such address of its own")]
    NoPath {
        /// Where it would begin.
        from: crate::gid::Gid,
        /// Where it would end.
        to: crate::gid::Gid,
    },
    /// Numbers of queue pairs have 24 bits.
    #[error("{0:#x} is no number of a queue pair: they have 24 bits")]
    NoNumber(u32),
}
