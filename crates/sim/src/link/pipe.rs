//! One direction of a simulated connection: bytes on their way, and how they end.

use ironwarp_rnic::fault::Rng;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes between a sender and a receiver. Nothing overtakes anything.
#[derive(Debug)]
pub(super) struct Pipe {
    bytes: VecDeque<u8>,
    /// How many of them arrive when; those of one time together.
    arrivals: VecDeque<(Duration, usize)>,
    end: Option<(Duration, End)>,
    capacity: usize,
    rng: Rng,
}

/// What comes behind the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// FIN: there is no more.
    Finished,
    /// RST: the connection is gone.
    Reset,
}

impl Pipe {
    pub(super) fn new(capacity: usize, rng: Rng) -> Self {
        Self { bytes: VecDeque::new(), arrivals: VecDeque::new(), end: None, capacity, rng }
    }

    /// How many bytes it takes now. What was sent takes up room until it is read.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.bytes.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8], arrive: Duration) {
        assert!(bytes.len() <= self.room() && self.end.is_none(), "the sender looked");
        self.bytes.extend(bytes);
        match self.arrivals.back_mut() {
            Some((last, count)) if *last == arrive => *count += bytes.len(),
            _ => self.arrivals.push_back((arrive, bytes.len())),
        }
    }

    /// How many bytes can be read.
    pub(super) fn arrived(&self, now: Duration) -> usize {
        self.arrivals.iter().take_while(|(time, _)| *time <= now).map(|(_, count)| count).sum()
    }

    /// The end, if it has arrived and all that was before it is read.
    pub(super) fn reached_end(&self, now: Duration) -> Option<End> {
        self.end.filter(|(time, _)| *time <= now && self.bytes.is_empty()).map(|(_, end)| end)
    }

    /// When the receiver heard, or will hear, that the connection is gone, however much it has read.
    pub(super) fn reset_at(&self) -> Option<Duration> {
        self.end.filter(|(_, end)| *end == End::Reset).map(|(time, _)| time)
    }

    /// When there is, or will be, something to read: bytes or the end.
    pub(super) fn readable_at(&self) -> Option<Duration> {
        let first = self.arrivals.front().map(|(time, _)| *time);
        first.or(self.end.map(|(time, _)| time))
    }

    pub(super) fn front(&mut self, len: usize) -> &[u8] {
        &self.bytes.make_contiguous()[..len]
    }

    pub(super) fn consume(&mut self, mut len: usize) {
        self.bytes.drain(..len);
        while let Some((_, count)) = self.arrivals.front_mut()
            && len > 0
        {
            let part = len.min(*count);
            len -= part;
            *count -= part;
            if *count == 0 {
                self.arrivals.pop_front();
            }
        }
    }

    pub(super) fn finish(&mut self, arrive: Duration) {
        self.end.get_or_insert((arrive, End::Finished));
    }

    /// A reset discards what was not read, or not all of it: what had arrived before it may still be found.
    pub(super) fn reset(&mut self, arrive: Duration) {
        let kept = self.rng.below(self.bytes.len() as u64 + 1);
        let mut left = usize::try_from(kept).unwrap_or(0);
        self.bytes.truncate(left);
        self.arrivals.retain_mut(|(_, count)| {
            *count = left.min(*count);
            left -= *count;
            *count > 0
        });
        self.end = Some((arrive, End::Reset));
    }

    /// For the splits that the receiver sees.
    pub(super) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}
