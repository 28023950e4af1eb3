//! iWARP on the wire: every header the adapter sends or accepts, turned into bytes and back.
//!
//! A message travels as segments, one segment to one FPDU:
//!
//! ```text
//!  MPA   u16 length │            segment             │ pad │ CRC32c      mpa::{FpduWriter, FpduReader}
//!  DDP              │ control · where it belongs     │                   ddp
//!  RDMAP            │         opcode · its own words │ payload           Header
//! ```
//!
//! Where to look:
//!
//! | to find | look in |
//! |---|---|
//! | the connection's first bytes: Request and Reply, IRD/ORD, private data | [`mpa::Startup`] |
//! | framing, padding, CRC and markers of everything after that | [`mpa::FpduReader`], [`mpa::FpduWriter`] |
//! | what a segment says: opcode, tag, offset, sequence number | [`Header`] |
//! | why a stream ended | [`Terminate`], [`Cause`] |
//! | what only two Ironwarp ends say to each other | [`private`] |
//! | which rule a peer broke, and what answers it | [`Violation`] |
//!
//! # Contract
//! - Parsing never panics, on any input, and never looks at more bytes than it is given: what is missing is answered
//!   with [`Parse::Need`].
//! - Emitting never panics on a buffer of the stated length. A caller's impossible request is a [`Misuse`].
//! - Reserved bits are sent as zero and ignored on receipt, so `emit(parse(bytes))` gives `bytes` with those bits clear.
//! - No allocation, no I/O, no clock, no `unsafe`. Payload is never copied: a sender emits headers into a small buffer
//!   and leaves the payload where it is; a receiver is told where the payload begins and how long it is.
//!
//! # A segment, there and back
//! ```
//! use ironwarp_wire::{Dialect, Fpdu, Header, Parse, Place, ReadRequest, Tag, MAX_HEADER};
//!
//! let request = Header::ReadRequest(ReadRequest {
//!     msn: 1,
//!     sink: Place { tag: Tag(0x4846_da00), offset: 0x5599_220e_df30 },
//!     len: 64,
//!     source: Place { tag: Tag(0x5649_4a00), offset: 0x561b_cd7b_3d50 },
//! });
//! let mut bytes = [0; MAX_HEADER];
//! let n = request.emit(0, &mut bytes)?;
//!
//! let Ok(Parse::Done(fpdu)) = Fpdu::parse(&bytes[..n], Dialect::Standard) else { panic!() };
//! assert_eq!(fpdu.header, request);
//! assert_eq!(
//!     fpdu.to_string(),
//!     "Read Request, msn 1, 64 bytes, source 0x56494a00+0x561bcd7b3d50, sink 0x4846da00+0x5599220edf30"
//! );
//! # Ok::<(), ironwarp_wire::Misuse>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod ddp;
mod error;
pub mod mpa;
pub mod private;
mod rdmap;

pub use error::{Misuse, Violation};
pub use mpa::{Fpdu, MAX_ULPDU};
pub use rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Cause, Dialect, Header, Immediate, ImmediateData, MAX_HEADER,
    MpaFault, Offender, Operation, Protection, ReadRequest, Send, SendWord, Tagged, TaggedBuffer, Terminate,
    UntaggedBuffer,
};

use core::fmt;

/// A steering tag: names a region or window of memory (the RFC's STag, the verbs' lkey or rkey).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u32);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// A place in tagged memory: a tag and an offset within what it names (the RFC's STag and Tagged Offset).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which memory.
    pub tag: Tag,
    /// Where in it.
    pub offset: u64,
}

impl Place {
    /// In network byte order, the tag first: to tell the peer, who reads it with [`from_bytes`](Self::from_bytes).
    ///
    /// ```
    /// use ironwarp_wire::{Place, Tag};
    ///
    /// let place = Place { tag: Tag(0x1234), offset: 0x56 };
    /// assert_eq!(place.to_bytes(), [0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0x56]);
    /// ```
    pub const fn to_bytes(self) -> [u8; 12] {
        let ([a, b, c, d], [e, f, g, h, i, j, k, l]) = (self.tag.0.to_be_bytes(), self.offset.to_be_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// What [`to_bytes`](Self::to_bytes) wrote; `None` if these are not as many bytes.
    ///
    /// ```
    /// use ironwarp_wire::{Place, Tag};
    ///
    /// let place = Place { tag: Tag(0x1234), offset: 0x56 };
    /// assert_eq!(Place::from_bytes(&place.to_bytes()), Some(place));
    /// assert_eq!(Place::from_bytes(b"too short"), None);
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, offset) = bytes.split_first_chunk()?;
        let offset = offset.try_into().ok()?;
        Some(Self { tag: Tag(u32::from_be_bytes(*tag)), offset: u64::from_be_bytes(offset) })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.tag, self.offset)
    }
}

/// A number of bytes, in words.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// What parsing the front of a byte stream gives: the thing itself, or how many bytes it takes to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<T> {
    /// At least this many bytes, counted from the start of the thing, are needed. Always more than were given, and
    /// never more than the header has, so that a reader which asks for just these bytes never reads into the payload.
    Need(usize),
    /// It was all there.
    Done(T),
}
