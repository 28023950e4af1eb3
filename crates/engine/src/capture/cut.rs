//! Cuts the bytes of a connection at the ends of MPA frames, so that each frame becomes one packet. Packet analysers
//! cannot follow a stream in which a packet ends in the middle of an FPDU's header.

use ironwarp_wire::mpa::{Crc, FpduReader, Framing, Piece, Startup};
use ironwarp_wire::{Dialect, Parse};

/// Upper bound on the length of a frame with all its markers. More bytes without the end of a frame are not MPA.
const MAX_FRAME_LEN: usize = 128 << 10;

/// The end that sent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The end that sends the MPA Request.
    Initiator,
    /// The end that sends the MPA Reply.
    Responder,
}

/// Cuts both directions of a connection into frames.
#[derive(Debug)]
pub(super) struct Cutter {
    /// Bytes from the initiator, then bytes from the responder.
    directions: [Direction; 2],
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes of a frame that is not complete.
    held: Vec<u8>,
    /// Number of bytes in `held` that were parsed already.
    parsed: usize,
    stage: Stage,
    /// Whether the sender's startup frame asked for markers in the other direction.
    wants_markers: bool,
    /// Whether the sender's startup frame asked for CRCs.
    wants_crc: bool,
    /// Whether FPDUs come without CRCs, although they were agreed, and get them here.
    adds_crc: bool,
}

/// How far a direction has got.
#[derive(Debug, Default)]
enum Stage {
    /// Its startup frame is not complete.
    #[default]
    Startup,
    /// Its startup frame is complete, but that of the other direction, which tells whether this one has markers, is
    /// not.
    AwaitingPeer,
    /// FPDUs follow.
    Frames(Box<FpduReader>),
    /// The bytes are not MPA, and are passed on as they come.
    Raw,
}

impl Sender {
    /// Returns the end that is the client, or the other one.
    pub(super) fn of(is_client: bool) -> Self {
        if is_client { Self::Initiator } else { Self::Responder }
    }
}

impl Cutter {
    pub(super) fn new() -> Self {
        Self { directions: Default::default() }
    }

    /// Sets whether the following FPDUs of this direction have no CRCs because they came by shared memory. If CRCs were
    /// agreed, they get correct ones.
    pub(super) fn set_adds_crc(&mut self, from: Sender, missing: bool) {
        let agreed = self.directions.iter().any(|direction| direction.wants_crc);
        self.directions[from as usize].adds_crc = missing && agreed;
    }

    /// Adds bytes that were sent, and calls `pass` with each frame of this direction that is complete now.
    pub(super) fn add(&mut self, from: Sender, bytes: &[u8], mut pass: impl FnMut(&[u8])) {
        let [initiator, responder] = &mut self.directions;
        let (this, other) = match from {
            Sender::Initiator => (initiator, responder),
            Sender::Responder => (responder, initiator),
        };
        this.held.extend_from_slice(bytes);
        if matches!(this.stage, Stage::Startup) {
            this.pass_startup(from, &mut pass);
        }
        if matches!(this.stage, Stage::AwaitingPeer) && !matches!(other.stage, Stage::Startup) {
            // CRCs are not checked: a capture must show frames with a wrong CRC, too.
            let framing = Framing { crc: false, markers: other.wants_markers };
            this.stage = Stage::Frames(Box::new(FpduReader::new(framing)));
        }
        this.pass_frames(&mut pass);
        if this.held.len() > MAX_FRAME_LEN {
            this.stage = Stage::Raw;
        }
        if matches!(this.stage, Stage::Raw) {
            this.pass_rest(pass);
        }
    }

    /// Calls `pass` with the bytes of incomplete frames, at the end of the connection.
    pub(super) fn end(&mut self, mut pass: impl FnMut(Sender, &[u8])) {
        for (from, direction) in [Sender::Initiator, Sender::Responder].into_iter().zip(&mut self.directions)
        {
            direction.pass_rest(|bytes| pass(from, bytes));
        }
    }
}

impl Direction {
    /// Passes on the startup frame, if it is complete.
    fn pass_startup(&mut self, from: Sender, pass: &mut impl FnMut(&[u8])) {
        let parsed = match from {
            Sender::Initiator => Startup::parse_request(&self.held),
            Sender::Responder => Startup::parse_reply(&self.held),
        };
        match parsed {
            Ok(Parse::Done((startup, len))) => {
                (self.wants_markers, self.wants_crc) = (startup.markers, startup.crc);
                self.stage = Stage::AwaitingPeer;
                pass(&self.held[..len]);
                self.held.drain(..len);
            }
            Ok(Parse::Need(_)) => {}
            Err(_) => self.stage = Stage::Raw,
        }
    }

