//! What the program gave up, and something still uses. Before this: a region or a window is dropped; after: its memory is
//! freed.

use crate::adapter::lock;
use crate::memory::Contents;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::memory::DeregisterError;
use ironwarp_wire::Tag;
use std::sync::{Arc, Mutex};

/// What the program gave up, and something still uses: a region that a window is bound to, memory of which a registration is
/// posted. Looked through whenever something else is given up.
#[derive(Debug, Default)]
pub(crate) struct Attic(Mutex<Vec<Retired>>);

/// Something the program gave up.
#[derive(Debug)]
pub(crate) struct Retired {
    /// The tags that the entry may have by now, the likeliest first; none if it is deregistered.
    pub(crate) tags: Vec<Tag>,
    pub(crate) contents: Option<Arc<Contents>>,
}

impl Attic {
    /// Gives something up, and whatever was given up before, as far as it can go.
    pub(crate) fn retire(&self, device: &Device, retired: Retired) {
        let mut attic = lock(&self.0);
        attic.push(retired);
        // A window that goes may be what a region waited for.
        loop {
            let before = attic.len();
            attic.retain_mut(|retired| !retired.go(device));
            if attic.len() == before || attic.is_empty() {
                return;
            }
        }
    }
}

impl Retired {
    /// True: it is gone.
    fn go(&mut self, device: &Device) -> bool {
        for &tag in &self.tags {
            match device.table().deregister(tag) {
                Ok(()) => break,
                Err(DeregisterError::Unknown(_)) => {}
                // Something is bound to it; whatever else may be said one day, it is not gone.
                Err(_) => return false,
            }
        }
        self.tags.clear();
        match self.contents.as_mut().map(Arc::get_mut) {
            Some(Some(contents)) => contents.is_idle(),
            // Another region shares it, and will come here, too.
            Some(None) | None => true,
        }
    }
}
