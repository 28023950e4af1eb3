//! The errors of queue pairs. An error contains the values involved, and prints as one line for the user.
//!
//! A [`QpError`] ends a stream or a request; completions contain it. [`Protocol`] lists the protocol violations that
//! can be detected only with the state of a stream, and the Terminate for each. (Violations that are visible in a
//! header alone are `Violation` in `wire`.) A [`PostError`] is a mistake of the caller, returned at once.

mod vendor;

pub use vendor::VendorError;

use crate::bug::Bug;
use crate::memory::{Denied, RegisterError};
use crate::status::Status;
use ironwarp_wire::iscsi::BadPdu;
use ironwarp_wire::private::Unreadable;
use ironwarp_wire::{
    Cause, Operation, Protection, RemoteAddr, Tag, TaggedBuffer, Terminate, UntaggedBuffer, Violation,
};

/// Why a stream or a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QpError {
    /// A local request named memory that does not allow the access (requirement M8).
    #[error("the request may not access this memory: {0}")]
    Local(Denied),
    /// The peer named memory that does not allow the access (requirement M9).
    #[error("the peer may not access this memory: {0}")]
    Remote(Denied),
    /// The program has unmapped or write-protected registered memory.
    #[error("registered memory was unmapped or write-protected by the program: {len} bytes at {addr}")]
    Unmapped {
        /// The tag and offset of the memory.
        addr: RemoteAddr,
        /// Number of bytes to be accessed.
        len: usize,
        /// Whether the access was made for the peer.
        remote: bool,
    },
    /// A registration by work request was refused (requirement M6).
    #[error("failed to register {tag}: {error}")]
    Register {
        /// The tag to be registered.
        tag: Tag,
        /// Why the registration failed.
        error: RegisterError,
    },
    /// The peer sent bytes that violate the protocol.
    #[error("protocol violation by the peer: {0}")]
    Violation(Violation),
    /// The peer sent a message that does not fit the state of the stream.
    #[error("protocol violation by the peer: {0}")]
    Protocol(Protocol),
    /// The peer runs another release of Ironwarp, which requires an extension unknown to this release.
    #[error("{0}")]
    OtherRelease(Unreadable),
    /// The peer ended the stream with this Terminate.
    #[error("the peer ended the stream: {0}")]
    Terminated(Terminate),
    /// The connection was lost, with this errno.
    #[error("the connection was lost: {}", std::io::Error::from_raw_os_error(*.0))]
    Lost(i32),
    /// The program unmapped memory while a segment from it was being sent. The connection was reset, because neither
    /// the rest of the segment nor a Terminate could be sent.
    #[error("the program unmapped memory while it was being sent: the connection was reset")]
    HalfSent,
    /// A manually connected queue pair has no connection: its peer does not exist, or has closed.
    #[error("the peer is unreachable or has closed: retries exceeded")]
    Unreachable,
    /// The program moved the queue pair to the error state.
    #[error("the program moved the queue pair to the error state")]
    Moved,
    /// The peer posted no receive within the time that the retries allow.
    #[error("the peer posted no receive in time: receiver-not-ready retries exceeded")]
    NotReady,
    /// The peer closed the connection in the middle of a message.
    #[error("the peer closed the connection in the middle of a message")]
    CutShort,
    /// The peer closed the connection between two messages, as intended.
    #[error("the peer closed the connection")]
    Closed,
    /// This end closed the connection.
    #[error("this end closed the connection")]
    Disconnected,
    /// The queue pair moved to another function (requirement X2). It continues there.
    #[error("the queue pair was handed over to another function")]
    HandedOver,
    /// The error occurred before the queue pair moved to this function (requirement X2): only its number and its text
    /// travel.
    #[error("{text}")]
    BeforeMove {
        /// The error as a number: see [`vendor_err`](Self::vendor_err).
        number: u32,
        /// The error as it printed.
        text: Box<str>,
    },
    /// A Send with Immediate was posted, which the peer does not support, or a setting of either end disables
    /// (requirement X8).
    #[error(
        "the peer does not support Send with Immediate, an extension of Ironwarp, or a setting disables it: use \
         Write with Immediate"
    )]
    NoImmediate,
    /// A datagram exceeds the maximum length (requirement P2).
    #[error("datagram of {len} bytes exceeds the maximum of {limit}: split it, or use a connection")]
    DatagramTooLong {
        /// Length of the datagram.
        len: u64,
        /// Maximum length.
        limit: usize,
    },
    /// The receiver of an acknowledged datagram has forgotten its sender: it was started again, or has served too many
    /// other senders meanwhile (requirement P2).
    #[error("the receiver has forgotten this sender: the message may or may not have been delivered")]
    SessionLost,
    /// The receive that an acknowledged datagram consumed has failed (requirement P2).
    #[error(
        "the receive at the peer failed: it was too short for the message, or its memory could not be written"
    )]
    ReceiveFailed,
    /// The target of a queue pair in iSCSI mode has violated the protocol (requirement M13).
    #[error("protocol violation by the iSCSI target: {0}")]
    Iscsi(IscsiFault),
    /// A completion queue overflowed (requirement I5).
    #[error(
        "completion queue {0} overflowed: create it with room for all completions that are not polled yet"
    )]
    Overrun(u32),
    /// The adapter has stopped: an event queue overflowed (requirement I5), or one of its threads failed.
    #[error(
        "the adapter has stopped: one of its event queues overflowed, or one of its threads failed (see the log)"
    )]
    Stopped,
    /// A step of the connection, named here, timed out.
    #[error("timed out: {0}")]
    TimedOut(&'static str),
    /// The adapter panicked. Only this connection ends.
    #[error("{0}")]
    Bug(Bug),
}

