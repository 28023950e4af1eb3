//! Files of `ironwarp-capture`, verified by an independent implementation of the headers (etherparse).
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use ironwarp_pcap::{CaptureWriter, Flags, Segment};
use std::net::SocketAddr;
use std::time::Duration;

fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
    let ends = if v6 { ("[fd00::1]:1", "[fd00::2]:2") } else { ("10.0.0.1:1", "10.0.0.2:2") };
    (ends.0.parse().unwrap(), ends.1.parse().unwrap())
}

fn lengths(file: &[u8]) -> Vec<usize> {
    let packets = ironwarp_pcap::read(file).unwrap().packets;
    let segments = packets.iter().filter_map(|packet| ironwarp_pcap::segment(packet).unwrap());
    segments.map(|segment| segment.payload.len()).filter(|len| *len > 0).collect()
}

#[test]
fn large_payloads_are_split_evenly() {
    for (v6, room) in [(false, 65_495), (true, 65_475)] {
        for (len, expected) in [
            (0, vec![]),
            (1, vec![1]),
            (room, vec![room]),
            (room + 1, vec![room / 2 + 1, room / 2]),
            (2 * room + 1, vec![(2 * room + 1) / 3 + 1, (2 * room + 1) / 3 + 1, (2 * room + 1) / 3 - 1]),
        ] {
            let mut writer = CaptureWriter::new(Vec::new()).unwrap();
            let (client, server) = ends(v6);
            let mut connection = writer.open(Duration::ZERO, client, server).unwrap();
            writer.send(Duration::ZERO, &mut connection, true, &vec![7; len]).unwrap();
            let found = lengths(&writer.into_inner());
            assert_eq!(found.iter().sum::<usize>(), len);
            assert_eq!(found.len(), expected.len(), "{len} bytes in {found:?}");
            assert!(
                found.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 2),
                "{len} bytes in {found:?}"
            );
        }
    }
}

#[test]
fn connections_may_interleave_and_use_the_same_ports_again() {
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    let ((a, b), (c, d)) = (ends(false), ends(true));
    let mut first = writer.open(Duration::ZERO, a, b).unwrap();
    let mut second = writer.open(Duration::ZERO, c, d).unwrap();
    writer.send(Duration::ZERO, &mut first, true, b"one").unwrap();
    writer.send(Duration::ZERO, &mut second, true, b"two").unwrap();
    writer.send(Duration::ZERO, &mut first, false, b"three").unwrap();
    writer.close(Duration::ZERO, first).unwrap();
    let mut third = writer.open(Duration::ZERO, a, b).unwrap();
    writer.send(Duration::ZERO, &mut third, true, b"four").unwrap();
    let file = writer.into_inner();
    let connections = ironwarp_pcap::connections(&ironwarp_pcap::read(&file).unwrap().packets).unwrap();
    let streams: Vec<_> =
        connections.iter().map(|it| it.streams.each_ref().map(|it| &it.bytes[..])).collect();
    assert_eq!(streams, [[&b"one"[..], b"three"], [b"two", b""], [b"four", b""]]);
    assert_eq!(connections.iter().map(|it| it.closed.is_some()).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn unwritable_packets_are_errors() {
    let ((from, to), (v6, _)) = (ends(false), ends(true));
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    let error = writer.open(Duration::ZERO, from, v6).unwrap_err().to_string();
    assert_eq!(error, "TCP segment from 10.0.0.1:1 to [fd00::1]:1: cannot mix IPv4 and IPv6");
    let error = writer.open(Duration::from_secs(1 << 33), from, to).unwrap_err().to_string();
    assert_eq!(error, "time is after the year 2106, the limit of pcap files");
    let payload = &[0; 65_496];
    let segment = Segment { from, to, seq: 0, ack: 0, flags: Flags::default(), payload };
    let error = writer.segment(Duration::ZERO, &segment).unwrap_err().to_string();
    assert_eq!(error, "65496 bytes of payload exceed the maximum of 65495 in a TCP segment");
}

/// etherparse checks lengths as it reads; checksums are computed here with its functions.
#[test]
fn lengths_and_checksums_are_right() {
    for v6 in [false, true] {
        let (from, to) = ends(v6);
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        for len in [0, 1, 2, 3, 1000, 1001, 60_000] {
            let payload: Vec<u8> = (0..len).map(|at: u32| at.to_le_bytes()[0].wrapping_mul(7)).collect();
            let flags = Flags { psh: true, ack: true, ..Flags::default() };
            let segment = Segment { from, to, seq: 0xffff_ffff, ack: len, flags, payload: &payload };
            writer.segment(Duration::ZERO, &segment).unwrap();
            writer.datagram(Duration::ZERO, (from, to), &payload).unwrap();
        }
        let file = writer.into_inner();
        let packets = ironwarp_pcap::read(&file).unwrap().packets;
        assert_eq!(packets.len(), 14);
        for packet in packets {
            let sliced = SlicedPacket::from_ethernet(packet.data).unwrap();
            let (net, transport) = (sliced.net.unwrap(), sliced.transport.unwrap());
            check(&net, &transport);
        }
    }
}

fn check(net: &NetSlice<'_>, transport: &TransportSlice<'_>) {
    if let NetSlice::Ipv4(ip) = net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
    }
    let (found, computed) = match (net, transport) {
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            let (header, ip) = (tcp.to_header(), ip.header().to_header());
            (header.checksum, header.calc_checksum_ipv4(&ip, tcp.payload()))
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let (header, ip) = (tcp.to_header(), ip.header().to_header());
            (header.checksum, header.calc_checksum_ipv6(&ip, tcp.payload()))
        }
        (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            let (header, ip) = (udp.to_header(), ip.header().to_header());
            (header.checksum, header.calc_checksum_ipv4(&ip, udp.payload()))
        }
        (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
            let (header, ip) = (udp.to_header(), ip.header().to_header());
            (header.checksum, header.calc_checksum_ipv6(&ip, udp.payload()))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(Ok(found), computed);
}
