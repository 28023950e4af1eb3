//! Encodes one packet: Ethernet, IPv4 or IPv6, TCP or UDP, with correct lengths and checksums.

use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};

/// Maximum size of a packet: that of IP, because the traffic was never on a real network.
const MTU: usize = 65_535;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// Time to live, or hop limit.
const HOPS: u8 = 64;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Receive window of each segment. It is nominal: only data segments acknowledge, so much data in one direction exceeds
/// the window.
const WINDOW: u16 = u16::MAX;

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The sequence number of its first byte, or of its SYN.
    pub seq: u32,
    /// The next sequence number expected from the receiver; valid with the flag `ack`.
    pub ack: u32,
    /// The flags.
    pub flags: Flags,
    /// The payload.
    pub payload: &'a [u8],
}

/// The TCP flags that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Opens a direction.
    pub syn: bool,
    /// Closes a direction.
    pub fin: bool,
    /// Aborts the connection.
    pub rst: bool,
    /// Requests immediate delivery.
    pub psh: bool,
    /// `Segment::ack` is valid.
    pub ack: bool,
}

/// Returns the maximum payload of a TCP segment between addresses of this IP version.
pub(crate) fn max_payload(address: IpAddr) -> usize {
    let ip_header = if address.is_ipv4() { 20 } else { 40 };
    MTU - ip_header - TCP_HEADER
}

/// Appends a TCP segment to `packet`.
pub(crate) fn append_tcp(segment: &Segment<'_>, packet: &mut Vec<u8>) -> io::Result<()> {
    let Segment { from, to, seq, ack, flags, payload } = *segment;
    let room = max_payload(from.ip());
    if payload.len() > room {
        return Err(invalid(format!(
            "{} bytes of payload exceed the maximum of {room} in a TCP segment",
            payload.len()
        )));
    }
    let sum = append_ip_header(("TCP segment", TCP), (from, to), TCP_HEADER + payload.len(), packet)?;
    let begin = packet.len();
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(seq.to_be_bytes());
    packet.extend(ack.to_be_bytes());
    packet.push(0x50); // header of five words
    let bits = [(flags.fin, 1), (flags.syn, 2), (flags.rst, 4), (flags.psh, 8), (flags.ack, 16)];
    packet.push(bits.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum());
    packet.extend(WINDOW.to_be_bytes());
    packet.extend([0; 4]); // checksum, and no urgent data
    packet.extend(payload);
    let checksum = sum.add(&packet[begin..]).finish();
    packet[begin + 16..begin + 18].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// Appends a UDP datagram to `packet`.
pub(crate) fn append_udp(
    (from, to): (SocketAddr, SocketAddr),
    payload: &[u8],
    packet: &mut Vec<u8>,
) -> io::Result<()> {
    let len = UDP_HEADER + payload.len();
    let sum = append_ip_header(("datagram", UDP), (from, to), len, packet)?;
    let begin = packet.len();
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(length_field(len)?);
    packet.extend([0; 2]);
    packet.extend(payload);
    // Zero would mean that there is no checksum (RFC 768).
    let checksum = match sum.add(&packet[begin..]).finish() {
        0 => u16::MAX,
        checksum => checksum,
    };
    packet[begin + 6..begin + 8].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// Appends the Ethernet and IP headers for `len` bytes. Returns the checksum of the pseudo-header.
fn append_ip_header(
    (what, protocol): (&str, u8),
    (from, to): (SocketAddr, SocketAddr),
    len: usize,
    packet: &mut Vec<u8>,
) -> io::Result<Sum> {
    packet.extend(mac(to.ip()));
    packet.extend(mac(from.ip()));
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x08, 0x00]);
            let begin = packet.len();
            packet.extend([0x45, 0]); // version 4, header of five words
            packet.extend(length_field(20 + len)?);
            packet.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]); // don't fragment
            packet.extend(from.octets());
            packet.extend(to.octets());
            let checksum = Sum(0).add(&packet[begin..]).finish();
            packet[begin + 10..begin + 12].copy_from_slice(&checksum.to_be_bytes());
            Ok(Sum(0).add(&from.octets()).add(&to.octets()).add(&[0, protocol]).add(&length_field(len)?))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(length_field(len)?);
            packet.extend([protocol, HOPS]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            Ok(Sum(0).add(&from.octets()).add(&to.octets()).add(&[0, protocol]).add(&length_field(len)?))
        }
        _ => Err(invalid(format!("{what} from {from} to {to}: cannot mix IPv4 and IPv6"))),
    }
}

/// Encodes a length in two bytes.
fn length_field(len: usize) -> io::Result<[u8; 2]> {
    let short =
        u16::try_from(len).map_err(|_| invalid(format!("{len} bytes exceed the maximum of an IP packet")))?;
    Ok(short.to_be_bytes())
}

/// Returns an error for invalid arguments.
fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, why)
}

/// Returns a locally administered Ethernet address with the last four bytes of the IP address.
fn mac(address: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    [0x02, 0, a, b, c, d]
}

/// The sum of an Internet checksum (RFC 1071). All pieces that are added, except the last, must have even length.
#[derive(Clone, Copy, Debug)]
struct Sum(u64);

impl Sum {
    /// Adds bytes.
    fn add(self, bytes: &[u8]) -> Self {
        let (pairs, odd) = bytes.as_chunks::<2>();
        let sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
        let last = odd.first().map_or(0, |byte| u64::from(*byte) << 8);
        Self(self.0 + sum + last)
    }

    /// Returns the checksum.
    fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits above")]
        let folded = sum as u16;
        !folded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        assert_eq!(!Sum(0).add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).finish(), 0xddf2);
        assert_eq!(!Sum(0).add(&[0x00, 0x01]).add(&[0xf2]).finish(), 0xf201);
    }

    /// The checksum over a header and its own checksum is zero.
    #[test]
    fn an_ipv4_header_checks_itself() {
        let ends = ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:2000".parse().unwrap());
        let mut packet = Vec::new();
        append_udp(ends, b"odd", &mut packet).unwrap();
        assert_eq!(packet.len(), 14 + 20 + 8 + 3);
        assert_eq!(Sum(0).add(&packet[14..34]).finish(), 0, "checksum of the header");
        let pseudo = Sum(0).add(&packet[26..34]).add(&[0, UDP, 0, 11]);
        assert_eq!(pseudo.add(&packet[34..]).finish(), 0, "checksum of the datagram");
    }

    #[test]
    fn oversized_packets_are_rejected() {
        let (v4, v6): (SocketAddr, SocketAddr) = ("10.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
        let error = append_udp((v4, v6), b"", &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(error, "datagram from 10.0.0.1:1 to [::1]:1: cannot mix IPv4 and IPv6");
        let error = append_udp((v4, v4), &[0; 65_536], &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(error, "65564 bytes exceed the maximum of an IP packet");
    }
}
