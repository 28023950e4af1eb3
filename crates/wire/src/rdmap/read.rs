//! The Read Request (RFC 5040 §4.4), and the private Read V2 (requirement X4, `docs/wire.md`).

use crate::{RemoteAddr, Tag};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A Read Request: requests `len` bytes from `source`, to be placed at `sink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReadRequest {
    /// Sequence number on queue 1, which reads and atomics share, counting from 1.
    pub msn: u32,
    /// Destination at the requester. The responder copies it to the response without checking it.
    pub sink: RemoteAddr,
    /// Number of bytes. If zero, neither address is checked.
    pub len: u32,
    /// Source at the responder.
    pub source: RemoteAddr,
}

/// Private: a Read V2 Request, which requests `len` bytes from `source`. Only the requester knows the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReadV2Request {
    /// Sequence number on queue 1, counting from 1.
    pub msn: u32,
    /// Number of bytes.
    pub len: u32,
    /// Source at the responder.
    pub source: RemoteAddr,
}

/// Private: one segment of the response to a [`ReadV2Request`]. The n-th response belongs to the n-th request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReadV2Response {
    /// Sequence number on the queue of Read V2 Responses, counting from 1.
    pub msn: u32,
    /// Whether this is the last segment of its message.
    pub last: bool,
    /// Position of this segment's payload in the message.
    pub offset: u32,
}

/// The fields of a Read Request after the DDP header (RFC 5040 figure 6).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawReadRequest {
    sink_tag: U32,
    sink_offset: U64,
    len: U32,
    source_tag: U32,
    source_offset: U64,
}
/// Length of these fields in bytes.
pub(super) const REQUEST_LEN: usize = size_of::<RawReadRequest>();
const _: () = assert!(REQUEST_LEN == 28);

impl RawReadRequest {
    /// Decodes the fields of a message with this sequence number.
    #[inline]
    pub(super) fn to_request(&self, msn: u32) -> ReadRequest {
        ReadRequest {
            msn,
            sink: RemoteAddr { tag: Tag(self.sink_tag.get()), offset: self.sink_offset.get() },
            len: self.len.get(),
            source: RemoteAddr { tag: Tag(self.source_tag.get()), offset: self.source_offset.get() },
        }
    }
}

impl ReadRequest {
    /// Encodes the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(self) -> RawReadRequest {
        RawReadRequest {
            sink_tag: self.sink.tag.0.into(),
            sink_offset: self.sink.offset.into(),
            len: self.len.into(),
            source_tag: self.source.tag.0.into(),
            source_offset: self.source.offset.into(),
        }
    }
}

/// Private: the fields of a Read V2 Request after the DDP header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawReadV2Request {
    len: U32,
    source_tag: U32,
    source_offset: U64,
}
const _: () = assert!(size_of::<RawReadV2Request>() == 16);

impl RawReadV2Request {
    /// Decodes the fields of a message with this sequence number.
    pub(super) fn to_request(&self, msn: u32) -> ReadV2Request {
        ReadV2Request {
            msn,
            len: self.len.get(),
            source: RemoteAddr { tag: Tag(self.source_tag.get()), offset: self.source_offset.get() },
        }
    }
}

impl ReadV2Request {
    /// Encodes the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(self) -> RawReadV2Request {
        RawReadV2Request {
            len: self.len.into(),
            source_tag: self.source.tag.0.into(),
            source_offset: self.source.offset.into(),
        }
    }
}
