//! Extracts the TCP segment or the UDP datagram of a packet, for every supported link type. `ironwarp-capture` builds packets.

use crate::Error;
use crate::link::LinkType;
use crate::reader::Packet;
use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TcpSlice, TransportSlice};
use ironwarp_capture::{Flags, Segment};
use std::net::{IpAddr, SocketAddr};

/// Returns the TCP segment in a packet, or `None` if the packet contains no TCP segment. Fails if the link type is not
/// supported.
pub fn segment<'a>(packet: &Packet<'a>) -> Result<Option<Segment<'a>>, Error> {
    Ok(slice(packet)?.and_then(|sliced| segment_of(&sliced)))
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The bytes after the UDP header.
    pub payload: &'a [u8],
}

/// Returns the UDP datagram in a packet, or `None` if the packet contains none, or only a fragment of one. Fails if the
/// link type is not supported.
pub fn datagram<'a>(packet: &Packet<'a>) -> Result<Option<UdpDatagram<'a>>, Error> {
    Ok(slice(packet)?.and_then(|sliced| {
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { return None };
        let (from, to) = addresses(&sliced)?;
        let (from, to) =
            (SocketAddr::new(from, udp.source_port()), SocketAddr::new(to, udp.destination_port()));
        Some(UdpDatagram { from, to, payload: udp.payload() })
    }))
}

/// Parses the headers of a packet. `None` if they are not those of IP.
fn slice<'a>(packet: &Packet<'a>) -> Result<Option<LaxSlicedPacket<'a>>, Error> {
    let data = packet.data;
    Ok(match packet.link {
        LinkType::ETHERNET => LaxSlicedPacket::from_ethernet(data).ok(),
        // The protocol is the last field of SLL's 16 bytes, and the first of SLL2's 20.
        LinkType::SLL => cooked(data.get(14..16), data.get(16..)),
        LinkType::SLL2 => cooked(data.get(..2), data.get(20..)),
        // Address families differ between systems; the IP header contains its version.
        LinkType::NULL | LinkType::LOOP => data.get(4..).and_then(ip),
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => ip(data),
        link => return Err(Error::LinkType { packet: packet.number, link }),
    })
}

/// Parses a packet of the interface "any", after its header was split into the protocol and the rest.
fn cooked<'a>(protocol: Option<&[u8]>, rest: Option<&'a [u8]>) -> Option<LaxSlicedPacket<'a>> {
    let protocol = u16::from_be_bytes(protocol?.try_into().ok()?);
    Some(LaxSlicedPacket::from_ether_type(EtherType(protocol), rest?))
}

/// Parses a packet that starts with an IP header.
fn ip(data: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    LaxSlicedPacket::from_ip(data).ok()
}

/// Returns the TCP segment of a parsed packet.
fn segment_of<'a>(sliced: &LaxSlicedPacket<'a>) -> Option<Segment<'a>> {
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { return None };
    let (from, to) = addresses(sliced)?;
    Some(Segment {
        from: SocketAddr::new(from, tcp.source_port()),
        to: SocketAddr::new(to, tcp.destination_port()),
        seq: tcp.sequence_number(),
        ack: tcp.acknowledgment_number(),
        flags: flags(tcp),
        payload: tcp.payload(),
    })
}

/// Returns the addresses of a parsed packet.
fn addresses(sliced: &LaxSlicedPacket<'_>) -> Option<(IpAddr, IpAddr)> {
    match sliced.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) => {
            Some((ip.header().source_addr().into(), ip.header().destination_addr().into()))
        }
        LaxNetSlice::Ipv6(ip) => {
            Some((ip.header().source_addr().into(), ip.header().destination_addr().into()))
        }
        LaxNetSlice::Arp(_) => None,
    }
}

/// Returns the flags of a TCP header.
fn flags(tcp: &TcpSlice<'_>) -> Flags {
    Flags { syn: tcp.syn(), fin: tcp.fin(), rst: tcp.rst(), psh: tcp.psh(), ack: tcp.ack() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CaptureWriter;
    use std::time::Duration;

    fn sample(from: &str, to: &str) -> Segment<'static> {
        let flags = Flags { psh: true, ack: true, ..Flags::default() };
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Segment { from, to, seq: 0xffff_fffe, ack: 7, flags, payload: b"payload" }
    }

    fn ethernet(segment: &Segment<'_>) -> Vec<u8> {
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        writer.segment(Duration::ZERO, segment).unwrap();
        let file = writer.into_inner();
        crate::read(&file).unwrap().packets[0].data.to_vec()
    }

    fn parse(link: LinkType, data: &[u8]) -> Option<Segment<'_>> {
        segment(&Packet { number: 1, time: Duration::ZERO, link, data }).unwrap()
    }

    #[test]
    fn a_segment_is_found_after_every_kind_of_header() {
        let v4 = sample("10.0.0.1:1000", "10.0.0.2:2000");
        let v6 = sample("[fd00::1]:1000", "[fd00::2]:2000");
        for (sent, protocol) in [(v4, [0x08, 0x00]), (v6, [0x86, 0xdd])] {
            let frame = ethernet(&sent);
            let ip = &frame[14..];
            let sll = [&[0; 14], &protocol[..], ip].concat();
            let sll2 = [&protocol[..], &[0; 18], ip].concat();
            let null = [&[2, 0, 0, 0], ip].concat();
            assert_eq!(parse(LinkType::ETHERNET, &frame), Some(sent));
            assert_eq!(parse(LinkType::SLL, &sll), Some(sent));
            assert_eq!(parse(LinkType::SLL2, &sll2), Some(sent));
            assert_eq!(parse(LinkType::NULL, &null), Some(sent));
            assert_eq!(parse(LinkType::LOOP, &null), Some(sent));
            assert_eq!(parse(LinkType::RAW, ip), Some(sent));
        }
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let sent = sample("10.0.0.1:1000", "10.0.0.2:2000");
        let padded = [ethernet(&sent), vec![0xee; 9]].concat();
        assert_eq!(parse(LinkType::ETHERNET, &padded), Some(sent));
    }

    #[test]
    fn other_packets_are_skipped_and_unknown_links_are_errors() {
        let mut udp = ethernet(&sample("10.0.0.1:1000", "10.0.0.2:2000"));
        udp[14 + 9] = 17;
        assert_eq!(parse(LinkType::ETHERNET, &udp), None);
        for len in 0..54 {
            assert_eq!(parse(LinkType::ETHERNET, &udp[..len]), None, "{len} bytes");
        }
        let packet = Packet { number: 3, time: Duration::ZERO, link: LinkType(147), data: &udp };
        let error = segment(&packet).unwrap_err().to_string();
        assert!(error.starts_with("packet 3 has unsupported link type 147"), "{error}");
    }
}
