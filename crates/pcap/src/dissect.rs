//! An iWARP connection, taken apart into its frames: the two startup frames, then FPDUs.
//!
//! What breaks a rule ends its direction there and becomes a [`Problem`]; the frames before it stand, and the other
//! direction goes on. Private messages are read too: an analyser shows everything.

use crate::{Connection, Moment, Stream};
use ironwarp_wire::mpa::{FpduReader, Framing, Piece, Revision, Role, Startup};
use ironwarp_wire::private::{Aside, Hello, Signal, Unreadable};
use ironwarp_wire::{Dialect, Fpdu, Header, Parse, SendWord, Violation};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

/// A connection that speaks iWARP.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Who sent the MPA Request.
    pub initiator: SocketAddr,
    /// The other end.
    pub responder: SocketAddr,
    /// What the initiator's FPDUs carry beside their messages.
    pub from_initiator: Framing,
    /// The same for the responder's.
    pub from_responder: Framing,
    /// Every frame of both directions, in the order in which they were complete.
    pub frames: Vec<Frame>,
    /// What ended a direction before its time; at most one for each.
    pub problems: Vec<Problem>,
    /// The first packet of the connection.
    pub opened: Moment,
    /// The packet that closed it.
    pub closed: Option<Moment>,
}

/// A startup frame or FPDU.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Which way it went.
    pub from_initiator: bool,
    /// The packet that completed it.
    pub at: Moment,
    /// Where it is in the bytes of its direction, markers included.
    pub range: Range<usize>,
    /// These bytes, as they were on the wire.
    pub bytes: Vec<u8>,
    /// What they mean.
    pub kind: Kind,
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// An MPA Request or Reply.
    Startup(OwnedStartup),
    /// An FPDU.
    Fpdu {
        /// What its header says.
        fpdu: Fpdu,
        /// What it carries, without markers.
        payload: Vec<u8>,
    },
}

/// A [`Startup`] that keeps its private data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedStartup {
    /// See [`Startup::role`].
    pub role: Role,
    /// See [`Startup::markers`].
    pub markers: bool,
    /// See [`Startup::crc`].
    pub crc: bool,
    /// See [`Startup::revision`].
    pub revision: Revision,
    /// See [`Startup::private_data`].
    pub private_data: Vec<u8>,
}

/// What ended a direction before its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Which way.
    pub from_initiator: bool,
    /// The packet that showed it.
    pub at: Moment,
    /// Where in the bytes of the direction the frame begins that is missing.
    pub offset: usize,
    /// What it is.
    pub fault: Fault,
}

/// The kinds of [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The sender broke a rule.
    #[error("violation: {violation}; the Terminate for it says \"{}\"", .violation.cause())]
    Violation {
        /// Which rule.
        violation: Violation,
    },
    /// The recording is incomplete.
    #[error(
        "{missing} bytes are not in the capture: the recorder lost packets, or cut them off (`-s 0` makes it keep all)"
    )]
    Hole {
        /// How many bytes.
        missing: usize,
    },
    /// The direction ends within a frame.
    #[error("it breaks off {got} bytes into a frame")]
    Cut {
        /// How much of the frame is there.
        got: usize,
    },
    /// The Request was not answered.
    #[error("no MPA Reply to the Request")]
    NoReply,
    /// There can be no FPDUs on a rejected connection.
    #[error("{bytes} bytes follow the rejection of the connection")]
    AfterRejection {
        /// How many bytes.
        bytes: usize,
    },
}

/// Takes a connection apart; `None` if it does not begin with an MPA Request.
pub fn dissect(connection: &Connection) -> Option<Conversation> {
    let first = (0..2).find(|&side| begins_with_request(&connection.streams[side].bytes))?;
    let second = 1 - first;
    let mut initiator = Direction { from_initiator: true, stream: &connection.streams[first], at: 0 };
    let mut responder = Direction { from_initiator: false, stream: &connection.streams[second], at: 0 };
    let mut conversation = Conversation {
        initiator: connection.ends[first],
        responder: connection.ends[second],
        from_initiator: Framing::default(),
        from_responder: Framing::default(),
        frames: Vec::new(),
        problems: Vec::new(),
        opened: connection.opened,
        closed: connection.closed,
    };
    let request = conversation.startup(&mut initiator, Startup::parse_request);
    let reply = conversation.startup(&mut responder, Startup::parse_reply);
    if let (Some(request), Some(reply)) = (request, reply) {
        conversation.agree(&request, &reply);
        for direction in [&mut initiator, &mut responder] {
            if reply.role == (Role::Reply { rejected: true }) {
                conversation.problems.extend(direction.after_rejection());
            } else {
                conversation.fpdus(direction);
            }
        }
    }
    conversation.frames.sort_by_key(|frame| frame.at.packet);
    Some(conversation)
}

