//! Markers (RFC 5044 §4.3): four bytes at every 512th byte of a direction, beginning before its first FPDU. Each points
//! back to the start of the FPDU that contains it.
//!
//! [`Markers`] tracks the position; it tells the writer when to insert a marker and the reader when to remove one. Since markers and
//! FPDUs are multiples of four bytes, a marker never splits a length field or a CRC.

/// Distance from the start of a marker to the start of the next.
pub const MARKER_INTERVAL: usize = 512;
/// Size of a marker: two zero bytes and a 16-bit pointer.
pub const MARKER_LEN: usize = 4;

/// The position of a direction between two markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Markers {
    on: bool,
    /// Bytes since the start of the last marker; zero if a marker is due.
    phase: u16,
    /// Bytes since the start of the length field, markers included; zero between FPDUs.
    into_fpdu: u32,
}

impl Markers {
    pub(super) const fn new(on: bool) -> Self {
        Self { on, phase: 0, into_fpdu: 0 }
    }

    pub(super) const fn due(&self) -> bool {
        self.on && self.phase == 0
    }

    /// Returns how many of `want` bytes fit before the next marker.
    #[inline]
    pub(super) const fn run(&self, want: usize) -> usize {
        if !self.on {
            return want;
        }
        // If one is due, `phase` is 0 and nothing fits.
        let room = if self.phase == 0 { 0 } else { MARKER_INTERVAL - self.phase as usize };
        if want < room { want } else { room }
    }

    /// Advances by `n` bytes of the FPDU.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the phase is below 512, an FPDU below 2^17")]
    pub(super) fn advance(&mut self, n: usize) {
        if self.on {
            self.phase = ((self.phase as usize + n) % MARKER_INTERVAL) as u16;
            self.into_fpdu += n as u32;
        }
    }

    /// Returns the pointer of a marker at this position: the distance to the start of its FPDU, zero between FPDUs.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an FPDU that may be sent is shorter; of a longer one, the low bits are compared"
    )]
    pub(super) const fn pointer(&self) -> u16 {
        self.into_fpdu as u16
    }

    /// Returns the marker that is due.
    pub(super) const fn bytes(&self) -> [u8; MARKER_LEN] {
        let [high, low] = self.pointer().to_be_bytes();
        [0, 0, high, low]
    }

    /// Advances past the marker that was due. It counts as part of the FPDU unless it comes before it.
    pub(super) fn pass(&mut self) {
        let within = self.into_fpdu > 0;
        self.advance(MARKER_LEN);
        if !within {
            self.into_fpdu = 0;
        }
    }

    /// Ends the FPDU.
    pub(super) fn end_fpdu(&mut self) {
        self.into_fpdu = 0;
    }
}
