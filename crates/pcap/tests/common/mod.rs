//! Test helpers: captures of Linux siw and their contents.
#![allow(dead_code, reason = "not every test binary uses everything")]

use ironwarp_pcap::{Capture, Conversation, Frame, Kind};
use ironwarp_wire::Header;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A capture of Linux siw.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name)
}

pub(crate) fn open(name: &str) -> Capture {
    Capture::open(golden(name)).unwrap()
}

/// Returns the path of a temporary file.
pub(crate) fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Counts the messages of each opcode in a capture.
pub(crate) fn opcodes(capture: &Capture) -> BTreeMap<u8, usize> {
    let mut opcodes = BTreeMap::new();
    for (_, frame) in capture.frames() {
        if let Kind::Fpdu { fpdu, .. } = &frame.kind {
            *opcodes.entry(opcode(&fpdu.header)).or_default() += 1;
        }
    }
    opcodes
}

/// RFC 5040 figure 4, RFC 7306 figure 1, and RFC 6580's experimental opcode.
pub(crate) fn opcode(header: &Header) -> u8 {
    use ironwarp_wire::SendWord::Invalidate;
    match header {
        Header::Write(_) => 0,
        Header::ReadRequest(_) => 1,
        Header::ReadResponse(_) => 2,
        Header::Send(send) => 3 + 2 * u8::from(send.solicited) + u8::from(matches!(send.word, Invalidate(_))),
        Header::Terminate(_) => 7,
        Header::Immediate(message) => 8 + u8::from(message.solicited),
        Header::AtomicRequest(_) => 0xa,
        Header::AtomicResponse(_) => 0xb,
        Header::SendImmediate(_) | Header::ReadV2Request(_) | Header::ReadV2Response(_) => 0xf,
    }
}

/// A frame without its packet.
pub(crate) type Content<'a> = (bool, std::ops::Range<usize>, &'a [u8], &'a Kind);

/// Returns the frames that one side sent, in order.
pub(crate) fn sent_by(conversation: &Conversation, initiator: bool) -> Vec<Content<'_>> {
    let frames = conversation.frames.iter().filter(|frame| frame.from_initiator == initiator);
    frames.map(|it: &Frame| (it.from_initiator, it.range.clone(), &it.bytes[..], &it.kind)).collect()
}

/// Returns the bytes that one side sent.
pub(crate) fn stream(conversation: &Conversation, initiator: bool) -> Vec<u8> {
    sent_by(conversation, initiator).into_iter().flat_map(|(_, _, bytes, _)| bytes.to_vec()).collect()
}

/// Asserts that two captures have the same conversations and frames, ignoring packets.
pub(crate) fn assert_same_frames(found: &Capture, expected: &Capture) {
    assert_eq!(found.conversations.len(), expected.conversations.len());
    for (found, expected) in found.conversations.iter().zip(&expected.conversations) {
        assert_eq!(found.problems, []);
        assert_eq!((found.initiator, found.responder), (expected.initiator, expected.responder));
        for side in [true, false] {
            assert_eq!(found.framing(side), expected.framing(side));
            assert_eq!(sent_by(found, side), sent_by(expected, side));
        }
    }
}
