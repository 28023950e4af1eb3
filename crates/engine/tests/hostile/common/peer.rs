//! A peer that speaks MPA, DDP and RDMAP over a plain socket, as correctly or incorrectly as a test wants.

use super::PATIENCE;
use ironwarp_wire::mpa::{
    Enhanced, FpduReader, FpduWriter, Framing, MAX_STARTUP, Piece, Revision, Role, RtrSet, Startup,
};
use ironwarp_wire::private::{Capabilities, Signal};
use ironwarp_wire::{Dialect, Header, Parse, Place, Tagged, Terminate};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How the peer starts a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The peer wants CRCs.
    pub(crate) crc: bool,
    /// The victim wants markers in what the peer sends.
    pub(crate) markers: bool,
    /// The MPA revision of its startup frame.
    pub(crate) revision: Revision,
}

/// The peer-to-peer model of RFC 6581.
pub(crate) const ENHANCED: Enhanced =
    Enhanced { ird: 32, ord: 32, rtr: Some(RtrSet::WRITE.union(RtrSet::READ)) };

impl Default for Way {
    fn default() -> Self {
        Self { crc: true, markers: false, revision: Revision::Two(Some(ENHANCED)) }
    }
}

/// One connection of a hostile peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    writer: FpduWriter,
    reader: FpduReader,
    hears_markers: bool,
    /// The messages it understands: private ones only after it has announced its capabilities.
    dialect: Dialect,
    read: Vec<u8>,
}

/// What the peer receives.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// A complete FPDU: header, payload, and all of its bytes.
    Message(Header, Vec<u8>, Vec<u8>),
    /// FIN.
    End,
    /// RST.
    Reset,
    /// Nothing within the given time.
    Silence,
}

impl Peer {
    /// Opens a connection and sends nothing.
    pub(crate) fn dial(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        Self::new(stream, Framing::default())
    }

    fn new(stream: TcpStream, framing: Framing) -> Self {
        stream.set_nodelay(true).unwrap();
        // A victim that does not read must not block the test.
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let reader = FpduReader::new(Framing { crc: framing.crc, markers: false });
        let writer = FpduWriter::new(framing);
        Self { stream, writer, reader, hears_markers: false, dialect: Dialect::Standard, read: Vec::new() }
    }

    /// Uses an existing connection on which nothing was sent yet.
    pub(crate) fn on(stream: TcpStream) -> Self {
        Self::new(stream, Framing::default())
    }

    /// Accepts a connection from a victim that dials, and reads its Request.
    pub(crate) fn accepts(listener: &TcpListener) -> Self {
        let mut peer = Self::on(listener.accept().unwrap().0);
        let len = peer.startup_frame(|bytes| Startup::parse_request(bytes).unwrap());
        peer.read.drain(..len);
        peer
    }

    /// Returns all bytes received, once there are as many as a startup frame has: 20, plus the length that it
    /// states.
    pub(crate) fn hear_startup(&mut self) -> Vec<u8> {
        self.try_hear_startup(PATIENCE).expect("a startup frame")
    }

    /// Returns all bytes received, once there is a startup frame. `None` if the victim is silent for this
    /// time, or closes.
    pub(crate) fn try_hear_startup(&mut self, patience: Duration) -> Option<Vec<u8>> {
        loop {
            let due = self.read.get(18..20).map(|len| 20 + usize::from(u16::from_be_bytes([len[0], len[1]])));
            if due.is_some_and(|due| self.read.len() >= due) {
                return Some(std::mem::take(&mut self.read));
            }
            if self.receive(patience).is_some() {
                return None;
            }
        }
    }

    /// Accepts a connection from a victim that dials, and answers its Request.
    pub(crate) fn answer(listener: &TcpListener, way: Way) -> Self {
        let mut peer = Self::accepts(listener);
        peer.frame_startup(Role::Reply { rejected: false }, way);
        peer.begins(way);
        peer
    }

