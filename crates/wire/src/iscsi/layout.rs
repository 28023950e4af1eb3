//! The parts of a PDU on the wire, and their lengths (RFC 7143 §11.1).

use super::raw::HEADER_LEN;

/// Size of a digest.
const DIGEST: usize = 4;

/// Which digests the two ends have agreed to send (RFC 7143 §13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// A CRC32c follows each header.
    pub header: bool,
    /// A CRC32c follows the data of each PDU that has any.
    pub data: bool,
}

/// The lengths of the parts of a PDU.
///
/// ```
/// use ironwarp_wire::iscsi::{Digests, PduLayout, HEADER_LEN};
///
/// let mut header = [0; HEADER_LEN];
/// header[7] = 5; // bytes of data
/// let layout = PduLayout::of(&header, Digests { header: true, data: true });
/// assert_eq!((layout.header_len(), layout.data, layout.trailer_len()), (48 + 4, 5, 3 + 4));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PduLayout {
    /// Bytes of additional header segments: a multiple of 4, at most 1,020.
    pub additional: usize,
    /// Bytes of data, without padding: less than 2^24.
    pub data: usize,
    digests: Digests,
}

impl PduLayout {
    /// Maximum of [`header_len`](Self::header_len).
    pub const MAX_HEADER_LEN: usize = HEADER_LEN + 255 * 4 + DIGEST;

    /// Reads the lengths from a header.
    pub const fn of(header: &[u8; HEADER_LEN], digests: Digests) -> Self {
        let additional = header[4] as usize * 4;
        let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        Self { additional, data, digests }
    }

    /// Returns the length of everything before the data: headers and their digest.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN + self.additional + if self.digests.header { DIGEST } else { 0 }
    }

    /// Returns the length of everything after the data: padding and digest. Zero if there is no data.
    pub const fn trailer_len(&self) -> usize {
        padding(self.data) + if self.digests.data && self.data > 0 { DIGEST } else { 0 }
    }

    /// Returns the length of the whole PDU.
    pub const fn len(&self) -> usize {
        self.header_len() + self.data + self.trailer_len()
    }

    /// Returns false: a PDU has a header.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Returns the number of zero bytes that follow `data_len` bytes of data, which pad them to a multiple of four.
pub const fn padding(data_len: usize) -> usize {
    data_len.wrapping_neg() % 4
}
