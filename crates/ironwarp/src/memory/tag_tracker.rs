//! Tracks the tags of windows and fast regions. Each binding assigns a new tag to its window, and each registration by
//! work request to its region. The device assigns the tag when it executes the request; the program needs the tag when
//! it posts the request. So tags are computed ahead, in the order of posting.

use ironwarp_rnic::memory::{Table, next_tag};
use ironwarp_rnic::sync::lock;
use ironwarp_wire::Tag;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// The tags of one window or fast region.
#[derive(Debug)]
pub(crate) struct TagSequence(Mutex<TagState>);

/// The state of a tag sequence after the last posted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagState {
    /// The tag after the last posted request. The table entry may have an older one, because posted requests may be
    /// executed later, or never.
    tag: Tag,
    /// Whether a request assigned `tag`. If not, a region's first registration uses `tag`, which the region was
    /// allocated with.
    used: bool,
    /// Number of the queue pair that the last request was posted to. `None` if no request is pending.
    by: Option<u32>,
}

impl TagSequence {
    /// Creates the sequence of a table entry that was allocated with this tag.
    pub(crate) fn new(tag: Tag) -> Self {
        Self(Mutex::new(TagState { tag, used: false, by: None }))
    }

    /// Returns the tag that the last posted request assigns.
    pub(crate) fn tag(&self) -> Tag {
        lock(&self.0).tag
    }

    /// Returns the tag that the next binding assigns to a window.
    pub(crate) fn next_binding(&self, table: &Table) -> Tag {
        tag_after(table, self.tag())
    }

    /// Returns the tag that the next registration assigns to a region.
    pub(crate) fn next_registration(&self, table: &Table) -> Tag {
        let TagState { tag, used, .. } = *lock(&self.0);
        if used { tag_after(table, tag) } else { tag }
    }

    /// Advances the sequence to `tag`, which a request that is about to be posted to the queue pair `by` assigns.
    /// Returns the previous state, which the caller must [restore](Self::restore) if it cannot post the request.
    pub(crate) fn advance(&self, tag: Tag, by: u32) -> TagState {
        std::mem::replace(&mut lock(&self.0), TagState { tag, used: true, by: Some(by) })
    }

    /// Adopts the tag that the table entry has now. Does nothing unless the last request was posted to the queue pair
    /// `by`. The caller guarantees that no request of that queue pair is pending.
    fn settle(&self, table: &Table, by: u32) {
        let mut state = lock(&self.0);
        if state.by == Some(by)
            && let Some(tag) = table.current_tag(state.tag)
        {
            *state = TagState { tag, used: table.has_been_valid(tag), by: None };
        }
    }

    /// Restores the state from before [`advance`](Self::advance).
    pub(crate) fn restore(&self, before: TagState) {
        *lock(&self.0) = before;
    }
}

/// Returns the tag that follows `tag` on the same window or region. If no tag is left, returns one that the device
/// refuses, so that the request that would assign it fails.
fn tag_after(table: &Table, tag: Tag) -> Tag {
    table.reserve_next_tag(tag).unwrap_or_else(|_| next_tag(tag))
}

/// The tag sequences that posted requests of one queue pair have advanced, keyed by the address of the sequence. Only
/// queue pairs that survive a failed registration have them (requirement M7): the requests after the failed one are not
/// executed, and the tags that they would have assigned must be taken back.
#[derive(Debug, Default)]
pub(crate) struct PendingTags(Mutex<HashMap<usize, Weak<TagSequence>>>);

impl PendingTags {
    /// Adds a sequence that a posted request has advanced.
    pub(crate) fn add(&self, tags: &Arc<TagSequence>) {
        let mut pending = lock(&self.0);
        // Remove the sequences of dropped windows and regions before the map grows.
        if pending.len() == pending.capacity() {
            pending.retain(|_, tags| tags.strong_count() > 0);
        }
        pending.insert(Arc::as_ptr(tags).addr(), Arc::downgrade(tags));
    }

    /// Adopts the tags that the table entries have now. The caller guarantees that no request of the queue pair `by` is
    /// pending: each was executed, or never will be.
    pub(crate) fn settle(&self, table: &Table, by: u32) {
        for (_, tags) in lock(&self.0).drain() {
            if let Some(tags) = tags.upgrade() {
                tags.settle(table, by);
            }
        }
    }
}
