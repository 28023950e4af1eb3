//! The CRC32c of FPDUs (RFC 5044 §4.4), computed incrementally.
//!
//! With the feature `std` (the default), the crate `crc-fast` computes the CRC, which uses the CPU's instructions
//! (docs/decisions.md compares it with others). Its digest contains 300 bytes of constants; a stream keeps only the 32
//! bits of state. Without `std`, a lookup table is used.

/// A CRC32c computation.
///
/// ```
/// # use ironwarp_wire::mpa::Crc;
/// let mut crc = Crc::new();
/// crc.update(b"1234");
/// crc.update(b"56789");
/// assert_eq!(crc.value(), 0xe306_9283);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Crc(u32);

impl Crc {
    /// Starts a computation.
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Computes the CRC of `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        #[cfg(feature = "std")]
        let crc = Self(!crc_fast::crc32_iscsi(bytes)); // needs no digest
        #[cfg(not(feature = "std"))]
        let crc = Self(update(Self::new().0, bytes));
        crc
    }

    /// Adds bytes to the computation.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = update(self.0, bytes);
    }

    /// Returns the CRC of all bytes so far.
    pub const fn value(self) -> u32 {
        !self.0
    }

    /// Returns the CRC in wire order: least significant byte first, unlike every other field.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.value().to_le_bytes()
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the state after adding `bytes`.
#[cfg(feature = "std")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the state of a 32-bit CRC")]
fn update(state: u32, bytes: &[u8]) -> u32 {
    let mut digest =
        crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(state));
    digest.update(bytes);
    digest.get_state() as u32
}

/// Returns the state after adding `bytes`.
#[cfg(not(feature = "std"))]
fn update(state: u32, bytes: &[u8]) -> u32 {
    /// The CRC of each byte value, by the reversed polynomial 0x82f63b78.
    static TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(state, |crc, byte| TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the CRC of `covered` against its wire form, for every split into two pieces.
    fn check(covered: &[u8], wire: [u8; 4]) {
        let whole = Crc::of(covered);
        assert_eq!(whole.to_bytes(), wire);
        for split in 0..=covered.len() {
            let mut pieces = Crc::new();
            pieces.update(&covered[..split]);
            pieces.update(&covered[split..]);
            assert_eq!(pieces, whole, "split at {split}");
        }
    }

    #[test]
    fn rfc_5044_figure_5() {
        let mut fpdu = [0; 4 + 44];
        fpdu[4..8].copy_from_slice(&[0x00, 0x2a, 0x41, 0x43]);
        fpdu[19] = 1;
        check(&fpdu, [0x52, 0x23, 0x99, 0x83]);
    }

    #[test]
    fn rfc_5044_figure_6_with_a_marker_inside() {
        let mut fpdu = [0; 4 + 44];
        fpdu[..4].copy_from_slice(&[0x00, 0x2a, 0x41, 0x43]);
        fpdu[15] = 2;
        fpdu[23] = 0x14;
        check(&fpdu, [0x84, 0x92, 0x58, 0x98]);
    }

    #[test]
    fn siw_write_rtr() {
        check(&[0, 0x0e, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], [0xeb, 0xd3, 0x4c, 0x5f]);
    }

    #[test]
    fn siw_empty_send() {
        let fpdu = [0, 0x12, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
        check(&fpdu, [0x00, 0xa4, 0xca, 0xb4]);
    }
}
