//! A direction of a stream, taken apart: bytes in, headers and payload out. Mirrors `writer.rs`.

use super::marker::{MARKER_LEN, Markers};
use super::{CRC_FIELD, Crc, Fpdu, Framing};
use crate::rdmap::MAX_HEADER;
use crate::{Dialect, Parse, Violation};

/// Takes the FPDUs of one direction apart, at any split of the stream.
///
/// Feed it what arrives with [`next`](Self::next) until it returns `None`. While payload is due, its bytes may instead be
/// read straight into their place: [`run`](Self::run) says how many, [`cover`](Self::cover) takes note of them.
///
/// Payload is handed out before the CRC behind it was seen. Only [`Piece::End`] says that the FPDU was whole: a message
/// must not be delivered before.
///
/// ```
/// use ironwarp_wire::{Dialect, mpa::{FpduReader, Framing, Piece}};
///
/// // An empty Send, as Linux siw sends it, its CRC included.
/// let mut input: &[u8] = b"\x00\x12\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\x00\xa4\xca\xb4";
/// let mut reader = FpduReader::new(Framing { crc: true, markers: false });
/// let Some(Piece::Header(fpdu)) = reader.next(&mut input, Dialect::Standard)? else { panic!() };
/// assert_eq!(fpdu.to_string(), "Send, msn 3, offset 0, last, 0 bytes");
/// assert_eq!(reader.next(&mut input, Dialect::Standard)?, Some(Piece::End));
/// assert_eq!(reader.next(&mut input, Dialect::Standard)?, None);
/// # Ok::<(), ironwarp_wire::Violation>(())
/// ```
#[derive(Clone, Debug)]
pub struct FpduReader {
    framing: Framing,
    markers: Markers,
    /// The marker that is due, as far as it came.
    marker: Short<MARKER_LEN>,
    crc: Crc,
    state: State,
}

/// What [`FpduReader::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// An FPDU begins; this is its header.
    Header(Fpdu),
    /// The next bytes of its payload. Not yet covered by a CRC.
    Payload(&'a [u8]),
    /// It ends, and its CRC, if used, was right.
    End,
}

/// The part of the FPDU that comes next.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The header, as far as it came.
    Header(Short<MAX_HEADER>),
    /// So much payload is left, then `padding`.
    Payload { left: u16, padding: u8 },
    /// So much padding is left.
    Padding { left: u8 },
    /// The CRC, as far as it came.
    Crc(Short<CRC_FIELD>),
    /// RFC 5044 §8: after an error nothing more is delivered.
    Failed(Violation),
}

