//! The encoder of headers, [`Header::emit`]. Mirrors `parse.rs`.

use super::atomic::{RawAtomicRequest, RawAtomicResponse};
use super::control::{VERSION, opcode, queue};
use super::read::{RawReadRequest, RawReadV2Request};
use super::{Header, Immediate, MAX_HEADER, ReadV2Response, Send, SendWord, Tagged};
use crate::Misuse;
use crate::ddp::{self, DdpHeader, DdpTagged, DdpUntagged, TAGGED_LEN, UNTAGGED_LEN};
use crate::layout::{LENGTH_FIELD, MAX_ULPDU};
use zerocopy::{Immutable, IntoBytes};

impl Header {
    /// Returns the length of the header in bytes: the DDP header and the fields after it, without the length field of the
    /// FPDU.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Write(_) | Self::ReadResponse(_) => TAGGED_LEN,
            Self::Send(_) | Self::ReadV2Response(_) => UNTAGGED_LEN,
            Self::Immediate(_) => UNTAGGED_LEN + size_of::<[u8; 8]>(),
            Self::ReadRequest(_) => UNTAGGED_LEN + size_of::<RawReadRequest>(),
            Self::AtomicRequest(_) => UNTAGGED_LEN + size_of::<RawAtomicRequest>(),
            Self::AtomicResponse(_) => UNTAGGED_LEN + size_of::<RawAtomicResponse>(),
            Self::Terminate(terminate) => UNTAGGED_LEN + terminate.len(),
            Self::SendImmediate(message) => UNTAGGED_LEN + message.immediate.map_or(0, |data| data.0.len()),
            Self::ReadV2Request(_) => UNTAGGED_LEN + size_of::<RawReadV2Request>(),
        }
    }

    /// Writes the length field of the FPDU and this header to `out`, for a segment with `payload` bytes of payload.
    /// Returns the number of bytes written. Payload, padding and CRC follow on the wire.
    #[inline]
    pub fn emit(&self, payload: usize, out: &mut [u8; MAX_HEADER]) -> Result<usize, Misuse> {
        match self {
            Self::Write(segment) => segment.emit(opcode::WRITE, payload, out),
            Self::ReadResponse(segment) => segment.emit(opcode::READ_RESPONSE, payload, out),
            Self::Send(send) => send.segment(send.opcode()).emit(&[0; 0], payload, out),
            _ => self.emit_rarer(payload, out),
        }
    }

    /// Emits the less common messages, out of line so that the common messages need fewer registers.
    #[inline(never)]
    fn emit_rarer(&self, payload: usize, out: &mut [u8; MAX_HEADER]) -> Result<usize, Misuse> {
        match self {
            Self::Write(_) | Self::ReadResponse(_) | Self::Send(_) => self.emit(payload, out),
            Self::SendImmediate(message) => {
                let segment = message.send.segment(message.send.private_opcode());
                match &message.immediate {
                    Some(data) => segment.emit(&data.0, payload, out),
                    None => segment.emit(&[0; 0], payload, out),
                }
            }
            Self::ReadV2Response(message) => message.segment().emit(&[0; 0], payload, out),
            _ if payload > 0 => Err(Misuse::PayloadNotAllowed(payload)),
            Self::Immediate(message) => message.segment().emit(&message.data.0, 0, out),
            Self::ReadRequest(message) => {
                single(opcode::READ_REQUEST, queue::READ_REQUEST, message.msn).emit(&message.to_raw(), 0, out)
            }
            Self::AtomicRequest(message) => single(opcode::ATOMIC_REQUEST, queue::READ_REQUEST, message.msn)
                .emit(&message.to_raw(), 0, out),
            Self::AtomicResponse(message) => single(
                opcode::ATOMIC_RESPONSE,
                queue::ATOMIC_RESPONSE,
                message.msn,
            )
            .emit(&message.to_raw(), 0, out),
            Self::ReadV2Request(message) => {
                single(opcode::PRIVATE, queue::READ_REQUEST, message.msn).emit(&message.to_raw(), 0, out)
            }
            Self::Terminate(message) => {
                // RFC 5040 §5.4: the only message of its queue, so its sequence number is 1.
                let at = single(opcode::TERMINATE, queue::TERMINATE, 1).emit(&[0; 0], 0, out)?;
                let (fields, len) = message.fields();
                out[at..at + len].copy_from_slice(&fields[..len]);
                emit_length(UNTAGGED_LEN + len, 0, out)
            }
        }
    }
}

