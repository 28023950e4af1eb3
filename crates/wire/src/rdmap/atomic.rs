//! Atomic operations (RFC 7306 §5).

use crate::{Place, Tag, Violation};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Requests an atomic operation on the 64-bit word at `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Sequence number on queue 1, which reads and atomics share, counting from 1.
    pub msn: u32,
    /// Returned in the response.
    pub id: u32,
    /// The 64-bit word.
    pub target: Place,
    /// The operation.
    pub op: AtomicOp,
}

/// The two assigned operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds. Each bit set in the mask is the top bit of a field, from which no carry propagates; an empty mask is a plain
    /// 64-bit addition.
    FetchAdd {
        /// The addend.
        add: u64,
        /// The top bits of the fields.
        mask: u64,
    },
    /// Replaces the bits under `swap_mask` if the bits under `compare_mask` are those of `compare`.
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

/// The value that the word had before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// RFC 7306 figure 4: the fields after the DDP header.
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
pub(super) const REQUEST_LEN: usize = size_of::<RawAtomicRequest>();
const _: () = assert!(REQUEST_LEN == 52);

impl RawAtomicRequest {
    pub(super) fn to_request(&self, msn: u32) -> Result<AtomicRequest, Violation> {
        let op = match self.opcode.get() & OPCODE_MASK {
            // The compare fields are ignored here (RFC 7306 §5.2.1).
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
        let target = Place { tag: Tag(self.tag.get()), offset: self.offset.get() };
        Ok(AtomicRequest { msn, id: self.id.get(), target, op })
    }
}

impl AtomicRequest {
    /// Returns the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(&self) -> RawAtomicRequest {
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

/// RFC 7306 figure 5: the fields after the DDP header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawAtomicResponse {
    id: U32,
    original: U64,
}
const _: () = assert!(size_of::<RawAtomicResponse>() == 12);

impl RawAtomicResponse {
    pub(super) fn to_response(&self, msn: u32) -> AtomicResponse {
        AtomicResponse { msn, id: self.id.get(), original: self.original.get() }
    }
}

impl AtomicResponse {
    /// Returns the fields after the DDP header.
    #[inline]
    pub(super) fn to_raw(&self) -> RawAtomicResponse {
        RawAtomicResponse { id: self.id.into(), original: self.original.into() }
    }
}
