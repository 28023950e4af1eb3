//! TCP traffic to a pcap file that any packet analyser reads: Ethernet, IPv4 or IPv6, TCP, with all numbers and checksums
//! right. Mirrors `reader.rs` and `packet.rs`.
//!
//! It reads no clock and keeps no state of connections: the caller brings the time and keeps an [`OpenConnection`] for
//! each. What is written is in the file at once (as far as `W` does not buffer), so it may be cut off at any moment.

use crate::Segment;
use crate::packet::{Flags, LinkType};
use etherparse::err::packet::BuildWriteError;
use etherparse::{PacketBuilder, TcpHeader};
use std::io::{self, Error, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// As large as an IP packet can be: the file was never on a real network.
const MTU: usize = 65_535;
const TCP_HEADER: usize = 20;
/// With nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// What tcpdump writes when it does not cut packets off.
const SNAPLEN: u32 = 262_144;
const HOPS: u8 = 64;
/// Only for show: data is acknowledged by data alone, so a long turn of one side goes beyond it.
const WINDOW: u16 = u16::MAX;

/// Writes a capture.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    out: W,
    opened: u32,
    packet: Vec<u8>,
}

/// A connection that was opened in a capture; hand it back to send on it and to close it.
#[derive(Debug)]
pub struct OpenConnection {
    client: SocketAddr,
    server: SocketAddr,
    /// The next sequence number of the client.
    client_seq: u32,
    /// The same of the server.
    server_seq: u32,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins the file.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC.to_le_bytes())?;
        for half in VERSION {
            out.write_all(&half.to_le_bytes())?;
        }
        // Time zone and accuracy, which nobody uses, are zero.
        for word in [0, 0, SNAPLEN, LinkType::ETHERNET.0] {
            out.write_all(&u32::to_le_bytes(word))?;
        }
        Ok(Self { out, opened: 0, packet: Vec::new() })
    }

    /// Opens a connection: SYN, SYN-ACK, ACK.
    pub fn open(
        &mut self,
        time: Duration,
        client: SocketAddr,
        server: SocketAddr,
    ) -> io::Result<OpenConnection> {
        // Connections between the same ports are told apart by their first sequence numbers.
        self.opened = self.opened.wrapping_add(1);
        let first = self.opened << 20;
        let mut connection =
            OpenConnection { client, server, client_seq: first, server_seq: first | 1 << 19 };
        let syn = Flags { syn: true, ..Flags::default() };
        self.step(time, &mut connection, true, syn, &[])?;
        self.step(time, &mut connection, false, Flags { ack: true, ..syn }, &[])?;
        self.step(time, &mut connection, true, Flags { ack: true, ..Flags::default() }, &[])?;
        Ok(connection)
    }

    /// Sends bytes, from client to server or back, in one segment. If they do not fit one, in as few as they do, of about
    /// the same length: analysers of iWARP need to see more than the first few bytes of an FPDU in one segment.
    pub fn send(
        &mut self,
        time: Duration,
        connection: &mut OpenConnection,
        from_client: bool,
        bytes: &[u8],
    ) -> io::Result<()> {
        let segments = bytes.len().div_ceil(max_payload(connection.client.ip())).max(1);
        let flags = Flags { psh: true, ack: true, ..Flags::default() };
        for piece in bytes.chunks(bytes.len().div_ceil(segments).max(1)) {
            self.step(time, connection, from_client, flags, piece)?;
        }
        Ok(())
    }

    /// Closes a connection: FIN from the client, FIN from the server, ACK.
    pub fn close(&mut self, time: Duration, mut connection: OpenConnection) -> io::Result<()> {
        let ack = Flags { ack: true, ..Flags::default() };
        let fin = Flags { fin: true, ..ack };
        self.step(time, &mut connection, true, fin, &[])?;
        self.step(time, &mut connection, false, fin, &[])?;
        self.step(time, &mut connection, true, ack, &[])
    }

    /// Writes one segment just as it is described; no connection needs to be open for it.
    pub fn segment(&mut self, time: Duration, segment: &Segment<'_>) -> io::Result<()> {
        self.packet.clear();
        build(segment, &mut self.packet)?;
        let too_late = |_| Error::new(ErrorKind::InvalidInput, "a pcap file ends in the year 2106");
        let seconds = u32::try_from(time.as_secs()).map_err(too_late)?;
        let len = u32::try_from(self.packet.len()).map_err(Error::other)?;
        for word in [seconds, time.subsec_nanos(), len, len] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(&self.packet)
    }

    /// Hands what is buffered to the operating system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Gives back what it writes to.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// The next segment of a connection.
    fn step(
        &mut self,
        time: Duration,
        connection: &mut OpenConnection,
        from_client: bool,
        flags: Flags,
        payload: &[u8],
    ) -> io::Result<()> {
        let OpenConnection { client, server, client_seq, server_seq } = connection;
        let (from, to, seq, expected) = if from_client {
            (*client, *server, client_seq, server_seq)
        } else {
            (*server, *client, server_seq, client_seq)
        };
        let ack = if flags.ack { *expected } else { 0 };
        self.segment(time, &Segment { from, to, seq: *seq, ack, flags, payload })?;
        #[expect(clippy::cast_possible_truncation, reason = "a segment is shorter than 2^16")]
        let len = payload.len() as u32 + u32::from(flags.syn) + u32::from(flags.fin);
        *seq = seq.wrapping_add(len);
        Ok(())
    }
}

