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

use crate::memory::{Guard, Hold};
use ironwarp_wire::{Place, Tag};
use smallvec::SmallVec;

pub(crate) use owed::{Answer, Opening, Owed, Question, View};
pub(crate) use rx::Rx;
pub(crate) use train::Train;
pub(crate) use tx::Tx;

/// What is guarded during one call of the link: a few entries, as a rule one.
#[derive(Debug, Default)]
pub(crate) struct Guards<'q> {
    list: SmallVec<[Guard<'q>; 2]>,
    /// The one whose memory was copied last, until the call.
    pub(crate) hold: Option<Hold<'q>>,
}

impl<'q> Guards<'q> {
    pub(crate) fn push(&mut self, guard: Guard<'q>) {
        self.list.push(guard);
    }
}

/// Where a message without bytes goes. Nobody may look (RFC 5041 §5.2), but a card might treat tag 0 as something special: siw,
/// cxgb4 and irdma all name another in theirs.
pub(crate) const NOWHERE: Place = Place { tag: Tag(1), offset: 0 };

/// Where a message is when so much of it has passed.
pub(crate) fn advance(place: Place, by: u64) -> Place {
    Place { tag: place.tag, offset: place.offset.wrapping_add(by) }
}

/// Payload of at least this length is neither copied on its way in nor on its way out, unless a CRC has to be computed.
/// Below, a copy costs less than what it takes to avoid it.
pub(crate) const DIRECT: usize = 32 << 10;
