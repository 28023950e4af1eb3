//! Checks the recorded traffic with Wireshark's dissector.
//!
//! The dissector gets lost if a TCP segment ends within the first bytes of an FPDU, so each frame is put into its own
//! segment. It follows markers if both directions have them, up to the first marker between two FPDUs: it takes that
//! for a part of the FPDU before, where RFC 5044 §4.3 has it belong to the one after.

use crate::options::Options;
use crate::relay::Tape;
use ironwarp_pcap::resegment::resegment;
use ironwarp_pcap::{Capture, CaptureWriter, Conversation, Frame, Kind};
use ironwarp_testkit::tshark::{ERRORS, tshark};
use ironwarp_wire::{Header, SendWord};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Distance between markers, the marker included.
const MARKER_SPACING: usize = 512;

/// Number of occurrences of each RDMAP opcode, and in the last segment of a message.
type Census = BTreeMap<(u8, bool), usize>;

/// Checks all frames, with our parser and with tshark. `messages` are the opcodes of the posted requests and their
/// responses, except empty Reads.
pub(crate) fn check(tapes: &[Tape], options: &Options, messages: &[u8]) {
    let mut capture = Capture::parse(&written(tapes)).unwrap();
    assert_eq!((capture.conversations.len(), capture.others), (tapes.len(), 0));
    for conversation in &capture.conversations {
        assert_eq!(conversation.problems, []);
        for side in [true, false] {
            let framing = conversation.framing(side);
            assert_eq!((framing.crc, framing.markers), (options.crc != 0, options.markers == 1));
        }
    }
    assert_eq!(posted(&capture), counted(messages.iter().copied()), "{options:?}");

    let all = census(&capture);
    capture.conversations.iter_mut().for_each(keep_what_tshark_follows);
    let followed = census(&capture);
    let count = |census: &Census| census.values().sum::<usize>();
    println!("{options:?}: {} messages, {} FPDUs of {}", messages.len(), count(&followed), count(&all));
    assert!(all.keys().eq(followed.keys()), "{followed:?} of {all:?}");
    assert!(count(&followed) > count(&all) * 3 / 4);

    let file = temporary(&format!("matrix-{}.pcap", options.choices().map(|it| it.to_string()).concat()));
    resegment(&capture, File::create(&file).unwrap()).unwrap();
    let errors = tshark(&file, &["-Y", ERRORS]);
    assert_eq!(errors, "", "{options:?}");
    assert_eq!(census_of_tshark(&file), followed, "{options:?}");
    check_crcs(&file, options.crc != 0, count(&followed));
    std::fs::remove_file(file).unwrap();
}

/// Returns the recordings as a capture, segmented as recorded.
fn written(tapes: &[Tape]) -> Vec<u8> {
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    let mut time = Duration::from_secs(1);
    for tape in tapes {
        let mut connection = writer.open(time, tape.initiator, tape.responder).unwrap();
        for piece in &tape.pieces {
            time += Duration::from_micros(1);
            writer.send(time, &mut connection, piece.from_initiator, &piece.bytes).unwrap();
        }
        writer.close(time, connection).unwrap();
    }
    writer.into_inner()
}

/// Truncates a direction at a marker between two FPDUs: see above.
fn keep_what_tshark_follows(conversation: &mut Conversation) {
    for side in [true, false] {
        let marked = conversation.framing(side).markers;
        let (mut startup, mut lost) = (None, false);
        conversation.frames.retain(|frame| {
            if frame.from_initiator != side {
                return true;
            }
            let begin = *startup.get_or_insert(frame.range.end);
            lost |=
                marked && frame.range.end > begin && (frame.range.end - begin).is_multiple_of(MARKER_SPACING);
            !lost
        });
    }
}

/// Number of messages of each opcode, except those that the adapter sends on its own: signals, and empty Reads for
/// acknowledgements.
fn posted(capture: &Capture) -> BTreeMap<u8, usize> {
    let frames = capture.frames().map(|(_, frame)| frame);
    let frames = frames.filter(|frame| frame.name() != "Signal" && !is_empty_read(frame));
    counted(
        frames.filter_map(|frame| {
            opcode(frame).filter(|(_, last)| *last).map(|(opcode, _)| meant(frame, opcode))
        }),
    )
}

/// Two Ironwarp ends may use Read V2 once they recognise each other, which counts as a Read.
fn meant(frame: &Frame, opcode: u8) -> u8 {
    match &frame.kind {
        Kind::Fpdu { fpdu, .. } => match fpdu.header {
            Header::ReadV2Request(_) => 1,
            Header::ReadV2Response(_) => 2,
            _ => opcode,
        },
        _ => opcode,
    }
}

fn is_empty_read(frame: &Frame) -> bool {
    let Kind::Fpdu { fpdu, .. } = &frame.kind else { return false };
    match &fpdu.header {
        Header::ReadRequest(read) => read.len == 0,
        Header::ReadResponse(_) => fpdu.payload_len == 0,
        _ => false,
    }
}

fn census(capture: &Capture) -> Census {
    counted(capture.frames().filter_map(|(_, frame)| opcode(frame)))
}

fn counted<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.for_each(|it| *counts.entry(it).or_default() += 1);
    counts
}

/// Returns the opcode of an FPDU, and whether it ends its message (RFC 5040 figure 4, RFC 7306 figure 1, docs/wire.md).
fn opcode(frame: &Frame) -> Option<(u8, bool)> {
    let Kind::Fpdu { fpdu, .. } = &frame.kind else { return None };
    Some(match &fpdu.header {
        Header::Write(write) => (0, write.last),
        Header::ReadRequest(_) => (1, true),
        Header::ReadResponse(response) => (2, response.last),
        Header::Send(send) => {
            let invalidate = matches!(send.word, SendWord::Invalidate(_));
            (3 + 2 * u8::from(send.solicited) + u8::from(invalidate), send.last)
        }
        Header::Immediate(message) => (8 + u8::from(message.solicited), true),
        Header::AtomicRequest(_) => (0xa, true),
        Header::AtomicResponse(_) => (0xb, true),
        Header::SendImmediate(message) => (0xf, message.send.last),
        Header::ReadV2Request(_) => (0xf, true),
        Header::ReadV2Response(response) => (0xf, response.last),
        other @ Header::Terminate(_) => panic!("unexpected Terminate {other}"),
    })
}

/// Each FPDU is in one packet, or in several of which the last is dissected: one line each.
fn census_of_tshark(file: &Path) -> Census {
    let fields = ["-e", "iwarp_rdma.opcode", "-e", "iwarp_ddp.last_flag"];
    let text = tshark(file, &[&["-Y", "iwarp_ddp_rdmap", "-T", "fields"], &fields[..]].concat());
    let line = |line: &str| {
        let (opcode, last) = line.split_once('\t').unwrap();
        (u8::from_str_radix(opcode.trim_start_matches("0x"), 16).unwrap(), last == "1")
    };
    counted(text.lines().map(line))
}

/// tshark verifies each CRC; without CRCs, the field is zero.
fn check_crcs(file: &Path, crc: bool, fpdus: usize) {
    let filter = if crc { "iwarp_mpa.crc_check" } else { "iwarp_mpa.crc == 0" };
    let text = tshark(file, &["-Y", filter, "-O", "iwarp_mpa"]);
    let good = |line: &&str| line.contains(if crc { "(Good CRC32)" } else { "CRC: 0x00000000" });
    assert_eq!(text.lines().filter(good).count(), fpdus);
    assert!(!text.contains("Bad CRC32"));
}

/// Returns the path of a temporary file of this test.
fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