fn begins_with_request(bytes: &[u8]) -> bool {
    const KEY_LEN: usize = 16;
    bytes.len() >= KEY_LEN && !matches!(Startup::parse_request(bytes), Err(Violation::Key { .. }))
}

type ParseStartup<'a> = fn(&'a [u8]) -> Result<Parse<(Startup<'a>, usize)>, Violation>;

impl Conversation {
    /// What the FPDUs of one direction carry beside their messages.
    pub fn framing(&self, from_initiator: bool) -> Framing {
        if from_initiator { self.from_initiator } else { self.from_responder }
    }

    /// RFC 5044 §7.1: one side suffices for CRCs; markers are a demand on the other side.
    fn agree(&mut self, request: &OwnedStartup, reply: &OwnedStartup) {
        let crc = request.crc || reply.crc;
        self.from_initiator = Framing { crc, markers: reply.markers };
        self.from_responder = Framing { crc, markers: request.markers };
    }

    fn startup<'a>(&mut self, from: &mut Direction<'a>, parse: ParseStartup<'a>) -> Option<OwnedStartup> {
        let bytes = &from.stream.bytes;
        match parse(bytes) {
            Ok(Parse::Done((startup, len))) => {
                let startup = OwnedStartup::from(startup);
                self.frames.push(from.frame(len, Kind::Startup(startup.clone())));
                return Some(startup);
            }
            Ok(Parse::Need(_)) if bytes.is_empty() && from.stream.hole.is_none() => {
                self.problems.push(from.problem(Fault::NoReply));
            }
            Ok(Parse::Need(_)) => self.problems.extend(from.end(false)),
            Err(violation) => self.problems.push(from.problem(Fault::Violation { violation })),
        }
        None
    }

    fn fpdus(&mut self, from: &mut Direction<'_>) {
        let mut reader = FpduReader::new(self.framing(from.from_initiator));
        let mut input = &from.stream.bytes[from.at..];
        let mut open: Option<(Fpdu, Vec<u8>)> = None;
        loop {
            match reader.next(&mut input, Dialect::Ironwarp) {
                Ok(Some(Piece::Header(fpdu))) => open = Some((fpdu, Vec::new())),
                Ok(Some(Piece::Payload(bytes))) => {
                    open.iter_mut().for_each(|(_, payload)| payload.extend(bytes));
                }
                Ok(Some(Piece::End)) => {
                    let end = from.stream.bytes.len() - input.len();
                    let frame =
                        open.take().map(|(fpdu, payload)| from.frame(end, Kind::Fpdu { fpdu, payload }));
                    self.frames.extend(frame);
                }
                Ok(None) => return self.problems.extend(from.end(reader.at_boundary())),
                Err(violation) => return self.problems.push(from.problem(Fault::Violation { violation })),
            }
        }
    }
}

/// A direction on its way through dissection.
struct Direction<'a> {
    from_initiator: bool,
    stream: &'a Stream,
    /// Where the next frame begins.
    at: usize,
}

