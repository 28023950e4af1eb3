//! The Terminate message (RFC 5040 §4.8): the cause, and the header of the segment that caused it.
//!
//! Written in the RFC's form. Read in two: Linux siw, on little-endian machines, swaps the nibbles of the first byte,
//! mirrors the three header bits of the third, and counts only payload in the length. What it means is the same.

use super::cause::Cause;
use super::read::{self, RawReadRequest};
use super::{OPCODE_MASK, ReadRequest, opcode};
use crate::ddp::{DdpHeader, UNTAGGED_LEN};
use zerocopy::{FromBytes, IntoBytes};

/// The control words alone.
pub(super) const LEAST: usize = 4;
/// Control, segment length, untagged header and Read Request.
pub(super) const MOST: usize = LEAST + 2 + UNTAGGED_LEN + read::REQUEST_LEN;

/// M, D and R of the header control bits.
const LENGTH_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;
const HEADER_BITS: u8 = LENGTH_VALID | DDP_HEADER | RDMAP_HEADER;
/// The same three as siw sends them.
const SWAPPED_BITS: u8 = 0x07;

/// A Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Why the stream ends.
    pub cause: Cause,
    /// What caused it.
    pub offender: Offender,
}

/// What a Terminate says of the segment that caused it. Any part may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offender {
    /// The length of the segment, header included.
    pub length: Option<u16>,
    /// Its DDP header.
    pub header: Option<DdpHeader>,
    /// Its words, if it was a Read Request that was refused. Its `msn` is that of `header`.
    pub read: Option<ReadRequest>,
}

impl Terminate {
    /// The Terminate of an end that fails for reasons of its own: nothing that the peer sent is to blame.
    pub const LOCAL_CATASTROPHE: Self = Self {
        cause: Cause::LocalCatastrophic,
        offender: Offender { length: None, header: None, read: None },
    };

    /// The Terminate that answers a segment, of which `fpdu` holds the length field and at least the header; with just
    /// as much of it as the RFC attaches for this cause (figure 10).
    ///
    /// ```
    /// use ironwarp_wire::{Cause, Protection, Terminate};
    ///
    /// // A Write of 8 bytes: the length field, then the header of its segment.
    /// let fpdu = [&[0, 22, 0xc1, 0x40][..], &[0; 12]].concat();
    /// let terminate = Terminate::answer(Cause::Protection(Protection::Access), &fpdu);
    /// assert_eq!(terminate.offender.length, Some(22));
    /// assert!(terminate.offender.header.is_some());
    /// ```
    pub fn answer(cause: Cause, fpdu: &[u8]) -> Self {
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

    /// Reads the words behind the DDP header. Never fails: what does not fit is left out, what is too much is ignored,
    /// because the peer's reason is worth more than its form.
    pub(super) fn parse(words: &[u8]) -> Self {
        let Some((&[first, code, third, _], rest)) = words.split_first_chunk::<LEAST>() else {
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

    /// Length of the words behind the DDP header.
    pub(super) fn len(&self) -> usize {
        LEAST + if self.offender.has_length_field() { 2 } else { 0 } + self.offender.header_len()
    }

    /// The words behind the DDP header, and how many of these bytes they are.
    pub(super) fn words(&self) -> ([u8; MOST], usize) {
        let mut words = [0; MOST];
        let (layer, kind, code) = self.cause.to_wire();
        let Offender { length, header, read } = &self.offender;
        let bits = if length.is_some() { LENGTH_VALID } else { 0 }
            | if header.is_some() { DDP_HEADER } else { 0 }
            | if read.is_some() { RDMAP_HEADER } else { 0 };
        words[..LEAST].copy_from_slice(&[layer << 4 | kind, code, bits, 0]);
        let mut at = LEAST;
        if self.offender.has_length_field() {
            words[at..at + 2].copy_from_slice(&length.unwrap_or(0).to_be_bytes());
            at += 2;
        }
        if let Some(header) = header {
            at += header.emit(&mut words[at..]).unwrap_or(0);
        }
        if let Some(read) = read {
            words[at..at + read::REQUEST_LEN].copy_from_slice(read.words().as_bytes());
            at += read::REQUEST_LEN;
        }
        (words, at)
    }
}

impl Offender {
    fn parse(bits: u8, mut rest: &[u8]) -> Self {
        let mut offender = Self::default();
        // "MUST be valid if the M bit is set … MUST be present when the D bit is set."
        if bits & (LENGTH_VALID | DDP_HEADER) != 0 {
            let Some((length, behind)) = rest.split_first_chunk() else { return offender };
            offender.length = (bits & LENGTH_VALID != 0).then(|| u16::from_be_bytes(*length));
            rest = behind;
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

    const fn has_length_field(&self) -> bool {
        self.length.is_some() || self.header.is_some()
    }

    /// Length of the offending segment's header, as far as it is known.
    fn header_len(&self) -> usize {
        self.header.map_or(0, |header| header.encoded_len()) + self.read.map_or(0, |_| read::REQUEST_LEN)
    }
}

/// The Read Request in a segment, if it is one.
fn read_request(header: &DdpHeader, segment: &[u8]) -> Option<ReadRequest> {
    let DdpHeader::Untagged(ddp) = header else { return None };
    if ddp.ulp_control & OPCODE_MASK != opcode::READ_REQUEST {
        return None;
    }
    let (raw, _) = RawReadRequest::ref_from_prefix(segment.get(UNTAGGED_LEN..)?).ok()?;
    Some(raw.to_request(ddp.msn))
}

const fn msn(header: &DdpHeader) -> u32 {
    match header {
        DdpHeader::Tagged(_) => 0,
        DdpHeader::Untagged(ddp) => ddp.msn,
    }
}

/// Whether the control words are in siw's form. The header bits tell; without any, the reading that means something
/// does, and the RFC's is tried first.
fn is_swapped(first: u8, code: u8, third: u8) -> bool {
    if third & HEADER_BITS != 0 {
        return false;
    }
    let means_something = |layer, kind| !matches!(Cause::from_wire(layer, kind, code), Cause::Other { .. });
    third & SWAPPED_BITS != 0
        || (!means_something(first >> 4, first & 0xf) && means_something(first & 0xf, first >> 4))
}

/// siw's M, D and R (0x01, 0x02, 0x04) in the RFC's places (0x80, 0x40, 0x20).
const fn swap_bits(third: u8) -> u8 {
    third.reverse_bits() & HEADER_BITS
}
