//! The Read Request (RFC 5040 §4.4), and the private Read V2 (requirement X4, `docs/wire.md`).

use crate::{Place, Tag};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Requests `len` bytes from `source`, to be placed at `sink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Sequence number on queue 1, which reads and atomics share, counting from 1.
    pub msn: u32,
    /// Destination at the requester, copied to the response unchecked.
    pub sink: Place,
    /// Number of bytes. May be zero, in which case neither place is checked.
    pub len: u32,
    /// Source at the responder.
    pub source: Place,
}

/// Private: requests `len` bytes from `source`. The destination is known to the requester only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadV2Request {
    /// Sequence number on queue 1, counting from 1.
    pub msn: u32,
    /// Number of bytes.
    pub len: u32,
    /// Source at the responder.
    pub source: Place,
}

/// Private: one segment of the answer to a [`ReadV2Request`]. The n-th answer belongs to the n-th request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadV2Response {
    /// Sequence number on the queue of Read V2 Responses, counting from 1.
    pub msn: u32,
    /// Whether this is the last segment of its message.
    pub last: bool,
    /// Position of this segment's payload in the message.
    pub offset: u32,
}

/// RFC 5040 figure 6: the fields after the DDP header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawReadRequest {
    sink_tag: U32,
    sink_offset: U64,
    len: U32,
    source_tag: U32,
    source_offset: U64,
}
pub(super) const REQUEST_LEN: usize = size_of::<RawReadRequest>();
const _: () = assert!(REQUEST_LEN == 28);

impl RawReadRequest {
    #[inline]
    pub(super) fn to_request(&self, msn: u32) -> ReadRequest {
        ReadRequest {
            msn,
            sink: Place { tag: Tag(self.sink_tag.get()), offset: self.sink_offset.get() },
            len: self.len.get(),
            source: Place { tag: Tag(self.source_tag.get()), offset: self.source_offset.get() },
        }
    }
}

impl ReadRequest {
    /// Returns the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(&self) -> RawReadRequest {
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
    pub(super) fn to_request(&self, msn: u32) -> ReadV2Request {
        ReadV2Request {
            msn,
            len: self.len.get(),
            source: Place { tag: Tag(self.source_tag.get()), offset: self.source_offset.get() },
        }
    }
}

impl ReadV2Request {
    /// Returns the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(&self) -> RawReadV2Request {
        RawReadV2Request {
            len: self.len.into(),
            source_tag: self.source.tag.0.into(),
            source_offset: self.source.offset.into(),
        }
    }
}
