//! Dissects an iWARP connection into frames: the two startup frames, then FPDUs.
//!
//! A violation ends its direction and becomes a [`Problem`]. Earlier frames and the other direction are not affected.
//! Private messages are decoded, too.

use crate::{Connection, Moment, Stream};
use ironwarp_wire::mpa::{FpduReader, Framing, Piece, Revision, Role, Startup};
use ironwarp_wire::private::{CmHeader, Hello, Signal, Unreadable};
use ironwarp_wire::{Dialect, Fpdu, Header, Parse, SendWord, Violation};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

/// An iWARP connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The sender of the MPA Request.
    pub initiator: SocketAddr,
    /// The other end.
    pub responder: SocketAddr,
    /// Framing of the initiator's FPDUs.
    pub from_initiator: Framing,
    /// Framing of the responder's FPDUs.
    pub from_responder: Framing,
    /// All frames of both directions, in the order of their completion.
    pub frames: Vec<Frame>,
    /// Problems that ended a direction; at most one for each.
    pub problems: Vec<Problem>,
    /// The first packet of the connection.
    pub opened: Moment,
    /// The packet that closed it.
    pub closed: Option<Moment>,
}

/// A startup frame or FPDU.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Whether the initiator sent it.
    pub from_initiator: bool,
    /// The packet that completed it.
    pub at: Moment,
    /// Its position in the byte stream of its direction, markers included.
    pub range: Range<usize>,
    /// The bytes on the wire.
    pub bytes: Vec<u8>,
    /// The decoded contents.
    pub kind: Kind,
}

/// The contents of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// An MPA Request or Reply.
    Startup(OwnedStartup),
    /// An FPDU.
    Fpdu {
        /// Its header.
        fpdu: Fpdu,
        /// Its payload, without markers.
        payload: Vec<u8>,
    },
}

/// A [`Startup`] that owns its private data.
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

/// Why the dissection of a direction ended early.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Whether the initiator sent this direction.
    pub from_initiator: bool,
    /// The packet in which it was detected.
    pub at: Moment,
    /// Position of the missing frame in the byte stream of the direction.
    pub offset: usize,
    /// The kind of problem.
    pub kind: ProblemKind,
}

/// The kinds of [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ProblemKind {
    /// The sender broke a protocol rule.
    #[error("violation: {violation}; its Terminate is \"{}\"", .violation.cause())]
    Violation {
        /// The rule.
        violation: Violation,
    },
    /// Bytes are missing from the capture.
    #[error(
        "{missing} bytes missing from the capture: the recorder dropped or truncated packets (use `-s 0` to keep all bytes)"
    )]
    Gap {
        /// Number of missing bytes.
        missing: usize,
    },
    /// The direction ends in the middle of a frame.
    #[error("the stream ends {got} bytes into a frame")]
    Truncated {
        /// Number of bytes of the frame.
        got: usize,
    },
    /// There is no Reply to the Request.
    #[error("no MPA Reply to the Request")]
    NoReply,
    /// A rejected connection cannot carry FPDUs.
    #[error("{bytes} bytes after the connection was rejected")]
    AfterRejection {
        /// Number of bytes.
        bytes: usize,
    },
}

/// Dissects a connection. Returns `None` if it does not begin with an MPA Request.
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
    let request = conversation.parse_startup(&mut initiator, Startup::parse_request);
    let reply = conversation.parse_startup(&mut responder, Startup::parse_reply);
    if let (Some(request), Some(reply)) = (request, reply) {
        conversation.set_framing(&request, &reply);
        for direction in [&mut initiator, &mut responder] {
            if reply.role == (Role::Reply { rejected: true }) {
                conversation.problems.extend(direction.after_rejection());
            } else {
                conversation.parse_fpdus(direction);
            }
        }
    }
    conversation.frames.sort_by_key(|frame| frame.at.packet);
    Some(conversation)
}

/// Returns whether a stream begins with an MPA Request, valid or not.
fn begins_with_request(bytes: &[u8]) -> bool {
    const KEY_LEN: usize = 16;
    bytes.len() >= KEY_LEN && !matches!(Startup::parse_request(bytes), Err(Violation::Key { .. }))
}

