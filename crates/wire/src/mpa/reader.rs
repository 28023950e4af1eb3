//! Decodes one direction of a stream: bytes in, headers and payload out. Mirrors `writer.rs`.

use super::marker::MARKER_LEN;
use super::progress::Progress;
use super::{Crc, Framing};
use crate::layout::CRC_FIELD;

use crate::{Dialect, Fpdu, MAX_HEADER, Misuse, Parse, Violation};

/// Decodes the FPDUs of one direction from input that is split anywhere.
///
/// Pass input to [`next`](Self::next) until it returns `None`. Payload may instead be read directly to its destination:
/// [`run_len`](Self::run_len) returns how many bytes, and [`cover`](Self::cover) accounts for them.
///
/// Payload is returned before its CRC has been checked. Only [`Piece::End`] confirms that the FPDU is intact: a message
/// must not be delivered earlier.
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
    progress: Progress,
    state: State,
    /// The part of the header or CRC that has arrived.
    held: Partial<MAX_HEADER>,
    /// The part of the marker that has arrived.
    marker: Partial<MARKER_LEN>,
}

/// A piece of the stream, as [`FpduReader::next`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The header of a new FPDU.
    Header(Fpdu),
    /// The next bytes of its payload, whose CRC has not been checked yet.
    Payload(&'a [u8]),
    /// The end of the FPDU. Its CRC, if used, is correct.
    End,
}

/// The part of the FPDU expected next.
#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    /// `left` bytes of payload, then `padding`.
    Payload {
        left: u16,
        padding: u8,
    },
    /// `left` bytes of padding.
    Padding {
        left: u8,
    },
    Crc,
    /// RFC 5044 §8: after an error nothing more is delivered.
    Failed(Violation),
}

