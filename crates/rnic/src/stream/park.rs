//! Storage for messages that arrive before a receive is posted: they wait instead of failing.
//!
//! Once a message needs a receive and none is posted, its segments and those of all later messages of the request class
//! are stored, in order. Responses, signals and Terminates are never parked: otherwise two ends could wait forever for
//! each other's responses.

use ironwarp_wire::Header;
use ironwarp_wire::mpa::Fpdu;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The segments of a stream that wait for a receive.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Park {
    /// `None` if no segment waits. Boxed because on most streams none ever does.
    waiting: Option<Box<Waiting>>,
}

/// At least one parked segment.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Waiting {
    /// The segments, the oldest first.
    segments: VecDeque<Parked>,
    /// Memory that they take, in bytes.
    bytes: usize,
}

/// A parked segment. It is complete, and its CRC was checked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Parked {
    pub(crate) fpdu: Fpdu,
    pub(crate) payload: Vec<u8>,
}

impl Parked {
    /// Memory that the segment takes, in bytes. Includes the header, so that empty messages cannot exhaust memory
    /// either.
    fn cost(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }
}

impl Park {
    /// Whether no segment is parked.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Whether at least `limit` bytes are parked: the stream then stops receiving. More than `limit` may be parked,
    /// because everything that was received together with the last segment is kept.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.bytes >= limit)
    }

    /// Returns the oldest segment.
    pub(crate) fn front(&self) -> Option<&Parked> {
        self.waiting.as_ref()?.segments.front()
    }

    /// Number of messages at the front that only need a receive and have arrived completely: these can be acknowledged
    /// before they are delivered. Ends at the first message of another kind, such as a Write, which is not carried out
    /// yet.
    pub(crate) fn whole_sends(&self) -> u64 {
        let segments = self.waiting.iter().flat_map(|waiting| &waiting.segments);
        // Of the segments of a message, only the last one counts.
        let counts = segments.map_while(|parked| match parked.fpdu.header {
            Header::Send(send) => Some(u64::from(send.last)),
            Header::SendImmediate(message) => Some(u64::from(message.send.last)),
            Header::Immediate(_) => Some(1),
            _ => None,
        });
        counts.sum()
    }

    /// Parks a segment behind all others.
    pub(crate) fn push(&mut self, fpdu: Fpdu, payload: Vec<u8>) {
        let parked = Parked { fpdu, payload };
        let waiting = self.waiting.get_or_insert_default();
        waiting.bytes += parked.cost();
        waiting.segments.push_back(parked);
    }

    /// Removes the oldest segment and returns it.
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
