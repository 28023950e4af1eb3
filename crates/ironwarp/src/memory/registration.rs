//! Ownership of an entry of the device's memory table, which regions and windows have.

use super::tag_tracker::TagSequence;
use crate::deferred_dereg::DroppedEntry;
use crate::shared::Shared;
use ironwarp_rnic::memory::{DeregisterError, Table};
use ironwarp_wire::Tag;
use std::sync::Arc;

/// Owns the table entry of a region or a window. Dropping this value deregisters the entry.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) shared: Arc<Shared>,
    /// The tags that the entry has had and will have.
    pub(crate) tags: Arc<TagSequence>,
    /// Whether this value no longer owns the entry: the entry was deregistered, or has another owner.
    deregistered: bool,
}

impl Registration {
    /// Takes ownership of the entry with this tag.
    pub(crate) fn new(shared: &Arc<Shared>, tag: Tag) -> Self {
        let tags = Arc::new(TagSequence::new(tag));
        Self { shared: Arc::clone(shared), tags, deregistered: false }
    }

    /// Returns the table that the entry belongs to.
    pub(super) fn table(&self) -> &Table {
        self.shared.device().table()
    }

    /// Drops this value without deregistering the entry, which has a new tag and another owner.
    pub(crate) fn forget(mut self) {
        self.deregistered = true;
    }

    /// Deregisters the entry, which has this tag. On failure the deregistration is deferred, as for a dropped value.
    pub(super) fn deregister(mut self, tag: Tag) -> Result<(), DeregisterError> {
        let deregistered = self.shared.device().table().deregister(tag);
        self.deregistered = deregistered.is_ok();
        deregistered
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Without a tag, this call only retries the entries that were deferred before.
        let tag = (!self.deregistered).then(|| self.tags.tag());
        self.shared.deferred.deregister(self.shared.device(), DroppedEntry(tag));
    }
}
