//! One-touch memory (requirement M10): it serves one message of a peer's and is then invalid, of which the peer is not told.
//!
//! `access.rs` comes here with every access of a peer's to such memory. The stream comes here when the message has ended: a
//! Write with its last segment, a Read or an atomic operation with the end of its answer.
//!
//! [`decide`] is the table of the requirement. It looks at the segment that ends a message, so it would let a second message
//! write all but its last segment. Here the first segment [claims](Touch) the memory, and the segments of other messages are
//! refused from then on. Segments may overtake each other: streams over TCP never let them, and `sim` does.

use super::entry::Entry;
use super::{Check, Table, index_of};
use crate::sync::atomic::Ordering;
use ironwarp_wire::Tag;

/// Where the end of a segment lies in the byte stream that carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// All bytes before it have come. On a TCP socket it is always so.
    #[default]
    InOrder,
    /// Bytes before it are missing, and it is inside the window.
    Within,
    /// It is outside the window.
    Outside,
}

/// What is done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its payload is placed.
    Place,
    /// Its payload is placed, and the memory is invalid.
    PlaceAndInvalidate,
    /// Its payload is placed, and the memory is touched: it becomes invalid when all bytes before have come.
    PlaceAndTouch,
    /// The memory is invalid, and the stream is terminated.
    InvalidateAndTerminate,
    /// Nothing; it will be sent again.
    Drop,
}

/// The table of requirement M10, row by row: for a segment that is the last of its message or not, and memory that is
/// one-touch or not, touched by another message or not.
pub const fn decide(last: bool, one_touch: bool, touched: bool, position: Position) -> Verdict {
    match (last, one_touch, touched, position) {
        (false, ..) | (true, false, ..) => Verdict::Place,
        (true, true, true, _) => Verdict::InvalidateAndTerminate,
        (true, true, false, Position::InOrder) => Verdict::PlaceAndInvalidate,
        (true, true, false, Position::Within) => Verdict::PlaceAndTouch,
        (true, true, false, Position::Outside) => Verdict::Drop,
    }
}

/// What a message of a peer's has touched: made when it begins, kept until it has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Touch {
    /// The number of the message, if it has claimed one-touch memory; zero otherwise. No other claim of the table has it:
    /// where segments come in order, this is all that there is to store of the sequence (requirement M3).
    number: u64,
    /// The memory that it claimed. A message names one tag.
    tag: Tag,
    /// Whether the segment in hand is its last.
    last: bool,
    /// Where that segment is in its stream.
    position: Position,
}

impl Touch {
    /// Of a message that is one segment: a request.
    pub const fn of_request() -> Self {
        Self { number: 0, tag: Tag(0), last: true, position: Position::InOrder }
    }

    /// The next segment of the message is in hand.
    #[inline]
    pub fn segment(&mut self, last: bool) {
        self.arrives(last, Position::InOrder);
    }

    /// Any segment of the message is in hand. If its last comes before others, this is to be said once more, in order, when all bytes up
    /// to its end have come: then it [ends](Self::ends).
    #[inline]
    pub fn arrives(&mut self, last: bool, position: Position) {
        (self.last, self.position) = (last, position);
    }

    /// Whether the message has claimed memory that ends with the segment in hand, and so has to be
    /// [ended](Table::end_touch).
    #[inline]
    pub fn ends(&self) -> bool {
        let claimed = self.number != 0;
        matches!(decide(self.last, claimed, false, self.position), Verdict::PlaceAndInvalidate)
    }
}

impl Table {
    /// The message has ended: what it touched is invalid. Waits for guards, which can only be local: no other peer has one.
    pub fn end_touch(&self, message: Touch) {
        let Some(entry) = self.slab.entry(index_of(message.tag)) else { return };
        let mut change = entry.change(&self.departures);
        // The program may have taken it away before.
        if entry.claimed_by() == message.number {
            self.empty(&mut change, message.tag);
        }
    }

    /// A message wants one-touch memory that it may have otherwise.
    #[cold]
    pub(super) fn touch(&self, entry: &Entry, tag: Tag, message: &mut Touch) -> Result<(), Check> {
        let claimed = message.number != 0;
        assert!(!claimed || message.tag == tag, "a message names one tag");
        let number = if claimed { message.number } else { self.touches.fetch_add(1, Ordering::Relaxed) + 1 };
        if entry.claim(number) {
            *message = Touch { number, tag, ..*message };
            return Ok(());
        }
        if decide(message.last, true, true, message.position) == Verdict::InvalidateAndTerminate {
            entry.shut();
        }
        Err(Check::Touched)
    }
}
