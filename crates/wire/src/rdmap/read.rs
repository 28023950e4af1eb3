//! The Read Request (RFC 5040 §4.4), and the private Read V2 (requirement X4, `docs/wire.md`).

use crate::{Place, Tag};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Asks the receiver to send `len` bytes from `source` to `sink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Counts the messages of queue 1 (reads and atomics together), from 1.
    pub msn: u32,
    /// Where the requester wants them; copied blindly into the response.
    pub sink: Place,
    /// How many; zero is allowed, and then neither place is checked.
    pub len: u32,
    /// Where the responder has them.
    pub source: Place,
}

/// Private: asks for `len` bytes from `source`. Where they go is nobody's business but the requester's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadV2Request {
    /// Counts the messages of queue 1, from 1.
    pub msn: u32,
    /// How many.
    pub len: u32,
    /// Where the responder has them.
    pub source: Place,
}

/// Private: one segment of the answer to a [`ReadV2Request`]. The n-th answer belongs to the n-th request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadV2Response {
    /// Counts the messages of this queue, from 1.
    pub msn: u32,
    /// This segment ends the message.
    pub last: bool,
    /// Where in the message the payload of this segment begins.
    pub offset: u32,
}

/// RFC 5040 figure 6: the words behind the DDP header.
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
    /// The words behind the DDP header.
    #[inline]
    pub(super) fn words(&self) -> RawReadRequest {
        RawReadRequest {
            sink_tag: self.sink.tag.0.into(),
            sink_offset: self.sink.offset.into(),
            len: self.len.into(),
            source_tag: self.source.tag.0.into(),
            source_offset: self.source.offset.into(),
        }
    }
}

/// Private: the words of a Read V2 Request.
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
    /// The words behind the DDP header.
    #[inline]
    pub(super) fn words(&self) -> RawReadV2Request {
        RawReadV2Request {
            len: self.len.into(),
            source_tag: self.source.tag.0.into(),
            source_offset: self.source.offset.into(),
        }
    }
}