/// Parses a startup frame of one role.
type ParseStartup<'a> = fn(&'a [u8]) -> Result<Parse<(Startup<'a>, usize)>, Violation>;

impl Conversation {
    /// Returns the framing of one direction.
    pub fn framing(&self, from_initiator: bool) -> Framing {
        if from_initiator { self.from_initiator } else { self.from_responder }
    }

    /// Sets the framing that the startup frames negotiate (RFC 5044 §7.1): either end can enable CRCs for both
    /// directions, and the receiver requests markers.
    fn set_framing(&mut self, request: &OwnedStartup, reply: &OwnedStartup) {
        let crc = request.crc || reply.crc;
        self.from_initiator = Framing { crc, markers: reply.markers };
        self.from_responder = Framing { crc, markers: request.markers };
    }

    /// Parses the startup frame of a direction, and adds the frame or a problem. Returns the frame.
    fn parse_startup<'a>(
        &mut self,
        from: &mut Direction<'a>,
        parse: ParseStartup<'a>,
    ) -> Option<OwnedStartup> {
        let bytes = &from.stream.bytes;
        match parse(bytes) {
            Ok(Parse::Done((startup, len))) => {
                let startup = OwnedStartup::from(startup);
                self.frames.push(from.take_frame(len, Kind::Startup(startup.clone())));
                return Some(startup);
            }
            Ok(Parse::Need(_)) if bytes.is_empty() && from.stream.gap.is_none() => {
                self.problems.push(from.problem(ProblemKind::NoReply));
            }
            Ok(Parse::Need(_)) => self.problems.extend(from.check_end(false)),
            Err(violation) => self.problems.push(from.problem(ProblemKind::Violation { violation })),
        }
        None
    }

    /// Parses all FPDUs of a direction, and adds them and the problem that stops parsing, if any.
    fn parse_fpdus(&mut self, from: &mut Direction<'_>) {
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
                        open.take().map(|(fpdu, payload)| from.take_frame(end, Kind::Fpdu { fpdu, payload }));
                    self.frames.extend(frame);
                }
                Ok(None) => return self.problems.extend(from.check_end(reader.is_at_boundary())),
                Err(violation) => {
                    return self.problems.push(from.problem(ProblemKind::Violation { violation }));
                }
            }
        }
    }
}

/// A direction being dissected.
struct Direction<'a> {
    from_initiator: bool,
    stream: &'a Stream,
    /// Where the next frame begins.
    at: usize,
}

impl Direction<'_> {
    /// Returns the frame from the current position to `end`, and advances to `end`.
    fn take_frame(&mut self, end: usize, kind: Kind) -> Frame {
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

    /// Returns a problem at the current position.
    fn problem(&self, kind: ProblemKind) -> Problem {
        let at = match (kind, self.stream.gap) {
            (ProblemKind::Gap { .. }, Some(gap)) => gap.before,
            (ProblemKind::Violation { .. }, _) => self.stream.readable_at(self.at),
            _ => self.stream.readable_at(self.stream.bytes.len()),
        };
        Problem { from_initiator: self.from_initiator, at, offset: self.at, kind }
    }

    /// Checks the end of the stream, after all bytes were read. Returns a problem if bytes are missing, or unless the
    /// stream ends at the boundary of a frame.
    fn check_end(&self, at_boundary: bool) -> Option<Problem> {
        let got = self.stream.bytes.len() - self.at;
        match self.stream.gap {
            Some(gap) => Some(self.problem(ProblemKind::Gap { missing: gap.missing })),
            None => (!at_boundary).then(|| self.problem(ProblemKind::Truncated { got })),
        }
    }

    /// Returns a problem if bytes follow the rejection of the connection.
    fn after_rejection(&self) -> Option<Problem> {
        let bytes = self.stream.bytes.len() - self.at;
        (bytes > 0).then(|| self.problem(ProblemKind::AfterRejection { bytes }))
    }
}

impl From<Startup<'_>> for OwnedStartup {
    fn from(startup: Startup<'_>) -> Self {
        let Startup { role, markers, crc, revision, private_data } = startup;
        Self { role, markers, crc, revision, private_data: private_data.to_vec() }
    }
}

impl OwnedStartup {
    /// Returns the borrowed form.
    pub fn view(&self) -> Startup<'_> {
        let Self { role, markers, crc, revision, private_data } = self;
        Startup { role: *role, markers: *markers, crc: *crc, revision: *revision, private_data }
    }

    /// Describes the header of Ironwarp's private protocol in the private data, if any.
    fn private_header(&self) -> Option<String> {
        let hello = Hello::parse(&self.private_data).map(|hello| hello.to_string());
        let cm = || CmHeader::parse(&self.private_data).map(|(header, _)| header.to_string());
        let described = match hello {
            Err(Unreadable::Foreign) => cm(),
            hello => hello,
        };
        match described {
            Err(Unreadable::Foreign) => None,
            described => Some(described.unwrap_or_else(|why| why.to_string())),
        }
    }
}

impl Frame {
    /// Returns the name of the frame's kind, by which frames are counted.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Startup(startup) => match startup.role {
                Role::Request => "MPA Request",
                Role::Reply { rejected: false } => "MPA Reply",
                Role::Reply { rejected: true } => "MPA Reject",
            },
            Kind::Fpdu { fpdu, .. } if signal(fpdu).is_some() => "Signal",
            Kind::Fpdu { fpdu, .. } => header_name(&fpdu.header),
        }
    }
}

/// Returns the name of a message.
fn header_name(header: &Header) -> &'static str {
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

/// Returns the signal in an empty Write, if it is one.
fn signal(fpdu: &Fpdu) -> Option<Result<Signal, Unreadable>> {
    match fpdu.header {
        Header::Write(write) if fpdu.payload_len == 0 => Signal::parse(write.addr),
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
        write!(f, "at byte {} of this direction: {}", self.offset, self.kind)
    }
}

#[cfg(test)]
mod tests;
