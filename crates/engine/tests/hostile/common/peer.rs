//! [`Peer`], which speaks MPA, DDP and RDMAP over a plain TCP socket, and violates the protocols where a test needs
//! that.

use super::TIMEOUT;
use ironwarp_wire::mpa::{
    Enhanced, FpduReader, FpduWriter, Framing, MAX_STARTUP, Piece, Revision, Role, RtrSet, Startup,
};
use ironwarp_wire::private::{Capabilities, Signal};
use ironwarp_wire::{Dialect, Header, Parse, RemoteAddr, Tagged, Terminate};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The settings of the peer's startup frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartupSettings {
    /// Whether the peer requests CRCs.
    pub(crate) crc: bool,
    /// Whether the victim has requested markers in the stream that the peer sends.
    pub(crate) markers: bool,
    /// The MPA revision of its startup frame.
    pub(crate) revision: Revision,
}

/// The peer-to-peer model of RFC 6581.
pub(crate) const ENHANCED: Enhanced =
    Enhanced { ird: 32, ord: 32, rtr: Some(RtrSet::WRITE.union(RtrSet::READ)) };

impl Default for StartupSettings {
    fn default() -> Self {
        Self { crc: true, markers: false, revision: Revision::Two(Some(ENHANCED)) }
    }
}

/// The peer's end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    writer: FpduWriter,
    reader: FpduReader,
    /// Whether the victim sends markers.
    receives_markers: bool,
    /// The messages that the peer parses: private ones only after it has announced its capabilities.
    dialect: Dialect,
    /// Bytes that were received and not parsed yet.
    read: Vec<u8>,
}

