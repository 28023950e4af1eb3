//! The set of guards that a stream holds during one call to the link.

use super::{CachedGuard, Guard};
use smallvec::SmallVec;

/// The memory guards held during one call to the link: a few entries, usually one.
#[derive(Debug, Default)]
pub(crate) struct Guards<'q> {
    list: SmallVec<[Guard<'q>; 2]>,
    /// The guard of the most recent copy. Consecutive copies from or to the same tag share it, and one lookup.
    pub(crate) cached: Option<CachedGuard<'q>>,
}

impl<'q> Guards<'q> {
    /// Adds a guard, to be held until all are dropped.
    pub(crate) fn push(&mut self, guard: Guard<'q>) {
        self.list.push(guard);
    }
}
