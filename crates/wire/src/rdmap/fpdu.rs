//! The front of an FPDU (RFC 5044 §4.1), which determines its layout. Parsed in `parse.rs`.

use super::Header;
use crate::byte_count::ByteCount;
use crate::layout::{CRC_FIELD, LENGTH_FIELD, padding};
use core::fmt;

/// The parsed front of an FPDU. Its payload need not have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// The header of the segment.
    pub header: Header,
    /// Offset of the payload from the start of the FPDU: the length field and the header, without markers.
    pub header_len: u16,
    /// Length of the payload.
    pub payload_len: u16,
}

impl Fpdu {
    /// Value of the length field: header and payload.
    pub const fn ulpdu_len(&self) -> usize {
        self.header_len as usize - LENGTH_FIELD + self.payload_len as usize
    }

    /// Number of zero bytes after the payload.
    pub const fn padding(&self) -> usize {
        padding(self.ulpdu_len())
    }

    /// Length of the whole FPDU, from its length field to its CRC, without markers.
    pub const fn total_len(&self) -> usize {
        LENGTH_FIELD + self.ulpdu_len() + self.padding() + CRC_FIELD
    }
}

impl fmt::Display for Fpdu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.header)?;
        if self.header.carries_payload() {
            write!(f, ", {}", ByteCount(self.payload_len.into()))
        } else {
            Ok(())
        }
    }
}
