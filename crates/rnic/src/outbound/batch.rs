//! A batch of FPDUs that is sent in one call. Headers and small payloads are copied into the batch; large payloads are
//! referenced in the program's memory.
//!
//! Each frame (FPDU) records the cursor of the stream after it. If the link takes only a part of the batch, the stream
//! returns to the cursor after the last frame of which the link has taken a byte.

use super::{Cursor, FrameKind, ShortRequest, Snapshot};
use crate::host::{Buffer, Host, Span};
use crate::link::{Link, LinkError, Piece};
use crate::queue::WorkRequest;
use ironwarp_wire::Header;
use ironwarp_wire::mpa::{FpduWriter, MAX_HEAD, MAX_TAIL};
use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;

/// Number of copied bytes at which a batch is full, which limits its memory.
const MAX_OWN: usize = 256 << 10;
/// Size of the buffer for copied bytes: the last frame, with its markers, may exceed [`MAX_OWN`].
const OWN: usize = MAX_OWN + (128 << 10);
/// Number of parts at which a batch is full. The kernel takes 1024 in one call. A frame has at most two parts more than
/// its payload has spans, so the last frame does not exceed that.
const MAX_PARTS: usize = 512;
/// Number of frames at which a batch is full.
const MAX_FRAMES: usize = 1024;

/// Encoding cannot fail: `tx` creates every header and cuts messages to fit.
const ENCODABLE: &str = "a segment that fits the wire";

/// A batch of FPDUs. A stream borrows one from the device while it is driven.
#[derive(Debug)]
pub(crate) struct TxBatch {
    /// The cursor before the first frame, to which the stream returns if nothing is sent. `None` before the first use.
    start: Option<Cursor>,
    /// The copied bytes of all frames.
    own: Own,
    /// The bytes of the batch, in order.
    parts: Vec<Part>,
    /// The FPDUs, in order.
    frames: Vec<Frame>,
    /// Total length in bytes.
    len: usize,
    /// Number of bytes at which the batch is full.
    max_len: usize,
    /// Read responses in the batch.
    reads: ReadResponses,
    /// A reusable buffer for short requests. Empty between calls.
    shorts: Vec<ShortRequest>,
    /// The obligations of the stream when the batch was started.
    pub(crate) obligations: Snapshot,
    /// The work request in progress and its sequence number, cached from the send queue. `None` between
    /// streams.
    pub(crate) current: Option<(u64, WorkRequest)>,
}

/// The Read responses in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReadResponses {
    /// There are none.
    None,
    /// Their payload was copied.
    Copied,
    /// The payload of at least one is referenced: it is read when the batch is sent.
    Referenced,
}

/// A contiguous range of bytes in a batch.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The range of `own` from the first index to the second.
    Own(usize, usize),
    /// Payload in the program's memory.
    Host(Span),
}

/// An FPDU in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Offset in the batch at which the frame ends.
    pub(crate) end: usize,
    /// The cursor of the stream after this frame.
    pub(crate) after: Cursor,
    /// The kind of frame, for accounting once it is sent.
    pub(crate) kind: FrameKind,
}

/// Bytes that were copied into a batch: the first `len` bytes of a buffer that the host allocated.
struct Own {
    buffer: Buffer,
    len: usize,
}

impl Own {
    /// Appends bytes, which must fit.
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

/// Omits the bytes, which are many, and data of the program.
impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Own").field(&self.len).finish()
    }
}

impl TxBatch {
    /// Creates an empty batch. Its length is not limited until [`set_max_len`](Self::set_max_len) is called, which the
    /// device does before each use.
    pub(crate) fn new(host: &dyn Host) -> Self {
        let own = Own { buffer: host.buffer(OWN), len: 0 };
        Self {
            start: None,
            own,
            parts: Vec::new(),
            frames: Vec::new(),
            len: 0,
            max_len: usize::MAX,
            reads: ReadResponses::None,
            shorts: Vec::new(),
            obligations: Snapshot::default(),
            current: None,
        }
    }

    /// Sets the number of bytes at which the batch is full. The last frame may exceed it.
    pub(crate) fn set_max_len(&mut self, max_len: usize) {
        self.max_len = max_len;
    }

    /// Removes all frames, and starts a new batch for a stream with this cursor.
    pub(crate) fn restart(&mut self, start: Cursor) {
        self.start = Some(start);
        self.own.len = 0;
        self.parts.clear();
        self.frames.clear();
        self.len = 0;
        self.reads = ReadResponses::None;
    }

    /// Records that a Read response was added.
    pub(crate) fn add_read_response(&mut self, response: ReadResponses) {
        self.reads = self.reads.max(response);
    }

    /// Returns the Read responses in the batch.
    pub(crate) fn read_responses(&self) -> ReadResponses {
        self.reads
    }

    /// Sets the cursor to which the stream returns if nothing is sent, because the stream has made progress that
    /// cannot be undone.
    pub(crate) fn set_start(&mut self, start: Cursor) {
        self.start = Some(start);
    }

    /// Returns the cursor to which the stream returns if nothing is sent.
    pub(crate) fn start(&self) -> Cursor {
        self.start.expect("a batch is started before it is sent")
    }