/// The most that one segment carries.
fn max_payload(address: IpAddr) -> usize {
    let ip_header = if address.is_ipv4() { 20 } else { 40 };
    MTU - ip_header - TCP_HEADER
}

fn build(segment: &Segment<'_>, packet: &mut Vec<u8>) -> io::Result<()> {
    let Segment { from, to, payload, .. } = segment;
    let room = max_payload(from.ip());
    if payload.len() > room {
        let why = format!("{} bytes of payload in one TCP segment, {room} fit", payload.len());
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let ethernet = PacketBuilder::ethernet2(mac(from.ip()), mac(to.ip()));
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), HOPS),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), HOPS),
        _ => {
            let why = format!("a TCP segment from {from} to {to}: one is IPv4, the other IPv6");
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
    };
    ip.tcp_header(tcp_header(segment)).write(packet, payload).map_err(|error| match error {
        BuildWriteError::Io(error) => error,
        other => Error::new(ErrorKind::InvalidInput, other),
    })
}

fn tcp_header(segment: &Segment<'_>) -> TcpHeader {
    let Segment { from, to, seq, ack, flags, .. } = *segment;
    TcpHeader {
        acknowledgment_number: ack,
        syn: flags.syn,
        fin: flags.fin,
        rst: flags.rst,
        psh: flags.psh,
        ack: flags.ack,
        ..TcpHeader::new(from.port(), to.port(), seq, WINDOW)
    }
}

/// A locally administered Ethernet address that is as unique as the end of the IP address.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
        let ends = if v6 { ("[fd00::1]:1", "[fd00::2]:2") } else { ("10.0.0.1:1", "10.0.0.2:2") };
        (ends.0.parse().unwrap(), ends.1.parse().unwrap())
    }

    fn lengths(file: &[u8]) -> Vec<usize> {
        let packets = crate::read(file).unwrap().packets;
        let segments = packets.iter().filter_map(|packet| Segment::parse(packet).unwrap());
        segments.map(|segment| segment.payload.len()).filter(|len| *len > 0).collect()
    }

    #[test]
    fn what_does_not_fit_a_segment_is_cut_into_equal_parts() {
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
        let connections = crate::connections(&crate::read(&file).unwrap().packets).unwrap();
        let streams: Vec<_> =
            connections.iter().map(|it| it.streams.each_ref().map(|it| &it.bytes[..])).collect();
        assert_eq!(streams, [[&b"one"[..], b"three"], [b"two", b""], [b"four", b""]]);
        assert_eq!(
            connections.iter().map(|it| it.closed.is_some()).collect::<Vec<_>>(),
            [true, false, false]
        );
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let ((from, to), (v6, _)) = (ends(false), ends(true));
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        let error = writer.open(Duration::ZERO, from, v6).unwrap_err().to_string();
        assert_eq!(error, "a TCP segment from 10.0.0.1:1 to [fd00::1]:1: one is IPv4, the other IPv6");
        let error = writer.open(Duration::from_secs(1 << 33), from, to).unwrap_err().to_string();
        assert_eq!(error, "a pcap file ends in the year 2106");
        let payload = &[0; 65_496];
        let segment = Segment { from, to, seq: 0, ack: 0, flags: Flags::default(), payload };
        let error = writer.segment(Duration::ZERO, &segment).unwrap_err().to_string();
        assert_eq!(error, "65496 bytes of payload in one TCP segment, 65495 fit");
    }
}
