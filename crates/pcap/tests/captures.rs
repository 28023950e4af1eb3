//! Captures of Linux siw are decoded completely, and encoding the result yields the same bytes.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{golden, opcode, opcodes, open, sent_by, stream, temporary};
use ironwarp_pcap::{Capture, Encoder, Kind};
use ironwarp_testkit::tshark::{self, tshark};
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::{
    Cause, Header, Protection, ReadRequest, RemoteAddr, Tag, TaggedBuffer, Terminate, UntaggedBuffer,
};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

const GOLD: &str = "siw-gold.pcap";
const GOLD_P2P_CRC: &str = "siw-gold-p2p-crc.pcap";
const RPING: &str = "siw-rping.pcap";
const RPING_V1: &str = "siw-rping-v1.pcap";
const RPING_P2P_CLIENT: &str = "siw-rping-p2pclient.pcap";
const RPING_P2P_SERVER: &str = "siw-rping-p2pserver.pcap";
const ALL: [&str; 6] = [GOLD, GOLD_P2P_CRC, RPING, RPING_V1, RPING_P2P_CLIENT, RPING_P2P_SERVER];

#[test]
fn every_byte_is_part_of_a_frame() {
    for name in ALL {
        let capture = open(name);
        let carried = bytes_carried(name);
        assert_eq!(capture.others, 0, "{name}");
        assert_eq!(capture.conversations.len() * 2, carried.len(), "{name}");
        for conversation in &capture.conversations {
            assert_eq!(conversation.problems, [], "{name}");
            for side in [true, false] {
                let mut end = 0;
                for (_, range, bytes, _) in sent_by(conversation, side) {
                    assert_eq!((range.start, range.len()), (end, bytes.len()), "{name}");
                    end = range.end;
                }
                let (mut from, mut to) = (conversation.initiator, conversation.responder);
                if !side {
                    (from, to) = (to, from);
                }
                assert_eq!(end, carried[&(from, to)], "{name}: from {from}");
            }
        }
    }
}

/// Returns the number of bytes that each end sent, computed from sequence numbers alone.
fn bytes_carried(name: &str) -> HashMap<(SocketAddr, SocketAddr), usize> {
    let file = std::fs::read(golden(name)).unwrap();
    let (mut first, mut carried) = (HashMap::new(), HashMap::new());
    for packet in ironwarp_pcap::read(&file).unwrap().packets {
        let Some(segment) = ironwarp_pcap::segment(&packet).unwrap() else { continue };
        let key = (segment.from, segment.to);
        if segment.flags.syn {
            assert_eq!(first.insert(key, segment.seq + 1), None, "{name}: ports are used once");
            carried.insert(key, 0);
        } else if segment.flags.fin || !segment.payload.is_empty() {
            let end = segment.seq.wrapping_sub(first[&key]) as usize + segment.payload.len();
            carried.entry(key).and_modify(|carried| *carried = end.max(*carried));
        }
    }
    carried
}

#[test]
fn every_frame_is_encoded_to_the_bytes_it_was_decoded_from() {
    for name in ALL {
        for conversation in open(name).conversations {
            for side in [true, false] {
                let mut encoder = Encoder::new(conversation.framing(side));
                for (_, _, bytes, kind) in sent_by(&conversation, side) {
                    let encoded = match kind {
                        Kind::Startup(startup) => Encoder::startup(&startup.view()).unwrap(),
                        Kind::Fpdu { fpdu, payload } => encoder.fpdu(&fpdu.header, payload).unwrap(),
                    };
                    match kind {
                        Kind::Fpdu { fpdu, .. } if opcode(&fpdu.header) == 7 => {
                            assert_terminate_normalised(bytes, &encoded);
                        }
                        _ => assert_eq!(encoded, bytes, "{name}: {kind:?}"),
                    }
                }
            }
        }
    }
}

