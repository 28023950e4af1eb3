//! RDMAP (RFC 5040, RFC 7306): what a segment means.
//!
//! [`Header`] has one variant for each message; this file holds the variants, `parse.rs` and `emit.rs` mirror each other
//! case by case, `display.rs` prints them. The messages with words of their own behind the DDP header have a file each:
//! `read.rs`, `atomic.rs`, `terminate.rs`.

mod atomic;
mod cause;
mod display;
mod emit;
mod parse;
mod read;
mod send;
mod terminate;

pub use atomic::{AtomicOp, AtomicRequest, AtomicResponse};
pub use cause::{Cause, MpaFault, Operation, Protection, TaggedBuffer, UntaggedBuffer};
pub use read::{ReadRequest, ReadV2Request, ReadV2Response};

pub use send::{Immediate, ImmediateData, Send, SendImmediate, SendWord};
pub use terminate::{Offender, Terminate};

use crate::Place;

/// Room for the longest header that [`Header::emit`] writes: the FPDU's length field and an Atomic Request.
pub const MAX_HEADER: usize = 2 + crate::ddp::UNTAGGED_LEN + atomic::REQUEST_LEN;
const _: () = assert!(MAX_HEADER == 72);

/// The RV bits of the RDMAP control byte, which must say version 1.
const VERSION_MASK: u8 = 0xc0;
const VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0f;

/// The opcodes (RFC 5040 §4.1, RFC 7306 §4.1).
mod opcode {
    pub(super) const WRITE: u8 = 0x0;
    pub(super) const READ_REQUEST: u8 = 0x1;
    pub(super) const READ_RESPONSE: u8 = 0x2;
    pub(super) const SEND: u8 = 0x3;
    pub(super) const SEND_INVALIDATE: u8 = 0x4;
    pub(super) const SEND_SOLICITED: u8 = 0x5;
    pub(super) const SEND_SOLICITED_INVALIDATE: u8 = 0x6;
    pub(super) const TERMINATE: u8 = 0x7;
    pub(super) const IMMEDIATE: u8 = 0x8;
    pub(super) const IMMEDIATE_SOLICITED: u8 = 0x9;
    pub(super) const ATOMIC_REQUEST: u8 = 0xa;
    pub(super) const ATOMIC_RESPONSE: u8 = 0xb;
    /// Reserved for experiments (RFC 6580): our private messages, told apart by queue and the bits below.
    pub(super) const PRIVATE: u8 = 0xf;
    /// With [`PRIVATE`] on queue 0: names a tag to invalidate.
    pub(super) const PRIVATE_INVALIDATE: u8 = 0x10;
    /// With [`PRIVATE`] on queue 0: solicited event.
    pub(super) const PRIVATE_SOLICITED: u8 = 0x20;
    /// With [`PRIVATE`] on the Read V2 Response's own queue.
    pub(super) const PRIVATE_READ_RESPONSE: u8 = 0x10;
}

/// The DDP queues (RFC 5040 §3.1, RFC 7306 §10.2).
mod queue {
    pub(super) const SEND: u32 = 0;
    pub(super) const READ_REQUEST: u32 = 1;
    pub(super) const TERMINATE: u32 = 2;
    pub(super) const ATOMIC_RESPONSE: u32 = 3;
    /// Private: far from the numbers that IANA assigns in sequence.
    pub(super) const READ_V2_RESPONSE: u32 = 0x8000_0001;
}

/// Which messages are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dialect {
    /// What the RFCs define; a private message is an unexpected opcode.
    #[default]
    Standard,
    /// Also the private messages. Only for a stream on which both ends recognised each other by the
    /// [`Signal`](crate::private::Signal).
    Ironwarp,
}

/// The header of one segment, DDP and RDMAP together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// RDMA Write: payload for a place that the receiver advertised (RFC 5040 §5.1).
    Write(Tagged),
    /// The payload that a [`ReadRequest`] asked for (RFC 5040 §5.2).
    ReadResponse(Tagged),
    /// A message for the receiver's next receive buffer, in the four standard kinds (RFC 5040 §5.3).
    Send(Send),
    /// Eight bytes for the receiver's next receive buffer (RFC 7306 §6): the second half of a Write with Immediate.
    Immediate(Immediate),
    /// Asks for memory of the receiver (RFC 5040 §4.4).
    ReadRequest(ReadRequest),
    /// Asks for an atomic operation on memory of the receiver (RFC 7306 §5).
    AtomicRequest(AtomicRequest),
    /// The value that the memory had before (RFC 7306 §5).
    AtomicResponse(AtomicResponse),
    /// The last message of a stream that failed, with the reason (RFC 5040 §4.8).
    Terminate(Terminate),
    /// Private: a Send that carries immediate data of its own (requirement X8).
    SendImmediate(SendImmediate),
    /// Private: a read whose sink the requester keeps to itself (requirement X4).
    ReadV2Request(ReadV2Request),
    /// Private: the payload that a Read V2 Request asked for.
    ReadV2Response(ReadV2Response),
}

/// What a tagged segment says of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// This segment ends its message.
    pub last: bool,
    /// Where the payload of this segment belongs.
    pub place: Place,
}

impl Header {
    /// Whether payload may follow this header.
    pub const fn carries_payload(&self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::ReadResponse(_)
                | Self::Send(_)
                | Self::SendImmediate(_)
                | Self::ReadV2Response(_)
        )
    }

    /// Whether only an end that agreed to the private messages understands it.
    pub const fn is_private(&self) -> bool {
        matches!(self, Self::SendImmediate(_) | Self::ReadV2Request(_) | Self::ReadV2Response(_))
    }
}
