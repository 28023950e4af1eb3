//! Progress within one direction of a stream, for writer and reader alike: the CRC of the current FPDU so far, and the
//! position between two markers.

use super::marker::{MARKER_LEN, Markers};
use super::{Crc, Framing};
use crate::layout::CRC_FIELD;

#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) framing: Framing,
    pub(super) markers: Markers,
    crc: Crc,
}

impl Progress {
    pub(super) const fn new(framing: Framing) -> Self {
        Self { framing, markers: Markers::new(framing.markers), crc: Crc::new() }
    }

    /// Accounts for bytes of the FPDU other than its CRC.
    #[inline]
    pub(super) fn pass(&mut self, bytes: &[u8]) {
        self.cover(bytes);
        self.markers.advance(bytes.len());
    }

    /// Accounts for the marker that was due.
    pub(super) fn pass_marker(&mut self, marker: &[u8; MARKER_LEN]) {
        self.cover(marker);
        self.markers.pass();
    }

    /// Accounts for bytes of the CRC, which does not cover itself.
    pub(super) fn pass_crc(&mut self, n: usize) {
        self.markers.advance(n);
    }

    /// Ends the FPDU and resets the CRC.
    pub(super) fn end_fpdu(&mut self) {
        self.crc = Crc::new();
        self.markers.end_fpdu();
    }

    /// Returns the CRC field to send: zero if CRCs are not used.
    pub(super) const fn crc_field(&self) -> [u8; CRC_FIELD] {
        if self.framing.crc { self.crc.to_bytes() } else { [0; CRC_FIELD] }
    }

    #[inline]
    fn cover(&mut self, bytes: &[u8]) {
        if self.framing.crc {
            self.crc.update(bytes);
        }
    }
}
