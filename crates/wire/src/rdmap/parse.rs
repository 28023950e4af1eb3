//! The decoder of headers, [`Fpdu::parse`]. Mirrors `emit.rs`.
//!
//! Checks follow the order of the layers: DDP version, RDMAP version, opcode, queue, length. All checks are made on the
//! DDP header, before the fields after it are needed.

use super::atomic::{RawAtomicRequest, RawAtomicResponse};
use super::control::{OPCODE_MASK, VERSION, VERSION_MASK, opcode, queue};
use super::read::{RawReadRequest, RawReadV2Request};
use super::{
    Dialect, Fpdu, Header, Immediate, ImmediateData, ReadV2Response, Send, SendImmediate, SendWord, Tagged,
    Terminate, terminate,
};
use crate::ddp::{self, DdpHeader, DdpTagged, DdpUntagged, TAGGED_LEN, UNTAGGED_LEN};
use crate::layout::LENGTH_FIELD;
use crate::{Parse, Tag, Violation};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

type Parsed = Result<Parse<Fpdu>, Violation>;

/// Minimum length of the front of an FPDU: the length field and the shortest header.
const MIN_FRONT: usize = LENGTH_FIELD + TAGGED_LEN;

impl Fpdu {
    /// Parses the front of an FPDU, from which markers must have been removed.
    ///
    /// 16 bytes suffice for a tagged segment, and 20 for a Send. For longer headers, [`Parse::Need`] is the number of
    /// bytes needed.
    // For speed, each case builds its result in place, because a header is too large to be moved between functions, and
    // less common messages are parsed out of line, so that the others need fewer registers.
    #[inline]
    pub fn parse(bytes: &[u8], dialect: Dialect) -> Result<Parse<Self>, Violation> {
        let Some(&[high, low, ..]) = bytes.first_chunk::<MIN_FRONT>() else { return incomplete(bytes) };
        let ulpdu_len = u16::from_be_bytes([high, low]);
        let segment = &bytes[LENGTH_FIELD..];
        match DdpHeader::parse(segment) {
            None => incomplete(bytes),
            Some(DdpHeader::Tagged(ddp)) => parse_tagged(&ddp, ulpdu_len),
            Some(DdpHeader::Untagged(ddp)) => {
                let untagged = Untagged { ddp, rest: &segment[UNTAGGED_LEN..], ulpdu_len };
                untagged.check()?;
                match ddp.ulp_control & OPCODE_MASK {
                    opcode @ opcode::SEND..=opcode::SEND_SOLICITED_INVALIDATE => untagged.parse_send(opcode),
                    _ => parse_rarer(segment, ulpdu_len, dialect),
                }
            }
        }
    }
}

/// Returns the number of bytes needed for an FPDU whose DDP header is incomplete, or a violation if the length field is
/// already known to be too small.
#[cold]
fn incomplete(bytes: &[u8]) -> Parsed {
    let Some(&length) = bytes.first_chunk() else { return Ok(Parse::Need(MIN_FRONT)) };
    let ulpdu_len = u16::from_be_bytes(length);
    let least = bytes.get(LENGTH_FIELD).map_or(TAGGED_LEN, |control| ddp::header_len(*control));
    if usize::from(ulpdu_len) < least {
        return Err(too_short(ulpdu_len, least));
    }
    Ok(Parse::Need(LENGTH_FIELD + least))
}

/// Returns the parsed FPDU for a header of `len` bytes, which must not exceed `ulpdu_len`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a header is at most 70 bytes")]
const fn done(header: Header, len: usize, ulpdu_len: u16) -> Parsed {
    let header_len = (LENGTH_FIELD + len) as u16;
    Ok(Parse::Done(Fpdu { header, header_len, payload_len: ulpdu_len - len as u16 }))
}

/// Parses a Write or a Read Response.
#[inline]
fn parse_tagged(ddp: &DdpTagged, ulpdu_len: u16) -> Parsed {
    if usize::from(ulpdu_len) < TAGGED_LEN {
        return Err(too_short(ulpdu_len, TAGGED_LEN));
    }
    check_versions(ddp.control, ddp.ulp_control)?;
    let segment = Tagged { last: ddp.control & ddp::LAST != 0, addr: ddp.addr };
    match ddp.ulp_control & OPCODE_MASK {
        opcode::WRITE => done(Header::Write(segment), TAGGED_LEN, ulpdu_len),
        opcode::READ_RESPONSE => done(Header::ReadResponse(segment), TAGGED_LEN, ulpdu_len),
        opcode => Err(Violation::Opcode { opcode, tagged: true }),
    }
}