/// The result of receiving.
#[derive(Debug, PartialEq)]
pub(crate) enum Received {
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
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let reader = FpduReader::new(Framing { crc: framing.crc, markers: false });
        let writer = FpduWriter::new(framing);
        Self { stream, writer, reader, receives_markers: false, dialect: Dialect::Standard, read: Vec::new() }
    }

    /// Uses an existing connection on which nothing was sent yet.
    pub(crate) fn from_stream(stream: TcpStream) -> Self {
        Self::new(stream, Framing::default())
    }

    /// Accepts a connection from a victim that dials, and reads its Request.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        let mut peer = Self::from_stream(listener.accept().unwrap().0);
        let len = peer.receive_startup_frame(|bytes| Startup::parse_request(bytes).unwrap());
        peer.read.drain(..len);
        peer
    }

    /// Returns all bytes received, once there are as many as a startup frame has: 20, plus the length that it
    /// states.
    pub(crate) fn receive_startup(&mut self) -> Vec<u8> {
        self.try_receive_startup(TIMEOUT).expect("a startup frame")
    }

    /// Returns all bytes received, once there is a startup frame. `None` if the victim is silent for this
    /// time, or closes.
    pub(crate) fn try_receive_startup(&mut self, timeout: Duration) -> Option<Vec<u8>> {
        loop {
            let due = self.read.get(18..20).map(|len| 20 + usize::from(u16::from_be_bytes([len[0], len[1]])));
            if due.is_some_and(|due| self.read.len() >= due) {
                return Some(std::mem::take(&mut self.read));
            }
            if self.read_more(timeout).is_some() {
                return None;
            }
        }
    }

    /// Accepts a connection from a victim that dials, and answers its Request.
    pub(crate) fn answer(listener: &TcpListener, settings: StartupSettings) -> Self {
        let mut peer = Self::accept(listener);
        peer.send_startup(Role::Reply { rejected: false }, settings);
        peer.start_stream(settings);
        peer
    }

    /// Starts the exchange of FPDUs: from now on bytes are sent and received as FPDUs.
    pub(crate) fn start_stream(&mut self, settings: StartupSettings) {
        self.start_stream_with(
            Framing { crc: settings.crc, markers: settings.markers },
            Framing { crc: settings.crc, markers: false },
        );
    }

    /// Starts the exchange of FPDUs, with separate framing for each direction.
    pub(crate) fn start_stream_with(&mut self, sends: Framing, hears: Framing) {
        self.writer = FpduWriter::new(sends);
        self.reader = FpduReader::new(hears);
        self.receives_markers = hears.markers;
    }

    /// Sends the Request.
    pub(crate) fn request(&mut self, settings: StartupSettings) {
        self.send_startup(Role::Request, settings);
    }

    /// Sends a startup frame.
    fn send_startup(&mut self, role: Role, settings: StartupSettings) {
        let frame = startup(role, settings, b"peer");
        self.send_bytes(&frame);
    }

    /// Waits for the Reply, which starts the stream.
    pub(crate) fn await_reply(&mut self, settings: StartupSettings) {
        let len = self.receive_startup_frame(|bytes| Startup::parse_reply(bytes).unwrap());
        let Ok(Parse::Done((reply, _))) = Startup::parse_reply(&self.read) else { unreachable!() };
        assert_eq!(reply.role, Role::Reply { rejected: false });
        assert_eq!(reply.markers, settings.markers);
        let crc = reply.crc || settings.crc;
        self.start_stream(StartupSettings { crc, ..settings });
        self.read.drain(..len);
    }

    /// Receives bytes until `parse` finds a complete startup frame. Returns its length.
    fn receive_startup_frame<'s>(
        &'s mut self,
        parse: impl for<'a> Fn(&'a [u8]) -> Parse<(Startup<'a>, usize)>,
    ) -> usize {
        loop {
            if let Parse::Done((_, len)) = parse(&self.read) {
                return len;
            }
            assert_eq!(self.read_more(TIMEOUT), None, "a startup frame is expected");
        }
    }

    // --- Sending ---

    /// Sends the first message: an empty Write, which is an RTR and not a signal.
    pub(crate) fn open(&mut self) {
        self.send(&Header::Write(Tagged { last: true, addr: RemoteAddr::default() }), &[]);
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
        self.send_bytes(&bytes);
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
        self.send_bytes(&bytes);
        bytes
    }

    /// Sends bytes. Ignores a reset by a victim that has closed the connection: bytes that it sent before can still be
    /// received.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            sent => sent.unwrap(),
        }
    }

    /// Sends bytes in pieces, slowly, so that the victim most likely receives them one by one. The test must
    /// also pass if it does not.
    pub(crate) fn send_slowly(&mut self, bytes: &[u8], piece: usize) {
        for piece in bytes.chunks(piece) {
            self.send_bytes(piece);
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

    /// Receives the next message, or the end of the connection, within this time.
    pub(crate) fn receive_within(&mut self, timeout: Duration) -> Received {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(message) = self.take_fpdu() {
                return message;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(received) = self.read_more(left) {
                assert!(
                    received != Received::End || self.read.is_empty(),
                    "the victim closed in the middle of an FPDU"
                );
                return received;
            }
        }
    }

    /// Removes the first FPDU from the bytes received, if it is complete. Panics if it is invalid: the victim sends
    /// only valid FPDUs.
    fn take_fpdu(&mut self) -> Option<Received> {
        if !self.receives_markers {
            let mut input = &self.read[..];
            let (fpdu, payload) = self.reader.take_whole(&mut input, self.dialect).unwrap()?;
            let (payload, used) = (payload.to_vec(), self.read.len() - input.len());
            return Some(Received::Message(fpdu.header, payload, self.read.drain(..used).collect()));
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
        Some(Received::Message(header?, payload, self.read.drain(..used).collect()))
    }

    /// Receives the next message, or the end of the connection.
    pub(crate) fn receive_next(&mut self) -> Received {
        self.receive_within(TIMEOUT)
    }

    /// Reads more bytes from the socket. Returns `None` if there were any, and otherwise why there were none.
    fn read_more(&mut self, timeout: Duration) -> Option<Received> {
        if timeout.is_zero() {
            return Some(Received::Silence);
        }
        self.stream.set_read_timeout(Some(timeout)).unwrap();
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Some(Received::End),
            Ok(n) => {
                self.read.extend_from_slice(&bytes[..n]);
                None
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Some(Received::Silence),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Some(Received::Reset),
                ErrorKind::Interrupted => None,
                _ => panic!("{error}"),
            },
        }
    }

    /// Receives the next message that is not a signal.
    pub(crate) fn receive_message(&mut self) -> Received {
        loop {
            match self.receive_next() {
                Received::Message(Header::Write(write), payload, _)
                    if payload.is_empty() && Signal::parse(write.addr).is_some() => {}
                received => return received,
            }
        }
    }

    /// Receives all messages up to the end, which must come in time, without signals.
    pub(crate) fn receive_until_end(&mut self) -> (Vec<(Header, Vec<u8>)>, Received) {
        let mut messages = Vec::new();
        loop {
            match self.receive_message() {
                Received::Message(header, payload, _) => messages.push((header, payload)),
                end => return (messages, end),
            }
        }
    }

    /// Receives a Terminate, which must be the next message and the last, in the form defined by the RFC.
    pub(crate) fn receive_terminate(&mut self) -> Terminate {
        let terminate = match self.receive_message() {
            Received::Message(Header::Terminate(terminate), _, bytes) => {
                assert_eq!(
                    self.encode_alone(&Header::Terminate(terminate)),
                    bytes,
                    "not in the form of the RFC"
                );
                terminate
            }
            other => panic!("expected a Terminate, got {other:?}"),
        };
        assert_eq!(self.receive_next(), Received::End, "nothing follows a Terminate (RFC 5040 §4.8)");
        terminate
    }

    /// Encodes a message without payload as an FPDU of its own, without markers.
    fn encode_alone(&self, header: &Header) -> Vec<u8> {
        let mut bytes = Vec::new();
        FpduWriter::new(Framing { crc: self.writer.framing().crc, markers: false })
            .write(header, &[], |part| bytes.extend_from_slice(part))
            .unwrap();
        bytes
    }
}

/// Encodes a startup frame.
pub(crate) fn startup(role: Role, settings: StartupSettings, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_STARTUP];
    let frame =
        Startup { role, markers: false, crc: settings.crc, revision: settings.revision, private_data };
    let n = frame.emit(&mut bytes).unwrap();
    bytes[..n].to_vec()
}
