//! The device's queue pair behind a queue pair. Every post reads it, and a reset replaces it.

use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync;
use std::sync::{Arc, OnceLock, RwLock};

/// A device's queue pair that can be replaced. Reading it takes no lock until it was replaced for the first time, which
/// few programs do.
#[derive(Debug)]
pub(super) struct DeviceQp {
    /// The first one. Kept after it was replaced, because another thread may be using it.
    first: Arc<Qp>,
    /// The current one. Empty while that is the first one.
    current: OnceLock<Box<RwLock<Arc<Qp>>>>,
}

impl DeviceQp {
    /// Creates a reference to `qp`.
    pub(super) fn new(qp: Arc<Qp>) -> Self {
        Self { first: qp, current: OnceLock::new() }
    }

    /// Returns the current one.
    pub(super) fn get(&self) -> Arc<Qp> {
        self.with(Arc::clone)
    }

    /// Calls `act` with the current one.
    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&Arc<Qp>) -> R) -> R {
        let replacement;
        let qp = match self.current.get() {
            None => &self.first,
            Some(current) => {
                replacement = Arc::clone(&sync::read(current)); // not locked during `act`, which may take long
                &replacement
            }
        };
        act(qp)
    }

    /// Replaces the current one by `fresh`, and returns the one before.
    pub(super) fn replace(&self, fresh: Arc<Qp>) -> Arc<Qp> {
        let current = self.current.get_or_init(|| Box::new(RwLock::new(Arc::clone(&self.first))));
        std::mem::replace(&mut *sync::write(current), fresh)
    }
}