/// A protocol violation of an iSCSI target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IscsiFault {
    /// The header cannot be parsed.
    #[error("{0}")]
    Header(BadPdu),
    /// The digest of a header is wrong.
    #[error("wrong header digest")]
    HeaderDigest,
    /// The digest of data is wrong.
    #[error("wrong data digest")]
    DataDigest,
    /// A PDU has more data than the initiator accepts (MaxRecvDataSegmentLength).
    #[error("PDU with {found} bytes of data exceeds the maximum of {limit}")]
    TooLong {
        /// Length of the data.
        found: usize,
        /// Maximum length.
        limit: u32,
    },
    /// An R2T asks for no data, or for more than agreed (MaxBurstLength).
    #[error("R2T for {found} bytes, expected 1 to {limit}")]
    R2tLength {
        /// Length that the R2T asks for.
        found: u32,
        /// Maximum length.
        limit: u32,
    },
    /// A command has more unanswered R2Ts than agreed (MaxOutstandingR2T).
    #[error("more than the agreed {limit} outstanding R2Ts for a command")]
    TooManyR2ts {
        /// The agreed maximum.
        limit: u16,
    },
    /// A response to a write has arrived before all data was sent that the target has asked for or expects.
    #[error("response before all data was sent")]
    Unsent,
}

/// The party that caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorOrigin {
    /// The local program.
    Program,
    /// The peer.
    Peer,
    /// The network.
    Network,
    /// No party: the connection ended as intended.
    Nobody,
    /// This adapter.
    Adapter,
}

impl QpError {
    /// Returns the status of the oldest request that the peer has not answered when this error ends the stream. All
    /// other requests are flushed.
    pub(crate) const fn remote_status(&self) -> Status {
        match self {
            Self::Terminated(terminate) => match terminate.cause {
                Cause::Protection(_) | Cause::TaggedBuffer(_) => Status::RemoteAccess,
                Cause::UntaggedBuffer(_) => Status::RemoteInvalidRequest,
                _ => Status::RemoteOperation,
            },
            Self::Lost(_) | Self::Unreachable | Self::CutShort | Self::TimedOut(_) | Self::SessionLost => {
                Status::RetryExceeded
            }
            Self::ReceiveFailed => Status::RemoteOperation,
            Self::NotReady => Status::RnrRetryExceeded,
            _ => Status::Flushed,
        }
    }
}