/// siw swaps nibbles and bits in the control bytes of a Terminate, and counts only payload in the length that follows. These
/// are all forms in the captures, each with its equivalent by RFC 5040 §4.8. The rest of the frame is the same, except the CRC.
fn assert_terminate_normalised(siw: &[u8], encoded: &[u8]) {
    const FORMS: [([u8; 6], [u8; 6]); 4] = [
        ([0x11, 0x01, 0x03, 0, 0, 0x40], [0x11, 0x01, 0xc0, 0, 0, 0x4e]), // Write out of bounds
        ([0x11, 0x00, 0x03, 0, 0, 0x40], [0x11, 0x00, 0xc0, 0, 0, 0x4e]), // Write with an invalid tag
        ([0x21, 0x02, 0x03, 0, 4, 0x4c], [0x12, 0x02, 0xc0, 0, 4, 0x5e]), // Send without a buffer
        ([0x10, 0x00, 0x07, 0, 0, 0x00], [0x01, 0x00, 0xe0, 0, 0, 0x2e]), // Read with an invalid tag
    ];
    let control = 20..26;
    let form = FORMS.iter().find(|(found, _)| *found == siw[control.clone()]);
    let (_, normal) = form.unwrap_or_else(|| panic!("unknown form of Terminate: {siw:02x?}"));
    let mut expected = siw.to_vec();
    expected[control].copy_from_slice(normal);
    let crc = siw.len() - 4;
    assert_eq!(encoded[..crc], expected[..crc]);
    assert_eq!(encoded.len(), siw.len());
}

#[test]
fn terminates_have_the_expected_causes() {
    let addr = |tag, offset| RemoteAddr { tag: Tag(tag), offset };
    let write = |it: &Terminate| match (it.offender.header, it.offender.read) {
        (Some(DdpHeader::Tagged(ddp)), None) => {
            (it.cause, it.offender.length, ddp.control, ddp.ulp_control, ddp.addr)
        }
        other => panic!("{other:?}"),
    };
    let bounds = Cause::TaggedBuffer(TaggedBuffer::Bounds);
    let tag = Cause::TaggedBuffer(TaggedBuffer::Tag);
    for (name, out_of_bounds, invalid, read) in [
        (
            GOLD,
            addr(0xca5a_fb00, 0x5618_84bf_3ff6),
            addr(0xe3c7_4755, 0x5556_09bc_5000),
            (addr(0xf340_0e00, 0x55d4_4457_e000), addr(0x306c_2d00, 0x561b_04b3_7000)),
        ),
        (
            GOLD_P2P_CRC,
            addr(0x5f9b_bf00, 0x557a_db14_bff6),
            addr(0xf022_6655, 0x5582_ebec_8000),
            (addr(0x9c33_3400, 0x5578_b3e6_6000), addr(0x5b08_f800, 0x55b0_1428_f000)),
        ),
    ] {
        let capture = open(name);
        let terminates: Vec<Terminate> =
            capture.frames().filter_map(|(_, frame)| terminate(&frame.kind)).collect();
        let [first, second, third, fourth] = &terminates[..] else { panic!("{terminates:?}") };
        assert_eq!(write(first), (bounds, Some(78), 0xc1, 0x40, out_of_bounds), "{name}");
        assert_eq!(write(third), (tag, Some(78), 0xc1, 0x40, invalid), "{name}");

        assert_eq!(
            (second.cause, second.offender.length),
            (Cause::Protection(Protection::Tag), Some(46)),
            "{name}"
        );
        // siw puts the length of the read where the sequence number belongs.
        let (sink, source) = read;
        assert_eq!(second.offender.read, Some(ReadRequest { msn: 64, sink, len: 64, source }), "{name}");

        let no_buffer = Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer);
        assert_eq!((fourth.cause, fourth.offender.length), (no_buffer, Some(1118)), "{name}");
        let Some(DdpHeader::Untagged(ddp)) = fourth.offender.header else { panic!("{fourth:?}") };
        assert_eq!((ddp.ulp_control, ddp.queue, ddp.msn, ddp.offset), (0x43, 0, 1, 0), "{name}");
    }
}

fn terminate(kind: &Kind) -> Option<Terminate> {
    match kind {
        Kind::Fpdu { fpdu, .. } => match fpdu.header {
            Header::Terminate(terminate) => Some(terminate),
            _ => None,
        },
        Kind::Startup(_) => None,
    }
}

