//! Several guards held together.

use super::{CachedGuard, Guard};
use smallvec::SmallVec;

/// The memory guards held during one call to the link: a few entries, usually one.
#[derive(Debug, Default)]
pub(crate) struct Guards<'q> {
    list: SmallVec<[Guard<'q>; 2]>,
    /// The most recently used memory, kept until the call so that consecutive copies share one lookup.
    pub(crate) cached: Option<CachedGuard<'q>>,
}

impl<'q> Guards<'q> {
    pub(crate) fn push(&mut self, guard: Guard<'q>) {
        self.list.push(guard);
    }
}
