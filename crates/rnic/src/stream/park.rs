//! Storage for messages that arrive before a receive is posted: they wait instead of failing.
//!
//! Once a message needs a receive and none is posted, its segments and those of all later messages of the request class
//! are stored, in order. Responses, signals and Terminates are never parked: otherwise two ends could wait forever for
//! each other's responses.

use crate::device::Device;
use crate::parking::RoomWaiter;
use ironwarp_wire::Header;
use ironwarp_wire::mpa::Fpdu;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The segments of a stream that wait for a receive.
#[derive(Debug, Default)]
pub(crate) struct Park {
    /// `None` if no segment waits. Boxed because on most streams none ever does.
    waiting: Option<Box<Waiting>>,
}

/// At least one parked segment.
#[derive(Debug)]
struct Waiting {
    /// The segments, the oldest first.
    segments: VecDeque<Parked>,
    /// Memory that they take, in bytes.
    bytes: usize,
    /// The device, which counts the bytes of all streams. `None` if the segments were loaded from a snapshot, and not
    /// [counted](Park::count) yet.
    device: Option<Arc<Device>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            device.unpark_bytes(self.bytes);
        }
    }
}

// Not derived: the device counts what was loaded only when the stream continues.
impl Serialize for Park {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // A queue, because the encoder has to know the number of segments.
        let none = VecDeque::new();
        self.waiting.as_ref().map_or(&none, |waiting| &waiting.segments).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Park {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let segments = VecDeque::<Parked>::deserialize(from)?;
        let bytes = segments.iter().map(Parked::cost).sum();
        let waiting = (!segments.is_empty()).then(|| Box::new(Waiting { segments, bytes, device: None }));
        Ok(Self { waiting })
    }
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
    /// Has this device count the segments, which were loaded or came from another function (requirement X2).
    pub(crate) fn count(&mut self, device: &Arc<Device>) {
        if let Some(waiting) = &mut self.waiting {
            device.park_bytes(waiting.bytes);
            if let Some(former) = waiting.device.replace(Arc::clone(device)) {
                former.unpark_bytes(waiting.bytes);
            }
        }
    }

    /// Whether no segment is parked.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Whether at least `limit` bytes are parked, or some and the function has reached its own limit: the stream then stops
    /// receiving. More than `limit` may be parked, because everything that was received together with the last segment is
    /// kept.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        let is_full = |waiting: &Waiting| {
            waiting.bytes >= limit
                || waiting.device.as_ref().is_some_and(|device| device.parking().is_exhausted())
        };
        self.waiting.as_deref().is_some_and(is_full)
    }

    /// Has a full stream driven when the function has room, if that is what it waits for. Returns false if there is room by
    /// now.
    #[cold]
    pub(crate) fn wait_for_room(&self, limit: usize, stream: &Weak<dyn RoomWaiter>) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| {
            let waits = |device: &Arc<Device>| device.parking().wait_for_room(stream);
            waiting.bytes >= limit || waiting.device.as_ref().is_some_and(waits)
        })
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
    pub(crate) fn push(&mut self, device: &Arc<Device>, fpdu: Fpdu, payload: Vec<u8>) {
        let parked = Parked { fpdu, payload };
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::new(Waiting { segments: VecDeque::new(), bytes: 0, device: Some(Arc::clone(device)) })
        });
        waiting.bytes += parked.cost();
        device.park_bytes(parked.cost());
        waiting.segments.push_back(parked);
    }

    /// Removes the oldest segment and returns it.
    pub(crate) fn pop(&mut self) -> Option<Parked> {
        let waiting = self.waiting.as_mut()?;
        let parked = waiting.segments.pop_front()?;
        if waiting.segments.is_empty() {
            self.waiting = None; // an idle stream holds no buffer
        } else {
            waiting.bytes -= parked.cost();
            if let Some(device) = &waiting.device {
                device.unpark_bytes(parked.cost());
            }
        }
        Some(parked)
    }
}
