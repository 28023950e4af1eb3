//! Segmentation in software: every frame that comes out is whole, within the MTU, and has the right bytes (P7).
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_io_unit::frame::{Invalid, MAX_FRAME, MAX_SEGMENTS, check, segments};
use ironwarp_testkit::super_packet::{SuperPacket, VNET_HEADER, sum};

const FIN: u8 = 0x01;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

fn packet() -> SuperPacket {
    let payload = (0..40_000u32).map(|number| number.to_be_bytes()[number as usize % 4]).collect();
    SuperPacket {
        tags: 0,
        ipv6: false,
        extras: 0,
        udp: false,
        tcp_options: 3,
        tcp_flags: ACK | FIN | PSH | CWR,
        sequence: u32::MAX - 5000,
        id: u16::MAX - 3,
        size: 1448,
        payload,
    }
}

fn frames(bytes: &[u8], mtu: u32) -> Result<Vec<Vec<u8>>, Invalid> {
    let mut frames = Vec::new();
    segments(bytes, mtu, |frame| frames.push(frame.to_vec()))?;
    Ok(frames)
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// Checks all frames of a packet, field by field.
fn verify(packet: &SuperPacket, frames: &[Vec<u8>]) {
    let (ip, transport) = (packet.ip(), packet.transport());
    let payload = transport + packet.transport_header();
    let original = packet.bytes();
    let mut received: Vec<u8> = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let (first, last) = (index == 0, index + 1 == frames.len());
        let whole = &original[VNET_HEADER..];
        assert_eq!(frame[..ip], whole[..ip], "Ethernet header and tags");
        assert!(last || frame.len() == payload + usize::from(packet.size), "only the last is shorter");
        assert!(frame.len() > payload, "none is empty");
        if packet.ipv6 {
            assert_eq!(usize::from(be16(&frame[ip + 4..])), frame.len() - ip - 40);
            assert_eq!(
                (&frame[ip..ip + 4], &frame[ip + 6..transport]),
                (&whole[ip..ip + 4], &whole[ip + 6..transport])
            );
        } else {
            assert_eq!(usize::from(be16(&frame[ip + 2..])), frame.len() - ip);
            assert_eq!(be16(&frame[ip + 4..]), packet.id.wrapping_add(u16::try_from(index).unwrap()));
            assert_eq!(sum(&frame[ip..transport]), 0xffff, "checksum of IPv4");
            assert_eq!(frame[ip + 6..ip + 10], whole[ip + 6..ip + 10]);
            assert_eq!(frame[ip + 12..transport], whole[ip + 12..transport]);
        }
        let segment = &frame[transport..];
        let checksum = [packet.pseudo_header(segment.len()), segment.to_vec()].concat();
        assert_eq!(sum(&checksum), 0xffff, "checksum of segment {index}");
        assert_eq!(segment[..4], whole[transport..transport + 4], "ports");
        if packet.udp {
            assert_eq!(usize::from(be16(&segment[4..])), segment.len());
            assert_ne!(be16(&segment[6..]), 0, "0 is no checksum");
        } else {
            let sequence = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
            assert_eq!(sequence, packet.sequence.wrapping_add(u32::try_from(received.len()).unwrap()));
            let cleared = if first { 0 } else { CWR } | if last { 0 } else { FIN | PSH };
            assert_eq!(segment[13], packet.tcp_flags & !cleared, "flags of segment {index}");
            assert_eq!(segment[8..13], whole[transport + 8..transport + 13]);
            assert_eq!(segment[14..16], whole[transport + 14..transport + 16]);
            assert_eq!(segment[18..payload - transport], whole[transport + 18..payload]);
        }
        received.extend(&frame[payload..]);
    }
    assert!(received == packet.payload, "the payload has changed");
}

#[test]
fn a_super_packet_becomes_whole_frames() {
    for (udp, ipv6) in [(false, false), (false, true), (true, false), (true, true)] {
        for (tags, extras) in [(0, 0), (1, 0), (2, 3)] {
            let packet = SuperPacket { udp, ipv6, tags, extras, size: 1400, ..packet() };
            let frames = frames(&packet.bytes(), 1500).unwrap();
            assert_eq!(frames.len(), 40_000usize.div_ceil(1400));
            verify(&packet, &frames);
        }
    }
}