impl FpduReader {
    /// For a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        Self {
            framing,
            markers: Markers::new(framing.markers),
            marker: Short::EMPTY,
            crc: Crc::new(),
            state: State::Header(Short::EMPTY),
        }
    }

    /// Takes the next piece off the front of `input`. `None`: all of `input` was used up, and more is needed.
    ///
    /// After a violation it reports the same one for ever.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        dialect: Dialect,
    ) -> Result<Option<Piece<'a>>, Violation> {
        let piece = self.step(input, dialect);
        if let Err(violation) = piece {
            self.state = State::Failed(violation);
        }
        piece
    }

    /// How many bytes of payload come next in one run, up to the end of the payload or the next marker: they may be read
    /// straight into their place. Zero: the reader has to see what comes next.
    pub const fn run(&self) -> usize {
        match self.state {
            State::Payload { left, .. } => self.markers.run(left as usize),
            _ => 0,
        }
    }

    /// These bytes of payload, no more than [`run`](Self::run) allows, were read by other means; excess is ignored.
    pub fn cover(&mut self, payload: &[u8]) {
        let payload = &payload[..payload.len().min(self.run())];
        let State::Payload { left, .. } = &mut self.state else { return };
        #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
        let passed = payload.len() as u16;
        *left -= passed;
        self.pass(payload);
    }

    /// Between two FPDUs, with nothing of the next one read: where a stream may be moved or closed without loss.
    pub const fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header(Short { len: 0, .. })) && self.marker.len == 0
    }

    fn step<'a>(&mut self, input: &mut &'a [u8], dialect: Dialect) -> Result<Option<Piece<'a>>, Violation> {
        loop {
            if self.markers.due() && !matches!(self.state, State::Failed(_)) {
                if !self.take_marker(input)? {
                    return Ok(None);
                }
                continue;
            }
            match self.state {
                State::Header(mut head) => {
                    let piece = self.header(&mut head, input, dialect)?;
                    if piece.is_some() || input.is_empty() {
                        return Ok(piece);
                    }
                }
                State::Payload { left: 0, padding } => self.state = State::Padding { left: padding },
                State::Payload { .. } => {
                    let payload = split_off(input, self.run());
                    self.cover(payload);
                    return Ok((!payload.is_empty()).then_some(Piece::Payload(payload)));
                }
                State::Padding { left: 0 } => self.state = State::Crc(Short::EMPTY),
                State::Padding { left } => {
                    let padding = split_off(input, usize::from(left));
                    if padding.is_empty() {
                        return Ok(None);
                    }
                    #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
                    let passed = padding.len() as u8;
                    self.state = State::Padding { left: left - passed };
                    self.pass(padding);
                }
                State::Crc(mut received) => return self.end(&mut received, input),
                State::Failed(violation) => return Err(violation),
            }
        }
    }

    /// Collects the header, a run at a time, and no byte more than it has.
    fn header<'a>(
        &mut self,
        head: &mut Short<MAX_HEADER>,
        input: &mut &'a [u8],
        dialect: Dialect,
    ) -> Result<Option<Piece<'a>>, Violation> {
        loop {
            let need = match Fpdu::parse(head.bytes(), dialect)? {
                Parse::Need(need) => need - head.bytes().len(),
                Parse::Done(fpdu) => {
                    #[expect(clippy::cast_possible_truncation, reason = "at most three")]
                    let padding = fpdu.padding() as u8;
                    self.state = State::Payload { left: fpdu.payload_len, padding };
                    return Ok(Some(Piece::Header(fpdu)));
                }
            };
            let bytes = split_off(input, self.markers.run(need));
            if bytes.is_empty() {
                self.state = State::Header(*head);
                return Ok(None);
            }
            head.push(bytes);
            self.pass(bytes);
        }
    }

    fn end<'a>(
        &mut self,
        received: &mut Short<CRC_FIELD>,
        input: &mut &'a [u8],
    ) -> Result<Option<Piece<'a>>, Violation> {
        let bytes = split_off(input, CRC_FIELD - received.bytes().len());
        received.push(bytes);
        self.markers.advance(bytes.len());
        self.state = State::Crc(*received);
        if received.bytes().len() < CRC_FIELD {
            return Ok(None);
        }
        let (computed, received) = (self.crc.value(), u32::from_le_bytes(received.bytes));
        if self.framing.crc && computed != received {
            return Err(Violation::Crc { computed, received });
        }
        self.crc = Crc::new();
        self.markers.end_fpdu();
        self.state = State::Header(Short::EMPTY);
        Ok(Some(Piece::End))
    }

    /// Takes out the marker that is due; false if it has not fully arrived.
    fn take_marker(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        let bytes = split_off(input, MARKER_LEN - self.marker.bytes().len());
        self.marker.push(bytes);
        let &[_, _, high, low] = self.marker.bytes() else { return Ok(false) };
        // RFC 5044 §4.3: the two low bits count as zero.
        let found = u16::from_be_bytes([high, low]) & !3;
        let expected = self.markers.pointer();
        if found != expected {
            return Err(Violation::Marker { expected, found });
        }
        if self.framing.crc {
            self.crc.update(&self.marker.bytes);
        }
        self.marker = Short::EMPTY;
        self.markers.pass();
        Ok(true)
    }

    /// These bytes of the FPDU, CRC aside, have passed.
    fn pass(&mut self, bytes: &[u8]) {
        if self.framing.crc {
            self.crc.update(bytes);
        }
        self.markers.advance(bytes.len());
    }
}

/// Up to `n` bytes off the front of `input`.
fn split_off<'a>(input: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, left) = input.split_at(n.min(input.len()));
    *input = left;
    taken
}

/// A few bytes that may arrive one at a time.
#[derive(Clone, Copy, Debug)]
struct Short<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Short<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Callers never push more than is missing.
    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "N is at most 72")]
        let added = bytes.len() as u8;
        self.len += added;
    }
}
