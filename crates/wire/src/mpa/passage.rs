//! What has passed of one direction: the CRC of the FPDU so far, and the place between two markers. The writer and the
//! reader count with the same.

use super::marker::{MARKER_LEN, Markers};
use super::{CRC_FIELD, Crc, Framing};

#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    pub(super) framing: Framing,
    pub(super) markers: Markers,
    crc: Crc,
}

impl Passage {
    pub(super) const fn new(framing: Framing) -> Self {
        Self { framing, markers: Markers::new(framing.markers), crc: Crc::new() }
    }

    /// Bytes of the FPDU, its CRC aside.
    #[inline]
    pub(super) fn pass(&mut self, bytes: &[u8]) {
        self.cover(bytes);
        self.markers.advance(bytes.len());
    }

    /// The marker that was due.
    pub(super) fn pass_marker(&mut self, marker: &[u8; MARKER_LEN]) {
        self.cover(marker);
        self.markers.pass();
    }

    /// Bytes of the CRC, which does not cover itself.
    pub(super) fn pass_crc(&mut self, n: usize) {
        self.markers.advance(n);
    }

    /// The FPDU ended; the next one begins anew.
    pub(super) fn end_fpdu(&mut self) {
        self.crc = Crc::new();
        self.markers.end_fpdu();
    }

    /// The CRC of what has passed, as it is sent: zero if CRCs are not used.
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
