//! One FPDU (RFC 5044 §4.1): what its first bytes tell about all of it.

use super::{CRC_FIELD, LENGTH_FIELD, padding};
use crate::ddp::TAGGED_LEN;
use crate::{Dialect, Header, Parse, Violation};
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
    /// Reads the front of an FPDU (from which markers, if any, were taken out).
    ///
    /// The first 16 bytes of an FPDU suffice for a tagged segment, the first 20 for a Send; the other headers are
    /// longer, and [`Parse::Need`] says by how much.
    #[inline]
    pub fn parse(bytes: &[u8], dialect: Dialect) -> Result<Parse<Self>, Violation> {
        let Some((length, segment)) = bytes.split_first_chunk::<LENGTH_FIELD>() else {
            return Ok(Parse::Need(LENGTH_FIELD + TAGGED_LEN));
        };
        let ulpdu_len = u16::from_be_bytes(*length);
        Ok(match Header::parse(segment, ulpdu_len, dialect)? {
            Parse::Need(n) => Parse::Need(LENGTH_FIELD + n),
            #[expect(clippy::cast_possible_truncation, reason = "a header is never longer than its segment")]
            Parse::Done((header, len)) => Parse::Done(Self {
                header,
                header_len: (LENGTH_FIELD + len) as u16,
                payload_len: ulpdu_len - len as u16,
            }),
        })
    }

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
        if self.header.carries_payload() { write!(f, ", {} bytes", self.payload_len) } else { Ok(()) }
    }
}
