//! The limits of a logical device: its rate and its delay. All adapters of the process that have opened the device share
//! them. `verbs/connection/shaped.rs` applies them to the streams of connections.

use ironwarp_rnic::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The smallest burst, in bytes.
const MIN_BURST: u64 = 64 << 10;
/// The time in which an idle device saves up its burst. Longer than the time by which a timer is late, so that a stream
/// catches up.
const BURST_TIME: Duration = Duration::from_millis(2);
/// The time for which a stream that waits for its turn may then send, at the rate of the device.
const TURN_TIME: Duration = Duration::from_micros(200);
/// Bounds on the length of a turn, in bytes.
const TURN_LEN: (u64, u64) = (16 << 10, 256 << 10);
/// Units of a bucket that a byte costs: eight bits, with time in nanoseconds.
const BYTE: u128 = 8 * 1_000_000_000;

/// The rate and delay of a logical device.
#[derive(Debug)]
pub(crate) struct Shaper {
    start: Instant,
    /// The rate of each direction; `None` if it is not limited.
    pub(crate) send: Option<Bucket>,
    pub(crate) receive: Option<Bucket>,
    /// Time by which everything that is received is delayed.
    pub(crate) delay: Duration,
}

/// A token bucket: limits one direction of all streams of a device to a rate.
///
/// A stream that finds too few tokens reserves some, and waits until they exist. So streams have turns in the order in
/// which they began to wait, and each wakes once for a turn.
#[derive(Debug)]
pub(crate) struct Bucket {
    bits_per_second: u128,
    /// Maximum number of saved tokens, in units.
    burst: u128,
    /// Number of bytes of a turn.
    turn: usize,
    /// The time at which the bucket is empty, multiplied by the rate. It lies in the past while tokens are saved up, and
    /// in the future while tokens are reserved.
    empty_at: Mutex<u128>,
}

/// Tokens of one direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Tokens that the stream has reserved: when they exist, and the number of bytes.
    reserved: Option<(Duration, usize)>,
}

impl Shaper {
    /// Creates the limits of a device. `rate` is in bits per second.
    pub(crate) fn new(rate: Option<u64>, delay: Duration) -> Self {
        Self { start: Instant::now(), send: rate.map(Bucket::new), receive: rate.map(Bucket::new), delay }
    }

    /// Returns the time on the clock of the buckets.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Bucket {
    pub(crate) fn new(bits_per_second: u64) -> Self {
        let bytes_in = |time: Duration| {
            u64::try_from(u128::from(bits_per_second) * time.as_nanos() / BYTE).unwrap_or(u64::MAX)
        };
        let burst = u128::from(bytes_in(BURST_TIME).max(MIN_BURST)) * BYTE;
        let turn = bytes_in(TURN_TIME).clamp(TURN_LEN.0, TURN_LEN.1);
        Self {
            bits_per_second: bits_per_second.into(),
            burst,
            turn: usize::try_from(turn).unwrap_or(usize::MAX),
            empty_at: Mutex::new(0),
        }
    }

    /// Takes tokens for at most `wanted` bytes, at least one. Returns for how many, or else the time at which to call
    /// again. After the transfer, [`settle`](Self::settle) returns the tokens that were not used.
    pub(crate) fn take(&self, now: Duration, turn: &mut Turn, wanted: usize) -> Result<usize, Duration> {
        if let Some((at, len)) = turn.reserved {
            if now < at {
                return Err(at);
            }
            turn.reserved = None;
            self.settle(len.saturating_sub(wanted));
            return Ok(len.min(wanted));
        }
        let mut empty_at = lock(&self.empty_at);
        let units = self.units_at(now);
        *empty_at = (*empty_at).max(units.saturating_sub(self.burst));
        let saved = usize::try_from(units.saturating_sub(*empty_at) / BYTE).unwrap_or(usize::MAX);
        let len = wanted.min(self.turn);
        if saved >= len {
            let len = wanted.min(saved);
            *empty_at += len as u128 * BYTE;
            return Ok(len);
        }
        *empty_at += len as u128 * BYTE;
        let nanos = empty_at.div_ceil(self.bits_per_second);
        let at = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        turn.reserved = Some((at, len));
        Err(at)
    }

    /// Takes tokens for bytes that were transferred without asking.
    pub(crate) fn charge(&self, len: usize) {
        *lock(&self.empty_at) += len as u128 * BYTE;
    }

    /// Returns the tokens for bytes that were not transferred.
    pub(crate) fn settle(&self, unused: usize) {
        let mut empty_at = lock(&self.empty_at);
        *empty_at = empty_at.saturating_sub(unused as u128 * BYTE);
    }

    /// Returns what a stream has reserved, because it ends.
    pub(crate) fn end_turn(&self, turn: &mut Turn) {
        if let Some((_, len)) = turn.reserved.take() {
            self.settle(len);
        }
    }

