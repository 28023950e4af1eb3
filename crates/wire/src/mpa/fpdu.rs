//! One FPDU (RFC 5044 §4.1): what its first bytes tell about all of it. They are read in `rdmap/parse.rs`.

use super::{CRC_FIELD, LENGTH_FIELD, padding};
use crate::{Bytes, Header};
use core::fmt;

/// What the front of an FPDU says. The payload need not have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// What the segment means.
    pub header: Header,
    /// Where the payload begins, from the start of the FPDU: the length field and the header (markers not counted).
    pub header_len: u16,
    /// How long the payload is.
    pub payload_len: u16,
}

impl Fpdu {
    /// What the length field says: header and payload.
    pub const fn ulpdu_len(&self) -> usize {
        self.header_len as usize - LENGTH_FIELD + self.payload_len as usize
    }

    /// Zero bytes behind the payload.
    pub const fn padding(&self) -> usize {
        padding(self.ulpdu_len())
    }

    /// The whole FPDU, from its length field to its CRC, markers not counted.
    pub const fn total_len(&self) -> usize {
        LENGTH_FIELD + self.ulpdu_len() + self.padding() + CRC_FIELD
    }
}

impl fmt::Display for Fpdu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.header)?;
        if self.header.carries_payload() { write!(f, ", {}", Bytes(self.payload_len.into())) } else { Ok(()) }
    }
}