/// Parses the untagged messages other than Send. `bytes` is the segment.
#[inline(never)]
fn parse_rarer(bytes: &[u8], ulpdu_len: u16, dialect: Dialect) -> Parsed {
    let (Some(DdpHeader::Untagged(ddp)), Some(rest)) = (DdpHeader::parse(bytes), bytes.get(UNTAGGED_LEN..))
    else {
        return Ok(Parse::Need(LENGTH_FIELD + UNTAGGED_LEN));
    };
    let segment = Untagged { ddp, rest, ulpdu_len };
    match ddp.ulp_control & OPCODE_MASK {
        opcode::READ_REQUEST => segment.parse_fixed(queue::READ_REQUEST, |raw: &RawReadRequest| {
            Ok(Header::ReadRequest(raw.to_request(ddp.msn)))
        }),
        opcode::TERMINATE => segment.parse_terminate(),
        opcode @ (opcode::IMMEDIATE | opcode::IMMEDIATE_SOLICITED) => {
            segment.parse_fixed(queue::SEND, |data: &[u8; 8]| {
                Ok(Header::Immediate(Immediate {
                    msn: ddp.msn,
                    solicited: opcode == opcode::IMMEDIATE_SOLICITED,
                    srq: ddp.ulp_word,
                    data: ImmediateData(*data),
                }))
            })
        }
        opcode::ATOMIC_REQUEST => segment.parse_fixed(queue::READ_REQUEST, |raw: &RawAtomicRequest| {
            raw.to_request(ddp.msn).map(Header::AtomicRequest)
        }),
        opcode::ATOMIC_RESPONSE => segment.parse_fixed(queue::ATOMIC_RESPONSE, |raw: &RawAtomicResponse| {
            Ok(Header::AtomicResponse(raw.to_response(ddp.msn)))
        }),
        opcode::PRIVATE if dialect == Dialect::Ironwarp => parse_private(&segment),
        opcode => Err(Violation::Opcode { opcode, tagged: false }),
    }
}

/// Parses a private message (opcode 0xF). The queue and the reserved bits of the control byte distinguish the messages
/// (`docs/wire.md`).
fn parse_private(segment: &Untagged<'_>) -> Parsed {
    let ddp = &segment.ddp;
    let kind = ddp.ulp_control & !VERSION_MASK & !OPCODE_MASK;
    match (ddp.queue, kind) {
        (queue::SEND, _) => {
            let solicited = kind & opcode::PRIVATE_SOLICITED != 0;
            let invalidate = kind & opcode::PRIVATE_INVALIDATE != 0;
            segment.parse_send_immediate(solicited, invalidate)
        }
        (queue::READ_REQUEST, 0) => segment.parse_fixed(queue::READ_REQUEST, |raw: &RawReadV2Request| {
            Ok(Header::ReadV2Request(raw.to_request(ddp.msn)))
        }),
        (queue::READ_V2_RESPONSE, opcode::PRIVATE_READ_RESPONSE) => {
            let response = ReadV2Response { msn: ddp.msn, last: segment.is_last(), offset: ddp.offset };
            segment.done(Header::ReadV2Response(response), UNTAGGED_LEN)
        }
        _ => Err(Violation::Opcode { opcode: opcode::PRIVATE, tagged: false }),
    }
}

/// Checks the versions of DDP and RDMAP, with one comparison, because the bits of the two fields do not overlap.
#[inline]
fn check_versions(control: u8, ulp_control: u8) -> Result<(), Violation> {
    if control & ddp::VERSION_MASK | ulp_control & VERSION_MASK == ddp::VERSION | VERSION {
        return Ok(());
    }
    Err(wrong_version(control, ulp_control))
}

/// Returns the violation for control bytes with a wrong version.
#[cold]
const fn wrong_version(control: u8, ulp_control: u8) -> Violation {
    let version = control & ddp::VERSION_MASK;
    if version == ddp::VERSION {
        return Violation::RdmapVersion(ulp_control >> 6);
    }
    Violation::DdpVersion { tagged: control & ddp::TAGGED != 0, version }
}

/// Returns the violation for a segment that is too short for its header. For a segment shorter than any header, the
/// result is the same for all kinds of header, so that it does not depend on how many bytes have arrived.
#[cold]
#[expect(clippy::cast_possible_truncation, reason = "a header is at most 70 bytes")]
const fn too_short(ulpdu: u16, header: usize) -> Violation {
    let header = if (ulpdu as usize) < TAGGED_LEN { TAGGED_LEN } else { header };
    Violation::TooShort { ulpdu, header: header as u16 }
}

/// An untagged segment being parsed.
struct Untagged<'a> {
    ddp: DdpUntagged,
    /// The bytes received after the DDP header.
    rest: &'a [u8],
    /// The value of the length field.
    ulpdu_len: u16,
}

