//! The frames are the same however TCP splits, repeats and reorders the bytes of a connection. Wireshark's decoder cannot
//! handle all of that, and `resegment` helps it.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{assert_same_frames, opcodes, open, stream, temporary};
use ironwarp_pcap::resegment::resegment;
use ironwarp_pcap::{Capture, CaptureWriter, Conversation, Flags, Segment, sample};
use ironwarp_testkit::tshark::{self, ERRORS, tshark};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs::File;
use std::ops::Range;
use std::time::Duration;

/// A piece of the stream from one side.
#[derive(Clone, Debug)]
struct Piece {
    from_initiator: bool,
    range: Range<usize>,
}

/// Writes a connection whose bytes are sent in these pieces.
fn write(writer: &mut CaptureWriter<Vec<u8>>, conversation: &Conversation, pieces: &[Piece], first: u32) {
    let streams = [stream(conversation, false), stream(conversation, true)];
    let mut packet = 0;
    let mut send = |from_initiator: bool, seq: u32, syn: bool, payload: &[u8]| {
        let (mut from, mut to) = (conversation.initiator, conversation.responder);
        if !from_initiator {
            (from, to) = (to, from);
        }
        packet += 1;
        let time = conversation.opened.time + Duration::from_micros(packet);
        let flags = Flags { syn, ack: !syn || !from_initiator, ..Flags::default() };
        let ack = first.wrapping_add(1);
        writer.segment(time, &Segment { from, to, seq, ack, flags, payload }).unwrap();
    };
    send(true, first, true, &[]);
    send(false, first, true, &[]);
    for Piece { from_initiator, range } in pieces {
        let seq = first.wrapping_add(1).wrapping_add(u32::try_from(range.start).unwrap());
        send(*from_initiator, seq, false, &streams[usize::from(*from_initiator)][range.clone()]);
    }
}

/// Splits a stream at `cuts`, and further where a piece does not fit a segment.
fn pieces(from_initiator: bool, len: usize, mut cuts: Vec<usize>) -> Vec<Piece> {
    cuts.extend((0..len).step_by(50_000).chain([len]));
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|it| Piece { from_initiator, range: it[0]..it[1] }).collect()
}

/// Returns pieces that confuse Wireshark's decoder: splits 1 to 7 bytes into an FPDU, some frames in segments of one byte,
/// and reordered and repeated segments.
fn nasty(conversation: &Conversation) -> Vec<Piece> {
    let mut all = Vec::new();
    for (index, frame) in conversation.frames.iter().enumerate() {
        let cuts = if index % 5 == 4 { (0..frame.bytes.len()).collect() } else { vec![1 + index % 7] };
        let mut cut = pieces(frame.from_initiator, frame.bytes.len(), cuts);
        for piece in &mut cut {
            piece.range = frame.range.start + piece.range.start..frame.range.start + piece.range.end;
        }
        if index % 3 == 1 {
            cut.swap(0, 1);
        }
        if index % 4 == 2 {
            cut.push(Piece { from_initiator: frame.from_initiator, range: frame.range.clone() });
        }
        all.extend(cut);
    }
    all
}

fn nasty_copy(capture: &Capture) -> Vec<u8> {
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    for conversation in &capture.conversations {
        // Sequence numbers wrap after 40 bytes, within the startup frame.
        write(&mut writer, conversation, &nasty(conversation), u32::MAX - 40);
    }
    writer.into_inner()
}

#[test]
fn resegmenting_makes_wireshark_see_every_message() {
    for name in ["siw-gold.pcap", "siw-gold-p2p-crc.pcap", "siw-rping.pcap"] {
        let original = open(name);
        let (nasty, whole) = (temporary("nasty.pcap"), temporary("whole.pcap"));
        std::fs::write(&nasty, nasty_copy(&original)).unwrap();
        let read = Capture::open(&nasty).unwrap();
        assert_same_frames(&read, &original);

        let (all, seen) = (opcodes(&original), tshark::opcodes(&nasty));
        let count = |opcodes: &std::collections::BTreeMap<u8, usize>| opcodes.values().sum::<usize>();
        assert!(count(&seen) < count(&all), "{name}: tshark sees {seen:?} of {all:?} without resegmenting");

        resegment(&read, File::create(&whole).unwrap()).unwrap();
        assert_same_frames(&Capture::open(&whole).unwrap(), &original);
        assert_eq!(tshark::opcodes(&whole), all, "{name}");
        assert_eq!(tshark(&whole, &["-Y", ERRORS]), "", "{name}");
    }
}

#[test]
fn each_frame_gets_its_own_segment() {
    let original = sample::write(Vec::new()).unwrap();
    let capture = Capture::parse(&original).unwrap();
    let file = resegment(&capture, Vec::new()).unwrap();
    let packets = ironwarp_pcap::read(&file).unwrap().packets;
    let segments = packets.iter().filter_map(|packet| ironwarp_pcap::segment(packet).unwrap());
    let sent: Vec<_> =
        segments.map(|segment| segment.payload).filter(|payload| !payload.is_empty()).collect();
    let frames: Vec<_> = capture.frames().map(|(_, frame)| &frame.bytes[..]).collect();
    assert!(sent == frames);
    // Times are preserved.
    let times = |capture: &Capture| capture.frames().map(|(_, frame)| frame.at.time).collect::<Vec<_>>();
    assert_eq!(times(&Capture::parse(&file).unwrap()), times(&capture));
}

/// A conversation, its pieces and the initial sequence number.
fn journeys() -> impl Strategy<Value = (Conversation, Vec<Piece>, u32)> {
    let marked = Capture::parse(&sample::write(Vec::new()).unwrap()).unwrap().conversations.swap_remove(2);
    assert!(marked.framing(true).markers && marked.framing(false).markers);
    let gold = open("siw-gold-p2p-crc.pcap").conversations.swap_remove(0);
    (prop_oneof![Just(gold), Just(marked)], any::<u32>()).prop_flat_map(|(conversation, first)| {
        let side = |side: bool| {
            let len = stream(&conversation, side).len();
            let cuts = prop::collection::vec(0..len, 0..60).prop_map(move |cuts| pieces(side, len, cuts));
            let again = prop::collection::vec((any::<Index>(), any::<Index>()), 0..8);
            (cuts, again).prop_map(move |(mut pieces, again)| {
                for (a, b) in again {
                    // Sent again with different bounds.
                    let start = a.index(len);
                    let end = start + b.index(2000).min(len - start);
                    pieces.push(Piece { from_initiator: side, range: start..end });
                }
                pieces
            })
        };
        let both = (side(true), side(false)).prop_map(|(a, b)| [a, b].concat());
        (Just(conversation.clone()), both.prop_shuffle(), Just(first))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn segmentation_does_not_change_the_frames((conversation, pieces, first) in journeys()) {
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        write(&mut writer, &conversation, &pieces, first);
        let read = Capture::parse(&writer.into_inner()).unwrap();
        let original = Capture { conversations: vec![conversation], datagrams: Vec::new(), others: 0, start: Duration::ZERO, cut_off: false };
        assert_same_frames(&read, &original);
    }
}
