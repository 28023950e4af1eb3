//! Entries of the translation and protection table.

use super::tag_tracker::TagSequence;
use crate::deferred_dereg::DroppedEntry;
use crate::shared::Shared;
use ironwarp_rnic::memory::DeregisterError;
use ironwarp_wire::Tag;
use std::sync::Arc;

/// The table entry of a region or a window. Dropping it deregisters the entry.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tags: Arc<TagSequence>,
    /// The entry is deregistered, and may belong to another region by now.
    deregistered: bool,
}

impl Registration {
    pub(crate) fn new(shared: &Arc<Shared>, tag: Tag) -> Self {
        let tags = Arc::new(TagSequence::new(tag));
        Self { shared: Arc::clone(shared), tags, deregistered: false }
    }

    /// Drops this value without deregistering the entry: it has a new tag and another owner.
    pub(crate) fn forget(mut self) {
        self.deregistered = true;
    }

    pub(super) fn deregister(mut self, tag: Tag) -> Result<(), DeregisterError> {
        let deregistered = self.shared.device().table().deregister(tag);
        self.deregistered = deregistered.is_ok();
        deregistered
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let tags = if self.deregistered { Vec::new() } else { self.tags.candidates() };
        self.shared.deferred.deregister(self.shared.device(), DroppedEntry(tags));
    }
}