impl FpduReader {
    /// Creates a reader for a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        let progress = Progress::new(framing);
        Self { progress, state: State::Header, held: Partial::EMPTY, marker: Partial::EMPTY }
    }

    /// Takes the next piece off the front of `input`. Returns `None` when all input is consumed and more is needed.
    ///
    /// After a violation, every further call returns the same one.
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

    /// Takes a complete FPDU off the front of `input` and checks its CRC: a fast path for small messages that arrived
    /// together. Returns `None`, and consumes nothing, if the FPDU is incomplete or invalid or the direction uses markers;
    /// continue with [`next`](Self::next).
    #[inline]
    pub fn take_whole<'a>(
        &mut self,
        input: &mut &'a [u8],
        dialect: Dialect,
    ) -> Result<Option<(Fpdu, &'a [u8])>, Violation> {
        if self.progress.framing.markers || !self.is_at_boundary() {
            return Ok(None);
        }
        let Ok(Parse::Done(fpdu)) = Fpdu::parse(input, dialect) else { return Ok(None) };
        let Some((covered, rest)) = input.split_at_checked(fpdu.total_len() - CRC_FIELD) else {
            return Ok(None);
        };
        let Some((received, rest)) = rest.split_first_chunk() else { return Ok(None) };
        if self.progress.framing.crc
            && let Err(violation) = check_crc(Crc::of(covered).to_bytes(), *received)
        {
            self.state = State::Failed(violation);
            return Err(violation);
        }
        *input = rest;
        let (start, len) = (usize::from(fpdu.header_len), usize::from(fpdu.payload_len));
        Ok(Some((fpdu, &covered[start..start + len])))
    }

    /// Returns how many bytes of payload follow contiguously, up to the next marker: they may be read directly to their
    /// destination. Zero means that the next bytes must be passed to [`next`](Self::next).
    pub const fn run_len(&self) -> usize {
        match self.state {
            State::Payload { left, .. } => self.progress.markers.run(left as usize),
            _ => 0,
        }
    }

    /// Accounts for payload that was read directly, at most [`run_len`](Self::run_len) bytes; excess is ignored.
    pub fn cover(&mut self, payload: &[u8]) {
        let payload = &payload[..payload.len().min(self.run_len())];
        let State::Payload { left, .. } = &mut self.state else { return };
        #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
        let passed = payload.len() as u16;
        *left -= passed;
        self.progress.pass(payload);
    }

    /// Accounts for `n` bytes of payload like [`cover`](Self::cover), without seeing them. Fails if the direction uses CRCs.
    pub fn skip(&mut self, n: usize) -> Result<(), Misuse> {
        if self.progress.framing.crc {
            return Err(Misuse::PayloadSkipped);
        }
        let n = n.min(self.run_len());
        let State::Payload { left, .. } = &mut self.state else { return Ok(()) };
        #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
        let passed = n as u16;
        *left -= passed;
        self.progress.markers.advance(n);
        Ok(())
    }

    /// Returns the received part of a header that is incomplete, or that was found invalid when its last byte arrived.
    pub fn held(&self) -> &[u8] {
        self.held.bytes()
    }

    /// Whether the reader is between two FPDUs, where a stream may be moved or closed without loss.
    pub const fn is_at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.held.len == 0 && self.marker.len == 0
    }

    fn step<'a>(&mut self, input: &mut &'a [u8], dialect: Dialect) -> Result<Option<Piece<'a>>, Violation> {
        if let State::Failed(violation) = self.state {
            return Err(violation);
        }
        // Every piece consumes at least one byte.
        while !input.is_empty() {
            if self.progress.markers.due() && !self.take_marker(input)? {
                return Ok(None);
            }
            match self.state {
                State::Header => {
                    let piece = self.header(input, dialect)?;
                    if piece.is_some() {
                        return Ok(piece);
                    }
                }
                State::Payload { left: 0, padding } => self.state = State::Padding { left: padding },
                State::Payload { .. } => {
                    let payload = split_off(input, self.run_len());
                    self.cover(payload);
                    return Ok((!payload.is_empty()).then_some(Piece::Payload(payload)));
                }
                State::Padding { left: 0 } => self.state = State::Crc,
                State::Padding { left } => {
                    let padding = split_off(input, usize::from(left));
                    #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
                    let passed = padding.len() as u8;
                    self.state = State::Padding { left: left - passed };
                    self.progress.pass(padding);
                }
                State::Crc => return self.end(input).map(|ended| ended.then_some(Piece::End)),
                State::Failed(violation) => return Err(violation),
            }
        }
        Ok(None)
    }

    /// Reads the header, at once if it has arrived completely, otherwise piecewise, and never a byte beyond it.
    fn header<'a>(&mut self, input: &mut &'a [u8], dialect: Dialect) -> Result<Option<Piece<'a>>, Violation> {
        let whole = &input[..self.progress.markers.run(input.len())];
        if self.held.len == 0
            && let Parse::Done(fpdu) = Fpdu::parse(whole, dialect)?
        {
            let bytes = split_off(input, usize::from(fpdu.header_len));
            self.progress.pass(bytes);
            return Ok(Some(self.begin(fpdu)));
        }
        loop {
            let need = match Fpdu::parse(self.held.bytes(), dialect)? {
                Parse::Need(need) => need - self.held.bytes().len(),
                Parse::Done(fpdu) => {
                    self.held.len = 0;
                    return Ok(Some(self.begin(fpdu)));
                }
            };
            let bytes = split_off(input, self.progress.markers.run(need));
            if bytes.is_empty() {
                return Ok(None);
            }
            self.held.push(bytes);
            self.progress.pass(bytes);
        }
    }

    fn begin<'a>(&mut self, fpdu: Fpdu) -> Piece<'a> {
        #[expect(clippy::cast_possible_truncation, reason = "at most three")]
        let padding = fpdu.padding() as u8;
        self.state = State::Payload { left: fpdu.payload_len, padding };
        Piece::Header(fpdu)
    }

    /// Reads and checks the CRC. Returns false if it is incomplete.
    fn end(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        let bytes = split_off(input, CRC_FIELD - self.held.bytes().len());
        self.held.push(bytes);
        self.progress.pass_crc(bytes.len());
        let Ok(received) = <[u8; CRC_FIELD]>::try_from(self.held.bytes()) else { return Ok(false) };
        if self.progress.framing.crc {
            check_crc(self.progress.crc_field(), received)?;
        }
        self.held.len = 0;
        self.progress.end_fpdu();
        self.state = State::Header;
        Ok(true)
    }

    /// Removes the marker that is due. Returns false if it is incomplete.
    fn take_marker(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        let bytes = split_off(input, MARKER_LEN - self.marker.bytes().len());
        self.marker.push(bytes);
        let &[_, _, high, low] = self.marker.bytes() else { return Ok(false) };
        // RFC 5044 §4.3: the two low bits are treated as zero.
        let found = u16::from_be_bytes([high, low]) & !3;
        let expected = self.progress.markers.pointer();
        if found != expected {
            return Err(Violation::Marker { expected, found });
        }
        self.marker.len = 0;
        self.progress.pass_marker(&self.marker.bytes);
        Ok(true)
    }
}

/// Compares the computed CRC of an FPDU with the one received.
#[inline]
fn check_crc(computed: [u8; CRC_FIELD], received: [u8; CRC_FIELD]) -> Result<(), Violation> {
    if computed == received {
        return Ok(());
    }
    let [computed, received] = [computed, received].map(u32::from_le_bytes);
    Err(Violation::Crc { computed, received })
}

/// Takes up to `n` bytes off the front of `input`.
fn split_off<'a>(input: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, left) = input.split_at(n.min(input.len()));
    *input = left;
    taken
}

/// Buffer for a short field that may arrive in pieces.
#[derive(Clone, Copy, Debug)]
struct Partial<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Partial<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Callers never push more than fits.
    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "N is at most 72")]
        let added = bytes.len() as u8;
        self.len += added;
    }
}
