//! What the tests share: captures of Linux siw, a place for files, and tshark.
#![allow(dead_code, reason = "each test program uses a part of it")]

use ironwarp_pcap::{Capture, Conversation, Frame, Kind};
use ironwarp_wire::Header;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A capture of Linux siw.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name)
}

pub(crate) fn open(name: &str) -> Capture {
    Capture::open(golden(name)).unwrap()
}

/// A file of this test alone.
pub(crate) fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// What tshark prints about a file.
///
/// Its decoder of RPC-over-RDMA is off: by a guess at the first bytes, it takes short Sends for its own and then finds
/// them malformed.
pub(crate) fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["--disable-protocol", "rpcordma"]).args(arguments);
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("tshark is missing: run `cargo xtask setup`")
        }
        Err(error) => panic!("tshark does not start: {error}"),
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "tshark {arguments:?} on {}: {errors}", file.display());
            String::from_utf8(output.stdout).unwrap()
        }
    }
}

/// How many messages of each opcode tshark sees in a file.
pub(crate) fn tshark_opcodes(file: &Path) -> BTreeMap<u8, usize> {
    let text = tshark(file, &["-T", "fields", "-e", "iwarp_rdma.opcode"]);
    let mut opcodes = BTreeMap::new();
    for opcode in text.split([',', '\n']).filter(|it| !it.is_empty()) {
        let opcode = u8::from_str_radix(opcode.trim_start_matches("0x"), 16).unwrap();
        *opcodes.entry(opcode).or_default() += 1;
    }
    opcodes
}

/// The packets in a file that tshark calls malformed, or finds another error in.
pub(crate) fn tshark_errors(file: &Path) -> String {
    tshark(file, &["-Y", "_ws.malformed || _ws.expert.severity == error"])
}

/// How many messages of each opcode we see.
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

/// What a frame is, without the packet that it came in.
pub(crate) type Content<'a> = (bool, std::ops::Range<usize>, &'a [u8], &'a Kind);

/// The frames that one side sent, in order.
pub(crate) fn sent_by(conversation: &Conversation, initiator: bool) -> Vec<Content<'_>> {
    let frames = conversation.frames.iter().filter(|frame| frame.from_initiator == initiator);
    frames.map(|it: &Frame| (it.from_initiator, it.range.clone(), &it.bytes[..], &it.kind)).collect()
}

/// The bytes that one side sent.
pub(crate) fn stream(conversation: &Conversation, initiator: bool) -> Vec<u8> {
    sent_by(conversation, initiator).into_iter().flat_map(|(_, _, bytes, _)| bytes.to_vec()).collect()
}

/// The same conversations with the same frames, whatever the packets.
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