impl Direction<'_> {
    /// The frame that ends at `end`.
    fn frame(&mut self, end: usize, kind: Kind) -> Frame {
        let range = self.at..end;
        self.at = end;
        Frame {
            from_initiator: self.from_initiator,
            at: self.stream.readable_at(end - 1),
            bytes: self.stream.bytes[range.clone()].to_vec(),
            range,
            kind,
        }
    }

    fn problem(&self, fault: Fault) -> Problem {
        let at = match (fault, self.stream.hole) {
            (Fault::Hole { .. }, Some(hole)) => hole.before,
            (Fault::Violation { .. }, _) => self.stream.readable_at(self.at),
            _ => self.stream.readable_at(self.stream.bytes.len()),
        };
        Problem { from_initiator: self.from_initiator, at, offset: self.at, fault }
    }

    /// All bytes were read: is that a good end?
    fn end(&self, at_boundary: bool) -> Option<Problem> {
        let got = self.stream.bytes.len() - self.at;
        match self.stream.hole {
            Some(hole) => Some(self.problem(Fault::Hole { missing: hole.missing })),
            None => (!at_boundary).then(|| self.problem(Fault::Cut { got })),
        }
    }

    fn after_rejection(&self) -> Option<Problem> {
        let bytes = self.stream.bytes.len() - self.at;
        (bytes > 0).then(|| self.problem(Fault::AfterRejection { bytes }))
    }
}

impl From<Startup<'_>> for OwnedStartup {
    fn from(startup: Startup<'_>) -> Self {
        let Startup { role, markers, crc, revision, private_data } = startup;
        Self { role, markers, crc, revision, private_data: private_data.to_vec() }
    }
}

impl OwnedStartup {
    /// The frame as the codec knows it.
    pub fn view(&self) -> Startup<'_> {
        let Self { role, markers, crc, revision, private_data } = self;
        Startup { role: *role, markers: *markers, crc: *crc, revision: *revision, private_data }
    }

    /// What Ironwarp says in the private data, in words, if it is Ironwarp.
    fn private_header(&self) -> Option<String> {
        let hello = Hello::parse(&self.private_data).map(|hello| hello.to_string());
        let aside = || Aside::parse(&self.private_data).map(|(header, _)| header.to_string());
        let said = match hello {
            Err(Unreadable::Foreign) => aside(),
            hello => hello,
        };
        match said {
            Err(Unreadable::Foreign) => None,
            said => Some(said.unwrap_or_else(|why| why.to_string())),
        }
    }
}

impl Frame {
    /// The name of its kind, for counting.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Startup(startup) => match startup.role {
                Role::Request => "MPA Request",
                Role::Reply { rejected: false } => "MPA Reply",
                Role::Reply { rejected: true } => "MPA Reject",
            },
            Kind::Fpdu { fpdu, .. } if signal(fpdu).is_some() => "Signal",
            Kind::Fpdu { fpdu, .. } => name(&fpdu.header),
        }
    }
}

fn name(header: &Header) -> &'static str {
    match header {
        Header::Write(_) => "Write",
        Header::ReadResponse(_) => "Read Response",
        Header::Send(send) => match (send.solicited, send.word) {
            (false, SendWord::Srq(_)) => "Send",
            (false, SendWord::Invalidate(_)) => "Send Invalidate",
            (true, SendWord::Srq(_)) => "Send SE",
            (true, SendWord::Invalidate(_)) => "Send SE Invalidate",
        },
        Header::Immediate(_) => "Immediate",
        Header::ReadRequest(_) => "Read Request",
        Header::AtomicRequest(_) => "Atomic Request",
        Header::AtomicResponse(_) => "Atomic Response",
        Header::Terminate(_) => "Terminate",
        Header::SendImmediate(_) => "Send Immediate",
        Header::ReadV2Request(_) => "Read V2 Request",
        Header::ReadV2Response(_) => "Read V2 Response",
    }
}

/// The signal that an empty Write carries, if it does.
fn signal(fpdu: &Fpdu) -> Option<Result<Signal, Unreadable>> {
    match fpdu.header {
        Header::Write(write) if fpdu.payload_len == 0 => Signal::parse(write.place),
        _ => None,
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Startup(startup) => match startup.private_header() {
                Some(header) => write!(f, "{}: {header}", startup.view()),
                None => write!(f, "{}", startup.view()),
            },
            Kind::Fpdu { fpdu, .. } => match signal(fpdu) {
                Some(Ok(signal)) => write!(f, "{signal}"),
                Some(Err(why)) => write!(f, "Signal: {why}"),
                None => write!(f, "{fpdu}"),
            },
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of this direction: {}", self.offset, self.fault)
    }
}

#[cfg(test)]
mod tests;
