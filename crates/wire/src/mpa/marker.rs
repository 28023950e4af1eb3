//! Markers (RFC 5044 §4.3): four bytes at every 512th byte of a direction, beginning before its first FPDU. Each points
//! back to the start of the FPDU that contains it.
//!
//! [`Markers`] tracks the position, so that the writer knows when to insert a marker and the reader when to remove one.
//! Since markers and FPDUs are multiples of four bytes, a marker never splits a length field or a CRC.

/// Distance from the start of a marker to the start of the next, in bytes.
pub const MARKER_INTERVAL: usize = 512;
/// Size of a marker: two zero bytes and a 16-bit pointer.
pub const MARKER_LEN: usize = 4;

/// The position of one direction of a stream, relative to markers and to the current FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Markers {
    /// Whether this direction uses markers.
    enabled: bool,
    /// Number of bytes since the start of the last marker. Zero if a marker is due.
    phase: u16,
    /// Number of bytes since the start of the FPDU's length field, markers included. Zero between FPDUs.
    fpdu_offset: u32,
}

impl Markers {
    /// Creates the position at the start of a direction, where a marker is due if `enabled`.
    pub(super) const fn new(enabled: bool) -> Self {
        Self { enabled, phase: 0, fpdu_offset: 0 }
    }

    /// Returns whether a marker comes next.
    pub(super) const fn is_due(&self) -> bool {
        self.enabled && self.phase == 0
    }

    /// Returns the number of bytes before the next marker, but at most `want`.
    #[inline]
    pub(super) const fn room_before_next(&self, want: usize) -> usize {
        if !self.enabled {
            return want;
        }
        // If a marker is due, `phase` is 0 and there is no room.
        let room = if self.phase == 0 { 0 } else { MARKER_INTERVAL - self.phase as usize };
        if want < room { want } else { room }
    }

    /// Advances the position by `n` bytes of the FPDU.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the phase is below 512, an FPDU below 2^17")]
    pub(super) fn advance(&mut self, n: usize) {
        if self.enabled {
            self.phase = ((self.phase as usize + n) % MARKER_INTERVAL) as u16;
            self.fpdu_offset += n as u32;
        }
    }

    /// Returns the pointer of a marker at this position: the distance to the start of its FPDU, or zero between FPDUs.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an FPDU that may be sent is shorter; of a longer one, the low bits are compared"
    )]
    pub(super) const fn pointer(&self) -> u16 {
        self.fpdu_offset as u16
    }

    /// Returns the marker that is due.
    pub(super) const fn bytes(&self) -> [u8; MARKER_LEN] {
        let [high, low] = self.pointer().to_be_bytes();
        [0, 0, high, low]
    }

    /// Advances the position past the marker that was due. A marker inside an FPDU counts as part of it; a marker before
    /// an FPDU does not.
    pub(super) fn pass(&mut self) {
        let within = self.fpdu_offset > 0;
        self.advance(MARKER_LEN);
        if !within {
            self.fpdu_offset = 0;
        }
    }

    /// Returns whether a position that was loaded can be one of a direction that uses markers if `enabled`.
    #[cfg(feature = "serde")]
    pub(super) const fn is_consistent(&self, enabled: bool) -> bool {
        self.enabled == enabled && (self.phase as usize) < MARKER_INTERVAL && self.fpdu_offset < 1 << 17
    }

    /// Marks the end of the FPDU.
    pub(super) fn end_fpdu(&mut self) {
        self.fpdu_offset = 0;
    }
}
