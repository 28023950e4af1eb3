//! The state that writer and reader of a direction have in common: the CRC of the current FPDU so far, and the position
//! relative to markers.

use super::marker::{MARKER_LEN, Markers};
use super::{Crc, Framing};
use crate::layout::CRC_FIELD;

/// The CRC and marker position of one direction.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Progress {
    pub(super) framing: Framing,
    pub(super) markers: Markers,
    /// The CRC of the current FPDU so far. Not updated if CRCs are not used.
    crc: Crc,
}

impl Progress {
    /// Creates the state at the start of a direction.
    pub(super) const fn new(framing: Framing) -> Self {
        Self { framing, markers: Markers::new(framing.markers), crc: Crc::new() }
    }

    /// Returns whether a state that was loaded can be one of a direction.
    #[cfg(feature = "serde")]
    pub(super) const fn is_consistent(&self) -> bool {
        self.markers.is_consistent(self.framing.markers)
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

    /// Accounts for `n` bytes of the CRC field, which the CRC does not cover.
    pub(super) fn pass_crc(&mut self, n: usize) {
        self.markers.advance(n);
    }

    /// Marks the end of the FPDU, and resets the CRC for the next one.
    pub(super) fn end_fpdu(&mut self) {
        self.crc = Crc::new();
        self.markers.end_fpdu();
    }

    /// Returns the CRC field of the current FPDU: zero if CRCs are not used.
    pub(super) const fn crc_field(&self) -> [u8; CRC_FIELD] {
        if self.framing.crc { self.crc.to_bytes() } else { [0; CRC_FIELD] }
    }

    /// Adds bytes to the CRC.
    #[inline]
    fn cover(&mut self, bytes: &[u8]) {
        if self.framing.crc {
            self.crc.update(bytes);
        }
    }
}
