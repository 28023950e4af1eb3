//! Bytes to [`Header`]. Mirrors `emit.rs`.
//!
//! The checks come in the order of the layers: DDP version, RDMAP version, opcode, queue, length. All of them are made
//! on the fixed part of the header, before the rest is asked for.

use super::atomic::{RawAtomicRequest, RawAtomicResponse};
use super::read::{RawReadRequest, RawReadV2Request};
use super::{
    Dialect, Header, Immediate, ImmediateData, OPCODE_MASK, ReadV2Response, Send, SendImmediate, SendWord,
    Tagged, Terminate, VERSION, VERSION_MASK, opcode, queue, terminate,
};
use crate::ddp::{self, DdpHeader, DdpTagged, DdpUntagged, TAGGED_LEN, UNTAGGED_LEN};
use crate::{Parse, Tag, Violation};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// A header and its length.
pub(crate) type Parsed = Parse<(Header, usize)>;

impl Header {
    /// Reads the header at the front of a segment of `ulpdu_len` bytes, of which `bytes` are the first.
    ///
    /// Returns it with its length: what follows is payload. [`Fpdu::parse`](crate::Fpdu::parse) does the same and reads
    /// the length field too.
    #[inline]
    pub fn parse(bytes: &[u8], ulpdu_len: u16, dialect: Dialect) -> Result<Parsed, Violation> {
        let least = bytes.first().map_or(TAGGED_LEN, |&control| ddp::header_len(control));
        if usize::from(ulpdu_len) < least {
            // Below the shortest header of all, the control byte does not matter, nor whether it has arrived.
            let shortest = usize::from(ulpdu_len) < TAGGED_LEN;
            return Err(too_short(ulpdu_len, if shortest { TAGGED_LEN } else { least }));
        }
        match DdpHeader::parse(bytes) {
            None => Ok(Parse::Need(least)),
            Some(DdpHeader::Tagged(ddp)) => tagged(&ddp).map(|header| Parse::Done((header, TAGGED_LEN))),
            Some(DdpHeader::Untagged(ddp)) => {
                let rest = bytes.get(UNTAGGED_LEN..).unwrap_or_default();
                untagged(&Untagged { ddp, rest, ulpdu_len }, dialect)
            }
        }
    }
}

#[inline]
fn tagged(ddp: &DdpTagged) -> Result<Header, Violation> {
    versions(ddp.control, ddp.ulp_control)?;
    let segment = Tagged { last: ddp.control & ddp::LAST != 0, place: ddp.place };
    match ddp.ulp_control & OPCODE_MASK {
        opcode::WRITE => Ok(Header::Write(segment)),
        opcode::READ_RESPONSE => Ok(Header::ReadResponse(segment)),
        opcode => Err(Violation::Opcode { opcode, tagged: true }),
    }
}

#[inline]
fn untagged(segment: &Untagged<'_>, dialect: Dialect) -> Result<Parsed, Violation> {
    let Untagged { ddp, .. } = segment;
    versions(ddp.control, ddp.ulp_control)?;
    match ddp.ulp_control & OPCODE_MASK {
        opcode @ opcode::SEND..=opcode::SEND_SOLICITED_INVALIDATE => {
            segment.on_queue(queue::SEND)?;
            let solicited = opcode >= opcode::SEND_SOLICITED;
            let invalidate = opcode == opcode::SEND_INVALIDATE || opcode == opcode::SEND_SOLICITED_INVALIDATE;
            Ok(Parse::Done((Header::Send(segment.send(solicited, invalidate)), UNTAGGED_LEN)))
        }
        opcode::READ_REQUEST => segment.fixed(queue::READ_REQUEST, |raw: &RawReadRequest| {
            Ok(Header::ReadRequest(raw.to_request(ddp.msn)))
        }),
        opcode::TERMINATE => segment.terminate(),
        opcode @ (opcode::IMMEDIATE | opcode::IMMEDIATE_SOLICITED) => {
            segment.fixed(queue::SEND, |data: &[u8; 8]| {
                Ok(Header::Immediate(Immediate {
                    msn: ddp.msn,
                    solicited: opcode == opcode::IMMEDIATE_SOLICITED,
                    srq: ddp.ulp_word,
                    data: ImmediateData(*data),
                }))
            })
        }
        opcode::ATOMIC_REQUEST => segment.fixed(queue::READ_REQUEST, |raw: &RawAtomicRequest| {
            raw.to_request(ddp.msn).map(Header::AtomicRequest)
        }),
        opcode::ATOMIC_RESPONSE => segment.fixed(queue::ATOMIC_RESPONSE, |raw: &RawAtomicResponse| {
            Ok(Header::AtomicResponse(raw.to_response(ddp.msn)))
        }),
        opcode::PRIVATE if dialect == Dialect::Ironwarp => private(segment),
        opcode => Err(Violation::Opcode { opcode, tagged: false }),
    }
}

