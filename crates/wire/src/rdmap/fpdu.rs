//! [`Fpdu`], the parsed front of an FPDU (RFC 5044 §4.1): the header, and the lengths that it determines.

use super::Header;
use crate::byte_count::ByteCount;
use crate::layout::{CRC_FIELD, LENGTH_FIELD, padding};
use core::fmt;

/// The parsed front of an FPDU: the length field and the header. The payload need not have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fpdu {
    /// The header of the segment.
    pub header: Header,
    /// Length of the length field and the header, without markers: the offset of the payload in the FPDU.
    pub header_len: u16,
    /// Length of the payload in bytes.
    pub payload_len: u16,
}

impl Fpdu {
    /// Returns the value of the length field: the length of header and payload.
    pub const fn ulpdu_len(&self) -> usize {
        self.header_len as usize - LENGTH_FIELD + self.payload_len as usize
    }

    /// Returns the number of padding bytes after the payload.
    pub const fn padding(&self) -> usize {
        padding(self.ulpdu_len())
    }

    /// Returns the length of the whole FPDU, from the length field to the CRC, without markers.
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