/// A protocol violation that can be detected only with the state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Protocol {
    /// The message sequence number is not the next one of its queue (RFC 5041 §5.2).
    #[error("unexpected message sequence number {found} on queue {queue}, expected {expected}")]
    Sequence {
        /// The queue.
        queue: u32,
        /// The expected number.
        expected: u32,
        /// The received number.
        found: u32,
    },
    /// A segment does not start where the previous segment of its message ended (RFC 5041 §5.2).
    #[error("unexpected message offset {found}, expected {expected}")]
    Offset {
        /// The expected offset.
        expected: u32,
        /// The received offset.
        found: u32,
    },
    /// The message does not fit its receive.
    #[error("message of at least {found} bytes exceeds its receive of {room}")]
    TooLong {
        /// Size of the receive's buffers in bytes.
        room: u64,
        /// Number of bytes received so far.
        found: u64,
    },
    /// The shared receive queue that a message names does not exist (XRC).
    #[error("message for unknown shared receive queue {0}")]
    NoSharedQueue(u32),
    /// No receive is posted, and the adapter is configured not to park messages.
    #[error("no receive is posted for a message")]
    NoReceive,
    /// The peer has more outstanding Reads than agreed (requirement M11).
    #[error("more than the agreed {ird} outstanding Read Requests")]
    ReadsExceeded {
        /// The agreed maximum.
        ird: u16,
    },
    /// A response arrived without a request.
    #[error("unexpected Read or Atomic Response")]
    UnexpectedResponse,
    /// The target of an atomic operation is not aligned (RFC 7306 §8.2).
    #[error("atomic operation at {addr}, which is not aligned to 8 bytes")]
    Misaligned {
        /// The target.
        addr: RemoteAddr,
    },
    /// A Read Response names another address than the request.
    #[error("Read Response for {found}, expected {expected}")]
    ResponseAddr {
        /// The expected address.
        expected: RemoteAddr,
        /// The received address.
        found: RemoteAddr,
    },
    /// A Read Response is longer or shorter than requested.
    #[error("Read Response of {found} bytes, expected {expected}")]
    ResponseLength {
        /// The requested length.
        expected: u32,
        /// The received length, at least.
        found: u64,
    },
    /// A Read V2 Response, which names no memory, is longer or shorter than requested.
    #[error("Read V2 Response of {found} bytes, expected {expected}")]
    V2ResponseLength {
        /// The requested length.
        expected: u32,
        /// The received length, at least.
        found: u64,
    },
    /// A segment of another message arrived before the last segment of a message (RFC 5041 §5.1).
    #[error("a message starts within another")]
    Interleaved,
    /// The peer acknowledged more messages than were sent.
    #[error("{found} messages acknowledged, but only {sent} sent")]
    Acknowledged {
        /// Number of messages sent.
        sent: u64,
        /// Number of messages acknowledged.
        found: u64,
    },
    /// A "not ready" signal arrived for the same message as the previous signal, or for an earlier one
    /// (`docs/wire.md`).
    #[error("\"not ready\" after {found} messages, already signalled after {last}")]
    NotReadyAgain {
        /// The number of messages in the previous signal.
        last: u64,
        /// The number of messages in this signal.
        found: u64,
    },
    /// The peer switched to a route that is in use already, that the ends have not agreed on, or that this end has not
    /// set up (`docs/wire.md`).
    #[error("unexpected switch to {0}")]
    UnexpectedSwitch(crate::link::Route),
    /// The peer made too many offers to carry the stream in shared memory.
    #[error("more than {limit} offers of shared memory")]
    TooManyOffers {
        /// Maximum number of offers.
        limit: u8,
    },
}

