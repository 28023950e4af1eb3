//! Deregistration of dropped regions that are still in use.

use ironwarp_rnic::device::Device;
use ironwarp_rnic::memory::DeregisterError;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::Tag;
use std::sync::Mutex;

/// Dropped entries that could not be deregistered yet: regions with windows bound to them. Retried whenever another entry is
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct DeferredDeregs(Mutex<Vec<DroppedEntry>>);

/// The tags that a dropped entry may have, most likely first.
#[derive(Debug)]
pub(crate) struct DroppedEntry(pub(crate) Vec<Tag>);

impl DeferredDeregs {
    /// Deregisters an entry and those deferred before, as far as possible.
    pub(crate) fn deregister(&self, device: &Device, entry: DroppedEntry) {
        let mut entries = lock(&self.0);
        entries.push(entry);
        // Deregistering a window may release the region that it was bound to.
        loop {
            let before = entries.len();
            entries.retain(|entry| !entry.try_deregister(device));
            if entries.len() == before || entries.is_empty() {
                return;
            }
        }
    }
}

impl DroppedEntry {
    /// Returns whether the entry is gone.
    fn try_deregister(&self, device: &Device) -> bool {
        for &tag in &self.0 {
            match device.table().deregister(tag) {
                Ok(()) => break,
                Err(DeregisterError::Unknown(_)) => {}
                // A window is bound to it. Any future error also means that the entry still exists.
                Err(_) => return false,
            }
        }
        true
    }
}
