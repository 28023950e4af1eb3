//! The decoder of one direction of a stream: takes bytes, returns headers and payload. Mirrors `writer.rs`.

use super::marker::MARKER_LEN;
use super::progress::Progress;
use super::{Crc, Framing};
use crate::layout::CRC_FIELD;

use crate::{Dialect, Fpdu, MAX_HEADER, Misuse, Parse, Violation};

/// Decodes the FPDUs of one direction of a stream. The input may be split at any byte.
///
/// Pass input to [`next`](Self::next) until it returns `None`. Payload may also be read directly to its destination:
/// [`run_len`](Self::run_len) returns the number of bytes, and [`cover`](Self::cover) accounts for the bytes read.
///
/// Payload is returned before the CRC has been checked. Only [`Piece::End`] confirms that the FPDU is intact: a message
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FpduReader {
    /// The CRC and marker position so far.
    progress: Progress,
    state: State,
    /// The part of an incomplete header or CRC that has arrived.
    held: Partial<MAX_HEADER>,
    /// The part of an incomplete marker that has arrived.
    marker: Partial<MARKER_LEN>,
}

/// A piece of the stream, as [`FpduReader::next`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The header of a new FPDU.
    Header(Fpdu),
    /// The next bytes of the FPDU's payload. The CRC has not been checked yet.
    Payload(&'a [u8]),
    /// The end of the FPDU. The CRC, if used, is correct.
    End,
}

/// The part of the FPDU expected next.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// A violation was found. After an error, no more input is accepted (RFC 5044 §8). The violation was reported then, so
    /// a reader that is loaded need not know it.
    Failed(#[cfg_attr(feature = "serde", serde(skip, default = "unknown_violation"))] Violation),
}

/// Returns what a reader that failed before it was stored reports after it was loaded.
#[cfg(feature = "serde")]
const fn unknown_violation() -> Violation {
    Violation::Crc { computed: 0, received: 0 }
}