    /// Takes the buffer for short requests.
    pub(crate) fn take_shorts(&mut self) -> Vec<ShortRequest> {
        std::mem::take(&mut self.shorts)
    }

    /// Puts the buffer for short requests back, empty.
    pub(crate) fn put_shorts(&mut self, shorts: Vec<ShortRequest>) {
        self.shorts = shorts;
    }

    /// Returns whether the batch has no frames.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the total length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the batch has to be sent before another frame is added.
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.max_len
            || self.own.len() >= MAX_OWN
            || self.parts.len() >= MAX_PARTS
            || self.frames.len() >= MAX_FRAMES
    }

    /// Returns the FPDUs, in order.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Adds the bytes of a frame without payload. Call [`finish_frame`](Self::finish_frame) afterwards.
    pub(crate) fn push_empty(&mut self, writer: &mut FpduWriter, header: &Header) {
        // Cannot fail, because `fill` cannot.
        let Ok(()) = self.push_copied(writer, header, 0, |_| Ok::<(), Infallible>(()));
    }

    /// Adds the bytes of a frame whose payload of `len` bytes is copied by `fill`. Adds nothing if `fill` fails.
    pub(crate) fn push_copied<E>(
        &mut self,
        writer: &mut FpduWriter,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.own.len();
        if writer.framing().markers {
            let mut payload = vec![0; len]; // contiguous for `fill`, although markers interrupt it in the frame
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

    /// Adds the bytes of a frame whose payload of `len` bytes is referenced, not copied. Only possible without CRC and
    /// markers.
    pub(crate) fn push_referenced(
        &mut self,
        writer: &mut FpduWriter,
        header: &Header,
        len: usize,
        spans: &[Span],
    ) {
        let start = self.own.len();
        self.push_head(writer, header, len);
        self.add_own(start);
        self.parts.extend(spans.iter().map(|span| Part::Host(*span)));
        self.len += len;
        writer.skip(len).expect("payload is referenced only if no CRC covers it");
        let start = self.own.len();
        self.push_tail(writer);
        self.add_own(start);
    }

    /// Copies the part of a frame before its payload: length field and header.
    fn push_head(&mut self, writer: &mut FpduWriter, header: &Header, len: usize) {
        let mut head = [0; MAX_HEAD];
        let n = writer.open(header, len, &mut head).expect(ENCODABLE);
        self.own.extend_from_slice(&head[..n]);
    }

    /// Copies the part of a frame after its payload: padding and CRC field.
    fn push_tail(&mut self, writer: &mut FpduWriter) {
        let mut tail = [0; MAX_TAIL];
        let n = writer.close(&mut tail).expect(ENCODABLE);
        self.own.extend_from_slice(&tail[..n]);
    }

    /// Records the frame whose bytes were just added. `after` is the cursor of the stream after it.
    pub(crate) fn finish_frame(&mut self, after: Cursor, kind: FrameKind) {
        self.frames.push(Frame { end: self.len, after, kind });
    }

    /// Sends the batch. Returns the number of bytes that the link has taken.
    pub(crate) fn send(&self, link: &dyn Link) -> Result<usize, LinkError> {
        let piece = |part: &Part| match *part {
            Part::Own(start, end) => Piece::Own(&self.own[start..end]),
            Part::Host(span) => Piece::Host(span),
        };
        match &self.parts[..] {
            // Most batches are one contiguous range of bytes.
            [one] => link.send(&[piece(one)]),
            parts => link.send(&parts.iter().map(piece).collect::<Vec<_>>()),
        }
    }

    /// Returns a copy of the bytes from offset `start` to `end` of the batch. `gather` reads those in the program's
    /// memory.
    pub(crate) fn copy_range<E>(
        &self,
        start: usize,
        end: usize,
        mut gather: impl FnMut(Span, &mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let mut copy = Vec::with_capacity(end - start);
        let mut at = 0; // offset of the part in the batch
        for part in &self.parts {
            let len = match part {
                Part::Own(from, to) => to - from,
                Part::Host(span) => span.len,
            };
            let (from, to) = (start.max(at), end.min(at + len)); // the bytes of this part to copy
            if from < to {
                match *part {
                    Part::Own(first, _) => {
                        copy.extend_from_slice(&self.own[first + from - at..first + to - at]);
                    }
                    Part::Host(span) => {
                        let filled = copy.len();
                        copy.resize(filled + to - from, 0);
                        let span = Span { addr: span.addr + (from - at) as u64, len: to - from, ..span };
                        gather(span, &mut copy[filled..])?;
                    }
                }
            }
            at += len;
        }
        Ok(copy)
    }

    /// Appends the bytes that were copied to `own` from index `start` on to the parts of the batch.
    fn add_own(&mut self, start: usize) {
        let end = self.own.len();
        self.len += end - start;
        match self.parts.last_mut() {
            // The last part ends where these bytes begin: extend it.
            Some(Part::Own(_, last)) if *last == start => *last = end,
            _ => self.parts.push(Part::Own(start, end)),
        }
    }
}
