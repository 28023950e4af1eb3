//! A stream: what a connected queue pair has beyond its queues. Two halves, which two threads may hold at the same time.
//!
//! | | [`tx`] | [`rx`] |
//! |---|---|---|
//! | from | work requests, and what the other half [owes](Owed) | bytes of the link |
//! | to | bytes for the link | memory, completions, and what the other half owes |
//!
//! Between two calls a half is plain data: no guard is held, no buffer is borrowed, and what is not finished is written
//! down in bytes of its own. At a boundary between messages the whole stream can be taken elsewhere.

mod atomic;
mod owed;
mod park;
pub(crate) mod rx;
mod train;
pub(crate) mod tx;

use crate::memory::Guard;
use ironwarp_wire::Place;
use smallvec::SmallVec;

pub(crate) use owed::{Answer, Owed, Question, View};
pub(crate) use rx::Rx;
pub(crate) use train::Train;
pub(crate) use tx::Tx;

/// What is guarded during one call of the link: a few entries, as a rule one.
pub(crate) type Guards<'q> = SmallVec<[Guard<'q>; 2]>;

/// Where a message is when so much of it has passed.
pub(crate) fn advance(place: Place, by: u64) -> Place {
    Place { tag: place.tag, offset: place.offset.wrapping_add(by) }
}

/// Payload of at least this length is neither copied on its way in nor on its way out, unless a CRC has to be computed.
/// Below, a copy costs less than what it takes to avoid it.
pub(crate) const DIRECT: usize = 32 << 10;
