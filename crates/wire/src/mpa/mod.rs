//! MPA (RFC 5044, RFC 6581): startup of a connection, and framing of segments in a TCP stream.
//!
//! A connection begins with one [`Startup`] frame in each direction. After that, each direction is a sequence of FPDUs,
//! which [`FpduWriter`] encodes and [`FpduReader`] decodes. Both handle CRCs and markers, and mirror each other:
//!
//! | | writer | reader |
//! |---|---|---|
//! | header | [`open`](FpduWriter::open) | [`Piece::Header`] |
//! | number of payload bytes before the next marker | [`run_len`](FpduWriter::run_len) | [`run_len`](FpduReader::run_len) |
//! | account for payload | [`cover`](FpduWriter::cover) | [`cover`](FpduReader::cover), or [`Piece::Payload`] |
//! | padding and CRC | [`close`](FpduWriter::close) | [`Piece::End`] |

mod crc;
mod framing;
mod marker;
mod progress;
mod reader;
mod startup;
mod writer;

pub use crate::layout::MAX_ULPDU;
pub use crate::rdmap::Fpdu;
pub use crc::Crc;
pub use framing::{Framing, MIN_MULPDU, max_ulpdu};
pub use marker::{MARKER_INTERVAL, MARKER_LEN};
pub use reader::{FpduReader, Piece};
pub use startup::{
    Enhanced, MAX_DEPTH, MAX_PRIVATE_DATA, MAX_STARTUP, NOT_NEGOTIATED, Revision, Role, RtrSet, Startup,
};
pub use writer::{FpduWriter, MAX_HEAD, MAX_TAIL};
