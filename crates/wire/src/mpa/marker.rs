//! Markers (RFC 5044 §4.3): four bytes at every 512th byte of a direction, the first in front of its first FPDU, which
//! point back to the start of the FPDU they stand in.
//!
//! [`Markers`] counts along; the writer asks it when to insert one, the reader when to take one out. Since markers and
//! FPDUs are multiples of four bytes, a marker never splits a length field or a CRC.

/// From the start of a marker to the start of the next.
pub const MARKER_INTERVAL: usize = 512;
/// Two bytes zero, two bytes pointer.
pub const MARKER_LEN: usize = 4;

/// Where a direction stands between two markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Markers {
    on: bool,
    /// Bytes since the start of the last marker; zero when a marker is due.
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

    /// How many of `want` bytes may pass before a marker is due.
    #[inline]
    pub(super) const fn run(&self, want: usize) -> usize {
        if !self.on {
            return want;
        }
        // When one is due, `phase` is 0 and nothing may pass.
        let room = if self.phase == 0 { 0 } else { MARKER_INTERVAL - self.phase as usize };
        if want < room { want } else { room }
    }

    /// `n` bytes of the FPDU passed.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the phase is below 512, an FPDU below 2^17")]
    pub(super) fn advance(&mut self, n: usize) {
        if self.on {
            self.phase = ((self.phase as usize + n) % MARKER_INTERVAL) as u16;
            self.into_fpdu += n as u32;
        }
    }

    /// What a marker here points at: how long ago its FPDU began, zero if it stands in front of it.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an FPDU that may be sent is shorter; of a longer one, the low bits"
    )]
    pub(super) const fn pointer(&self) -> u16 {
        self.into_fpdu as u16
    }

    /// The marker that is due.
    pub(super) const fn bytes(&self) -> [u8; MARKER_LEN] {
        let [high, low] = self.pointer().to_be_bytes();
        [0, 0, high, low]
    }

    /// The marker that was due passed. It counts as a part of its FPDU unless it stands in front of it.
    pub(super) fn pass(&mut self) {
        let within = self.into_fpdu > 0;
        self.advance(MARKER_LEN);
        if !within {
            self.into_fpdu = 0;
        }
    }

    /// The FPDU ended.
    pub(super) fn end_fpdu(&mut self) {
        self.into_fpdu = 0;
    }
}
