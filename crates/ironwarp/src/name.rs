//! The tag of an entry that changes it: a window with each binding, a region with each registration by work request.
//! Before this: `window.rs` and `fast_region.rs`, which have such a tag; after: `queue_pair.rs`, which posts the change.

use crate::adapter::lock;
use ironwarp_rnic::memory::{Table, following};
use ironwarp_wire::Tag;
use std::sync::Mutex;

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
}

impl Name {
    pub(crate) fn new(tag: Tag) -> Self {
        Self(Mutex::new(Named { oldest: tag, tag, used: false }))
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

    /// A request that gives it this tag is about to be posted. Returns what to [restore](Self::restore) if it was not.
    pub(crate) fn advance(&self, table: &Table, tag: Tag) -> Named {
        let mut named = lock(&self.0);
        let before = *named;
        let executed = table.look_up(before.tag).is_some();
        *named = Named { oldest: if executed { before.tag } else { before.oldest }, tag, used: true };
        before
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
