//! Where messages wait while no receive is posted (design: "no receive posted means wait").
//!
//! Segments of the request class are kept whole, in order, until the receive that the first of them needs is posted.
//! Answers, signals and a Terminate are not kept: two ends that wait for each other's answers would wait for ever.

use ironwarp_wire::Header;
use ironwarp_wire::mpa::Fpdu;
use std::collections::VecDeque;

/// Segments that wait for a receive.
#[derive(Debug, Default)]
pub(crate) struct Park {
    /// None as a rule: most streams never have a message wait.
    waiting: Option<Box<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    segments: VecDeque<Parked>,
    bytes: usize,
}

/// A whole segment, its CRC checked.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) fpdu: Fpdu,
    pub(crate) payload: Vec<u8>,
}

impl Parked {
    /// What it takes, so that empty messages cannot fill the memory either.
    fn cost(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }
}

impl Park {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Whether it has so many bytes that the stream reads no more. It may have more, by what was read together with the last segment.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.bytes >= limit)
    }

    pub(crate) fn front(&self) -> Option<&Parked> {
        self.waiting.as_ref()?.segments.front()
    }

    /// How many messages for receives are whole, from the front on, before anything else.
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
            self.waiting = None; // an idle stream keeps no buffer
        }
        Some(parked)
    }
}