    /// Passes on all complete FPDUs. After bytes that are not an FPDU, the direction is raw.
    fn pass_frames(&mut self, pass: &mut impl FnMut(&[u8])) {
        let Stage::Frames(reader) = &mut self.stage else { return };
        let (mut input, mut begin, mut frames) = (&self.held[self.parsed..], 0, Vec::new());
        let violated = loop {
            match reader.next(&mut input, Dialect::Ironwarp) {
                Ok(Some(Piece::End)) => {
                    let end = self.held.len() - input.len();
                    frames.push(begin..end);
                    begin = end;
                }
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        for frame in frames {
            if self.adds_crc {
                add_crc(&mut self.held[frame.clone()]);
            }
            pass(&self.held[frame]);
        }
        self.held.drain(..begin);
        self.parsed = self.held.len();
        if violated {
            self.stage = Stage::Raw;
        }
    }

    /// Passes on all bytes that are left, whether they are a frame or not.
    fn pass_rest(&mut self, mut pass: impl FnMut(&[u8])) {
        if !self.held.is_empty() {
            pass(&self.held);
        }
        self.held.clear();
        self.parsed = 0;
    }
}

/// Sets the CRC of an FPDU.
fn add_crc(frame: &mut [u8]) {
    if let Some((covered, crc)) = frame.split_last_chunk_mut() {
        *crc = Crc::of(covered).to_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_wire::mpa::{FpduWriter, Revision, Role};
    use ironwarp_wire::{Header, Send, SendWord};

    /// Returns a startup frame.
    fn startup(role: Role, markers: bool) -> Vec<u8> {
        let startup = Startup { role, markers, crc: true, revision: Revision::One, private_data: b"private" };
        let mut bytes = [0; 100];
        let len = startup.emit(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    /// Returns FPDUs with payloads of different lengths.
    fn frames(markers: bool) -> Vec<Vec<u8>> {
        let mut writer = FpduWriter::new(Framing { crc: true, markers });
        let message = |(msn, len): (u32, usize)| {
            let send = Send { solicited: false, word: SendWord::Srq(0), msn, offset: 0, last: true };
            let mut bytes = Vec::new();
            writer.write(&Header::Send(send), &vec![7; len], |part| bytes.extend(part)).unwrap();
            bytes
        };
        (1..).zip([0, 1, 500, 2000, 3, 60_000]).map(message).collect()
    }

    /// Adds bytes in pieces of this length, and returns the frames that were passed on.
    fn cut(cutter: &mut Cutter, from: Sender, bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        bytes.chunks(piece).for_each(|bytes| cutter.add(from, bytes, |frame| found.push(frame.to_vec())));
        found
    }

    #[test]
    fn every_frame_comes_out_whole_however_it_came_in() {
        for (markers_to, markers_back) in [(false, false), (true, false), (false, true)] {
            let request = startup(Role::Request, markers_back);
            let reply = startup(Role::Reply { rejected: false }, markers_to);
            for piece in [1, 2, 7, 511, 4096, usize::MAX] {
                let mut cutter = Cutter::new();
                assert_eq!(cut(&mut cutter, Sender::Initiator, &request, piece), [&*request]);
                assert_eq!(cut(&mut cutter, Sender::Responder, &reply, piece), [&*reply]);
                for (from, markers) in [(Sender::Initiator, markers_to), (Sender::Responder, markers_back)] {
                    let expected = frames(markers);
                    assert_eq!(cut(&mut cutter, from, &expected.concat(), piece), expected, "{piece}");
                }
                cutter.end(|_, bytes| panic!("{} bytes left over", bytes.len()));
            }
        }
    }

    #[test]
    fn a_frame_with_a_wrong_crc_is_a_frame() {
        let (request, reply) =
            (startup(Role::Request, false), startup(Role::Reply { rejected: false }, false));
        let mut cutter = Cutter::new();
        cut(&mut cutter, Sender::Initiator, &request, 100);
        cut(&mut cutter, Sender::Responder, &reply, 100);
        let mut frame = frames(false).remove(2);
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(cut(&mut cutter, Sender::Initiator, &frame, 10), [frame]);
    }

    #[test]
    fn a_frame_of_shared_memory_gets_the_crc_that_was_agreed() {
        let (request, reply) =
            (startup(Role::Request, false), startup(Role::Reply { rejected: false }, false));
        let mut cutter = Cutter::new();
        cut(&mut cutter, Sender::Initiator, &request, 100);
        cut(&mut cutter, Sender::Responder, &reply, 100);
        let frame = frames(false).remove(2);
        let mut without = frame.clone();
        without.last_chunk_mut::<4>().unwrap().fill(0);
        cutter.set_adds_crc(Sender::Initiator, true);
        assert_eq!(cut(&mut cutter, Sender::Initiator, &without, 10), [&*frame]);
        assert_eq!(cut(&mut cutter, Sender::Responder, &without, 10), [&*without], "the other direction");
        cutter.set_adds_crc(Sender::Initiator, false);
        assert_eq!(cut(&mut cutter, Sender::Initiator, &without, 10), [&*without], "TCP again");
    }

    #[test]
    fn bytes_that_are_no_frames_are_passed_as_they_come() {
        let mut cutter = Cutter::new();
        let found = cut(&mut cutter, Sender::Initiator, b"GET / HTTP/1.1\r\n\r\n", 6);
        assert_eq!(found.concat(), b"GET / HTTP/1.1\r\n\r\n");
        let (request, reply) =
            (startup(Role::Request, false), startup(Role::Reply { rejected: false }, false));
        let mut cutter = Cutter::new();
        cut(&mut cutter, Sender::Initiator, &request, 100);
        cut(&mut cutter, Sender::Responder, &reply, 100);
        let wrong = [0xff; 300];
        assert_eq!(cut(&mut cutter, Sender::Responder, &wrong, 100).concat(), wrong);
    }

    #[test]
    fn what_is_left_of_a_frame_is_passed_at_the_end() {
        let request = startup(Role::Request, false);
        let mut cutter = Cutter::new();
        assert_eq!(cut(&mut cutter, Sender::Initiator, &request[..20], 7), [[]; 0]);
        let mut left = Vec::new();
        cutter.end(|from, bytes| left.push((from, bytes.to_vec())));
        assert_eq!(left, [(Sender::Initiator, request[..20].to_vec())]);
    }
}
