//! Ironwarp sends the same as Linux siw in the same situation, field by field. The situations are those of the golden
//! captures of siw: two Ironwarp ends without private extensions repeat each of their connections, in both roles.
//!
//! | | |
//! |---|---|
//! | `replay` | repeats a connection: the same startup, the same messages with the same bytes, the same violations |
//! | `fields` | a frame as named fields, parsed independently; tags and addresses only relative to each other |
//! | `differences` | every known difference with its reason. Unknown differences fail, and so do obsolete ones |
//! | `path` | segments of the size that they had in the captures of siw |

#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod differences;
mod fields;
mod replay;

use differences::{DIFFERENCES, Difference};
use fields::{Fields, Names};
use ironwarp_pcap::{Capture, Conversation};
use replay::{Ends, Mistake};
use std::collections::HashSet;
use std::path::Path;

/// Payload of a full tagged segment, on a path with a segment size of 1448 bytes.
const SIW_SEGMENT: usize = 1428;
const OUR_SEGMENT: usize = 1424;

/// A frame: the name of its kind, and its bytes.
type Sent = (&'static str, Vec<u8>);

/// siw as in the kernel.
const PLAIN: Ends = Ends { client_crc: false, server_crc: false };
/// siw built to require CRCs.
const CRC: Ends = Ends { client_crc: true, server_crc: true };

/// Every operation, each kind of Send, violations of bounds, of two tags and of a receive's length, and a rejection.
#[test]
fn every_operation_and_violation_in_revision_2() {
    check("siw-gold.pcap", PLAIN);
}

#[test]
fn every_operation_and_violation_peer_to_peer_and_with_crcs() {
    check("siw-gold-p2p-crc.pcap", CRC);
}

#[test]
fn rping_of_64_and_of_4000_bytes() {
    check("siw-rping.pcap", PLAIN);
}

#[test]
fn rping_in_revision_1() {
    check("siw-rping-v1.pcap", PLAIN);
}

#[test]
fn rping_where_the_client_wants_peer_to_peer_and_crcs() {
    check("siw-rping-p2pclient.pcap", Ends { client_crc: true, server_crc: false });
}

#[test]
fn rping_where_the_server_requires_crcs() {
    check("siw-rping-p2pserver.pcap", Ends { client_crc: false, server_crc: true });
}

/// Replays all connections of a capture, and compares.
fn check(file: &str, ends: Ends) {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcap/tests/captures");
    let golden = Capture::open(captures.join(file)).unwrap();
    let gold = file.starts_with("siw-gold");
    let mut seen = HashSet::new();
    for (i, conversation) in golden.conversations.iter().enumerate() {
        let mistake = match i {
            2 | 3 if gold => Mistake::Tag,
            _ => Mistake::None,
        };
        // In the captures of siw, the program's memory was one page in one case, and spread over two in the other.
        let region = if gold { 4096 } else { 8192 };
        let ours = replay::replay(&format!("golden-{file}-{i}.pcap"), conversation, ends, mistake, region);
        compare(&format!("{file}, connection {i}"), file, conversation, &ours, &mut seen);
    }
    let due: Vec<_> = DIFFERENCES.iter().filter(|it| it.files.contains(&file)).collect();
    let obsolete: Vec<_> = due.into_iter().filter(|it| !seen.contains(*it)).collect();
    assert!(obsolete.is_empty(), "{file}: obsolete differences: {obsolete:#?}");
}

/// Compares both directions, frame by frame.
fn compare(
    name: &str,
    file: &str,
    siw: &Conversation,
    ours: &Conversation,
    seen: &mut HashSet<&'static Difference>,
) {
    assert_eq!(ours.problems, [], "{name}");
    let mut unknown = Vec::new();
    let (mut names_of_siw, mut names_of_ours) = (Names::default(), Names::default());
    for initiator in [true, false] {
        let siws = resegment_as_ours(&sent_by(siw, initiator));
        let ours = without_nudges(&siws, sent_by(ours, initiator));
        let kinds = |frames: &[Sent]| frames.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let role = if initiator { "initiator" } else { "responder" };
        assert_eq!(kinds(&ours), kinds(&siws), "{name}: frames of the {role} (ours, siw's)");
        for (i, ((kind, theirs), (_, ours))) in siws.iter().zip(&ours).enumerate() {
            let (found, expected) =
                (fields::of(ours, &mut names_of_ours), fields::of(theirs, &mut names_of_siw));
            let at = format!("{name}: frame {i} of the {role}, {kind}");
            same_fields(&at, file, kind, &expected, &found, seen, &mut unknown);
        }
    }
    assert!(unknown.is_empty(), "unknown differences: {unknown:#?}");
}

fn same_fields(
    at: &str,
    file: &str,
    frame: &str,
    siw: &Fields,
    ours: &Fields,
    seen: &mut HashSet<&'static Difference>,
    unknown: &mut Vec<String>,
) {
    let names = |fields: &Fields| fields.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(ours), names(siw), "{at}: {ours:?} instead of {siw:?}");
    for ((name, theirs), (_, ours)) in siw.iter().zip(ours) {
        if theirs == ours {
            continue;
        }
        let known = DIFFERENCES.iter().find(|it| {
            it.files.contains(&file)
                && (it.frame, it.field) == (frame, *name)
                && (it.siw, it.ours) == (&theirs[..], &ours[..])
        });
        match known {
            Some(known) => _ = seen.insert(known),
            None => unknown.push(format!("{at}: {name} is {ours}, siw has {theirs}")),
        }
    }
}

