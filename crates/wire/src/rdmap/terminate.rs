//! The Terminate message (RFC 5040 §4.8): the cause, and the header of the segment that caused it.
//!
//! A Terminate is emitted in the form of the RFC. The form of Linux siw on little-endian machines is parsed, too: it has
//! the nibbles of the first byte swapped and the three header bits of the third byte mirrored, and its length counts
//! only the payload.

use super::control::{OPCODE_MASK, opcode};
use super::read::{self, RawReadRequest, ReadRequest};
use crate::cause::Cause;
use crate::ddp::{DdpHeader, UNTAGGED_LEN};
use zerocopy::{FromBytes, IntoBytes};

/// Minimum length of the fields after the DDP header: the control bytes alone.
pub(super) const MIN_LEN: usize = 4;
/// Maximum length of these fields: control bytes, segment length, untagged header and Read Request.
pub(super) const MAX_LEN: usize = MIN_LEN + 2 + UNTAGGED_LEN + read::REQUEST_LEN;

/// The header control bits M, D and R.
const LENGTH_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;
const HEADER_BITS: u8 = LENGTH_VALID | DDP_HEADER | RDMAP_HEADER;
/// The three header control bits as siw sends them.
const SWAPPED_BITS: u8 = 0x07;

/// A Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Terminate {
    /// The cause for which the stream ends.
    pub cause: Cause,
    /// The segment that caused the Terminate.
    pub offender: Offender,
}

/// The description of the offending segment in a Terminate. Fields that the Terminate does not contain are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Offender {
    /// The length of the segment, header included.
    pub length: Option<u16>,
    /// The DDP header of the segment.
    pub header: Option<DdpHeader>,
    /// The Read Request, if the segment was one and was denied. Its `msn` is that of `header`.
    pub read: Option<ReadRequest>,
}

impl Terminate {
    /// The Terminate of an end that fails for reasons unrelated to the messages of the peer.
    pub const LOCAL_CATASTROPHE: Self = Self {
        cause: Cause::LocalCatastrophic,
        offender: Offender { length: None, header: None, read: None },
    };

    /// Creates the Terminate that reports a segment. `fpdu` contains its length field and at least its header, of which
    /// the Terminate includes the part that RFC 5040 figure 10 requires for this cause.
    ///
    /// ```
    /// # use ironwarp_wire::{Cause, Protection, Terminate};
    /// // A Write of 8 bytes: the length field, then the header of its segment.
    /// let fpdu = [&[0, 22, 0xc1, 0x40][..], &[0; 12]].concat();
    /// let terminate = Terminate::for_segment(Cause::Protection(Protection::Access), &fpdu);
    /// assert_eq!(terminate.offender.length, Some(22));
    /// assert!(terminate.offender.header.is_some());
    /// ```
    pub fn for_segment(cause: Cause, fpdu: &[u8]) -> Self {
        let mut offender = Offender::default();
        if let (true, Some((length, segment))) = (cause.names_segment(), fpdu.split_first_chunk()) {
            offender.length = Some(u16::from_be_bytes(*length));
            offender.header = DdpHeader::parse(segment);
            if cause.names_read_request() {
                offender.read = offender.header.and_then(|header| read_request(&header, segment));
            }
        }
        Self { cause, offender }
    }

    /// Parses the fields after the DDP header. Never fails, so that the cause is known even if the rest is malformed:
    /// missing fields are `None`, excess bytes are ignored.
    pub(super) fn parse(fields: &[u8]) -> Self {
        let Some((&[first, code, third, _], rest)) = fields.split_first_chunk::<MIN_LEN>() else {
            return Self { cause: Cause::LocalCatastrophic, offender: Offender::default() };
        };
        if is_swapped(first, code, third) {
            let mut offender = Offender::parse(swap_bits(third), rest);
            #[expect(clippy::cast_possible_truncation, reason = "a header is at most 70 bytes")]
            let header_len = offender.header_len() as u16;
            offender.length = offender.length.map(|payload| payload.saturating_add(header_len));
            return Self { cause: Cause::from_wire(first & 0xf, first >> 4, code), offender };
        }
        Self {
            cause: Cause::from_wire(first >> 4, first & 0xf, code),
            offender: Offender::parse(third, rest),
        }
    }

