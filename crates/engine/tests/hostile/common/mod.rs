//! What the tests of a hostile peer share: the peer, its victim, and a neighbour who must not notice.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod mapping;
pub(crate) mod neighbour;
pub(crate) mod peer;
pub(crate) mod victim;

use ironwarp_wire::{Header, Place, ReadRequest, Send, SendWord, Tag, Tagged};
use std::time::Duration;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The place that peers name as the sink of their Reads. Nobody but the peer knows it.
pub(crate) const SINK: Place = Place { tag: Tag(0x5151_5100), offset: 0x1000 };

/// A Write of one segment.
pub(crate) fn write(tag: Tag, offset: u64) -> Header {
    Header::Write(Tagged { last: true, place: Place { tag, offset } })
}

/// The n-th Read of the stream.
pub(crate) fn read(msn: u32, tag: Tag, offset: u64, len: u32) -> Header {
    Header::ReadRequest(ReadRequest { msn, sink: SINK, len, source: Place { tag, offset } })
}

/// The n-th Send of the stream, of one segment.
pub(crate) fn send(msn: u32) -> Header {
    segment(msn, 0, true)
}

/// A segment of a Send.
pub(crate) fn segment(msn: u32, offset: u32, last: bool) -> Header {
    Header::Send(Send { msn, last, offset, solicited: false, word: SendWord::NONE })
}

/// How much memory this process has, other tests included.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * mapping::PAGE
}
