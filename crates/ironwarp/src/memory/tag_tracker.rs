//! Tags that change when requests execute: a window's with each binding, a region's with each registration by work request.

use ironwarp_rnic::memory::{Table, next_tag};
use ironwarp_rnic::sync::lock;
use ironwarp_wire::Tag;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// The sequence of tags of one entry, as of the last posted request.
#[derive(Debug)]
pub(crate) struct TagSequence(Mutex<TagState>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct TagState {
    /// The oldest tag that the entry may have now: posted requests may execute later, or never.
    oldest: Tag,
    tag: Tag,
    /// Whether a request assigned the tag: a region's first registration uses the tag that it was allocated with.
    used: bool,
    /// The queue pair that this request was posted to.
    by: Option<u32>,
}

impl TagSequence {
    pub(crate) fn new(tag: Tag) -> Self {
        Self(Mutex::new(TagState { oldest: tag, tag, used: false, by: None }))
    }

    /// Returns the tag, as of the last posted request.
    pub(crate) fn tag(&self) -> Tag {
        lock(&self.0).tag
    }

    /// Returns the tag that the next binding assigns to a window.
    pub(crate) fn next_binding(&self) -> Tag {
        next_tag(self.tag())
    }

    /// Returns the tag that the next registration assigns to a region.
    pub(crate) fn next_registration(&self) -> Tag {
        let state = lock(&self.0);
        if state.used { next_tag(state.tag) } else { state.tag }
    }

    /// Advances to the tag that a request about to be posted to the queue pair `by` assigns. Returns the state to
    /// [restore](Self::restore) if the request is not posted.
    pub(crate) fn advance(&self, table: &Table, tag: Tag, by: u32) -> TagState {
        let mut state = lock(&self.0);
        let before = *state;
        let executed = table.look_up(before.tag).is_some();
        let oldest = if executed { before.tag } else { before.oldest };
        *state = TagState { oldest, tag, used: true, by: Some(by) };
        before
    }

    /// Adopts the entry's current tag: no request posted to the queue pair `by` is pending.
    fn settle(&self, table: &Table, by: u32) {
        let mut state = lock(&self.0);
        if state.by == Some(by)
            && let Some(tag) = table.current_tag(state.tag)
        {
            let used = table.next_registration_tag(tag) != Some(tag);
            *state = TagState { oldest: tag, tag, used, by: None };
        }
    }

    pub(crate) fn restore(&self, before: TagState) {
        *lock(&self.0) = before;
    }

    /// Returns all tags that the entry may have now, newest first.
    pub(crate) fn candidates(&self) -> Vec<Tag> {
        let TagState { oldest, tag, .. } = *lock(&self.0);
        let mut tags = vec![oldest];
        // The instance of a tag has eight bits.
        while let Some(&last) = tags.last()
            && last != tag
            && tags.len() < 256
        {
            tags.push(next_tag(last));
        }
        tags.reverse();
        tags
    }
}

/// The tag sequences that requests of one queue pair advanced, by address. Kept only for queue pairs on which a registration
/// may fail and be retried (requirement M7).
#[derive(Debug, Default)]
pub(crate) struct PendingTags(Mutex<HashMap<usize, Weak<TagSequence>>>);

impl PendingTags {
    pub(crate) fn add(&self, tags: &Arc<TagSequence>) {
        let mut pending = lock(&self.0);
        // Remove dropped regions before the map grows.
        if pending.len() == pending.capacity() {
            pending.retain(|_, tags| tags.strong_count() > 0);
        }
        pending.insert(Arc::as_ptr(tags).addr(), Arc::downgrade(tags));
    }

    /// Adopts the current tags of all entries: every posted request was executed, or never will be.
    pub(crate) fn settle(&self, table: &Table, by: u32) {
        for (_, tags) in lock(&self.0).drain() {
            if let Some(tags) = tags.upgrade() {
                tags.settle(table, by);
            }
        }
    }
}
