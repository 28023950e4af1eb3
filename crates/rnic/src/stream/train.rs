//! A train: FPDUs that leave in one call. Headers and small payloads are bytes of its own, large payloads stay where they
//! are in the program's memory.
//!
//! Each frame remembers where the stream stands behind it, so that after a call that took only some of the bytes the
//! stream can go back to the last frame that left.

use super::View;
use super::tx::{Cursor, Did, Short};
use crate::host::{Buffer, Host, Span};
use crate::link::{Link, LinkError, Piece};
use crate::queue::WorkRequest;
use ironwarp_wire::Header;
use ironwarp_wire::mpa::{FpduWriter, MAX_HEAD, MAX_TAIL};
use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;

/// So many bytes of its own at most, which bounds the memory of a train.
const MAX_OWN: usize = 256 << 10;
/// There is room for a frame behind that, with its markers.
const OWN: usize = MAX_OWN + (128 << 10);
/// The kernel takes 1024 pieces in one call; a frame has at most so many as its payload has spans, and two.
const MAX_PARTS: usize = 512;
const MAX_FRAMES: usize = 1024;

/// Every header and every length comes from `tx`, which cuts messages to fit.
const ENCODABLE: &str = "a segment that fits the wire";

#[derive(Debug)]
pub(crate) struct Train {
    /// Where the stream stands in front of it: there it goes back to if nothing of it leaves.
    start: Option<Cursor>,
    own: Own,
    parts: Vec<Part>,
    frames: Vec<Frame>,
    len: usize,
    /// It is full when it has so many bytes.
    longest: usize,
    /// Room for requests on their way in. Empty between calls.
    shorts: Vec<Short>,
    /// What the rx half owes, as far as this train is concerned.
    pub(crate) owed: View,
    /// The request in progress, with its sequence number: what the send queue holds, at hand. None between streams.
    pub(crate) current: Option<(u64, WorkRequest)>,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    /// These bytes of `own`.
    Own(usize, usize),
    Host(Span),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Where it ends in the train.
    pub(crate) end: usize,
    /// Where the stream stands behind it.
    pub(crate) after: Cursor,
    /// What it was, for when it has left.
    pub(crate) did: Did,
}

/// Bytes in a buffer of the host's, from its front.
struct Own {
    buffer: Buffer,
    len: usize,
}

impl Own {
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.len += bytes.len();
        self.buffer[start..self.len].copy_from_slice(bytes);
    }
}

impl Deref for Own {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Own").field(&self.len).finish()
    }
}

impl Train {
    pub(crate) fn new(host: &dyn Host) -> Self {
        let own = Own { buffer: host.buffer(OWN), len: 0 };
        Self {
            start: None,
            own,
            parts: Vec::new(),
            frames: Vec::new(),
            len: 0,
            longest: usize::MAX,
            shorts: Vec::new(),
            owed: View::default(),
            current: None,
        }
    }

