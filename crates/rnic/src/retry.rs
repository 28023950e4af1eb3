//! How long a queue pair tries: the retries and timeouts of the verbs, in their codes.
//!
//! The kernel's TCP does the retrying. What these say is for how long: a peer that cannot be reached, or posts no receive, is
//! given up when the attempts that were asked for would have been made.

use std::time::Duration;

/// Retries and timeouts of a queue pair. The default never gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How often a message is tried again for which the peer has no receive; 7 means for ever (rnr_retry).
    pub rnr_retry: u8,
    /// What this end asks of its peer: the time between two such attempts, as a code of five bits (min_rnr_timer).
    pub rnr_timer: u8,
    /// How often a message is tried again that the peer does not answer, at most 7 (retry_cnt).
    pub retry_count: u8,
    /// How long an answer may take: 4.096 µs times two to this power; 0 means for ever (timeout).
    pub timeout: u8,
}

/// [`Retries::rnr_retry`]: never give up.
const FOR_EVER: u8 = 7;

/// A peer is not given up sooner than this, whatever the codes say. They are meant for adapters of silicon, which answer in
/// microseconds whatever their host does. Ours are threads, which a busy machine has let wait for most of a second; and the
/// first packet of a connection, if it is lost, TCP repeats after one second, then two.
pub const FLOOR: Duration = Duration::from_secs(5);

impl Default for Retries {
    fn default() -> Self {
        Self { rnr_retry: FOR_EVER, rnr_timer: 0, retry_count: 7, timeout: 0 }
    }
}

impl Retries {
    /// How long the peer may leave a message without a receive, if it asked for this time between attempts. `None`: for ever.
    ///
    /// ```
    /// # use ironwarp_rnic::qp::Retries;
    /// // Three attempts, with the 10.24 ms between them that code 20 stands for.
    /// let retries = Retries { rnr_retry: 3, ..Retries::default() };
    /// assert_eq!(retries.receive_patience(20).unwrap().as_micros(), 3 * 10_240);
    /// assert_eq!(Retries { rnr_retry: 7, ..retries }.receive_patience(20), None);
    /// ```
    pub fn receive_patience(&self, peer_timer: u8) -> Option<Duration> {
        (self.rnr_retry < FOR_EVER).then(|| rnr_delay(peer_timer) * self.rnr_retry.into())
    }

    /// How long the peer may leave a request without an answer of any kind. `None`: for ever.
    pub fn answer_patience(&self) -> Option<Duration> {
        let exponent = self.timeout & 0x1f;
        if exponent == 0 {
            return None;
        }
        let once = Duration::from_nanos(4096 << exponent);
        Some((once * u32::from(self.retry_count.min(7) + 1)).max(FLOOR))
    }
}

/// The time that a code of five bits stands for (the verbs' table of RNR NAK timers): after the first few, two steps double it.
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
    fn seven_and_zero_mean_for_ever() {
        assert_eq!(Retries::default().receive_patience(12), None);
        assert_eq!(Retries::default().answer_patience(), None);
        let some = Retries { rnr_retry: 3, rnr_timer: 0, retry_count: 7, timeout: 20 };
        assert_eq!(some.receive_patience(12), Some(Duration::from_micros(3 * 640)));
        assert_eq!(some.answer_patience(), Some(Duration::from_nanos((4096 << 20) * 8)));
        assert_eq!(Retries { timeout: 1, ..some }.answer_patience(), Some(FLOOR));
    }
}
