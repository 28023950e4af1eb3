//! A direction of a stream, taken apart: bytes in, headers and payload out. Mirrors `writer.rs`.

use super::marker::MARKER_LEN;
use super::passage::Passage;
use super::{CRC_FIELD, Crc, Fpdu, Framing};
use crate::rdmap::MAX_HEADER;
use crate::{Dialect, Misuse, Parse, Violation};

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
    passage: Passage,
    state: State,
    /// The header or the CRC that is due, as far as it came.
    held: Short<MAX_HEADER>,
    /// The marker that is due, as far as it came.
    marker: Short<MARKER_LEN>,
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
    Header,
    /// So much payload is left, then `padding`.
    Payload {
        left: u16,
        padding: u8,
    },
    /// So much padding is left.
    Padding {
        left: u8,
    },
    Crc,
    /// RFC 5044 §8: after an error nothing more is delivered.
    Failed(Violation),
}

impl FpduReader {
    /// For a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        let passage = Passage::new(framing);
        Self { passage, state: State::Header, held: Short::EMPTY, marker: Short::EMPTY }
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

    /// Takes a whole FPDU off the front of `input`, with its payload and its CRC checked: the short way for small messages
    /// that arrived together. `None`: it is not all there, its header is wrong, or there are markers; nothing was taken, and
    /// [`next`](Self::next) goes on from here.
    #[inline]
    pub fn whole<'a>(
        &mut self,
        input: &mut &'a [u8],
        dialect: Dialect,
    ) -> Result<Option<(Fpdu, &'a [u8])>, Violation> {
        if self.passage.framing.markers || !self.at_boundary() {
            return Ok(None);
        }
        let Ok(Parse::Done(fpdu)) = Fpdu::parse(input, dialect) else { return Ok(None) };
        let Some((covered, rest)) = input.split_at_checked(fpdu.total_len() - CRC_FIELD) else {
            return Ok(None);
        };
        let Some((received, rest)) = rest.split_first_chunk() else { return Ok(None) };
        if self.passage.framing.crc
            && let Err(violation) = check_crc(Crc::of(covered).to_bytes(), *received)
        {
            self.state = State::Failed(violation);
            return Err(violation);
        }
        *input = rest;
        let (start, len) = (usize::from(fpdu.header_len), usize::from(fpdu.payload_len));
        Ok(Some((fpdu, &covered[start..start + len])))
    }

    /// How many bytes of payload come next in one run, up to the end of the payload or the next marker: they may be read
    /// straight into their place. Zero: the reader has to see what comes next.
    pub const fn run(&self) -> usize {
        match self.state {
            State::Payload { left, .. } => self.passage.markers.run(left as usize),
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
        self.passage.pass(payload);
    }

    /// Like [`cover`](Self::cover), for so many bytes of payload that nobody looked at: only a direction without CRCs can
    /// do without seeing them.
    pub fn skip(&mut self, n: usize) -> Result<(), Misuse> {
        if self.passage.framing.crc {
            return Err(Misuse::Unseen);
        }
        let n = n.min(self.run());
        let State::Payload { left, .. } = &mut self.state else { return Ok(()) };
        #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
        let passed = n as u16;
        *left -= passed;
        self.passage.markers.advance(n);
        Ok(())
    }

    /// What has arrived of a header that is not complete, or was found wrong when its last byte came.
    pub fn held(&self) -> &[u8] {
        self.held.bytes()
    }

    /// Between two FPDUs, with nothing of the next one read: where a stream may be moved or closed without loss.
    pub const fn at_boundary(&self) -> bool {
        matches!(self.state, State::Header) && self.held.len == 0 && self.marker.len == 0
    }

    fn step<'a>(&mut self, input: &mut &'a [u8], dialect: Dialect) -> Result<Option<Piece<'a>>, Violation> {
        if let State::Failed(violation) = self.state {
            return Err(violation);
        }
        // Every piece takes at least a byte.
        while !input.is_empty() {
            if self.passage.markers.due() && !self.take_marker(input)? {
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
                    let payload = split_off(input, self.run());
                    self.cover(payload);
                    return Ok((!payload.is_empty()).then_some(Piece::Payload(payload)));
                }
                State::Padding { left: 0 } => self.state = State::Crc,
                State::Padding { left } => {
                    let padding = split_off(input, usize::from(left));
                    #[expect(clippy::cast_possible_truncation, reason = "at most `left`")]
                    let passed = padding.len() as u8;
                    self.state = State::Padding { left: left - passed };
                    self.passage.pass(padding);
                }
                State::Crc => return self.end(input).map(|ended| ended.then_some(Piece::End)),
                State::Failed(violation) => return Err(violation),
            }
        }
        Ok(None)
    }

    /// Takes in the header: at one go if all of it is there, else a run at a time; and no byte more than it has.
    fn header<'a>(&mut self, input: &mut &'a [u8], dialect: Dialect) -> Result<Option<Piece<'a>>, Violation> {
        let whole = &input[..self.passage.markers.run(input.len())];
        if self.held.len == 0
            && let Parse::Done(fpdu) = Fpdu::parse(whole, dialect)?
        {
            let bytes = split_off(input, usize::from(fpdu.header_len));
            self.passage.pass(bytes);
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
            let bytes = split_off(input, self.passage.markers.run(need));
            if bytes.is_empty() {
                return Ok(None);
            }
            self.held.push(bytes);
            self.passage.pass(bytes);
        }
    }

    fn begin<'a>(&mut self, fpdu: Fpdu) -> Piece<'a> {
        #[expect(clippy::cast_possible_truncation, reason = "at most three")]
        let padding = fpdu.padding() as u8;
        self.state = State::Payload { left: fpdu.payload_len, padding };
        Piece::Header(fpdu)
    }

    /// Takes in the CRC and checks it; false if it has not fully arrived.
    fn end(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        let bytes = split_off(input, CRC_FIELD - self.held.bytes().len());
        self.held.push(bytes);
        self.passage.pass_crc(bytes.len());
        let Ok(received) = <[u8; CRC_FIELD]>::try_from(self.held.bytes()) else { return Ok(false) };
        if self.passage.framing.crc {
            check_crc(self.passage.crc_field(), received)?;
        }
        self.held.len = 0;
        self.passage.end_fpdu();
        self.state = State::Header;
        Ok(true)
    }

    /// Takes out the marker that is due; false if it has not fully arrived.
    fn take_marker(&mut self, input: &mut &[u8]) -> Result<bool, Violation> {
        let bytes = split_off(input, MARKER_LEN - self.marker.bytes().len());
        self.marker.push(bytes);
        let &[_, _, high, low] = self.marker.bytes() else { return Ok(false) };
        // RFC 5044 §4.3: the two low bits count as zero.
        let found = u16::from_be_bytes([high, low]) & !3;
        let expected = self.passage.markers.pointer();
        if found != expected {
            return Err(Violation::Marker { expected, found });
        }
        self.marker.len = 0;
        self.passage.pass_marker(&self.marker.bytes);
        Ok(true)
    }
}

/// Compares the CRC of an FPDU with the one it carries.
#[inline]
fn check_crc(computed: [u8; CRC_FIELD], received: [u8; CRC_FIELD]) -> Result<(), Violation> {
    if computed == received {
        return Ok(());
    }
    let [computed, received] = [computed, received].map(u32::from_le_bytes);
    Err(Violation::Crc { computed, received })
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