    /// Returns the length of the fields after the DDP header.
    pub(super) fn len(&self) -> usize {
        MIN_LEN + if self.offender.has_length_field() { 2 } else { 0 } + self.offender.header_len()
    }

    /// Encodes the fields after the DDP header, and returns them with their length.
    pub(super) fn fields(&self) -> ([u8; MAX_LEN], usize) {
        let mut fields = [0; MAX_LEN];
        let (layer, kind, code) = self.cause.to_wire();
        let Offender { length, header, read } = &self.offender;
        let bits = if length.is_some() { LENGTH_VALID } else { 0 }
            | if header.is_some() { DDP_HEADER } else { 0 }
            | if read.is_some() { RDMAP_HEADER } else { 0 };
        fields[..MIN_LEN].copy_from_slice(&[layer << 4 | kind, code, bits, 0]);
        let mut at = MIN_LEN;
        if self.offender.has_length_field() {
            fields[at..at + 2].copy_from_slice(&length.unwrap_or(0).to_be_bytes());
            at += 2;
        }
        if let Some(header) = header {
            at += header.emit(&mut fields[at..]).unwrap_or(0);
        }
        if let Some(read) = read {
            fields[at..at + read::REQUEST_LEN].copy_from_slice(read.to_raw().as_bytes());
            at += read::REQUEST_LEN;
        }
        (fields, at)
    }
}

impl Offender {
    /// Parses the fields after the control bytes. `bits` are the header control bits.
    fn parse(bits: u8, mut rest: &[u8]) -> Self {
        let mut offender = Self::default();
        // RFC 5040 §4.8 on the length: "MUST be valid if the M bit is set … MUST be present when the D bit is set."
        if bits & (LENGTH_VALID | DDP_HEADER) != 0 {
            let Some((length, after)) = rest.split_first_chunk() else { return offender };
            offender.length = (bits & LENGTH_VALID != 0).then(|| u16::from_be_bytes(*length));
            rest = after;
        }
        if bits & DDP_HEADER != 0 {
            let Some(header) = DdpHeader::parse(rest) else { return offender };
            offender.header = Some(header);
            rest = rest.get(header.encoded_len()..).unwrap_or_default();
        }
        if bits & RDMAP_HEADER != 0 {
            offender.read = RawReadRequest::ref_from_prefix(rest)
                .ok()
                .map(|(raw, _)| raw.to_request(offender.header.as_ref().map_or(0, msn)));
        }
        offender
    }

    /// Returns whether the encoded Terminate contains a segment length.
    const fn has_length_field(&self) -> bool {
        self.length.is_some() || self.header.is_some()
    }

    /// Returns the length of the offending segment's header, as far as the Terminate contains it.
    fn header_len(&self) -> usize {
        self.header.map_or(0, |header| header.encoded_len()) + self.read.map_or(0, |_| read::REQUEST_LEN)
    }
}

/// Returns the Read Request in a segment. `None` if the segment is another message.
fn read_request(header: &DdpHeader, segment: &[u8]) -> Option<ReadRequest> {
    let DdpHeader::Untagged(ddp) = header else { return None };
    if ddp.ulp_control & OPCODE_MASK != opcode::READ_REQUEST {
        return None;
    }
    let (raw, _) = RawReadRequest::ref_from_prefix(segment.get(UNTAGGED_LEN..)?).ok()?;
    Some(raw.to_request(ddp.msn))
}

/// Returns the message sequence number. Zero for a tagged header, which has none.
const fn msn(header: &DdpHeader) -> u32 {
    match header {
        DdpHeader::Tagged(_) => 0,
        DdpHeader::Untagged(ddp) => ddp.msn,
    }
}

/// Returns whether the control bytes are in siw's form. The header bits determine this. If none of them is set, the
/// control bytes are in siw's form if only that form gives a known cause.
fn is_swapped(first: u8, code: u8, third: u8) -> bool {
    if third & HEADER_BITS != 0 {
        return false;
    }
    let is_known = |layer, kind| !matches!(Cause::from_wire(layer, kind, code), Cause::Other { .. });
    third & SWAPPED_BITS != 0 || (!is_known(first >> 4, first & 0xf) && is_known(first & 0xf, first >> 4))
}

/// Converts siw's M, D and R (0x01, 0x02, 0x04) to the RFC's (0x80, 0x40, 0x20).
const fn swap_bits(third: u8) -> u8 {
    third.reverse_bits() & HEADER_BITS
}