#[test]
fn plain_frames_stay_as_they_are_and_missing_checksums_are_completed() {
    let mut plain = vec![0; VNET_HEADER];
    plain.extend([7; 60]);
    assert_eq!(frames(&plain, 1500).unwrap(), [[7; 60]]);
    plain[0] = 2; // the checksum is known to be valid
    assert_eq!(frames(&plain, 1500).unwrap(), [[7; 60]]);
    for (udp, ipv6) in [(false, false), (false, true), (true, false), (true, true)] {
        let payload = (0..=200).collect();
        let packet = SuperPacket { udp, ipv6, size: 0, tags: 1, payload, ..packet() };
        verify(&packet, &frames(&packet.bytes(), 1500).unwrap());
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_its_other_form() {
    for size in [0, 16] {
        let mut packet = SuperPacket { udp: true, size, payload: vec![0; 16], ..packet() };
        let without = frames(&packet.bytes(), 1500).unwrap();
        // These two bytes make the sum that of all ones.
        let at = packet.transport() + 6;
        packet.payload[..2].copy_from_slice(&without[0][at..at + 2]);
        let frames = frames(&packet.bytes(), 1500).unwrap();
        verify(&packet, &frames);
        assert_eq!(frames[0][at..at + 2], [0xff, 0xff]);
    }
}

#[test]
fn random_packets_become_whole_frames() {
    for seed in 0..1000u64 {
        // SplitMix64.
        let mut state = seed;
        let mut next = |limit: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ mixed >> 31) % limit
        };
        let udp = next(2) == 0;
        let size = if next(4) == 0 { 8 + next(100) } else { 500 + next(800) };
        let longest = (if udp { size * 128 } else { 65_000 }).min(65_000);
        let len = 1 + next(longest);
        let packet = SuperPacket {
            tags: usize::try_from(next(3)).unwrap(),
            ipv6: next(2) == 0,
            extras: u8::try_from(next(11)).unwrap(),
            udp,
            tcp_options: u8::try_from(next(11)).unwrap(),
            tcp_flags: u8::try_from(next(256)).unwrap(),
            sequence: u32::try_from(next(1 << 32)).unwrap(),
            id: u16::try_from(next(1 << 16)).unwrap(),
            size: u16::try_from(size).unwrap(),
            payload: (0..len).map(|_| u8::try_from(next(256)).unwrap()).collect(),
        };
        let bytes = packet.bytes();
        let frames = frames(&bytes, 1500).unwrap_or_else(|error| panic!("seed {seed}: {error}: {packet:?}"));
        assert_eq!(frames.len() as u64, len.div_ceil(size), "seed {seed}");
        verify(&packet, &frames);
        // Whatever a hostile host changes in the headers, there is no panic, and the bounds hold.
        for _ in 0..20 {
            let mut altered = bytes.clone();
            for _ in 0..=next(3) {
                let at = usize::try_from(next(130)).unwrap().min(altered.len() - 1);
                altered[at] = u8::try_from(next(256)).unwrap();
            }
            altered.truncate(usize::try_from(next(altered.len() as u64 + 1)).unwrap());
            let mut count = 0;
            let result = segments(&altered, 1500, |frame| {
                count += 1;
                assert!(frame.len() <= 1500 + 14 + 8, "seed {seed}");
            });
            assert!(count <= MAX_SEGMENTS && (result.is_ok() || count == 0), "seed {seed}");
        }
    }
}

#[test]
fn super_packets_that_cannot_be_segmented_are_refused() {
    let refused = |change: &dyn Fn(&mut SuperPacket), patch: &[(usize, u8)]| {
        let mut packet = packet();
        change(&mut packet);
        let mut bytes = packet.bytes();
        patch.iter().for_each(|(at, value)| bytes[VNET_HEADER + at] = *value);
        frames(&bytes, 1500).unwrap_err().to_string()
    };
    let same = |_: &mut SuperPacket| ();
    let network = "segmentation 0x81 without matching IP headers before the transport header at 34";
    for (at, value) in [(14, 0x46), (14, 0x65), (23, 17), (20, 0x20), (21, 1), (12, 0x86), (12, 0x81)] {
        assert_eq!(refused(&same, &[(at, value)]), network, "byte {at}");
    }
    let mut three_tags = SuperPacket { tags: 2, size: 1400, ..packet() }.bytes();
    three_tags.splice(VNET_HEADER + 12..VNET_HEADER + 12, [0x88, 0xa8, 0, 9]);
    three_tags[6] += 4; // the transport header
    let expected = "segmentation 0x81 without matching IP headers before the transport header at 46";
    assert_eq!(frames(&three_tags, 1500).unwrap_err().to_string(), expected);
    let ipv6 = |packet: &mut SuperPacket| (packet.ipv6, packet.extras) = (true, 2);
    // Another version, a fragment, an extension header that ends behind the transport header.
    for (at, value) in [(14, 0x45), (20, 44), (54, 44), (55, 9), (62, 17)] {
        let expected = "segmentation 0x84 without matching IP headers before the transport header at 70";
        assert_eq!(refused(&ipv6, &[(at, value)]), expected, "byte {at}");
    }
    let short = "segmentation 0x81 without a transport header at 34 of a frame of 40066 bytes";
    assert_eq!(refused(&same, &[(46, 0x40)]), short);
    let long = refused(&|packet| packet.size = 1449, &[]);
    assert_eq!(long, "frame of 1515 bytes exceeds the maximum of 1514 bytes");
    let tiny = refused(&|packet| packet.size = 7, &[]);
    assert!(tiny.starts_with("segmentation 0x81 with segments of 7 bytes"), "{tiny}");
    let many = refused(&|packet| (packet.udp, packet.size) = (true, 312), &[]);
    assert!(many.starts_with("segmentation 0x5 with segments of 312 bytes"), "{many}");
    let datagrams = SuperPacket { udp: true, size: 313, ..packet() };
    assert_eq!(frames(&datagrams.bytes(), 1500).unwrap().len(), 128);
}

#[test]
fn checks_and_segmentation_agree_on_what_a_header_may_ask_for() {
    let bytes = packet().bytes();
    let with = |change: &[(usize, u8)], len: usize| {
        let mut bytes = bytes.clone();
        bytes.resize(len, 0);
        change.iter().for_each(|(at, value)| bytes[*at] = *value);
        let checked = check(&bytes[..26], bytes.len(), 1500).err();
        assert_eq!(frames(&bytes, 1500).err(), checked);
        checked.unwrap().to_string()
    };
    for change in [[(4, 7), (5, 0)], [(8, 6), (9, 0)], [(1, 5), (0, 1)]] {
        assert!(with(&change, bytes.len()).contains("bytes of headers and flags"), "{change:?}");
    }
    assert_eq!(with(&[(1, 0x85)], bytes.len()), "unknown segmentation 0x85 in the virtio header");
    let long = "frame of 69621 bytes exceeds the maximum of 69620 bytes";
    assert_eq!(with(&[], MAX_FRAME + 1), long);
}
