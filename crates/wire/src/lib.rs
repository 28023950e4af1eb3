//! The iWARP wire format, and iSCSI's: encoders and decoders of every header that the adapter sends or accepts.
//!
//! A message is sent as one or more segments, each in one FPDU:
//!
//! ```text
//!  MPA   u16 length │            segment             │ pad │ CRC32c      mpa::{FpduWriter, FpduReader}
//!  DDP              │ control · destination          │                   ddp
//!  RDMAP            │         opcode · own fields    │ payload           Header
//! ```
//!
//! Where to look:
//!
//! | to find | look in |
//! |---|---|
//! | the first bytes of a connection: Request and Reply, IRD/ORD, private data | [`mpa::Startup`] |
//! | framing, padding, CRC and markers of everything after that | [`mpa::FpduReader`], [`mpa::FpduWriter`] |
//! | the header of a segment: opcode, tag, offset, sequence number | [`Header`] |
//! | the reason for which a stream ended | [`Terminate`], [`Cause`] |
//! | the private protocol between two Ironwarp ends | [`private`] |
//! | headers of iSCSI PDUs | [`iscsi`] |
//! | the protocol violations of a peer, and the Terminate that reports each | [`Violation`] |
//!
//! # Contract
//! - Parsing never panics, on any input, and never reads past its input: incomplete input returns
//!   [`Parse::Need`].
//! - Emitting never panics on a buffer of the stated length. A request that cannot be encoded returns [`Misuse`].
//! - Reserved bits are sent as zero and ignored on receipt, so `emit(parse(bytes))` yields `bytes` with those bits clear.
//! - No allocation, no I/O, no clock, no `unsafe`. Payload need not be copied: a sender emits headers into a small
//!   buffer and sends the payload from where it is; a receiver learns the position and length of the payload.
//!
//! # Encoding and decoding a segment
//! ```
//! use ironwarp_wire::{Dialect, Fpdu, Header, Parse, RemoteAddr, ReadRequest, Tag, MAX_HEADER};
//!
//! let request = Header::ReadRequest(ReadRequest {
//!     msn: 1,
//!     sink: RemoteAddr { tag: Tag(0x4846_da00), offset: 0x5599_220e_df30 },
//!     len: 64,
//!     source: RemoteAddr { tag: Tag(0x5649_4a00), offset: 0x561b_cd7b_3d50 },
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

mod addr;
mod byte_count;
mod cause;
pub mod ddp;
mod error;
pub mod iscsi;
mod layout;
pub mod mpa;
mod parse;
pub mod private;
mod rdmap;

pub use addr::{RemoteAddr, Tag};
pub use cause::{Cause, MpaFault, Operation, Protection, TaggedBuffer, UntaggedBuffer};
pub use error::{Misuse, Violation};
pub use layout::MAX_ULPDU;
pub use parse::Parse;
pub use rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Dialect, Fpdu, Header, Immediate, ImmediateData, MAX_HEADER,
    Offender, ReadRequest, Send, SendWord, Tagged, Terminate,
};
