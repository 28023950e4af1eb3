//! One-touch memory (requirement M10): memory that serves a single remote message and then becomes invalid. The
//! peer is not notified.
//!
//! `admit.rs` calls [`Table::claim_touch`] for every remote access to such memory. The stream calls
//! [`Table::end_touch`] when the message has ended: a Write with its last segment, a Read or an atomic operation
//! with the end of its response.
//!
//! [`decide`] is the decision table of the requirement. The table considers only the last segment of a message, so
//! by itself it would let a second message write all segments but the last. Therefore the first segment of a
//! message [claims](Touch) the memory, and segments of other messages are refused from then on. Segments arrive
//! out of order only in `sim`, never over TCP.
//!
//! **The stored sequence number** of requirement M3 is the position in the byte stream at which the memory becomes
//! invalid: the end of a last segment that has arrived early. Only the stream knows which bytes have arrived, so it is
//! the stream that keeps this position, with the [`Touch`] of the message, and ends the touch when all bytes before it
//! have arrived. The entry stores the number of the message instead. That is equivalent: the decision table compares
//! the stored position with nothing but the arrived bytes of the stream whose message set it, and the number tells that
//! message from all others, of all streams. A position would not: positions of two streams cannot be compared.

use super::entry::Entry;
use super::{Check, Table, index_of};
use crate::sync::atomic::Ordering;
use ironwarp_wire::Tag;
use serde::{Deserialize, Serialize};

/// The position of the end of a segment in the byte stream, relative to the bytes that have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// All bytes before the end have arrived. Always the case on a TCP socket.
    #[default]
    InOrder,
    /// Some bytes before the end are missing, and the end is within the receive window.
    Within,
    /// The end is outside the receive window.
    Outside,
}

/// The treatment of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Place the payload.
    Place,
    /// Place the payload and invalidate the memory.
    PlaceAndInvalidate,
    /// Place the payload and mark the memory as touched: the memory becomes invalid when all bytes before the end
    /// of the segment have arrived.
    PlaceAndTouch,
    /// Invalidate the memory and terminate the stream.
    InvalidateAndTerminate,
    /// Drop the segment: TCP will retransmit it.
    Drop,
}

/// Returns the treatment of a segment by the decision table of requirement M10. `last`: the segment is the last of
/// its message. `one_touch`: the memory is one-touch. `touched`: another message has touched the memory.
pub const fn decide(last: bool, one_touch: bool, touched: bool, position: Position) -> Verdict {
    match (last, one_touch, touched, position) {
        (false, ..) | (true, false, ..) => Verdict::Place,
        (true, true, true, _) => Verdict::InvalidateAndTerminate,
        (true, true, false, Position::InOrder) => Verdict::PlaceAndInvalidate,
        (true, true, false, Position::Within) => Verdict::PlaceAndTouch,
        (true, true, false, Position::Outside) => Verdict::Drop,
    }
}

/// The claim of a remote message on one-touch memory, empty until the message accesses such memory. Created when the
/// message begins and kept until it has ended.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Touch {
    /// The number of the message, unique among the claims of the table. Zero if the message has not claimed memory.
    number: u64,
    /// The tag of the claimed memory. A message names a single tag.
    tag: Tag,
    /// Whether the current segment is the last of the message.
    last: bool,
    /// The position of the current segment in the byte stream.
    position: Position,
}

impl Touch {
    /// Creates the touch of a message of one segment, such as a Read Request.
    pub const fn for_request() -> Self {
        Self { number: 0, tag: Tag(0), last: true, position: Position::InOrder }
    }

    /// Starts the next segment of the message, which arrived in order. `last`: the segment is the last of the message.
    #[inline]
    pub fn start_segment(&mut self, last: bool) {
        self.start_segment_at(last, Position::InOrder);
    }

    /// Starts a segment of the message at any position. If the last segment arrives before others, call this again
    /// for the last segment, with [`Position::InOrder`], when all bytes up to its end have arrived: then the message
    /// [is complete](Self::is_complete).
    #[inline]
    pub fn start_segment_at(&mut self, last: bool, position: Position) {
        (self.last, self.position) = (last, position);
    }

    /// Returns whether the message has claimed memory and ends with the current segment, so that the claim has to
    /// be [ended](Table::end_touch).
    #[inline]
    pub fn is_complete(&self) -> bool {
        let claimed = self.number != 0;
        matches!(decide(self.last, claimed, false, self.position), Verdict::PlaceAndInvalidate)
    }
}

impl Table {
    /// Invalidates the memory that a message has claimed. Called when the message has ended. Waits for guards, which
    /// only local requests can hold: other remote messages are refused.
    pub fn end_touch(&self, touch: Touch) {
        let Some(entry) = self.slab.entry(index_of(touch.tag)) else { return };
        let mut change = entry.begin_change();
        // The program may have deregistered the memory, and another message may have claimed the entry since.
        if entry.claimed_by() == touch.number {
            self.clear_entry(&mut change, touch.tag);
        }
    }

    /// Claims one-touch memory for a message that passed all other checks. Fails with [`Check::Touched`] if another
    /// message has claimed the memory. If the refused segment is the last of its message, the memory also becomes
    /// invalid.
    #[cold]
    pub(super) fn claim_touch(&self, entry: &Entry, tag: Tag, touch: &mut Touch) -> Result<(), Check> {
        let claimed = touch.number != 0;
        assert!(!claimed || touch.tag == tag, "a message names a single tag");
        // Plus one: zero means that the message has not claimed memory.
        let number = if claimed { touch.number } else { self.claims.fetch_add(1, Ordering::Relaxed) + 1 };
        if entry.claim(number) {
            *touch = Touch { number, tag, ..*touch };
            return Ok(());
        }
        if decide(touch.last, true, true, touch.position) == Verdict::InvalidateAndTerminate {
            entry.invalidate_now(); // does not wait for guards: this thread holds one
        }
        Err(Check::Touched)
    }
}
