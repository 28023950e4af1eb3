//! The encoder of one direction of a stream: takes headers and payload, returns bytes. Mirrors `reader.rs`.

use super::marker::MARKER_LEN;
use super::progress::Progress;
use super::{Crc, Framing};
use crate::layout::{CRC_FIELD, LENGTH_FIELD, padding};

use crate::{Header, MAX_HEADER, Misuse};
use core::ops::Range;

/// Maximum output of [`FpduWriter::open`]: the longest header, and a marker before or inside it.
pub const MAX_HEAD: usize = MAX_HEADER + MARKER_LEN;
/// Maximum output of [`FpduWriter::close`]: padding, a marker and the CRC.
pub const MAX_TAIL: usize = 3 + MARKER_LEN + CRC_FIELD;

/// Encodes the FPDUs of one direction of a stream. The payload need not be copied.
///
/// For each FPDU, call [`open`](Self::open); then [`run_len`](Self::run_len) and [`cover`](Self::cover) until the payload is
/// complete, with a [`take_marker`](Self::take_marker) wherever `run_len` returns zero; then [`close`](Self::close). Without markers the
/// payload is one run.
///
/// ```
/// use ironwarp_wire::{Header, RemoteAddr, Tag, Tagged, mpa::{FpduWriter, Framing, MAX_HEAD, MAX_TAIL}};
///
/// let write = Header::Write(Tagged { last: true, addr: RemoteAddr { tag: Tag(7), offset: 0x1000 } });
/// let payload = b"hello";
/// let mut writer = FpduWriter::new(Framing { crc: true, markers: false });
/// let (mut head, mut tail) = ([0; MAX_HEAD], [0; MAX_TAIL]);
///
/// let head_len = writer.open(&write, payload.len(), &mut head)?;
/// assert_eq!(writer.run_len(), payload.len());
/// writer.cover(payload);
/// let tail_len = writer.close(&mut tail)?;
///
/// let fpdu = [&head[..head_len], payload, &tail[..tail_len]].concat(); // or one vectored send
/// assert_eq!(fpdu, b"\x00\x13\xc1\x40\0\0\0\x07\0\0\0\0\0\0\x10\0hello\0\0\0\x16\xdc\x0d\x83");
/// # Ok::<(), ironwarp_wire::Misuse>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FpduWriter {
    /// The CRC and marker position so far.
    progress: Progress,
    /// Remaining payload of the open FPDU, in bytes.
    left: usize,
    /// Padding of the open FPDU, in bytes.
    padding: usize,
}

impl FpduWriter {
    /// Creates a writer for a direction whose first FPDU comes next.
    pub const fn new(framing: Framing) -> Self {
        Self { progress: Progress::new(framing), left: 0, padding: 0 }
    }

    /// Returns whether a writer that was loaded can be in its state, which is one between FPDUs: otherwise it may panic.
    #[cfg(feature = "serde")]
    pub const fn is_consistent(&self) -> bool {
        self.progress.is_consistent() && self.left == 0 && self.padding < 4
    }

    /// Begins an FPDU with `payload` bytes of payload: writes its length field and header, with a marker if one is due.
    /// Returns the number of bytes written. On error, the writer is unchanged.
    pub fn open(
        &mut self,
        header: &Header,
        payload: usize,
        out: &mut [u8; MAX_HEAD],
    ) -> Result<usize, Misuse> {
        // Usually there is no marker: then the header can stay where it is emitted.
        let [plain @ .., _, _, _, _] = out;
        let len = header.emit(payload, plain)?;
        self.left = payload;
        self.padding = padding(len - LENGTH_FIELD + payload);
        if self.progress.markers.room_before_next(len) == len {
            self.progress.pass(&out[..len]);
            return Ok(len);
        }
        let plain = *plain;
        Ok(self.interleave(&plain[..len], out))
    }

    /// Returns the number of payload bytes to send before the next marker. Zero while payload is left means that a
    /// [marker](Self::take_marker) is due.
    pub const fn run_len(&self) -> usize {
        self.progress.markers.room_before_next(self.left)
    }

    /// Accounts for payload that the caller sends, at most [`run_len`](Self::run_len) bytes; excess is ignored.
    pub fn cover(&mut self, payload: &[u8]) {
        let payload = &payload[..payload.len().min(self.run_len())];
        self.left -= payload.len();
        self.progress.pass(payload);
    }

    /// Accounts for `n` bytes of payload, as [`cover`](Self::cover) does, without reading them. Fails if the direction
    /// uses CRCs.
    pub fn skip(&mut self, n: usize) -> Result<(), Misuse> {
        if self.progress.framing.crc {
            return Err(Misuse::PayloadSkipped);
        }
        let n = n.min(self.run_len());
        self.left -= n;
        self.progress.markers.advance(n);
        Ok(())
    }

