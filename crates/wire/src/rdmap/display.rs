//! Formatting of headers, on one line each, as in a packet analyser.

use super::control::{OPCODE_MASK, opcode};
use super::{
    AtomicOp, AtomicRequest, AtomicResponse, Header, Offender, ReadRequest, Send, SendWord, Tagged, Terminate,
};
use crate::byte_count::ByteCount;
use crate::ddp::DdpHeader;
use core::fmt::{self, Display, Formatter};

impl Display for Header {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(segment) => write_tagged(f, "Write", segment),
            Self::ReadResponse(segment) => write_tagged(f, "Read Response", segment),
            Self::Send(message) => write_send(f, "Send", message),
            Self::Immediate(message) => {
                let solicited = if message.solicited { " SE" } else { "" };
                write!(f, "Immediate{solicited}, msn {}, data {}", message.msn, message.data)?;
                write_srq(f, message.srq)
            }
            Self::ReadRequest(request) => write!(f, "Read Request, {request}"),
            Self::AtomicRequest(request) => write_atomic(f, request),
            Self::AtomicResponse(response) => {
                let AtomicResponse { msn, id, original } = response;
                write!(f, "Atomic Response, msn {msn}, id {id:#x}, was {original:#x}")
            }
            Self::Terminate(terminate) => write!(f, "Terminate, {terminate}"),
            Self::SendImmediate(message) => {
                write_send(f, "Send Immediate", &message.send)?;
                message.immediate.map_or(Ok(()), |data| write!(f, ", data {data}"))
            }
            Self::ReadV2Request(request) => {
                write!(
                    f,
                    "Read V2 Request, msn {}, {}, source {}",
                    request.msn,
                    bytes(request.len),
                    request.source
                )
            }
            Self::ReadV2Response(response) => {
                write!(f, "Read V2 Response, msn {}, offset {}", response.msn, response.offset)?;
                write_last(f, response.last)
            }
        }
    }
}

fn bytes(len: u32) -> ByteCount {
    ByteCount(len as usize)
}

/// Writes a tagged segment.
fn write_tagged(f: &mut Formatter<'_>, name: &str, segment: &Tagged) -> fmt::Result {
    write!(f, "{name}, {}", segment.addr)?;
    write_last(f, segment.last)
}

/// Writes a Send of any kind.
fn write_send(f: &mut Formatter<'_>, name: &str, send: &Send) -> fmt::Result {
    let solicited = if send.solicited { " SE" } else { "" };
    write!(f, "{name}{solicited}, msn {}, offset {}", send.msn, send.offset)?;
    write_last(f, send.last)?;
    match send.word {
        SendWord::Srq(number) => write_srq(f, number),
        SendWord::Invalidate(tag) => write!(f, ", invalidate {tag}"),
    }
}

/// Writes the number of a shared receive queue, unless it is zero.
fn write_srq(f: &mut Formatter<'_>, number: u32) -> fmt::Result {
    if number == 0 { Ok(()) } else { write!(f, ", srq {number:#x}") }
}

/// Writes whether the segment is the last of its message.
fn write_last(f: &mut Formatter<'_>, last: bool) -> fmt::Result {
    f.write_str(if last { ", last" } else { ", more" })
}

/// Writes an Atomic Request.
fn write_atomic(f: &mut Formatter<'_>, request: &AtomicRequest) -> fmt::Result {
    write!(f, "Atomic Request, msn {}, id {:#x}, {}", request.msn, request.id, request.target)?;
    match request.op {
        AtomicOp::FetchAdd { add, mask: 0 } => write!(f, ", add {add:#x}"),
        AtomicOp::FetchAdd { add, mask } => write!(f, ", add {add:#x} mask {mask:#x}"),
        AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } => {
            write!(f, ", if {compare:#x} mask {compare_mask:#x} then {swap:#x} mask {swap_mask:#x}")
        }
    }
}

impl Display for ReadRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "msn {}, {}, source {}, sink {}", self.msn, bytes(self.len), self.source, self.sink)
    }
}

impl Display for Terminate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.cause, self.offender)
    }
}

impl Display for Offender {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(length) = self.length {
            write!(f, ", for a segment of {length} bytes")?;
        }
        match (&self.header, &self.read) {
            (_, Some(read)) => write!(f, ": Read Request, {read}"),
            (Some(DdpHeader::Tagged(ddp)), None) => {
                write!(f, ": {}, {}", Opcode(ddp.ulp_control & OPCODE_MASK), ddp.addr)
            }
            (Some(DdpHeader::Untagged(ddp)), None) => {
                let (opcode, msn, offset) = (Opcode(ddp.ulp_control & OPCODE_MASK), ddp.msn, ddp.offset);
                write!(f, ": {opcode}, queue {}, msn {msn}, offset {offset}", ddp.queue)
            }
            (None, None) => Ok(()),
        }
    }
}

/// The opcode of a header that was not validated.
struct Opcode(u8);

impl Display for Opcode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            opcode::WRITE => "Write",
            opcode::READ_REQUEST => "Read Request",
            opcode::READ_RESPONSE => "Read Response",
            opcode::SEND => "Send",
            opcode::SEND_INVALIDATE => "Send with Invalidate",
            opcode::SEND_SOLICITED => "Send with Solicited Event",
            opcode::SEND_SOLICITED_INVALIDATE => "Send with Solicited Event and Invalidate",
            opcode::TERMINATE => "Terminate",
            opcode::IMMEDIATE => "Immediate Data",
            opcode::IMMEDIATE_SOLICITED => "Immediate Data with Solicited Event",
            opcode::ATOMIC_REQUEST => "Atomic Request",
            opcode::ATOMIC_RESPONSE => "Atomic Response",
            other => return write!(f, "opcode {other:#x}"),
        })
    }
}
