//! One-touch memory (requirement M10): it serves a single remote message and then becomes invalid, without
//! the peer being told.
//!
//! `admit.rs` calls this for every remote access to such memory. The stream calls it when the message has
//! ended: a Write with its last segment, a Read or an atomic operation with the end of its response.
//!
//! [`decide`] is the table of the requirement. It looks only at the segment that ends a message, so by itself
//! it would let a second message write all but its last segment. Therefore the first segment [claims](Touch)
//! the memory, and segments of other messages are refused from then on. Segments may overtake each other:
//! never on streams over TCP, but `sim` simulates it.

use super::entry::Entry;
use super::{Check, Table, index_of};
use crate::sync::atomic::Ordering;
use ironwarp_wire::Tag;

/// Where the end of a segment is in the byte stream that carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// All bytes before it have arrived. Always the case on a TCP socket.
    #[default]
    InOrder,
    /// Bytes before it are missing, and it is within the receive window.
    Within,
    /// It is outside the receive window.
    Outside,
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Place the payload.
    Place,
    /// Place the payload and invalidate the memory.
    PlaceAndInvalidate,
    /// Place the payload and mark the memory as touched: it becomes invalid when all bytes before have
    /// arrived.
    PlaceAndTouch,
    /// Invalidate the memory and terminate the stream.
    InvalidateAndTerminate,
    /// Drop the segment; it will be sent again.
    Drop,
}

/// The decision table of requirement M10. `last`: the segment is the last of its message; `one_touch`: the
/// memory is one-touch; `touched`: another message has touched it.
pub const fn decide(last: bool, one_touch: bool, touched: bool, position: Position) -> Verdict {
    match (last, one_touch, touched, position) {
        (false, ..) | (true, false, ..) => Verdict::Place,
        (true, true, true, _) => Verdict::InvalidateAndTerminate,
        (true, true, false, Position::InOrder) => Verdict::PlaceAndInvalidate,
        (true, true, false, Position::Within) => Verdict::PlaceAndTouch,
        (true, true, false, Position::Outside) => Verdict::Drop,
    }
}

/// The one-touch memory that a remote message has claimed. Created when the message begins, kept until it has
/// ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Touch {
    /// The number of the message if it has claimed one-touch memory, else zero. Unique among the claims of
    /// the table. As segments arrive in order, this is all that needs to be stored of the sequence
    /// (requirement M3).
    number: u64,
    /// The memory that it claimed. A message names a single tag.
    tag: Tag,
    /// Whether the current segment is the last of the message.
    last: bool,
    /// Where the current segment is in its stream.
    position: Position,
}

impl Touch {
    /// The touch of a message of one segment, such as a request.
    pub const fn for_request() -> Self {
        Self { number: 0, tag: Tag(0), last: true, position: Position::InOrder }
    }

    /// Starts the next segment of the message, which arrived in order.
    #[inline]
    pub fn start_segment(&mut self, last: bool) {
        self.start_segment_at(last, Position::InOrder);
    }

    /// Starts a segment of the message at any position. If the last segment arrives before others, call this
    /// again for it, with [`Position::InOrder`], when all bytes up to its end have arrived: then it
    /// [is complete](Self::is_complete).
    #[inline]
    pub fn start_segment_at(&mut self, last: bool, position: Position) {
        (self.last, self.position) = (last, position);
    }

    /// Whether the message has claimed memory and ends with the current segment, so that the claim has to be
    /// [ended](Table::end_touch).
    #[inline]
    pub fn is_complete(&self) -> bool {
        let claimed = self.number != 0;
        matches!(decide(self.last, claimed, false, self.position), Verdict::PlaceAndInvalidate)
    }
}

impl Table {
    /// Invalidates the memory that a message has claimed, because the message has ended. Waits for guards,
    /// which can only be local: no other peer has one.
    pub fn end_touch(&self, message: Touch) {
        let Some(entry) = self.slab.entry(index_of(message.tag)) else { return };
        let mut change = entry.change(&self.guard_wait);
        // The program may have deregistered it before.
        if entry.claimed_by() == message.number {
            self.empty(&mut change, message.tag);
        }
    }

    /// Claims one-touch memory for a message that passed all other checks.
    #[cold]
    pub(super) fn touch(&self, entry: &Entry, tag: Tag, message: &mut Touch) -> Result<(), Check> {
        let claimed = message.number != 0;
        assert!(!claimed || message.tag == tag, "a message names a single tag");
        let number = if claimed { message.number } else { self.touches.fetch_add(1, Ordering::Relaxed) + 1 };
        if entry.claim(number) {
            *message = Touch { number, tag, ..*message };
            return Ok(());
        }
        if decide(message.last, true, true, message.position) == Verdict::InvalidateAndTerminate {
            entry.invalidate_now();
        }
        Err(Check::Touched)
    }
}
