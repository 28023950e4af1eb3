//! The tag of an entry that changes it: a window with each binding, a region with each registration by work request.
//! Before this: `window.rs` and `fast_region.rs`, which have such a tag; after: `queue_pair.rs`, which posts the change.

use crate::adapter::lock;
use ironwarp_rnic::memory::{Table, following};
use ironwarp_wire::Tag;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// The tag that an entry has, once all is executed that was posted.
#[derive(Debug)]
pub(crate) struct Name(Mutex<Named>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// The oldest tag that the entry may have now: what was posted may be executed later, or never.
    oldest: Tag,
    tag: Tag,
    /// Whether the tag was given by a request: a region's first registration takes the tag it was allocated with.
    used: bool,
    /// The queue pair that this request was posted to.
    by: Option<u32>,
}

impl Name {
    pub(crate) fn new(tag: Tag) -> Self {
        Self(Mutex::new(Named { oldest: tag, tag, used: false, by: None }))
    }

    /// The tag, as of the last request that was posted.
    pub(crate) fn tag(&self) -> Tag {
        lock(&self.0).tag
    }

    /// What a binding gives a window next.
    pub(crate) fn next_binding(&self) -> Tag {
        following(self.tag())
    }

    /// What a registration gives a region next.
    pub(crate) fn next_registration(&self) -> Tag {
        let named = lock(&self.0);
        if named.used { following(named.tag) } else { named.tag }
    }

    /// A request that gives it this tag is about to be posted to a queue pair. Returns what to [restore](Self::restore) if it was not.
    pub(crate) fn advance(&self, table: &Table, tag: Tag, by: u32) -> Named {
        let mut named = lock(&self.0);
        let before = *named;
        let executed = table.look_up(before.tag).is_some();
        let oldest = if executed { before.tag } else { before.oldest };
        *named = Named { oldest, tag, used: true, by: Some(by) };
        before
    }

    /// What was posted to this queue pair was executed, or never will be: the tag is the one that the entry has.
    fn settle(&self, table: &Table, by: u32) {
        let mut named = lock(&self.0);
        if named.by == Some(by)
            && let Some(tag) = table.current(named.tag)
        {
            let used = table.next_registration(tag) != Some(tag);
            *named = Named { oldest: tag, tag, used, by: None };
        }
    }

    pub(crate) fn restore(&self, before: Named) {
        *lock(&self.0) = before;
    }

    /// All tags that the entry may have now, the newest first.
    pub(crate) fn candidates(&self) -> Vec<Tag> {
        let Named { oldest, tag, .. } = *lock(&self.0);
        let mut tags = vec![oldest];
        // The instance of a tag has eight bits.
        while let Some(&last) = tags.last()
            && last != tag
            && tags.len() < 256
        {
            tags.push(following(last));
        }
        tags.reverse();
        tags
    }
}

/// The names that requests of one queue pair have given, by their addresses, where some may be refused and tried again (requirement
/// M7).
#[derive(Debug, Default)]
pub(crate) struct Given(Mutex<HashMap<usize, Weak<Name>>>);

impl Given {
    pub(crate) fn add(&self, name: &Arc<Name>) {
        let mut names = lock(&self.0);
        // Those of regions that are gone make room before it grows.
        if names.len() == names.capacity() {
            names.retain(|_, name| name.strong_count() > 0);
        }
        names.insert(Arc::as_ptr(name).addr(), Arc::downgrade(name));
    }

    /// All that was posted was executed, or never will be.
    pub(crate) fn settle(&self, table: &Table, by: u32) {
        for (_, name) in lock(&self.0).drain() {
            if let Some(name) = name.upgrade() {
                name.settle(table, by);
            }
        }
    }
}