    /// Returns the maximum number of bytes of a turn.
    pub(crate) fn turn_len(&self) -> usize {
        self.turn
    }

    fn units_at(&self, now: Duration) -> u128 {
        now.as_nanos() * self.bits_per_second
    }
}

impl Turn {
    /// Returns whether the stream has reserved tokens that do not exist yet.
    pub(crate) fn is_awaited(&self, now: Duration) -> bool {
        self.reserved.is_some_and(|(at, _)| now < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 Mb/s: one byte in a microsecond.
    const RATE: u64 = 8_000_000;
    const BURST: usize = 64 << 10;
    const TURN: usize = 16 << 10;

    fn at(micros: usize) -> Duration {
        Duration::from_micros(micros as u64)
    }

    /// A bucket that has saved its burst, at this time.
    fn bucket() -> (Bucket, usize) {
        (Bucket::new(RATE), 1_000_000)
    }

    #[test]
    fn the_burst_is_bounded() {
        let (bucket, now) = bucket();
        let mut turn = Turn::default();
        assert_eq!(bucket.take(at(now), &mut turn, 1 << 20), Ok(BURST));
        assert_eq!(bucket.take(at(now), &mut turn, 1 << 20), Err(at(now + TURN)));
    }

    #[test]
    fn a_stream_waits_for_a_whole_turn_and_wakes_once() {
        let (bucket, now) = bucket();
        let mut turn = Turn::default();
        assert_eq!(bucket.take(at(now), &mut turn, BURST), Ok(BURST));
        assert_eq!(bucket.take(at(now), &mut turn, BURST), Err(at(now + TURN)));
        assert_eq!(bucket.take(at(now + TURN - 1), &mut turn, BURST), Err(at(now + TURN)));
        assert_eq!(bucket.take(at(now + TURN), &mut turn, BURST), Ok(TURN));
        assert_eq!(bucket.take(at(now + TURN), &mut turn, BURST), Err(at(now + 2 * TURN)));
    }

    #[test]
    fn a_short_transfer_waits_for_its_length_only() {
        let (bucket, now) = bucket();
        let mut turn = Turn::default();
        assert_eq!(bucket.take(at(now), &mut turn, BURST), Ok(BURST));
        assert_eq!(bucket.take(at(now), &mut turn, 100), Err(at(now + 100)));
        assert_eq!(bucket.take(at(now + 100), &mut turn, 60), Ok(60));
        assert_eq!(bucket.take(at(now + 100), &mut turn, 40), Ok(40), "the rest was returned");
    }

    #[test]
    fn streams_have_turns_in_order() {
        let (bucket, now) = bucket();
        let mut turns = [(); 3].map(|()| Turn::default());
        assert_eq!(bucket.take(at(now), &mut turns[0], BURST), Ok(BURST));
        for (i, turn) in turns.iter_mut().enumerate() {
            assert_eq!(bucket.take(at(now), turn, BURST), Err(at(now + (i + 1) * TURN)));
        }
        bucket.end_turn(&mut turns[2]);
        assert_eq!(bucket.take(at(now), &mut turns[2], TURN), Err(at(now + 3 * TURN)));
    }

    #[test]
    fn what_was_not_used_is_returned() {
        let (bucket, now) = bucket();
        let mut turn = Turn::default();
        assert_eq!(bucket.take(at(now), &mut turn, BURST), Ok(BURST));
        bucket.settle(BURST);
        assert_eq!(bucket.take(at(now), &mut turn, BURST), Ok(BURST));
        bucket.charge(1000);
        assert_eq!(bucket.take(at(now), &mut turn, 1), Err(at(now + 1001)));
    }

    /// A stream that always wakes late moves as much as the rate allows, and no more.
    #[test]
    fn late_wakeups_are_caught_up() {
        let (bucket, start) = bucket();
        let mut turn = Turn::default();
        let (mut now, mut moved) = (start, 0);
        while now < start + 10_000_000 {
            match bucket.take(at(now), &mut turn, 1 << 20) {
                Ok(len) => moved += len,
                Err(until) => now = usize::try_from(until.as_micros()).unwrap() + 1500,
            }
        }
        assert!((10_000_000 - TURN..=10_000_000 + 2 * BURST).contains(&moved), "{moved}");
    }

    #[test]
    fn fast_rates_lose_no_fractions() {
        let bucket = Bucket::new(3_000_000_000);
        let mut turn = Turn::default();
        let now = Duration::from_secs(1);
        let mut moved = 0;
        while let Ok(len) = bucket.take(now, &mut turn, 1) {
            moved += len;
        }
        assert_eq!(moved, 750_000, "2 ms, 2⅔ ns for each byte");
    }
}