    /// Starts the exchange of FPDUs.
    pub(crate) fn begins(&mut self, way: Way) {
        self.begins_with(
            Framing { crc: way.crc, markers: way.markers },
            Framing { crc: way.crc, markers: false },
        );
    }

    /// Starts the exchange of FPDUs, with separate framing for each direction.
    pub(crate) fn begins_with(&mut self, sends: Framing, hears: Framing) {
        self.writer = FpduWriter::new(sends);
        self.reader = FpduReader::new(hears);
        self.hears_markers = hears.markers;
    }

    /// Sends the Request.
    pub(crate) fn request(&mut self, way: Way) {
        self.frame_startup(Role::Request, way);
    }

    fn frame_startup(&mut self, role: Role, way: Way) {
        let frame = startup(role, way, b"peer");
        self.raw(&frame);
    }

    /// Waits for the Reply, which starts the stream.
    pub(crate) fn established(&mut self, way: Way) {
        let len = self.startup_frame(|bytes| Startup::parse_reply(bytes).unwrap());
        let Ok(Parse::Done((reply, _))) = Startup::parse_reply(&self.read) else { unreachable!() };
        assert_eq!(reply.role, Role::Reply { rejected: false });
        assert_eq!(reply.markers, way.markers);
        let crc = reply.crc || way.crc;
        self.begins(Way { crc, ..way });
        self.read.drain(..len);
    }