impl Protocol {
    /// Returns the cause of the Terminate that answers this violation.
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
            Self::UnexpectedResponse | Self::UnexpectedSwitch(_) => Cause::Operation(Operation::Opcode),
            Self::ResponseAddr { expected, found } if expected.tag.0 != found.tag.0 => {
                Cause::TaggedBuffer(TaggedBuffer::Tag)
            }
            Self::ResponseAddr { .. } | Self::ResponseLength { .. } => {
                Cause::TaggedBuffer(TaggedBuffer::Bounds)
            }
            Self::Interleaved
            | Self::Acknowledged { .. }
            | Self::NotReadyAgain { .. }
            | Self::TooManyOffers { .. }
            | Self::Misaligned { .. }
            | Self::V2ResponseLength { .. } => Cause::Operation(Operation::StreamCatastrophic),
        }
    }
}

/// The cause of the Terminate for a remote access to memory that the program has unmapped.
pub(crate) const UNMAPPED: Cause = Cause::Protection(Protection::Unspecified);

/// Why a work request cannot be posted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full.
    #[error("the queue is full with {capacity} requests: wait until one completes")]
    Full {
        /// Maximum number of requests in the queue.
        capacity: usize,
    },
    /// The scatter/gather list is too long.
    #[error("{have} scatter/gather elements exceed the maximum of {limit} for this queue pair")]
    TooManySges {
        /// Number of elements.
        have: usize,
        /// Maximum for the queue pair.
        limit: usize,
    },
    /// The message is too long.
    #[error("message of {len} bytes exceeds the maximum of {limit}")]
    MessageTooLong {
        /// Length of the message.
        len: u64,
        /// Maximum length.
        limit: u32,
    },
    /// The scatter/gather list of an atomic operation is not eight bytes long.
    #[error("an atomic operation needs 8 bytes of memory for its result, not {len}")]
    AtomicData {
        /// Length of the scatter/gather list.
        len: u64,
    },
    /// A Read was posted with inline data instead of a scatter/gather list.
    #[error("a Read cannot be inline")]
    InlineRead,
    /// The request registers memory, which this queue pair does not allow (requirement M17).
    #[error(
        "the queue pair does not allow registration by work request: enable it when creating the queue pair"
    )]
    RegistrationDisabled,
    /// The queue pair is not connected, or is being disconnected.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The adapter was shut down, or is being shut down (requirement N11).
    #[error("the adapter was shut down: open another one")]
    ShutDown,
    /// The queue pair is moving to another function, or has moved (requirement X2).
    #[error("the queue pair is moving to another function: post the request there")]
    Frozen,
    /// This process is a forked child of the one that created the queue pair.
    #[error("the queue pair belongs to the parent process: open an adapter in this process")]
    Inherited,
    /// The state of the queue pair does not allow this request.
    #[error("cannot post in the queue pair's state \"{0}\"")]
    State(crate::state::State),
    /// The queue pair has no receive queue of its own: it uses a shared receive queue, or none.
    #[error("the queue pair has no receive queue of its own")]
    NoReceiveQueue,
    /// The queue pair takes its requests from a shared send queue (requirement X7).
    #[error("the queue pair has no send queue of its own: post to its shared send queue")]
    NoSendQueue,
    /// The queue pair was not created with this shared send queue.
    #[error("the queue pair was not created with this shared send queue")]
    OtherSendQueue,
    /// The request is not a Send, and was posted to a datagram queue pair.
    #[error("a datagram queue pair supports only Sends")]
    Connectionless,
    /// The local address of the address handle does not belong to the queue pair, or the remote address has another IP
    /// version.
    #[error("no path from {from} to {to}: the queue pair does not have this local address")]
    NoPath {
        /// The local address.
        from: crate::gid::Gid,
        /// The remote address.
        to: crate::gid::Gid,
    },
    /// The queue pair number exceeds 24 bits.
    #[error("invalid queue pair number {0:#x}: QPNs are 24 bits wide")]
    NoNumber(u32),
}
