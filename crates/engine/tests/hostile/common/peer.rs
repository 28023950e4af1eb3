//! A peer that speaks MPA, DDP and RDMAP over a plain socket, as well or as badly as a test wants it to.

use super::PATIENCE;
use ironwarp_wire::mpa::{
    Enhanced, FpduReader, FpduWriter, Framing, MAX_STARTUP, Piece, Revision, Role, RtrSet, Startup,
};
use ironwarp_wire::private::{Capabilities, Signal};
use ironwarp_wire::{Dialect, Header, Parse, Place, Tagged, Terminate};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How the peer begins a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// It wants CRCs.
    pub(crate) crc: bool,
    /// The victim wants markers in what the peer sends.
    pub(crate) markers: bool,
    /// How it introduces itself.
    pub(crate) revision: Revision,
}

/// Peer-to-peer, as RFC 6581 has it.
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
    /// What it understands: nothing private, unless it has said so.
    dialect: Dialect,
    read: Vec<u8>,
}

/// What the peer hears.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// A whole FPDU: header, payload, and all of its bytes.
    Message(Header, Vec<u8>, Vec<u8>),
    /// FIN.
    End,
    /// RST.
    Reset,
    /// Nothing, for as long as it listened.
    Silence,
}

impl Peer {
    /// Opens a connection and says nothing.
    pub(crate) fn dial(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        Self::new(stream, Framing::default())
    }

    fn new(stream: TcpStream, framing: Framing) -> Self {
        stream.set_nodelay(true).unwrap();
        // A victim that does not read must not hang the test.
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let reader = FpduReader::new(Framing { crc: framing.crc, markers: false });
        let writer = FpduWriter::new(framing);
        Self { stream, writer, reader, hears_markers: false, dialect: Dialect::Standard, read: Vec::new() }
    }

    /// A connection that was made by other means, on which nothing was said yet.
    pub(crate) fn on(stream: TcpStream) -> Self {
        Self::new(stream, Framing::default())
    }

    /// Takes a connection from a victim that dials, and reads its Request.
    pub(crate) fn accepts(listener: &TcpListener) -> Self {
        let mut peer = Self::on(listener.accept().unwrap().0);
        let len = peer.startup_frame(|bytes| Startup::parse_request(bytes).unwrap());
        peer.read.drain(..len);
        peer
    }

    /// All bytes that came, once there are as many as a startup frame has: 20, and those of which its length field tells.
    pub(crate) fn hear_startup(&mut self) -> Vec<u8> {
        self.try_hear_startup(PATIENCE).expect("a startup frame was due")
    }

    /// The same; `None` if it does not come: the victim is silent for so long, or closes.
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

    /// The same, and answers it.
    pub(crate) fn answer(listener: &TcpListener, way: Way) -> Self {
        let mut peer = Self::accepts(listener);
        peer.frame_startup(Role::Reply { rejected: false }, way);
        peer.begins(way);
        peer
    }

    /// From now on there are FPDUs.
    pub(crate) fn begins(&mut self, way: Way) {
        self.begins_with(
            Framing { crc: way.crc, markers: way.markers },
            Framing { crc: way.crc, markers: false },
        );
    }

    /// The same, with the framing of what it sends and of what it hears.
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

    /// Waits for the Reply: from now on there is a stream.
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
            assert_eq!(self.receive(PATIENCE), None, "a startup frame was due");
        }
    }

    // --- Speaking ---

    /// The first message: an empty Write, which is an RTR and not a signal.
    pub(crate) fn open(&mut self) {
        self.send(&Header::Write(Tagged { last: true, place: Place::default() }), &[]);
    }

    /// The first message: the signal of another Ironwarp end.
    pub(crate) fn open_as_ironwarp(&mut self, capabilities: Capabilities) {
        self.send(&Signal::Capabilities(capabilities).header(), &[]);
        self.dialect = Dialect::Ironwarp;
    }

    /// The bytes of the next FPDU, which the caller sends.
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

    /// Sends an FPDU of which `change` has changed the segment: its CRC is right again.
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

    /// Sends bytes. A victim that closed meanwhile may answer with RST; what it said before is still read.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            sent => sent.unwrap(),
        }
    }

    /// Sends bytes in pieces, slowly: the victim most likely gets them one by one. All must be well if it does not, too.
    pub(crate) fn slowly(&mut self, bytes: &[u8], piece: usize) {
        for piece in bytes.chunks(piece) {
            self.raw(piece);
            std::thread::sleep(Duration::from_micros(200)); // the pace of a slow sender, nothing waits for it
        }
    }

    /// Sends FIN.
    pub(crate) fn finish(&self) {
        // The victim may have reset the connection before.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Sends RST.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    // --- Listening ---

    /// Reads what comes next, until `patience` is over.
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

    /// The FPDU at the front of what was read, once all of it is there. What the victim sends must be right.
    fn whole(&mut self) -> Option<Heard> {
        if !self.hears_markers {
            let mut input = &self.read[..];
            let (fpdu, payload) = self.reader.whole(&mut input, self.dialect).unwrap()?;
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

    /// `None`: something came.
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

    /// The next message that is no signal.
    pub(crate) fn hear_message(&mut self) -> Heard {
        loop {
            match self.hear() {
                Heard::Message(Header::Write(write), payload, _)
                    if payload.is_empty() && Signal::parse(write.place).is_some() => {}
                heard => return heard,
            }
        }
    }

    /// All messages up to the end, which must come in time. Signals are left out.
    pub(crate) fn hear_out(&mut self) -> (Vec<(Header, Vec<u8>)>, Heard) {
        let mut messages = Vec::new();
        loop {
            match self.hear_message() {
                Heard::Message(header, payload, _) => messages.push((header, payload)),
                end => return (messages, end),
            }
        }
    }

    /// The Terminate, which must be the next message, in the form that the RFC gives it, and the last.
    pub(crate) fn hear_terminate(&mut self) -> Terminate {
        let terminate = match self.hear_message() {
            Heard::Message(Header::Terminate(terminate), _, bytes) => {
                assert_eq!(self.again(&Header::Terminate(terminate)), bytes, "not the RFC's form");
                terminate
            }
            other => panic!("a Terminate is due, not {other:?}"),
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

/// A startup frame.
pub(crate) fn startup(role: Role, way: Way, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_STARTUP];
    let frame = Startup { role, markers: false, crc: way.crc, revision: way.revision, private_data };
    let n = frame.emit(&mut bytes).unwrap();
    bytes[..n].to_vec()
}
