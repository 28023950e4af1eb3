//! Requests and responses of atomic operations (RFC 7306 §5).

use crate::{RemoteAddr, Tag, Violation};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An Atomic Request: requests an operation on the 64-bit word at `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AtomicRequest {
    /// Sequence number on queue 1, which reads and atomics share, counting from 1.
    pub msn: u32,
    /// Identifies the request. The response contains the same identifier.
    pub id: u32,
    /// Where the 64-bit word is, at the responder.
    pub target: RemoteAddr,
    /// The operation.
    pub op: AtomicOp,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AtomicOp {
    /// Adds fields of the word separately. Each bit set in the mask is the top bit of a field, from which no carry
    /// propagates. With an empty mask, the whole word is one field.
    FetchAdd {
        /// The addends of all fields.
        add: u64,
        /// The top bits of the fields.
        mask: u64,
    },
    /// Replaces the bits in `swap_mask` by those of `swap`, if the bits in `compare_mask` equal those of `compare`.
    CompareSwap {
        /// The new value.
        swap: u64,
        /// The bits to replace.
        swap_mask: u64,
        /// The expected value.
        compare: u64,
        /// The bits to compare.
        compare_mask: u64,
    },
}

/// An Atomic Response: the value of the word before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AtomicResponse {
    /// Sequence number on queue 3, counting from 1.
    pub msn: u32,
    /// Identifier of the request.
    pub id: u32,
    /// The value before the operation.
    pub original: u64,
}

const OPCODE_MASK: u32 = 0xf;
const FETCH_ADD: u32 = 0;
const COMPARE_SWAP: u32 = 2;

/// The fields of an Atomic Request after the DDP header (RFC 7306 figure 4).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawAtomicRequest {
    opcode: U32,
    id: U32,
    tag: U32,
    offset: U64,
    data: U64,
    data_mask: U64,
    compare: U64,
    compare_mask: U64,
}
/// Length of these fields in bytes.
pub(super) const REQUEST_LEN: usize = size_of::<RawAtomicRequest>();
const _: () = assert!(REQUEST_LEN == 52);

impl RawAtomicRequest {
    /// Decodes the fields of a message with this sequence number.
    pub(super) fn to_request(&self, msn: u32) -> Result<AtomicRequest, Violation> {
        let op = match self.opcode.get() & OPCODE_MASK {
            // A FetchAdd ignores the compare fields (RFC 7306 §5.2.1).
            FETCH_ADD => AtomicOp::FetchAdd { add: self.data.get(), mask: self.data_mask.get() },
            COMPARE_SWAP => AtomicOp::CompareSwap {
                swap: self.data.get(),
                swap_mask: self.data_mask.get(),
                compare: self.compare.get(),
                compare_mask: self.compare_mask.get(),
            },
            #[expect(clippy::cast_possible_truncation, reason = "four bits")]
            other => return Err(Violation::AtomicOpcode(other as u8)),
        };
        let target = RemoteAddr { tag: Tag(self.tag.get()), offset: self.offset.get() };
        Ok(AtomicRequest { msn, id: self.id.get(), target, op })
    }
}

impl AtomicRequest {
    /// Encodes the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(self) -> RawAtomicRequest {
        let (opcode, data, data_mask, compare, compare_mask) = match self.op {
            // RFC 7306 §5.2.1: with FetchAdd, compare data is 0 and its mask all ones.
            AtomicOp::FetchAdd { add, mask } => (FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                (COMPARE_SWAP, swap, swap_mask, compare, compare_mask)
            }
        };
        RawAtomicRequest {
            opcode: opcode.into(),
            id: self.id.into(),
            tag: self.target.tag.0.into(),
            offset: self.target.offset.into(),
            data: data.into(),
            data_mask: data_mask.into(),
            compare: compare.into(),
            compare_mask: compare_mask.into(),
        }
    }
}

/// The fields of an Atomic Response after the DDP header (RFC 7306 figure 5).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawAtomicResponse {
    id: U32,
    original: U64,
}
const _: () = assert!(size_of::<RawAtomicResponse>() == 12);

impl RawAtomicResponse {
    /// Decodes the fields of a message with this sequence number.
    pub(super) fn to_response(&self, msn: u32) -> AtomicResponse {
        AtomicResponse { msn, id: self.id.get(), original: self.original.get() }
    }
}

impl AtomicResponse {
    /// Encodes the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(self) -> RawAtomicResponse {
        RawAtomicResponse { id: self.id.into(), original: self.original.into() }
    }
}
