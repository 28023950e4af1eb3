//! The framing options of one direction, and the maximum length of a segment that fits a TCP segment.

use super::marker::{MARKER_INTERVAL, MARKER_LEN};
use crate::layout::{CRC_FIELD, LENGTH_FIELD, MAX_ULPDU};

/// Length of a segment that may be sent on any path, whatever its TCP segment size (RFC 5044 §4.5).
pub const MIN_MULPDU: usize = 128;

/// Framing options that the startup frames negotiated for one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Framing {
    /// Whether CRCs are generated and checked. If not, the CRC field is present, but its value is ignored.
    pub crc: bool,
    /// Whether markers are inserted, because the receiver requested them.
    pub markers: bool,
}

/// Returns the maximum length of a segment whose FPDU fits one TCP segment of `emss` bytes (RFC 5044 §4.5), clamped to
/// [`MIN_MULPDU`]`..=`[`MAX_ULPDU`]. `markers`: the direction uses markers.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_ulpdu_follows_the_formula_of_rfc_5044_section_4_5() {
        for (emss, plain, marked) in [(1448, 1442, 1430), (1460, 1454, 1442), (8948, 8942, 8870)] {
            assert_eq!((max_ulpdu(emss, false), max_ulpdu(emss, true)), (plain, marked), "EMSS {emss}");
        }
        // The remainder modulo four is not used.
        assert_eq!([1449, 1450, 1451].map(|emss| max_ulpdu(emss, false)), [1442; 3]);
        assert_eq!(max_ulpdu(0, true), MIN_MULPDU);
        assert_eq!(max_ulpdu(usize::MAX, false), MAX_ULPDU);
    }
}
