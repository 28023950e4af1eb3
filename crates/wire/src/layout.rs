//! Sizes of the fields of an FPDU (RFC 5044 §4).

/// Maximum length of a segment that is sent (RFC 5044 §4.5). A received segment may have any length that fits the
/// 16-bit field.
pub const MAX_ULPDU: usize = 64_768;
/// Size of the length field before a segment.
pub(crate) const LENGTH_FIELD: usize = 2;
/// Size of the CRC field after the padding.
pub(crate) const CRC_FIELD: usize = 4;

/// Returns the number of zero bytes between a segment and its CRC, which pad the FPDU to a multiple of four.
pub(crate) const fn padding(ulpdu_len: usize) -> usize {
    (LENGTH_FIELD + ulpdu_len).wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_makes_a_multiple_of_four() {
        for len in 0..=70_000 {
            assert!(padding(len) < 4);
            assert_eq!((LENGTH_FIELD + len + padding(len)) % 4, 0);
        }
    }
}
