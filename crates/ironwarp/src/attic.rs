//! What the program gave up, and something still uses. Before this: a region or a window is dropped; after: its entry is given
//! back, and its memory is freed.

use crate::adapter::lock;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::memory::DeregisterError;
use ironwarp_wire::Tag;
use std::sync::Mutex;

/// Entries that the program gave up, and something still uses: regions that a window is bound to. Looked through whenever something
/// else is given up.
#[derive(Debug, Default)]
pub(crate) struct Attic(Mutex<Vec<Retired>>);

/// The tags that an entry may have by now, the likeliest first.
#[derive(Debug)]
pub(crate) struct Retired(pub(crate) Vec<Tag>);

impl Attic {
    /// Gives something up, and whatever was given up before, as far as it can go.
    pub(crate) fn retire(&self, device: &Device, retired: Retired) {
        let mut attic = lock(&self.0);
        attic.push(retired);
        // A window that goes may be what a region waited for.
        loop {
            let before = attic.len();
            attic.retain(|retired| !retired.go(device));
            if attic.len() == before || attic.is_empty() {
                return;
            }
        }
    }
}

impl Retired {
    /// True: it is gone.
    fn go(&self, device: &Device) -> bool {
        for &tag in &self.0 {
            match device.table().deregister(tag) {
                Ok(()) => break,
                Err(DeregisterError::Unknown(_)) => {}
                // Something is bound to it; whatever else may be said one day, it is not gone.
                Err(_) => return false,
            }
        }
        true
    }
}