/// Counts the frames of each capture: startup frames by contents, FPDUs by kind.
#[test]
fn census() {
    let gold: Expected = &[
        ("MPA Request, revision 2, IRD 3, ORD 5, 17 bytes of private data", 7),
        ("MPA Reply, revision 2, IRD 5, ORD 3, 16 bytes of private data", 6),
        ("MPA Reply REJECTED, revision 2, IRD 5, ORD 3, 14 bytes of private data", 1),
        ("Write", 8),
        ("Read Request", 4),
        ("Read Response", 5),
        ("Send", 4),
        ("Send SE", 1),
        ("Send Invalidate", 1),
        ("Send SE Invalidate", 1),
        ("Terminate", 4),
    ];
    let gold_p2p_crc: Expected = &[
        (
            "MPA Request, revision 2, IRD 3, ORD 5, peer-to-peer, RTR Write Read, CRC, 17 bytes of private data",
            7,
        ),
        ("MPA Reply, revision 2, IRD 5, ORD 3, peer-to-peer, RTR Write, CRC, 16 bytes of private data", 6),
        (
            "MPA Reply REJECTED, revision 2, IRD 5, ORD 3, peer-to-peer, RTR Write, CRC, 14 bytes of private data",
            1,
        ),
        ("Write", 14), // as in the other capture, plus six RTRs
        ("Read Request", 4),
        ("Read Response", 5),
        ("Send", 4),
        ("Send SE", 1),
        ("Send Invalidate", 1),
        ("Send SE Invalidate", 1),
        ("Terminate", 4),
    ];
    check_census(GOLD, gold);
    check_census(GOLD_P2P_CRC, gold_p2p_crc);
}

#[test]
fn census_of_rping() {
    let plain = |role| format!("MPA {role}, revision 2, IRD 1, ORD 1, 0 bytes of private data");
    let (request, reply) = (&plain("Request")[..], &plain("Reply")[..]);
    let kinds = [("Read Request", 3), ("Read Response", 5), ("Send", 12)];
    let with = |request, reply, writes| [&[(request, 2), (reply, 2), ("Write", writes)], &kinds[..]].concat();
    check_census(RPING, &with(request, reply, 5));
    check_census(RPING_P2P_SERVER, &with(request, reply, 5));
    let request =
        "MPA Request, revision 2, IRD 1, ORD 1, peer-to-peer, RTR Write Read, CRC, 0 bytes of private data";
    let reply = "MPA Reply, revision 2, IRD 1, ORD 1, peer-to-peer, RTR Write, CRC, 0 bytes of private data";
    check_census(RPING_P2P_CLIENT, &with(request, reply, 7)); // plus two RTRs
    let request = "MPA Request, revision 1, 0 bytes of private data";
    let reply = "MPA Reply, revision 1, 0 bytes of private data";
    // With revision 1, siw has no IRD and ORD, and rping gives up when its first read fails.
    check_census(RPING_V1, &[(request, 2), (reply, 2), ("Send", 2)]);
}

type Expected<'a> = &'a [(&'a str, usize)];

fn check_census(name: &str, expected: Expected<'_>) {
    let capture = open(name);
    let mut found = BTreeMap::new();
    for (_, frame) in capture.frames() {
        let text = match &frame.kind {
            Kind::Startup(_) => frame.to_string(),
            Kind::Fpdu { .. } => frame.name().to_owned(),
        };
        *found.entry(text).or_default() += 1;
    }
    let expected: BTreeMap<String, usize> =
        expected.iter().map(|(text, n)| ((*text).to_owned(), *n)).collect();
    assert_eq!(found, expected, "{name}");
    assert_eq!(opcodes(&capture), tshark::opcodes(&golden(name)), "{name}: tshark sees different messages");
}

#[test]
fn crcs_are_checked_where_they_are_used() {
    let with_crc = [GOLD_P2P_CRC, RPING_P2P_CLIENT];
    for name in ALL {
        let crc = with_crc.contains(&name);
        for conversation in open(name).conversations {
            assert_eq!(conversation.framing(true).crc, crc, "{name}");
            assert_eq!(conversation.framing(false).crc, crc, "{name}");
            // siw sends zero if CRCs are not used.
            for (_, _, bytes, kind) in sent_by(&conversation, true) {
                let zero = bytes.ends_with(&[0; 4]);
                assert!(matches!(kind, Kind::Startup(_)) || zero != crc, "{name}");
            }
        }
    }
}

#[test]
fn pcapng_gives_the_same_as_pcap() {
    let file = temporary("rping.pcapng");
    tshark(&golden(RPING), &["-F", "pcapng", "-w", file.to_str().unwrap()]);
    assert_eq!(std::fs::read(&file).unwrap()[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert_eq!(Capture::open(&file).unwrap(), open(RPING));
    assert!(!stream(&open(RPING).conversations[0], true).is_empty());
}