impl FpduReader {
    /// Creates a reader for a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        let progress = Progress::new(framing);
        Self { progress, state: State::Header, held: Partial::EMPTY, marker: Partial::EMPTY }
    }

    /// Takes the next piece off the front of `input`. Returns `None` when all input is consumed and more is needed.
    ///
    /// After a violation, every further call returns the same violation.
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

    /// Takes a complete FPDU off the front of `input`, checks its CRC, and returns it with its payload: a fast path for
    /// small messages. Returns `None`, and consumes nothing, if the FPDU is incomplete, its header is invalid, or the
    /// direction uses markers: then call [`next`](Self::next).
    #[inline]
    pub fn take_whole<'a>(
        &mut self,
        input: &mut &'a [u8],
        dialect: Dialect,
    ) -> Result<Option<(Fpdu, &'a [u8])>, Violation> {
        if self.progress.framing.markers || !self.is_at_boundary() {
            return Ok(None);
        }
        let parsed = Fpdu::parse(input, dialect);
        let Ok(Parse::Done(fpdu)) = &parsed else { return Ok(None) }; // by reference: it is large
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
        Ok(Some((*fpdu, &covered[start..start + len])))
    }

    /// Returns the number of payload bytes that come next, up to the next marker. They may be read directly to their
    /// destination. Zero means that the next bytes must be passed to [`next`](Self::next).
    pub const fn run_len(&self) -> usize {
        match self.state {
            State::Payload { left, .. } => self.progress.markers.room_before_next(left as usize),
            _ => 0,
        }
    }

    /// Accounts for payload that was read directly to its destination, at most [`run_len`](Self::run_len) bytes; excess
    /// is ignored.
    pub fn cover(&mut self, payload: &[u8]) {
        let payload = &payload[..payload.len().min(self.run_len())];
        let State::Payload { left, .. } = &mut self.state else { return };
        #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
        let passed = payload.len() as u16;
        *left -= passed;
        self.progress.pass(payload);
    }

    /// Accounts for `n` bytes of payload, as [`cover`](Self::cover) does, without reading them. Fails if the direction
    /// uses CRCs.
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

    /// Returns the framing options of this direction.
    #[inline]
    pub const fn framing(&self) -> Framing {
        self.progress.framing
    }

    /// Returns whether a reader that was loaded can be in its state: otherwise it may panic.
    #[cfg(feature = "serde")]
    pub fn is_consistent(&self) -> bool {
        let state = match self.state {
            State::Header => usize::from(self.held.len) < MAX_HEADER,
            State::Payload { padding: left, .. } | State::Padding { left } => left < 4 && self.held.len == 0,
            State::Crc => usize::from(self.held.len) < CRC_FIELD,
            State::Failed(_) => true,
        };
        state && self.progress.is_consistent() && usize::from(self.marker.len) < MARKER_LEN
    }

    /// Returns whether the header of an FPDU was read, and its end was not.
    #[cfg(feature = "serde")]
    pub const fn is_within_fpdu(&self) -> bool {
        matches!(self.state, State::Payload { .. } | State::Padding { .. } | State::Crc)
    }

    /// Returns the received part of a header that arrived in pieces and is incomplete, or was found invalid.
    pub fn held(&self) -> &[u8] {
        self.held.bytes()
    }

    /// Returns whether the reader is between two FPDUs, so that closing the stream now loses nothing.
    pub const fn is_at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.held.len == 0 && self.marker.len == 0
    }

    /// Does the work of [`next`](Self::next), but leaves it to the caller to remember a violation.
    fn step<'a>(&mut self, input: &mut &'a [u8], dialect: Dialect) -> Result<Option<Piece<'a>>, Violation> {
        if let State::Failed(violation) = self.state {
            return Err(violation);
        }
        // Returning a piece consumes at least one byte, so without input there is none.
        while !input.is_empty() {
            if self.progress.markers.is_due() && !self.take_marker(input)? {
                return Ok(None);
            }
            match self.state {
                State::Header => {
                    let piece = self.read_header(input, dialect)?;
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
                State::Crc => return self.read_crc(input).map(|ended| ended.then_some(Piece::End)),
                State::Failed(violation) => return Err(violation),
            }
        }
        Ok(None)
    }

    /// Reads the header: directly from `input` if it is complete there, otherwise in pieces. Consumes no byte after the
    /// header. Returns `None` if more input is needed.
    fn read_header<'a>(
        &mut self,
        input: &mut &'a [u8],
        dialect: Dialect,
    ) -> Result<Option<Piece<'a>>, Violation> {
        let whole = &input[..self.progress.markers.room_before_next(input.len())];
        if self.held.len == 0
            && let Parse::Done(fpdu) = Fpdu::parse(whole, dialect)?
        {
            let bytes = split_off(input, usize::from(fpdu.header_len));
            self.progress.pass(bytes);
            return Ok(Some(self.begin_payload(fpdu)));
        }
        loop {
            let need = match Fpdu::parse(self.held.bytes(), dialect)? {
                Parse::Need(need) => need - self.held.bytes().len(),
                Parse::Done(fpdu) => {
                    self.held.len = 0;
                    return Ok(Some(self.begin_payload(fpdu)));
                }
            };
            let bytes = split_off(input, self.progress.markers.room_before_next(need));
            if bytes.is_empty() {
                return Ok(None);
            }
            self.held.push(bytes);
            self.progress.pass(bytes);
        }
    }

    /// Changes the state to the payload of the FPDU, and returns its header.
    fn begin_payload<'a>(&mut self, fpdu: Fpdu) -> Piece<'a> {
        #[expect(clippy::cast_possible_truncation, reason = "at most three")]
        let padding = fpdu.padding() as u8;
        self.state = State::Payload { left: fpdu.payload_len, padding };
        Piece::Header(fpdu)
    }

    /// Reads and checks the CRC, which ends the FPDU. Returns false if more input is needed.
    fn read_crc(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
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

    /// Reads and checks the marker that is due. Returns false if more input is needed.
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

/// Returns a violation if the computed CRC of an FPDU differs from the received one.
#[inline]
fn check_crc(computed: [u8; CRC_FIELD], received: [u8; CRC_FIELD]) -> Result<(), Violation> {
    if computed == received {
        return Ok(());
    }
    let [computed, received] = [computed, received].map(u32::from_le_bytes);
    Err(Violation::Crc { computed, received })
}

/// Takes up to `n` bytes off the front of `input`, and returns them.
fn split_off<'a>(input: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, left) = input.split_at(n.min(input.len()));
    *input = left;
    taken
}

/// A buffer for a short field that arrives in pieces.
#[derive(Clone, Copy, Debug)]
struct Partial<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Partial<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// Returns the bytes that have arrived.
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Appends bytes, which must fit.
    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "N is at most 72")]
        let added = bytes.len() as u8;
        self.len += added;
    }
}

// Not derived: serde has no arrays of this length, and only the bytes that have arrived matter.
#[cfg(feature = "serde")]
impl<const N: usize> serde::Serialize for Partial<N> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.bytes())
    }
}

#[cfg(feature = "serde")]
impl<'de, const N: usize> serde::Deserialize<'de> for Partial<N> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(from)?;
        if bytes.len() > N {
            return Err(serde::de::Error::invalid_length(bytes.len(), &"the part of a field"));
        }
        let mut partial = Self::EMPTY;
        partial.push(bytes);
        Ok(partial)
    }
}