    fn startup_frame<'s>(
        &'s mut self,
        parse: impl for<'a> Fn(&'a [u8]) -> Parse<(Startup<'a>, usize)>,
    ) -> usize {
        loop {
            if let Parse::Done((_, len)) = parse(&self.read) {
                return len;
            }
            assert_eq!(self.receive(PATIENCE), None, "a startup frame is expected");
        }
    }

    // --- Sending ---

    /// Sends the first message: an empty Write, which is an RTR and not a signal.
    pub(crate) fn open(&mut self) {
        self.send(&Header::Write(Tagged { last: true, place: Place::default() }), &[]);
    }

    /// Sends the first message: the signal of another Ironwarp peer.
    pub(crate) fn open_as_ironwarp(&mut self, capabilities: Capabilities) {
        self.send(&Signal::Capabilities(capabilities).to_header(), &[]);
        self.dialect = Dialect::Ironwarp;
    }

    /// Encodes the next FPDU, which the caller sends.
    pub(crate) fn frame(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.writer.write(header, payload, |part| bytes.extend_from_slice(part)).unwrap();
        bytes
    }

    /// Sends an FPDU, and returns its bytes.
    pub(crate) fn send(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let bytes = self.frame(header, payload);
        self.raw(&bytes);
        bytes
    }

    /// Sends an FPDU after `change` has modified its segment. Its CRC is corrected.
    pub(crate) fn send_changed(
        &mut self,
        header: &Header,
        payload: &[u8],
        change: impl FnOnce(&mut [u8]),
    ) -> Vec<u8> {
        let mut bytes = self.frame(header, payload);
        let covered = bytes.len() - 4;
        change(&mut bytes[2..covered]);
        let crc = ironwarp_wire::mpa::Crc::of(&bytes[..covered]).to_bytes();
        bytes[covered..].copy_from_slice(&crc);
        self.raw(&bytes);
        bytes
    }

    /// Sends bytes. A victim that has closed may answer with RST; what it sent before is still read.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            sent => sent.unwrap(),
        }
    }

    /// Sends bytes in pieces, slowly, so that the victim most likely receives them one by one. The test must
    /// also pass if it does not.
    pub(crate) fn slowly(&mut self, bytes: &[u8], piece: usize) {
        for piece in bytes.chunks(piece) {
            self.raw(piece);
            std::thread::sleep(Duration::from_micros(200)); // the pace of a slow sender, not a synchronisation
        }
    }

    /// Sends FIN.
    pub(crate) fn finish(&self) {
        // The victim may already have reset the connection.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Sends RST.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    // --- Receiving ---

    /// Receives the next message or the end, within this time.
    pub(crate) fn hear_for(&mut self, patience: Duration) -> Heard {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(message) = self.whole() {
                return message;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(heard) = self.receive(left) {
                assert!(
                    heard != Heard::End || self.read.is_empty(),
                    "the victim closed in the middle of an FPDU"
                );
                return heard;
            }
        }
    }

    /// The FPDU at the front of what was read, once it is complete. What the victim sends must be valid.
    fn whole(&mut self) -> Option<Heard> {
        if !self.hears_markers {
            let mut input = &self.read[..];
            let (fpdu, payload) = self.reader.take_whole(&mut input, self.dialect).unwrap()?;
            let (payload, used) = (payload.to_vec(), self.read.len() - input.len());
            return Some(Heard::Message(fpdu.header, payload, self.read.drain(..used).collect()));
        }
        let (mut input, mut reader) = (&self.read[..], self.reader.clone());
        let (mut header, mut payload) = (None, Vec::new());
        loop {
            match reader.next(&mut input, self.dialect).unwrap()? {
                Piece::Header(fpdu) => header = Some(fpdu.header),
                Piece::Payload(bytes) => payload.extend_from_slice(bytes),
                Piece::End => break,
            }
        }
        let used = self.read.len() - input.len();
        self.reader = reader;
        Some(Heard::Message(header?, payload, self.read.drain(..used).collect()))
    }

    pub(crate) fn hear(&mut self) -> Heard {
        self.hear_for(PATIENCE)
    }

    /// Receives bytes. Returns `None` if there were any.
    fn receive(&mut self, patience: Duration) -> Option<Heard> {
        if patience.is_zero() {
            return Some(Heard::Silence);
        }
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Some(Heard::End),
            Ok(n) => {
                self.read.extend_from_slice(&bytes[..n]);
                None
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Some(Heard::Silence),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Some(Heard::Reset),
                ErrorKind::Interrupted => None,
                _ => panic!("{error}"),
            },
        }
    }

    /// Receives the next message that is not a signal.
    pub(crate) fn hear_message(&mut self) -> Heard {
        loop {
            match self.hear() {
                Heard::Message(Header::Write(write), payload, _)
                    if payload.is_empty() && Signal::parse(write.place).is_some() => {}
                heard => return heard,
            }
        }
    }

    /// Receives all messages up to the end, which must come in time, without signals.
    pub(crate) fn hear_out(&mut self) -> (Vec<(Header, Vec<u8>)>, Heard) {
        let mut messages = Vec::new();
        loop {
            match self.hear_message() {
                Heard::Message(header, payload, _) => messages.push((header, payload)),
                end => return (messages, end),
            }
        }
    }

    /// Receives a Terminate, which must be the next message and the last, in the form defined by the RFC.
    pub(crate) fn hear_terminate(&mut self) -> Terminate {
        let terminate = match self.hear_message() {
            Heard::Message(Header::Terminate(terminate), _, bytes) => {
                assert_eq!(self.again(&Header::Terminate(terminate)), bytes, "not in the form of the RFC");
                terminate
            }
            other => panic!("expected a Terminate, got {other:?}"),
        };
        assert_eq!(self.hear(), Heard::End, "nothing follows a Terminate (RFC 5040 §4.8)");
        terminate
    }

    fn again(&self, header: &Header) -> Vec<u8> {
        let mut bytes = Vec::new();
        FpduWriter::new(Framing { crc: self.writer.framing().crc, markers: false })
            .write(header, &[], |part| bytes.extend_from_slice(part))
            .unwrap();
        bytes
    }
}

/// Encodes a startup frame.
pub(crate) fn startup(role: Role, way: Way, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_STARTUP];
    let frame = Startup { role, markers: false, crc: way.crc, revision: way.revision, private_data };
    let n = frame.emit(&mut bytes).unwrap();
    bytes[..n].to_vec()
}
