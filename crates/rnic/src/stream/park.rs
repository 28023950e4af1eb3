//! Storage for messages that arrive before a receive is posted: they wait instead of failing.
//!
//! Segments of the request class are stored whole and in order until the receive that the first of them needs
//! is posted. Responses, signals and Terminates are never parked: two ends that wait for each other's
//! responses would wait forever.

use ironwarp_wire::Header;
use ironwarp_wire::mpa::Fpdu;
use std::collections::VecDeque;

/// Segments waiting for a receive.
#[derive(Debug, Default)]
pub(crate) struct Park {
    /// Usually `None`: on most streams no message ever waits.
    waiting: Option<Box<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    segments: VecDeque<Parked>,
    bytes: usize,
}

/// A complete segment whose CRC was checked.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) fpdu: Fpdu,
    pub(crate) payload: Vec<u8>,
}

impl Parked {
    /// Memory that the segment takes, headers included, so that empty messages cannot exhaust memory either.
    fn cost(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }
}

impl Park {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Whether `limit` bytes are parked, in which case the stream stops reading. It may hold somewhat more:
    /// whatever was read together with the last segment.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.bytes >= limit)
    }

    pub(crate) fn front(&self) -> Option<&Parked> {
        self.waiting.as_ref()?.segments.front()
    }

    /// Number of complete messages at the front that each consume a receive.
    pub(crate) fn whole_sends(&self) -> u64 {
        let segments = self.waiting.iter().flat_map(|waiting| &waiting.segments);
        let sends = segments.map_while(|parked| match parked.fpdu.header {
            Header::Send(send) => Some(u64::from(send.last)),
            Header::SendImmediate(message) => Some(u64::from(message.send.last)),
            Header::Immediate(_) => Some(1),
            _ => None,
        });
        sends.sum()
    }

    pub(crate) fn push(&mut self, fpdu: Fpdu, payload: Vec<u8>) {
        let parked = Parked { fpdu, payload };
        let waiting = self.waiting.get_or_insert_default();
        waiting.bytes += parked.cost();
        waiting.segments.push_back(parked);
    }

    pub(crate) fn pop(&mut self) -> Option<Parked> {
        let waiting = self.waiting.as_mut()?;
        let parked = waiting.segments.pop_front()?;
        waiting.bytes -= parked.cost();
        if waiting.segments.is_empty() {
            self.waiting = None; // an idle stream holds no buffer
        }
        Some(parked)
    }
}
