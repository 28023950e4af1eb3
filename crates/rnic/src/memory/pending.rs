//! The list of registrations in progress, and of the queues that wait for them. `deferred.rs` describes how both are used.

use crate::sync::{Mutex, lock};
use ironwarp_wire::Tag;
use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A queue with a request that waits for a registration.
pub trait RegistrationWaiter: Send + Sync {
    /// Called when the registration has succeeded or failed: the queue retries the request. Must not block.
    fn on_registration_end(&self);
}

/// The pending registrations of a table, and the queues that wait for them.
#[derive(Default)]
pub(super) struct Pending {
    /// Number of pending registrations. Lets receives skip the check while there are none.
    pub(super) count: AtomicUsize,
    pub(super) waiters: Mutex<HashMap<Tag, Vec<Weak<dyn RegistrationWaiter>>>>,
}

impl Pending {
    /// Notifies the queues that waited for this tag. Its pending bit must be clear.
    pub(super) fn cleared(&self, tag: Tag) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let waiters = lock(&self.waiters).remove(&tag);
        for waiter in waiters.into_iter().flatten() {
            if let Some(waiter) = waiter.upgrade() {
                waiter.on_registration_end();
            }
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.count).finish()
    }
}