    /// Returns the framing options of this direction.
    pub const fn framing(&self) -> Framing {
        self.progress.framing
    }

    /// Returns the marker to send now, if one is due.
    pub fn take_marker(&mut self) -> Option<[u8; MARKER_LEN]> {
        if !self.progress.markers.is_due() {
            return None;
        }
        let marker = self.progress.markers.bytes();
        self.progress.pass_marker(&marker);
        Some(marker)
    }

    /// Ends the FPDU: writes padding, a marker if one is due, and the CRC (zero if CRCs are not used). Returns the
    /// number of bytes written. On error, the writer is unchanged.
    pub fn close(&mut self, out: &mut [u8; MAX_TAIL]) -> Result<usize, Misuse> {
        if self.left > 0 {
            return Err(Misuse::PayloadMissing(self.left));
        }
        let at = self.interleave(&[0; 3][..self.padding], out);
        let end = at + CRC_FIELD;
        out[at..end].copy_from_slice(&self.progress.crc_field());
        self.progress.pass_crc(CRC_FIELD);
        self.progress.end_fpdu();
        Ok(end)
    }

    /// Passes all bytes of an FPDU, markers included, to `sink` in several calls. On error, the writer is unchanged and
    /// `sink` is not called.
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
            if let Some(marker) = self.take_marker() {
                sink(&marker);
            }
            let (run, rest) = left.split_at(self.run_len());
            self.cover(run);
            sink(run);
            left = rest;
        }
        let n = self.close(&mut tail)?;
        sink(&tail[..n]);
        Ok(())
    }

    /// Writes a whole FPDU, payload included, to the front of `out` and returns its length: a fast path for batches of
    /// small messages. Fails if the direction uses markers.
    #[inline]
    pub fn write_whole(&self, header: &Header, payload: &[u8], out: &mut [u8]) -> Result<usize, Misuse> {
        let addr = self.begin_whole(header, payload.len(), out)?;
        out[addr.clone()].copy_from_slice(payload);
        Ok(self.end_whole(addr, out))
    }

    /// Writes the header of a whole FPDU to the front of `out`, which must have room for the whole FPDU. Returns the
    /// range of `out` that the caller must fill with the payload before it calls [`end_whole`](Self::end_whole).
    #[inline]
    pub fn begin_whole(
        &self,
        header: &Header,
        payload: usize,
        out: &mut [u8],
    ) -> Result<Range<usize>, Misuse> {
        if self.progress.framing.markers {
            return Err(Misuse::Markers);
        }
        let (have, end) = (out.len(), LENGTH_FIELD + header.encoded_len() + payload);
        let need = (end + padding(end - LENGTH_FIELD) + CRC_FIELD).max(MAX_HEADER);
        let front = out.get_mut(..need).and_then(<[u8]>::first_chunk_mut);
        let at = header.emit(payload, front.ok_or(Misuse::BufferTooShort { have, need })?)?;
        Ok(at..end)
    }

    /// Completes the FPDU that [`begin_whole`](Self::begin_whole) began: writes padding and CRC after the payload, which
    /// is at the range `payload` of `out`. Returns the length of the FPDU.
    #[inline]
    pub fn end_whole(&self, payload: Range<usize>, out: &mut [u8]) -> usize {
        let end = payload.end;
        let covered = end + padding(end - LENGTH_FIELD);
        out[end..end + CRC_FIELD].fill(0); // clears the padding, and part of the CRC field, which is written below
        let crc =
            if self.progress.framing.crc { Crc::of(&out[..covered]).to_bytes() } else { [0; CRC_FIELD] };
        out[covered..covered + CRC_FIELD].copy_from_slice(&crc);
        covered + CRC_FIELD
    }

    /// Copies `bytes` of the FPDU to `out`, with the markers due before, inside and directly after them. Returns the
    /// number of bytes written. A marker after `bytes` belongs to the same FPDU, because the CRC follows.
    fn interleave(&mut self, mut bytes: &[u8], out: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            if let Some(marker) = self.take_marker() {
                out[at..at + MARKER_LEN].copy_from_slice(&marker);
                at += MARKER_LEN;
            }
            if bytes.is_empty() {
                return at;
            }
            let (run, rest) = bytes.split_at(self.progress.markers.room_before_next(bytes.len()));
            out[at..at + run.len()].copy_from_slice(run);
            at += run.len();
            self.progress.pass(run);
            bytes = rest;
        }
    }
}
