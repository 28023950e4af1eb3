//! Retry counts and timeouts of a queue pair, in the encodings of the verbs.
//!
//! TCP retransmits, so the values only determine timeouts: the connection to a peer that is unreachable, or posts no
//! receive, is given up after the time that the requested number of retries would have taken.

use std::time::Duration;

/// Retry counts and timeouts of a queue pair. With the default values, a connection is never given up.
///
/// ```
/// # use ironwarp_rnic::qp::Retries;
/// let retries = Retries::default().rnr_retry(3).rnr_timer(20).retry_count(1).timeout(21);
/// assert_eq!(retries.response_timeout().unwrap().as_secs(), 17); // twice 8.6 s
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retries {
    /// Number of retries of a message for which the peer has no receive (rnr_retry); 7 means forever.
    pub rnr_retry: u8,
    /// The time that the peer is asked to wait between such retries, as a 5-bit code (min_rnr_timer).
    pub rnr_timer: u8,
    /// Number of retries of an unanswered message, at most 7 (retry_cnt).
    pub retry_count: u8,
    /// The time to wait for an answer: 4.096 µs times two to this power; 0 means forever (timeout).
    pub timeout: u8,
}

/// [`Retries::rnr_retry`]: retry forever.
pub(crate) const FOREVER: u8 = 7;

/// Minimum of [`Retries::response_timeout`], whatever the requested values. Programs choose values for hardware, which
/// answers within microseconds. This adapter runs in threads, which a busy machine may delay for most of a second;
/// and TCP retransmits the first packet of a connection after one second, then two.
pub const FLOOR: Duration = Duration::from_secs(5);

impl Default for Retries {
    fn default() -> Self {
        Self { rnr_retry: FOREVER, rnr_timer: 0, retry_count: 7, timeout: 0 }
    }
}

impl Retries {
    /// Sets the number of retries of a message for which the peer has no receive (rnr_retry); 7 means forever.
    #[must_use]
    pub const fn rnr_retry(mut self, retries: u8) -> Self {
        self.rnr_retry = retries;
        self
    }

    /// Sets the time that the peer is asked to wait between such retries, as a 5-bit code (min_rnr_timer).
    #[must_use]
    pub const fn rnr_timer(mut self, code: u8) -> Self {
        self.rnr_timer = code;
        self
    }

    /// Sets the number of retries of an unanswered message, at most 7 (retry_cnt).
    #[must_use]
    pub const fn retry_count(mut self, retries: u8) -> Self {
        self.retry_count = retries;
        self
    }

    /// Sets the time to wait for an answer: 4.096 µs times two to this power; 0 means forever (timeout).
    #[must_use]
    pub const fn timeout(mut self, exponent: u8) -> Self {
        self.timeout = exponent;
        self
    }

    /// Returns how long a message may wait for a receive of the peer, whose [`rnr_timer`](Self::rnr_timer) is
    /// `peer_timer`. `None` means forever.
    ///
    /// ```
    /// # use ironwarp_rnic::qp::Retries;
    /// // Three attempts, with the 10.24 ms between them that code 20 stands for.
    /// let retries = Retries::default().rnr_retry(3);
    /// assert_eq!(retries.rnr_timeout(20).unwrap().as_micros(), 3 * 10_240);
    /// assert_eq!(retries.rnr_retry(7).rnr_timeout(20), None);
    /// ```
    pub fn rnr_timeout(&self, peer_timer: u8) -> Option<Duration> {
        (self.rnr_retry < FOREVER).then(|| rnr_delay(peer_timer) * self.rnr_retry.into())
    }

    /// Returns how long a request may wait for any answer of the peer: the timeout for the first attempt and for each
    /// retry, but at least `FLOOR`. `None` means forever.
    pub fn response_timeout(&self) -> Option<Duration> {
        let once = self.attempt_timeout()?;
        Some((once * u32::from(self.retry_count.min(7) + 1)).max(FLOOR))
    }

    /// Returns how long one attempt may wait for an answer. `None` means forever.
    pub(crate) fn attempt_timeout(&self) -> Option<Duration> {
        let exponent = self.timeout & 0x1f;
        (exponent != 0).then(|| Duration::from_nanos(4096 << exponent))
    }

    /// Packs the values into a word, to be stored in an atomic.
    pub(crate) const fn to_bits(self) -> u32 {
        u32::from_le_bytes([self.rnr_retry, self.rnr_timer, self.retry_count, self.timeout])
    }

    /// Unpacks values that [`to_bits`](Self::to_bits) has packed.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        let [rnr_retry, rnr_timer, retry_count, timeout] = bits.to_le_bytes();
        Self { rnr_retry, rnr_timer, retry_count, timeout }
    }
}

/// Returns the time that a 5-bit code stands for (RNR NAK timer of the verbs). Above code 4, the time doubles every
/// two codes; code 0 is the longest time.
pub fn rnr_delay(code: u8) -> Duration {
    let hundredths = match code & 0x1f {
        0 => 65_536,
        code @ 1..=4 => u64::from(code),
        code => (if code % 2 == 1 { 6 } else { 8 }) << ((code - 5) / 2),
    };
    Duration::from_micros(hundredths * 10)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_codes_stand_for_the_times_of_the_verbs() {
        let micros = |code| rnr_delay(code).as_micros();
        let table = [
            (0, 655_360),
            (1, 10),
            (4, 40),
            (5, 60),
            (6, 80),
            (7, 120),
            (12, 640),
            (14, 1280),
            (31, 491_520),
        ];
        for (code, time) in table {
            assert_eq!(micros(code), time, "code {code}");
        }
    }

    #[test]
    fn seven_and_zero_mean_forever() {
        assert_eq!(Retries::default().rnr_timeout(12), None);
        assert_eq!(Retries::default().response_timeout(), None);
        let some = Retries { rnr_retry: 3, rnr_timer: 0, retry_count: 7, timeout: 20 };
        assert_eq!(some.rnr_timeout(12), Some(Duration::from_micros(3 * 640)));
        assert_eq!(some.response_timeout(), Some(Duration::from_nanos((4096 << 20) * 8)));
        assert_eq!(some.timeout(1).response_timeout(), Some(FLOOR));
    }
}
