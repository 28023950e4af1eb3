//! The list of queues that wait for registrations in progress, and the number of such registrations. `deferred.rs`
//! describes how both are used.

use crate::sync::{Mutex, lock};
use ironwarp_wire::Tag;
use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A queue with a request that waits for a registration.
pub trait RegistrationWaiter: Send + Sync {
    /// Retries the request later, on another thread. Called when the registration has succeeded or failed. Must not
    /// block.
    fn on_registration_end(&self);
}

/// The pending registrations of a table.
#[derive(Default)]
pub(super) struct Pending {
    /// Number of pending registrations. While it is zero, receives need not check whether their memory is pending.
    pub(super) count: AtomicUsize,
    /// For each pending tag, the queues with a request that waits for it. A tag without waiting queues is absent.
    pub(super) waiters: Mutex<HashMap<Tag, Vec<Weak<dyn RegistrationWaiter>>>>,
}

impl Pending {
    /// Removes a registration that has ended, and notifies the queues that wait for it. The caller has cleared the
    /// pending bit of the entry: no queue is added to the list after that.
    pub(super) fn remove(&self, tag: Tag) {
        self.count.fetch_sub(1, Ordering::Relaxed); // a thread that still sees the old count only checks in vain
        let waiters = lock(&self.waiters).remove(&tag);
        for waiter in waiters.into_iter().flatten() {
            if let Some(waiter) = waiter.upgrade() {
                waiter.on_registration_end();
            }
        }
    }
}

// Not derived: trait objects of waiters cannot be printed.
impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.count).finish()
    }
}