/// Writes the length field of a segment. Returns the number of bytes before the payload.
#[inline]
fn emit_length(header: usize, payload: usize, out: &mut [u8; MAX_HEADER]) -> Result<usize, Misuse> {
    let ulpdu = header.saturating_add(payload);
    if ulpdu > MAX_ULPDU {
        return Err(Misuse::SegmentTooLong(ulpdu));
    }
    #[expect(clippy::cast_possible_truncation, reason = "MAX_ULPDU fits 16 bits")]
    out[..LENGTH_FIELD].copy_from_slice(&(ulpdu as u16).to_be_bytes());
    Ok(LENGTH_FIELD + header)
}

impl Tagged {
    /// Writes the length field and the header of a message with this opcode.
    #[inline]
    fn emit(&self, opcode: u8, payload: usize, out: &mut [u8; MAX_HEADER]) -> Result<usize, Misuse> {
        let control = ddp::TAGGED | last_bit(self.last) | ddp::VERSION;
        let header = DdpTagged { control, ulp_control: VERSION | opcode, addr: self.addr };
        DdpHeader::Tagged(header).emit(&mut out[LENGTH_FIELD..]);
        emit_length(TAGGED_LEN, payload, out)
    }
}

impl Send {
    /// Returns the opcode, which depends on `solicited` and `word`.
    const fn opcode(&self) -> u8 {
        match (self.solicited, self.word) {
            (false, SendWord::Srq(_)) => opcode::SEND,
            (false, SendWord::Invalidate(_)) => opcode::SEND_INVALIDATE,
            (true, SendWord::Srq(_)) => opcode::SEND_SOLICITED,
            (true, SendWord::Invalidate(_)) => opcode::SEND_SOLICITED_INVALIDATE,
        }
    }

    /// Returns the control byte of a Send with Immediate, without the version.
    const fn private_opcode(&self) -> u8 {
        let solicited = if self.solicited { opcode::PRIVATE_SOLICITED } else { 0 };
        let invalidate =
            if matches!(self.word, SendWord::Invalidate(_)) { opcode::PRIVATE_INVALIDATE } else { 0 };
        opcode::PRIVATE | solicited | invalidate
    }

    /// Returns the untagged segment with this opcode.
    #[inline]
    fn segment(&self, opcode: u8) -> Untagged {
        let (SendWord::Srq(word) | SendWord::Invalidate(crate::Tag(word))) = self.word;
        Untagged { word, last: self.last, offset: self.offset, ..single(opcode, queue::SEND, self.msn) }
    }
}

impl Immediate {
    /// Returns the untagged segment.
    const fn segment(&self) -> Untagged {
        let opcode = if self.solicited { opcode::IMMEDIATE_SOLICITED } else { opcode::IMMEDIATE };
        Untagged { word: self.srq, ..single(opcode, queue::SEND, self.msn) }
    }
}

impl ReadV2Response {
    /// Returns the untagged segment.
    const fn segment(&self) -> Untagged {
        let opcode = opcode::PRIVATE | opcode::PRIVATE_READ_RESPONSE;
        let single = single(opcode, queue::READ_V2_RESPONSE, self.msn);
        Untagged { last: self.last, offset: self.offset, ..single }
    }
}

/// An untagged segment to be written.
struct Untagged {
    /// The RDMAP control byte without the version.
    opcode: u8,
    word: u32,
    queue: u32,
    msn: u32,
    last: bool,
    offset: u32,
}

/// Returns the untagged segment of a message that has only one.
#[inline]
const fn single(opcode: u8, queue: u32, msn: u32) -> Untagged {
    Untagged { opcode, word: 0, queue, msn, last: true, offset: 0 }
}

impl Untagged {
    /// Writes the length field, the DDP header, and the `fields` after it. Returns the number of bytes written.
    #[inline]
    fn emit(
        &self,
        fields: &(impl IntoBytes + Immutable),
        payload: usize,
        out: &mut [u8; MAX_HEADER],
    ) -> Result<usize, Misuse> {
        let ddp = DdpUntagged {
            control: last_bit(self.last) | ddp::VERSION,
            ulp_control: VERSION | self.opcode,
            ulp_word: self.word,
            queue: self.queue,
            msn: self.msn,
            offset: self.offset,
        };
        DdpHeader::Untagged(ddp).emit(&mut out[LENGTH_FIELD..]);
        // The buffer has room for the longest header, so the fields fit.
        out[LENGTH_FIELD + UNTAGGED_LEN..][..size_of_val(fields)].copy_from_slice(fields.as_bytes());
        emit_length(UNTAGGED_LEN + size_of_val(fields), payload, out)
    }
}

/// Returns the L bit of the control byte.
#[inline]
const fn last_bit(last: bool) -> u8 {
    if last { ddp::LAST } else { 0 }
}