/// Opcode F: the queue says which private message it is, and the reserved bits which kind (`docs/wire.md`).
fn private(segment: &Untagged<'_>) -> Result<Parsed, Violation> {
    let ddp = &segment.ddp;
    let kind = ddp.ulp_control & !VERSION_MASK & !OPCODE_MASK;
    match (ddp.queue, kind) {
        (queue::SEND, _) => {
            let solicited = kind & opcode::PRIVATE_SOLICITED != 0;
            let invalidate = kind & opcode::PRIVATE_INVALIDATE != 0;
            segment.send_immediate(solicited, invalidate)
        }
        (queue::READ_REQUEST, 0) => segment.fixed(queue::READ_REQUEST, |raw: &RawReadV2Request| {
            Ok(Header::ReadV2Request(raw.to_request(ddp.msn)))
        }),
        (queue::READ_V2_RESPONSE, opcode::PRIVATE_READ_RESPONSE) => {
            let response = ReadV2Response { msn: ddp.msn, last: segment.last(), offset: ddp.offset };
            Ok(Parse::Done((Header::ReadV2Response(response), UNTAGGED_LEN)))
        }
        _ => Err(Violation::Opcode { opcode: opcode::PRIVATE, tagged: false }),
    }
}

#[inline]
fn versions(control: u8, ulp_control: u8) -> Result<(), Violation> {
    if control & ddp::VERSION_MASK != ddp::VERSION {
        let version = control & ddp::VERSION_MASK;
        return Err(Violation::DdpVersion { tagged: control & ddp::TAGGED != 0, version });
    }
    if ulp_control & VERSION_MASK != VERSION {
        return Err(Violation::RdmapVersion(ulp_control >> 6));
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "a header is at most 70 bytes")]
const fn too_short(ulpdu: u16, header: usize) -> Violation {
    Violation::TooShort { ulpdu, header: header as u16 }
}

/// An untagged segment on its way to becoming a [`Header`].
struct Untagged<'a> {
    ddp: DdpUntagged,
    /// What is there behind the DDP header.
    rest: &'a [u8],
    ulpdu_len: u16,
}

impl Untagged<'_> {
    const fn last(&self) -> bool {
        self.ddp.control & ddp::LAST != 0
    }

    #[inline]
    fn on_queue(&self, expected: u32) -> Result<(), Violation> {
        if self.ddp.queue == expected {
            return Ok(());
        }
        Err(Violation::Queue { opcode: self.ddp.ulp_control & OPCODE_MASK, queue: self.ddp.queue, expected })
    }

    /// A message whose words fill exactly one segment.
    #[inline]
    fn fixed<R: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
        queue: u32,
        header: impl FnOnce(&R) -> Result<Header, Violation>,
    ) -> Result<Parsed, Violation> {
        let len = UNTAGGED_LEN + size_of::<R>();
        self.on_queue(queue)?;
        self.single(len, len)?;
        match R::ref_from_prefix(self.rest) {
            Err(_) => Ok(Parse::Need(len)),
            Ok((raw, _)) => Ok(Parse::Done((header(raw)?, len))),
        }
    }

    /// Checks a message of one segment: it begins and ends here, and has `least` to `most` bytes.
    #[inline]
    fn single(&self, least: usize, most: usize) -> Result<(), Violation> {
        if usize::from(self.ulpdu_len) < least {
            return Err(too_short(self.ulpdu_len, least));
        }
        if self.ddp.offset != 0 {
            return Err(Violation::MessageOffset(self.ddp.offset));
        }
        #[expect(clippy::cast_possible_truncation, reason = "a header is at most 70 bytes")]
        let expected = most as u16;
        if self.ulpdu_len > expected || !self.last() {
            return Err(Violation::TooLong { expected, found: self.ulpdu_len.max(expected + 1) });
        }
        Ok(())
    }

    #[inline]
    fn send(&self, solicited: bool, invalidate: bool) -> Send {
        let word = self.ddp.ulp_word;
        Send {
            msn: self.ddp.msn,
            last: self.last(),
            offset: self.ddp.offset,
            solicited,
            word: if invalidate { SendWord::Invalidate(Tag(word)) } else { SendWord::Srq(word) },
        }
    }

    fn send_immediate(&self, solicited: bool, invalidate: bool) -> Result<Parsed, Violation> {
        let send = self.send(solicited, invalidate);
        let done = |immediate: Option<ImmediateData>, len| {
            Ok(Parse::Done((Header::SendImmediate(SendImmediate { send, immediate }), len)))
        };
        if send.offset != 0 {
            return done(None, UNTAGGED_LEN);
        }
        let len = UNTAGGED_LEN + size_of::<ImmediateData>();
        if usize::from(self.ulpdu_len) < len {
            return Err(too_short(self.ulpdu_len, len));
        }
        match self.rest.first_chunk() {
            None => Ok(Parse::Need(len)),
            Some(data) => done(Some(ImmediateData(*data)), len),
        }
    }

    /// A Terminate's header is the whole of it. Its sequence number is not looked at: there is only one on a stream.
    fn terminate(&self) -> Result<Parsed, Violation> {
        self.on_queue(queue::TERMINATE)?;
        self.single(UNTAGGED_LEN + terminate::LEAST, UNTAGGED_LEN + terminate::MOST)?;
        let len = usize::from(self.ulpdu_len);
        match self.rest.get(..len - UNTAGGED_LEN) {
            None => Ok(Parse::Need(len)),
            Some(words) => Ok(Parse::Done((Header::Terminate(Terminate::parse(words)), len))),
        }
    }
}