impl Untagged<'_> {
    /// Returns whether the segment is the last of its message.
    const fn is_last(&self) -> bool {
        self.ddp.control & ddp::LAST != 0
    }

    /// Returns the parsed FPDU for a header of `len` bytes.
    #[inline]
    const fn done(&self, header: Header, len: usize) -> Parsed {
        done(header, len, self.ulpdu_len)
    }

    /// Checks length and versions, as for all untagged segments.
    #[inline]
    fn check(&self) -> Result<(), Violation> {
        if usize::from(self.ulpdu_len) < UNTAGGED_LEN {
            return Err(too_short(self.ulpdu_len, UNTAGGED_LEN));
        }
        check_versions(self.ddp.control, self.ddp.ulp_control)
    }

    /// Checks the queue number.
    #[inline]
    fn check_queue(&self, expected: u32) -> Result<(), Violation> {
        if self.ddp.queue == expected {
            return Ok(());
        }
        Err(Violation::Queue { opcode: self.ddp.ulp_control & OPCODE_MASK, queue: self.ddp.queue, expected })
    }

    /// Parses a Send with one of its four opcodes.
    #[inline]
    fn parse_send(&self, opcode: u8) -> Parsed {
        self.check_queue(queue::SEND)?;
        // The opcodes are in sequence: bit 0 is "invalidate", bit 1 is "solicited".
        let kind = opcode - opcode::SEND;
        self.done(Header::Send(self.to_send(kind & 2 != 0, kind & 1 != 0)), UNTAGGED_LEN)
    }

    /// Parses a message of one segment that consists of the DDP header and the fields `R`. `header` creates the header
    /// from the fields.
    #[inline]
    fn parse_fixed<R: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
        queue: u32,
        header: impl FnOnce(&R) -> Result<Header, Violation>,
    ) -> Parsed {
        let len = UNTAGGED_LEN + size_of::<R>();
        self.check_queue(queue)?;
        self.check_single(len, len)?;
        match R::ref_from_prefix(self.rest) {
            Err(_) => Ok(Parse::Need(LENGTH_FIELD + len)),
            Ok((raw, _)) => self.done(header(raw)?, len),
        }
    }

    /// Checks that a message consists of this segment only, and has `min` to `max` bytes.
    #[inline]
    fn check_single(&self, min: usize, max: usize) -> Result<(), Violation> {
        if usize::from(self.ulpdu_len) < min {
            return Err(too_short(self.ulpdu_len, min));
        }
        if self.ddp.offset != 0 {
            return Err(Violation::MessageOffset(self.ddp.offset));
        }
        #[expect(clippy::cast_possible_truncation, reason = "a header is at most 70 bytes")]
        let expected = max as u16;
        if self.ulpdu_len > expected || !self.is_last() {
            return Err(Violation::TooLong { expected, found: self.ulpdu_len.max(expected + 1) });
        }
        Ok(())
    }

    /// Returns the fields of a Send.
    #[inline]
    fn to_send(&self, solicited: bool, invalidate: bool) -> Send {
        let word = self.ddp.ulp_word;
        Send {
            msn: self.ddp.msn,
            last: self.is_last(),
            offset: self.ddp.offset,
            solicited,
            word: if invalidate { SendWord::Invalidate(Tag(word)) } else { SendWord::Srq(word) },
        }
    }

    /// Parses a Send with Immediate, which contains the immediate data in its first segment only.
    fn parse_send_immediate(&self, solicited: bool, invalidate: bool) -> Parsed {
        let send = self.to_send(solicited, invalidate);
        if send.offset != 0 {
            return self.done(Header::SendImmediate(SendImmediate { send, immediate: None }), UNTAGGED_LEN);
        }
        let len = UNTAGGED_LEN + size_of::<ImmediateData>();
        if usize::from(self.ulpdu_len) < len {
            return Err(too_short(self.ulpdu_len, len));
        }
        let Some(data) = self.rest.first_chunk() else { return Ok(Parse::Need(LENGTH_FIELD + len)) };
        let immediate = Some(ImmediateData(*data));
        self.done(Header::SendImmediate(SendImmediate { send, immediate }), len)
    }

    /// Parses a Terminate, which has no payload. Its sequence number is ignored, because a stream has only one
    /// Terminate.
    fn parse_terminate(&self) -> Parsed {
        self.check_queue(queue::TERMINATE)?;
        self.check_single(UNTAGGED_LEN + terminate::MIN_LEN, UNTAGGED_LEN + terminate::MAX_LEN)?;
        let len = usize::from(self.ulpdu_len);
        match self.rest.get(..len - UNTAGGED_LEN) {
            None => Ok(Parse::Need(LENGTH_FIELD + len)),
            Some(fields) => self.done(Header::Terminate(Terminate::parse(fields)), len),
        }
    }
}
