//! MPA (RFC 5044, RFC 6581): how segments travel in a TCP stream.
//!
//! A connection begins with one [`Startup`] frame each way. From then on each direction is a sequence of FPDUs, which
//! [`FpduWriter`] makes and [`FpduReader`] takes apart; both do CRC and markers, and mirror each other call by call:
//!
//! | | writer | reader |
//! |---|---|---|
//! | header | [`open`](FpduWriter::open) | [`Piece::Header`] |
//! | how much payload may be moved at once | [`run`](FpduWriter::run) | [`run`](FpduReader::run) |
//! | this payload was moved | [`cover`](FpduWriter::cover) | [`cover`](FpduReader::cover), or [`Piece::Payload`] |
//! | padding and CRC | [`close`](FpduWriter::close) | [`Piece::End`] |

mod crc;
mod fpdu;
mod marker;
mod passage;
mod reader;
mod startup;
mod writer;

pub use crc::Crc;
pub use fpdu::Fpdu;
pub use marker::{MARKER_INTERVAL, MARKER_LEN};
pub use reader::{FpduReader, Piece};
pub use startup::{
    Enhanced, MAX_DEPTH, MAX_PRIVATE_DATA, MAX_STARTUP, NOT_NEGOTIATED, Revision, Role, RtrSet, Startup,
};
pub use writer::{FpduWriter, MAX_HEAD, MAX_TAIL};

/// The longest segment that may be sent (RFC 5044 §4.5). Any that the 16-bit length field can announce is accepted.
pub const MAX_ULPDU: usize = 64_768;
/// RFC 5044 §4.5: whatever the path, a segment may be this long.
pub const MIN_MULPDU: usize = 128;
/// The field in front of a segment that holds its length.
pub(crate) const LENGTH_FIELD: usize = 2;
/// The field behind it that holds the CRC.
pub(crate) const CRC_FIELD: usize = 4;

/// What the startup frames agreed for one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// CRCs are generated and checked. Without, the field is there and its content means nothing.
    pub crc: bool,
    /// The receiver asked for markers.
    pub markers: bool,
}

/// The longest segment whose FPDU fits one TCP segment of `emss` bytes (RFC 5044 §4.5), within what is allowed at all.
pub const fn max_ulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { MARKER_LEN * emss.div_ceil(MARKER_INTERVAL) } else { 0 };
    let fits = emss.saturating_sub(LENGTH_FIELD + CRC_FIELD + markers + emss % 4);
    if fits < MIN_MULPDU {
        MIN_MULPDU
    } else if fits > MAX_ULPDU {
        MAX_ULPDU
    } else {
        fits
    }
}

/// Zero bytes between a segment and its CRC, which make the FPDU a multiple of four.
pub(crate) const fn padding(ulpdu_len: usize) -> usize {
    (LENGTH_FIELD + ulpdu_len).wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_ulpdu_follows_the_formula_of_rfc_5044_section_4_5() {
        for (emss, plain, marked) in [(1448, 1442, 1430), (1460, 1454, 1442), (8948, 8942, 8870)] {
            assert_eq!((max_ulpdu(emss, false), max_ulpdu(emss, true)), (plain, marked), "EMSS {emss}");
        }
        // What is left over of a multiple of four is not used.
        assert_eq!([1449, 1450, 1451].map(|emss| max_ulpdu(emss, false)), [1442; 3]);
        assert_eq!(max_ulpdu(0, true), MIN_MULPDU);
        assert_eq!(max_ulpdu(usize::MAX, false), MAX_ULPDU);
    }

    #[test]
    fn padding_makes_a_multiple_of_four() {
        for len in 0..=70_000 {
            assert!(padding(len) < 4);
            assert_eq!((LENGTH_FIELD + len + padding(len)) % 4, 0);
        }
    }
}