    /// How many bytes leave in one call at most, give or take a frame.
    pub(crate) fn set_longest(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// Empties it, for what comes next in a stream that stands here.
    pub(crate) fn begin(&mut self, start: Cursor) {
        self.start = Some(start);
        self.own.len = 0;
        self.parts.clear();
        self.frames.clear();
        self.len = 0;
    }

    /// The stream has gone on, and will not go back behind this.
    pub(crate) fn set_start(&mut self, start: Cursor) {
        self.start = Some(start);
    }

    pub(crate) fn start(&self) -> Cursor {
        self.start.expect("a train has begun when it leaves")
    }

    pub(crate) fn take_shorts(&mut self) -> Vec<Short> {
        std::mem::take(&mut self.shorts)
    }

    pub(crate) fn put_shorts(&mut self, shorts: Vec<Short>) {
        self.shorts = shorts;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.longest
            || self.own.len() >= MAX_OWN
            || self.parts.len() >= MAX_PARTS
            || self.frames.len() >= MAX_FRAMES
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// A frame without payload.
    pub(crate) fn empty(&mut self, writer: &mut FpduWriter, header: &Header) {
        let Ok(()) = self.copied(writer, header, 0, |_| Ok::<(), Infallible>(()));
    }

    /// A frame whose payload of `len` bytes is copied by `fill`. If `fill` fails, there is no frame.
    pub(crate) fn copied<E>(
        &mut self,
        writer: &mut FpduWriter,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.own.len();
        if writer.framing().markers {
            let mut payload = vec![0; len];
            fill(&mut payload)?;
            writer.write(header, &payload, |bytes| self.own.extend_from_slice(bytes)).expect(ENCODABLE);
        } else {
            let out = &mut self.own.buffer[start..];
            let payload = writer.begin_whole(header, len, out).expect(ENCODABLE);
            fill(&mut out[payload.clone()])?;
            self.own.len += writer.end_whole(payload, out);
        }
        self.add_own(start);
        Ok(())
    }

    /// A frame whose payload of `len` bytes stays where it is. Only without CRC and markers.
    pub(crate) fn referenced(
        &mut self,
        writer: &mut FpduWriter,
        header: &Header,
        len: usize,
        spans: &[Span],
    ) {
        let start = self.own.len();
        self.open(writer, header, len);
        self.add_own(start);
        self.parts.extend(spans.iter().map(|span| Part::Host(*span)));
        self.len += len;
        writer.skip(len).expect("frames point to memory only where no CRC covers it");
        let start = self.own.len();
        self.close(writer);
        self.add_own(start);
    }

    fn open(&mut self, writer: &mut FpduWriter, header: &Header, len: usize) {
        let mut head = [0; MAX_HEAD];
        let n = writer.open(header, len, &mut head).expect(ENCODABLE);
        self.own.extend_from_slice(&head[..n]);
    }

    fn close(&mut self, writer: &mut FpduWriter) {
        let mut tail = [0; MAX_TAIL];
        let n = writer.close(&mut tail).expect(ENCODABLE);
        self.own.extend_from_slice(&tail[..n]);
    }

    /// The frame that was just put together is complete.
    pub(crate) fn seal(&mut self, after: Cursor, did: Did) {
        self.frames.push(Frame { end: self.len, after, did });
    }

    pub(crate) fn send(&self, link: &dyn Link) -> Result<usize, LinkError> {
        let piece = |part: &Part| match *part {
            Part::Own(start, end) => Piece::Own(&self.own[start..end]),
            Part::Host(span) => Piece::Host(span),
        };
        match &self.parts[..] {
            // Most trains are one run of bytes.
            [one] => link.send(&[piece(one)]),
            parts => link.send(&parts.iter().map(piece).collect::<Vec<_>>()),
        }
    }

    /// The bytes from `start` to `end`, those in the program's memory fetched by `gather`.
    pub(crate) fn copy<E>(
        &self,
        start: usize,
        end: usize,
        mut gather: impl FnMut(Span, &mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let mut copy = Vec::with_capacity(end - start);
        let mut at = 0;
        for part in &self.parts {
            let len = match part {
                Part::Own(from, to) => to - from,
                Part::Host(span) => span.len,
            };
            let (from, to) = (start.max(at), end.min(at + len));
            if from < to {
                match *part {
                    Part::Own(first, _) => {
                        copy.extend_from_slice(&self.own[first + from - at..first + to - at]);
                    }
                    Part::Host(span) => {
                        let filled = copy.len();
                        copy.resize(filled + to - from, 0);
                        let span = Span { addr: span.addr + (from - at) as u64, len: to - from };
                        gather(span, &mut copy[filled..])?;
                    }
                }
            }
            at += len;
        }
        Ok(copy)
    }

    /// The bytes of `own` from `start` on are the next of the train.
    fn add_own(&mut self, start: usize) {
        let end = self.own.len();
        self.len += end - start;
        match self.parts.last_mut() {
            Some(Part::Own(_, last)) if *last == start => *last = end,
            _ => self.parts.push(Part::Own(start, end)),
        }
    }
}
