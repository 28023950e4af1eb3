//! Cuts the bytes of a connection where its frames end, so that each frame becomes a packet: analysers get lost where a packet ends in
//! the middle of an FPDU's header.

use ironwarp_wire::mpa::{FpduReader, Framing, Piece, Startup};
use ironwarp_wire::{Dialect, Parse};

/// More than the longest frame with all its markers. More bytes without an end are not a frame.
const LONGEST: usize = 128 << 10;

/// Which end sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// The end that sent the MPA Request.
    Initiator,
    Responder,
}

/// Both directions of a connection.
#[derive(Debug)]
pub(super) struct Cutter {
    /// The initiator's, then the responder's.
    directions: [Direction; 2],
}

#[derive(Debug)]
struct Direction {
    /// Bytes of a frame that is not complete.
    held: Vec<u8>,
    /// Number of them that were parsed already.
    read: usize,
    stage: Stage,
    /// Its startup frame asked for markers in the other direction.
    wants_markers: bool,
}

#[derive(Debug)]
enum Stage {
    /// The startup frame is due.
    Startup,
    /// The startup frame came. That of the other direction tells whether there are markers in this one.
    Between,
    Frames(Box<FpduReader>),
    /// Not MPA: bytes are passed on as they come.
    Raw,
}

impl Cutter {
    pub(super) fn new() -> Self {
        let direction =
            || Direction { held: Vec::new(), read: 0, stage: Stage::Startup, wants_markers: false };
        Self { directions: [direction(), direction()] }
    }

    /// Takes bytes that were sent, and passes on each frame that is complete with them.
    pub(super) fn take(&mut self, from: From, bytes: &[u8], mut pass: impl FnMut(&[u8])) {
        let [initiator, responder] = &mut self.directions;
        let (this, other) = match from {
            From::Initiator => (initiator, responder),
            From::Responder => (responder, initiator),
        };
        this.held.extend_from_slice(bytes);
        if matches!(this.stage, Stage::Startup) {
            this.startup(from, &mut pass);
        }
        if matches!(this.stage, Stage::Between) && !matches!(other.stage, Stage::Startup) {
            // CRCs are for the peer to check: a capture has to show wrong ones.
            let framing = Framing { crc: false, markers: other.wants_markers };
            this.stage = Stage::Frames(Box::new(FpduReader::new(framing)));
        }
        this.frames(&mut pass);
        if this.held.len() > LONGEST {
            this.stage = Stage::Raw;
        }
        if matches!(this.stage, Stage::Raw) {
            this.rest(pass);
        }
    }

    /// Passes on what is left of frames that will not be complete.
    pub(super) fn end(&mut self, mut pass: impl FnMut(From, &[u8])) {
        for (from, direction) in [From::Initiator, From::Responder].into_iter().zip(&mut self.directions) {
            direction.rest(|bytes| pass(from, bytes));
        }
    }
}

impl Direction {
    fn startup(&mut self, from: From, pass: &mut impl FnMut(&[u8])) {
        let parsed = match from {
            From::Initiator => Startup::parse_request(&self.held),
            From::Responder => Startup::parse_reply(&self.held),
        };
        match parsed {
            Ok(Parse::Done((startup, len))) => {
                self.wants_markers = startup.markers;
                self.stage = Stage::Between;
                pass(&self.held[..len]);
                self.held.drain(..len);
            }
            Ok(Parse::Need(_)) => {}
            Err(_) => self.stage = Stage::Raw,
        }
    }

    fn frames(&mut self, pass: &mut impl FnMut(&[u8])) {
        let Stage::Frames(reader) = &mut self.stage else { return };
        let (mut input, mut begin) = (&self.held[self.read..], 0);
        let violated = loop {
            match reader.next(&mut input, Dialect::Ironwarp) {
                Ok(Some(Piece::End)) => {
                    let end = self.held.len() - input.len();
                    pass(&self.held[begin..end]);
                    begin = end;
                }
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        self.held.drain(..begin);
        self.read = self.held.len();
        if violated {
            self.stage = Stage::Raw;
        }
    }

    fn rest(&mut self, mut pass: impl FnMut(&[u8])) {
        if !self.held.is_empty() {
            pass(&self.held);
        }
        self.held.clear();
        self.read = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_wire::mpa::{FpduWriter, Revision, Role};
    use ironwarp_wire::{Header, Send, SendWord};

    fn startup(role: Role, markers: bool) -> Vec<u8> {
        let startup = Startup { role, markers, crc: true, revision: Revision::One, private_data: b"private" };
        let mut bytes = [0; 100];
        let len = startup.emit(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

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

    fn cut(cutter: &mut Cutter, from: From, bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        bytes.chunks(piece).for_each(|bytes| cutter.take(from, bytes, |frame| found.push(frame.to_vec())));
        found
    }

    #[test]
    fn every_frame_comes_out_whole_however_it_came_in() {
        for (markers_to, markers_back) in [(false, false), (true, false), (false, true)] {
            let request = startup(Role::Request, markers_back);
            let reply = startup(Role::Reply { rejected: false }, markers_to);
            for piece in [1, 2, 7, 511, 4096, usize::MAX] {
                let mut cutter = Cutter::new();
                assert_eq!(cut(&mut cutter, From::Initiator, &request, piece), [&*request]);
                assert_eq!(cut(&mut cutter, From::Responder, &reply, piece), [&*reply]);
                for (from, markers) in [(From::Initiator, markers_to), (From::Responder, markers_back)] {
                    let expected = frames(markers);
                    assert_eq!(cut(&mut cutter, from, &expected.concat(), piece), expected, "{piece}");
                }
                cutter.end(|_, bytes| panic!("{} bytes are left", bytes.len()));
            }
        }
    }

    #[test]
    fn a_frame_with_a_wrong_crc_is_a_frame() {
        let (request, reply) =
            (startup(Role::Request, false), startup(Role::Reply { rejected: false }, false));
        let mut cutter = Cutter::new();
        cut(&mut cutter, From::Initiator, &request, 100);
        cut(&mut cutter, From::Responder, &reply, 100);
        let mut frame = frames(false).remove(2);
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(cut(&mut cutter, From::Initiator, &frame, 10), [frame]);
    }

    #[test]
    fn bytes_that_are_no_frames_are_passed_as_they_come() {
        let mut cutter = Cutter::new();
        let found = cut(&mut cutter, From::Initiator, b"GET / HTTP/1.1\r\n\r\n", 6);
        assert_eq!(found.concat(), b"GET / HTTP/1.1\r\n\r\n");
        let (request, reply) =
            (startup(Role::Request, false), startup(Role::Reply { rejected: false }, false));
        let mut cutter = Cutter::new();
        cut(&mut cutter, From::Initiator, &request, 100);
        cut(&mut cutter, From::Responder, &reply, 100);
        let wrong = [0xff; 300];
        assert_eq!(cut(&mut cutter, From::Responder, &wrong, 100).concat(), wrong);
    }

    #[test]
    fn what_is_left_of_a_frame_is_passed_at_the_end() {
        let request = startup(Role::Request, false);
        let mut cutter = Cutter::new();
        assert_eq!(cut(&mut cutter, From::Initiator, &request[..20], 7), [[]; 0]);
        let mut left = Vec::new();
        cutter.end(|from, bytes| left.push((from, bytes.to_vec())));
        assert_eq!(left, [(From::Initiator, request[..20].to_vec())]);
    }
}
