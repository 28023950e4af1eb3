//! Writes TCP and UDP traffic to a pcap file, with correct headers, sequence numbers and checksums.
//!
//! The writer reads no clock and keeps no connection state: the caller passes the time and an [`OpenConnection`]. Each
//! packet is written immediately (unless `W` buffers), so that the file is complete even if the program is killed.

use crate::packet::{Flags, Segment, append_tcp, append_udp, max_payload};
use std::io::{self, Error, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Magic number of files with nanosecond resolution.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// tcpdump's default, which does not truncate packets.
const SNAPLEN: u32 = 262_144;
/// The link type: packets begin with an Ethernet header.
const ETHERNET: u32 = 1;
/// Size of the header before each packet: seconds, nanoseconds, and the length twice.
const RECORD_HEADER: usize = 16;

/// Writes a capture file.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    out: W,
    /// Number of connections opened so far.
    opened: u32,
    /// A packet with its record header, written in one call so that several writers can share a file.
    record: Vec<u8>,
}

/// An open connection of a capture, to be passed to [`CaptureWriter::send`] and [`CaptureWriter::close`].
#[derive(Debug)]
pub struct OpenConnection {
    client: SocketAddr,
    server: SocketAddr,
    /// The next sequence number of the client.
    client_seq: u32,
    /// The next sequence number of the server.
    server_seq: u32,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins a file: writes its header.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&file_header())?;
        Ok(Self::resume(out))
    }

    /// Continues a file whose header has been written.
    pub const fn resume(out: W) -> Self {
        Self { out, opened: 0, record: Vec::new() }
    }

    /// Opens a connection: SYN, SYN-ACK, ACK.
    pub fn open(
        &mut self,
        time: Duration,
        client: SocketAddr,
        server: SocketAddr,
    ) -> io::Result<OpenConnection> {
        // Connections between the same ports differ in their initial sequence numbers.
        self.opened = self.opened.wrapping_add(1);
        let first = self.opened << 20;
        self.open_at(time, (client, first), (server, first | 1 << 19))
    }

    /// Opens a connection with the given initial sequence numbers.
    pub fn open_at(
        &mut self,
        time: Duration,
        (client, client_seq): (SocketAddr, u32),
        (server, server_seq): (SocketAddr, u32),
    ) -> io::Result<OpenConnection> {
        let mut connection = OpenConnection { client, server, client_seq, server_seq };
        let syn = Flags { syn: true, ..Flags::default() };
        self.write_next(time, &mut connection, true, syn, &[])?;
        self.write_next(time, &mut connection, false, Flags { ack: true, ..syn }, &[])?;
        self.write_next(time, &mut connection, true, Flags { ack: true, ..Flags::default() }, &[])?;
        Ok(connection)
    }

    /// Sends bytes from client to server or back, in one segment if they fit, otherwise in as few as possible, of about
    /// the same length: iWARP analysers need to see more than the first few bytes of an FPDU in one segment.
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
            self.write_next(time, connection, from_client, flags, piece)?;
        }
        Ok(())
    }

    /// Closes a connection: FIN from the client, FIN from the server, ACK.
    pub fn close(&mut self, time: Duration, mut connection: OpenConnection) -> io::Result<()> {
        let ack = Flags { ack: true, ..Flags::default() };
        let fin = Flags { fin: true, ..ack };
        self.write_next(time, &mut connection, true, fin, &[])?;
        self.write_next(time, &mut connection, false, fin, &[])?;
        self.write_next(time, &mut connection, true, ack, &[])
    }

    /// Resets a connection, as the client or as the server.
    pub fn reset(
        &mut self,
        time: Duration,
        mut connection: OpenConnection,
        by_client: bool,
    ) -> io::Result<()> {
        let flags = Flags { rst: true, ack: true, ..Flags::default() };
        self.write_next(time, &mut connection, by_client, flags, &[])
    }

    /// Writes one segment as given. No connection needs to be open.
    pub fn segment(&mut self, time: Duration, segment: &Segment<'_>) -> io::Result<()> {
        self.write_packet(time, |packet| append_tcp(segment, packet))
    }

    /// Writes one UDP datagram.
    pub fn datagram(
        &mut self,
        time: Duration,
        ends: (SocketAddr, SocketAddr),
        payload: &[u8],
    ) -> io::Result<()> {
        self.write_packet(time, |packet| append_udp(ends, payload, packet))
    }

    /// Writes a packet, which `build` appends to the record header.
    fn write_packet(
        &mut self,
        time: Duration,
        build: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let too_late =
            |_| Error::new(ErrorKind::InvalidInput, "time is after the year 2106, the limit of pcap files");
        let seconds = u32::try_from(time.as_secs()).map_err(too_late)?;
        self.record.clear();
        self.record.resize(RECORD_HEADER, 0);
        build(&mut self.record)?;
        let len = u32::try_from(self.record.len() - RECORD_HEADER).map_err(Error::other)?;
        let header = [seconds, time.subsec_nanos(), len, len].map(u32::to_le_bytes);
        self.record[..RECORD_HEADER].copy_from_slice(header.as_flattened());
        self.out.write_all(&self.record)
    }

    /// Flushes the underlying writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the underlying writer.
    pub const fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Returns the underlying writer, consuming this one.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Writes the next segment of a connection.
    fn write_next(
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

/// Returns the header of a capture file.
pub fn file_header() -> Vec<u8> {
    let mut header = MAGIC.to_le_bytes().to_vec();
    header.extend(VERSION.iter().flat_map(|half| half.to_le_bytes()));
    // Time zone and accuracy are always zero in practice.
    header.extend([0, 0, SNAPLEN, ETHERNET].iter().flat_map(|word| word.to_le_bytes()));
    header
}