fn sent_by(conversation: &Conversation, initiator: bool) -> Vec<Sent> {
    let frames = conversation.frames.iter().filter(|frame| frame.from_initiator == initiator);
    frames.map(|frame| (frame.name(), frame.bytes.clone())).collect()
}

/// Returns the frames of siw with tagged messages segmented as Ironwarp segments them, so that all other fields can be
/// compared. siw fills segments to the last byte; Ironwarp leaves up to seven bytes, so that the segments of an aligned
/// buffer stay aligned.
fn resegment_as_ours(siw: &[Sent]) -> Vec<Sent> {
    let mut cut = Vec::new();
    let mut open: Option<(&'static str, Vec<u8>, Vec<u8>)> = None;
    for (name, bytes) in siw {
        let tagged = !bytes.starts_with(b"MPA") && bytes[2] & 0x80 != 0;
        if !tagged {
            cut.push((*name, bytes.clone()));
            continue;
        }
        let payload = &bytes[16..2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))];
        let (_, _, message) = open.get_or_insert_with(|| (name, bytes.clone(), Vec::new()));
        message.extend(payload);
        if bytes[2] & 0x40 == 0 {
            assert_eq!(payload.len(), SIW_SEGMENT);
        } else if let Some((name, first, message)) = open.take() {
            cut.extend(segments(&first, &message).into_iter().map(|bytes| (name, bytes)));
        }
    }
    cut
}

/// Segments a tagged message; the header is that of the first segment.
fn segments(first: &[u8], message: &[u8]) -> Vec<Vec<u8>> {
    let offset = u64::from_be_bytes(first[8..16].try_into().unwrap());
    let crc = &first[first.len() - 4..];
    let count = message.len().div_ceil(OUR_SEGMENT).max(1);
    (0..count)
        .map(|i| {
            let at = i * OUR_SEGMENT;
            let payload = &message[at..message.len().min(at + OUR_SEGMENT)];
            let len = u16::try_from(14 + payload.len()).unwrap().to_be_bytes();
            let last = if i + 1 == count { 0x40 } else { 0 };
            let to = (offset + at as u64).to_be_bytes();
            let mut fpdu =
                [&len, &[first[2] & !0x40 | last, first[3]][..], &first[4..8], &to, payload].concat();
            fpdu.resize(fpdu.len().next_multiple_of(4), 0);
            [&fpdu, crc].concat()
        })
        .collect()
}

/// Returns our frames without the repeated empty Writes that siw did not send. An initiator of Ironwarp repeats its
/// empty Write if nothing arrives for 50 ms, because siw may have missed the first. Timing is not compared.
fn without_nudges(siw: &[Sent], ours: Vec<Sent>) -> Vec<Sent> {
    let is_empty_write = |(_, bytes): &Sent| bytes.starts_with(&[0, 14, 0xc1, 0x40]);
    let mut due = siw.iter().peekable();
    ours.into_iter()
        .filter(|sent| {
            let nudge = is_empty_write(sent) && !due.peek().is_some_and(|it| is_empty_write(it));
            if !nudge {
                due.next();
            }
            !nudge
        })
        .collect()
}
