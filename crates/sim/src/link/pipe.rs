//! One direction of a simulated connection: the bytes in transit, and the end of the stream.

use ironwarp_rnic::fault::Rng;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes between a sender and a receiver, in order.
#[derive(Debug)]
pub(super) struct Pipe {
    /// Bytes that were sent and not read.
    bytes: VecDeque<u8>,
    /// Times of arrival, with the number of bytes that arrive then.
    arrivals: VecDeque<(Duration, usize)>,
    /// When the end arrives, and its kind. `None` while the sender may send.
    end: Option<(Duration, End)>,
    /// Maximum number of bytes in the pipe.
    capacity: usize,
    rng: Rng,
}

/// What follows the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// FIN: the end of the stream.
    Finished,
    /// RST: the connection is gone.
    Reset,
}

impl Pipe {
    pub(super) fn new(capacity: usize, rng: Rng) -> Self {
        Self { bytes: VecDeque::new(), arrivals: VecDeque::new(), end: None, capacity, rng }
    }

    /// Returns how many bytes can be sent now. Sent bytes occupy room until they are read.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len()) // bytes that were put back may exceed it
    }

    /// Sends bytes, which arrive at this time.
    pub(super) fn push(&mut self, bytes: &[u8], arrive: Duration) {
        assert!(bytes.len() <= self.room() && self.end.is_none(), "the sender did not check");
        self.bytes.extend(bytes);
        match self.arrivals.back_mut() {
            Some((last, count)) if *last == arrive => *count += bytes.len(),
            _ => self.arrivals.push_back((arrive, bytes.len())),
        }
    }

    /// Returns how many bytes have arrived and not been read.
    pub(super) fn arrived(&self, now: Duration) -> usize {
        self.arrivals.iter().take_while(|(time, _)| *time <= now).map(|(_, count)| count).sum()
    }

    /// Returns the end, if it has arrived and everything before it was read.
    pub(super) fn reached_end(&self, now: Duration) -> Option<End> {
        self.end.filter(|(time, _)| *time <= now && self.bytes.is_empty()).map(|(_, end)| end)
    }

    /// Returns when the receiver is notified of a reset, even if it has not read everything.
    pub(super) fn reset_at(&self) -> Option<Duration> {
        self.end.filter(|(_, end)| *end == End::Reset).map(|(time, _)| time)
    }

    /// Returns when bytes or the end can be read.
    pub(super) fn readable_at(&self) -> Option<Duration> {
        let first = self.arrivals.front().map(|(time, _)| *time);
        first.or(self.end.map(|(time, _)| time))
    }

    /// Returns the first `len` bytes, without consuming them.
    pub(super) fn front(&mut self, len: usize) -> &[u8] {
        &self.bytes.make_contiguous()[..len]
    }

    /// Removes the first `len` bytes, which the receiver has read.
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

    /// Puts bytes back that were read last.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            bytes.iter().rev().for_each(|byte| self.bytes.push_front(*byte));
            self.arrivals.push_front((Duration::ZERO, bytes.len()));
        }
    }

    /// Ends the stream. The receiver sees the end at this time, after all bytes.
    pub(super) fn finish(&mut self, arrive: Duration) {
        self.end.get_or_insert((arrive, End::Finished));
    }

    /// Resets the connection; the receiver sees the reset at this time. Discards a random number of the bytes that were
    /// not read, from the end.
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

    /// Returns the random numbers that decide about splits.
    pub(super) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}
