//! A direction of a stream, put together: headers and payload in, bytes out. Mirrors `reader.rs`.

use super::marker::MARKER_LEN;
use super::passage::Passage;
use super::{CRC_FIELD, Crc, Framing, LENGTH_FIELD, padding};
use crate::rdmap::MAX_HEADER;
use crate::{Header, Misuse};
use core::ops::Range;

/// Room for what [`FpduWriter::open`] writes: the longest header, and a marker in front of or inside it.
pub const MAX_HEAD: usize = MAX_HEADER + MARKER_LEN;
/// Room for what [`FpduWriter::close`] writes: padding, a marker and the CRC.
pub const MAX_TAIL: usize = 3 + MARKER_LEN + CRC_FIELD;

/// Puts the FPDUs of one direction together. The payload stays where it is.
///
/// For each FPDU: [`open`](Self::open), then for all of the payload [`run`](Self::run) and [`cover`](Self::cover), with a
/// [`marker`](Self::marker) wherever the run is zero, then [`close`](Self::close). Without markers the payload is one run.
///
/// ```
/// use ironwarp_wire::{Header, Place, Tag, Tagged, mpa::{FpduWriter, Framing, MAX_HEAD, MAX_TAIL}};
///
/// let write = Header::Write(Tagged { last: true, place: Place { tag: Tag(7), offset: 0x1000 } });
/// let payload = b"hello";
/// let mut writer = FpduWriter::new(Framing { crc: true, markers: false });
/// let (mut head, mut tail) = ([0; MAX_HEAD], [0; MAX_TAIL]);
///
/// let head_len = writer.open(&write, payload.len(), &mut head)?;
/// assert_eq!(writer.run(), payload.len());
/// writer.cover(payload);
/// let tail_len = writer.close(&mut tail)?;
///
/// let fpdu = [&head[..head_len], payload, &tail[..tail_len]].concat(); // or one vectored send
/// assert_eq!(fpdu, b"\x00\x13\xc1\x40\0\0\0\x07\0\0\0\0\0\0\x10\0hello\0\0\0\x16\xdc\x0d\x83");
/// # Ok::<(), ironwarp_wire::Misuse>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FpduWriter {
    passage: Passage,
    /// Payload of the open FPDU still to come.
    left: usize,
    /// Padding of the open FPDU.
    padding: usize,
}

