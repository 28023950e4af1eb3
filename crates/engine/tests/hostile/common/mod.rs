//! Helpers for tests with a hostile peer: the peer, its victim, and a neighbour that must not be affected.
#![allow(dead_code, reason = "not every test uses all helpers")]

pub(crate) mod neighbour;
pub(crate) mod peer;
pub(crate) mod victim;

use ironwarp_testkit::mapping::PAGE;
use ironwarp_wire::private::SendImmediate;
use ironwarp_wire::{
    AtomicOp, AtomicRequest, Header, Immediate, ImmediateData, ReadRequest, RemoteAddr, Send, SendWord, Tag,
    Tagged,
};
use std::time::Duration;

/// Longer than any operation here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The address that peers name as the sink of their Reads. Only the peer knows it.
pub(crate) const SINK: RemoteAddr = RemoteAddr { tag: Tag(0x5151_5100), offset: 0x1000 };

/// A Write of one segment.
pub(crate) fn write(tag: Tag, offset: u64) -> Header {
    Header::Write(Tagged { last: true, addr: RemoteAddr { tag, offset } })
}

/// The n-th Read of the stream.
pub(crate) fn read(msn: u32, tag: Tag, offset: u64, len: u32) -> Header {
    Header::ReadRequest(ReadRequest { msn, sink: SINK, len, source: RemoteAddr { tag, offset } })
}

/// The n-th Send of the stream, of one segment.
pub(crate) fn send(msn: u32) -> Header {
    segment(msn, 0, true)
}

/// A segment of a Send.
pub(crate) fn segment(msn: u32, offset: u32, last: bool) -> Header {
    Header::Send(Send { msn, last, offset, solicited: false, word: SendWord::NONE })
}

/// Immediate Data, which consume the n-th receive of the stream.
pub(crate) fn immediate(msn: u32, value: u32) -> Header {
    let data = ImmediateData::new(value);
    Header::Immediate(Immediate { msn, solicited: false, srq: 0, data })
}

/// A segment of a Send with Immediate. The first segment has the immediate data.
pub(crate) fn segment_with_immediate(msn: u32, offset: u32, last: bool) -> Header {
    let send = Send { msn, last, offset, solicited: false, word: SendWord::NONE };
    let immediate = (offset == 0).then(|| ImmediateData::new(0x1111_1111));
    Header::SendImmediate(SendImmediate { send, immediate })
}

/// The n-th Read or Atomic Request of the stream: adds one to a word.
pub(crate) fn add(msn: u32, tag: Tag, offset: u64) -> Header {
    atomic(msn, tag, offset, AtomicOp::FetchAdd { add: 1, mask: 0 })
}

pub(crate) fn atomic(msn: u32, tag: Tag, offset: u64, op: AtomicOp) -> Header {
    Header::AtomicRequest(AtomicRequest { msn, id: 0x1000 + msn, target: RemoteAddr { tag, offset }, op })
}

/// Resident memory of this process, including other tests.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}
