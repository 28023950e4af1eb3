//! [`Header`], the header of a segment, with one variant for each kind of message.

use super::{
    AtomicRequest, AtomicResponse, Immediate, ReadRequest, ReadV2Request, ReadV2Response, Send,
    SendImmediate, Terminate, atomic,
};
use crate::RemoteAddr;
use crate::ddp::UNTAGGED_LEN;
use crate::layout::LENGTH_FIELD;

/// Maximum output of [`Header::emit`]: the length field of the FPDU and an Atomic Request.
pub const MAX_HEADER: usize = LENGTH_FIELD + UNTAGGED_LEN + atomic::REQUEST_LEN;
const _: () = assert!(MAX_HEADER == 72);

/// The set of messages that a parser accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Dialect {
    /// The messages that the RFCs define. A private message is an unexpected opcode.
    #[default]
    Standard,
    /// The messages that the RFCs define, and private messages. Only for a stream whose ends have exchanged a
    /// [`Signal`](crate::private::Signal).
    Ironwarp,
}

/// The header of one segment, DDP and RDMAP together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Header {
    /// RDMA Write: payload for memory that the receiver advertised (RFC 5040 §5.1).
    Write(Tagged),
    /// The payload that a [`ReadRequest`] requested (RFC 5040 §5.2).
    ReadResponse(Tagged),
    /// A message for the receiver's next receive, in the four standard kinds (RFC 5040 §5.3).
    Send(Send),
    /// Eight bytes of immediate data (RFC 7306 §6): the second message of a Write with Immediate.
    Immediate(Immediate),
    /// Requests the contents of the receiver's memory (RFC 5040 §4.4).
    ReadRequest(ReadRequest),
    /// Requests an atomic operation on the receiver's memory (RFC 7306 §5).
    AtomicRequest(AtomicRequest),
    /// The value that the memory had before an atomic operation (RFC 7306 §5).
    AtomicResponse(AtomicResponse),
    /// The last message of a stream that failed, with the reason (RFC 5040 §4.8).
    Terminate(Terminate),
    /// Private: a Send with immediate data (requirement X8).
    SendImmediate(SendImmediate),
    /// Private: a read whose sink is not sent (requirement X4).
    ReadV2Request(ReadV2Request),
    /// Private: the payload that a Read V2 Request requested.
    ReadV2Response(ReadV2Response),
}

/// The fields of a tagged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tagged {
    /// Whether this is the last segment of its message.
    pub last: bool,
    /// Where the payload of this segment goes.
    pub addr: RemoteAddr,
}

impl Header {
    /// Returns whether payload may follow this header.
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

    /// Returns whether this is a private message, which may be sent only to a peer that accepts private messages.
    pub const fn is_private(&self) -> bool {
        matches!(self, Self::SendImmediate(_) | Self::ReadV2Request(_) | Self::ReadV2Response(_))
    }
}