impl FpduWriter {
    /// For a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        Self { passage: Passage::new(framing), left: 0, padding: 0 }
    }

    /// Begins an FPDU: writes its length field and header, with a marker if one is due. Returns how many bytes of `out`
    /// were written. Nothing is changed on error.
    pub fn open(
        &mut self,
        header: &Header,
        payload: usize,
        out: &mut [u8; MAX_HEAD],
    ) -> Result<usize, Misuse> {
        // In most cases no marker is in the way, and the header is already where it belongs.
        let [plain @ .., _, _, _, _] = out;
        let len = header.emit(payload, plain)?;
        self.left = payload;
        self.padding = padding(len - LENGTH_FIELD + payload);
        if self.passage.markers.run(len) == len {
            self.passage.pass(&out[..len]);
            return Ok(len);
        }
        let plain = *plain;
        Ok(self.interleave(&plain[..len], out))
    }

    /// How many bytes of payload may follow in one run, up to the end of the payload or the next marker. Zero with
    /// payload left: a [`marker`](Self::marker) is due.
    pub const fn run(&self) -> usize {
        self.passage.markers.run(self.left)
    }

    /// These bytes of payload, no more than [`run`](Self::run) allows, come next; excess is ignored.
    pub fn cover(&mut self, payload: &[u8]) {
        let payload = &payload[..payload.len().min(self.run())];
        self.left -= payload.len();
        self.passage.pass(payload);
    }

    /// Like [`cover`](Self::cover), for so many bytes of payload that nobody looked at: only a direction without CRCs can
    /// do without seeing them.
    pub fn skip(&mut self, n: usize) -> Result<(), Misuse> {
        if self.passage.framing.crc {
            return Err(Misuse::Unseen);
        }
        let n = n.min(self.run());
        self.left -= n;
        self.passage.markers.advance(n);
        Ok(())
    }

    /// What this direction agreed on.
    pub const fn framing(&self) -> Framing {
        self.passage.framing
    }

    /// The marker to put here, if one is due.
    pub fn marker(&mut self) -> Option<[u8; MARKER_LEN]> {
        if !self.passage.markers.due() {
            return None;
        }
        let marker = self.passage.markers.bytes();
        self.passage.pass_marker(&marker);
        Some(marker)
    }

    /// Ends the FPDU: writes padding, a marker if one is due, and the CRC (zero if CRCs are not used). Returns how many
    /// bytes of `out` were written. Nothing is changed on error.
    pub fn close(&mut self, out: &mut [u8; MAX_TAIL]) -> Result<usize, Misuse> {
        if self.left > 0 {
            return Err(Misuse::PayloadMissing(self.left));
        }
        let at = self.interleave(&[0; 3][..self.padding], out);
        let end = at + CRC_FIELD;
        out[at..end].copy_from_slice(&self.passage.crc_field());
        self.passage.pass_crc(CRC_FIELD);
        self.passage.end_fpdu();
        Ok(end)
    }

    /// Hands a whole FPDU to `sink`, piece by piece, with its markers: what [`open`](Self::open) to [`close`](Self::close) do
    /// for a payload that is at hand. Nothing is changed, and nothing handed over, on error.
    pub fn write(
        &mut self,
        header: &Header,
        payload: &[u8],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(), Misuse> {
        let (mut head, mut tail) = ([0; MAX_HEAD], [0; MAX_TAIL]);
        let n = self.open(header, payload.len(), &mut head)?;
        sink(&head[..n]);
        let mut left = payload;
        while !left.is_empty() {
            if let Some(marker) = self.marker() {
                sink(&marker);
            }
            let (run, rest) = left.split_at(self.run());
            self.cover(run);
            sink(run);
            left = rest;
        }
        let n = self.close(&mut tail)?;
        sink(&tail[..n]);
        Ok(())
    }

    /// Writes a whole FPDU, payload included, to the front of `out`: the short way for small messages that leave together.
    /// Returns its length; nothing is changed on error.
    ///
    /// Not for a direction with markers.
    #[inline]
    pub fn whole(&self, header: &Header, payload: &[u8], out: &mut [u8]) -> Result<usize, Misuse> {
        let place = self.begin_whole(header, payload.len(), out)?;
        out[place.clone()].copy_from_slice(payload);
        Ok(self.end_whole(place, out))
    }

    /// The first half of [`whole`](Self::whole), for a payload that is fetched to where it leaves from: the header is written.
    /// Returns where the payload goes in `out`, which has room for all of the FPDU.
    #[inline]
    pub fn begin_whole(
        &self,
        header: &Header,
        payload: usize,
        out: &mut [u8],
    ) -> Result<Range<usize>, Misuse> {
        if self.passage.framing.markers {
            return Err(Misuse::Markers);
        }
        let (have, end) = (out.len(), LENGTH_FIELD + header.encoded_len() + payload);
        let need = (end + padding(end - LENGTH_FIELD) + CRC_FIELD).max(MAX_HEADER);
        let front = out.get_mut(..need).and_then(<[u8]>::first_chunk_mut);
        let at = header.emit(payload, front.ok_or(Misuse::BufferTooShort { have, need })?)?;
        Ok(at..end)
    }

    /// The second half: the payload is there, and padding and CRC follow. Returns the length of the FPDU.
    #[inline]
    pub fn end_whole(&self, payload: Range<usize>, out: &mut [u8]) -> usize {
        let end = payload.end;
        let covered = end + padding(end - LENGTH_FIELD);
        out[end..end + CRC_FIELD].fill(0); // the padding, and then some
        let crc = if self.passage.framing.crc { Crc::of(&out[..covered]).to_bytes() } else { [0; CRC_FIELD] };
        out[covered..covered + CRC_FIELD].copy_from_slice(&crc);
        covered + CRC_FIELD
    }

    /// Copies `bytes` to `out`, with the markers due in front of, inside and directly behind them. What follows belongs to
    /// the same FPDU, be it only the CRC.
    fn interleave(&mut self, mut bytes: &[u8], out: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            if let Some(marker) = self.marker() {
                out[at..at + MARKER_LEN].copy_from_slice(&marker);
                at += MARKER_LEN;
            }
            if bytes.is_empty() {
                return at;
            }
            let (run, rest) = bytes.split_at(self.passage.markers.run(bytes.len()));
            out[at..at + run.len()].copy_from_slice(run);
            at += run.len();
            self.passage.pass(run);
            bytes = rest;
        }
    }
}
