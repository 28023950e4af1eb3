//! Deregistration of dropped regions that still have windows bound to them.

use ironwarp_rnic::device::Device;
use ironwarp_rnic::memory::DeregisterError;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::Tag;
use std::sync::Mutex;

/// Table entries of dropped regions that could not be deregistered yet, because windows are bound to them. Their
/// deregistration is retried whenever another region or window is dropped.
#[derive(Debug, Default)]
pub(crate) struct DeferredDeregs(Mutex<Vec<DroppedEntry>>);

/// The table entry of a dropped region or window: the tag that the last posted request assigns. `None` if the entry is
/// already deregistered.
#[derive(Debug)]
pub(crate) struct DroppedEntry(pub(crate) Option<Tag>);

impl DeferredDeregs {
    /// Deregisters the entry of a dropped region or window, and retries all deferred entries. Entries that still cannot
    /// be deregistered stay deferred.
    pub(crate) fn deregister(&self, device: &Device, entry: DroppedEntry) {
        let mut entries = lock(&self.0);
        entries.push(entry);
        // A deregistered window releases the region that it was bound to, so retry until a round deregisters nothing.
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
    /// Tries to deregister the entry. Returns whether the entry is deregistered now, by this call or before.
    fn try_deregister(&self, device: &Device) -> bool {
        let Some(tag) = self.0 else { return true };
        // A request that is executed meanwhile can give the entry another tag: then try again.
        while let Some(current) = device.table().current_tag(tag) {
            match device.table().deregister(current) {
                Ok(()) => return true,
                Err(DeregisterError::Unknown(_)) => {}
                // Windows are bound to the region. Error variants added later also mean that the entry still exists.
                Err(_) => return false,
            }
        }
        true
    }
}
