//! What was on the wire, judged by Wireshark's decoder. Before this: `relay.rs`, which recorded it.
//!
//! Its decoder loses its way where a TCP segment ends within the first bytes of an FPDU, so the capture is cut anew: each
//! frame in a segment of its own. It follows markers if both directions have them, and up to the first one that stands
//! between two FPDUs: it takes that for a part of the FPDU before it, where RFC 5044 §4.3 has it belong to the one behind.

use crate::options::Options;
use crate::relay::Tape;
use ironwarp_pcap::recut::recut;
use ironwarp_pcap::{Capture, CaptureWriter, Conversation, Frame, Kind};
use ironwarp_wire::{Header, SendWord};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// From one marker to the next, itself included.
const MARKER_SPACING: usize = 512;

/// How often each RDMAP opcode occurs, and how often in the last segment of a message.
type Census = BTreeMap<(u8, bool), usize>;

/// All frames are what they should be, to ourselves and to tshark. `messages` are the opcodes of what was posted, and of
/// its answers, but for empty Reads.
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
    recut(&capture, File::create(&file).unwrap()).unwrap();
    let errors = tshark(&file, &["-Y", "_ws.malformed || _ws.expert.severity == error"]);
    assert_eq!(errors, "", "{options:?}");
    assert_eq!(census_of_tshark(&file), followed, "{options:?}");
    check_crcs(&file, options.crc != 0, count(&followed));
    std::fs::remove_file(file).unwrap();
}

/// The tapes as a capture, cut as they were recorded.
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

/// Leaves out what follows in a direction once a marker stands between two FPDUs: see above.
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

/// How many messages of each opcode there are, without those that the adapter sends on its own: signals, and empty Reads to
/// hear how far the peer is.
fn posted(capture: &Capture) -> BTreeMap<u8, usize> {
    let frames = capture.frames().map(|(_, frame)| frame);
    let frames = frames.filter(|frame| frame.name() != "Signal" && !is_empty_read(frame));
    counted(
        frames.filter_map(|frame| {
            opcode(frame).filter(|(_, last)| *last).map(|(opcode, _)| meant(frame, opcode))
        }),
    )
}

/// Between two of our kind, Reads may leave as Read V2, once both know that: they count as Reads all the same.
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

/// The opcode of an FPDU, and whether it ends its message (RFC 5040 figure 4, RFC 7306 figure 1, docs/wire.md).
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
        other @ Header::Terminate(_) => panic!("nobody posted anything that needs {other}"),
    })
}

/// Each FPDU is in a packet of its own, or in several of which the last is dissected: a line each.
fn census_of_tshark(file: &Path) -> Census {
    let fields = ["-e", "iwarp_rdma.opcode", "-e", "iwarp_ddp.last_flag"];
    let text = tshark(file, &[&["-Y", "iwarp_ddp_rdmap", "-T", "fields"], &fields[..]].concat());
    let line = |line: &str| {
        let (opcode, last) = line.split_once('\t').unwrap();
        (u8::from_str_radix(opcode.trim_start_matches("0x"), 16).unwrap(), last == "1")
    };
    counted(text.lines().map(line))
}

/// tshark computes each CRC itself; where none was agreed on, the field is zero.
fn check_crcs(file: &Path, crc: bool, fpdus: usize) {
    let filter = if crc { "iwarp_mpa.crc_check" } else { "iwarp_mpa.crc == 0" };
    let text = tshark(file, &["-Y", filter, "-O", "iwarp_mpa"]);
    let good = |line: &&str| line.contains(if crc { "(Good CRC32)" } else { "CRC: 0x00000000" });
    assert_eq!(text.lines().filter(good).count(), fpdus);
    assert!(!text.contains("Bad CRC32"));
}

/// What tshark prints about a file. It looks at what is in packets first: it knows some of the ports that the kernel chooses
/// by other protocols. Its decoder of RPC-over-RDMA is off: by a guess at the first bytes, it takes short Sends for its own
/// and then finds them malformed.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["--disable-protocol", "rpcordma"]);
    command.args(["-o", "tcp.try_heuristic_first:TRUE"]).args(arguments);
    let output = command.output().expect("tshark starts: `cargo xtask setup` installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark {arguments:?} on {}: {errors}", file.display());
    String::from_utf8(output.stdout).unwrap()
}

/// A file of this test alone.
fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
