//! The device's queue pair behind a queue pair. Every post reads it, and a reset replaces it.

use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync;
use std::ops::Deref;
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

/// The current queue pair of a [`DeviceQp`].
pub(super) enum BorrowedQp<'a> {
    First(&'a Arc<Qp>),
    Replacement(Arc<Qp>),
}

impl Deref for BorrowedQp<'_> {
    type Target = Qp;

    #[inline]
    fn deref(&self) -> &Qp {
        match self {
            Self::First(qp) => qp,
            Self::Replacement(qp) => qp,
        }
    }
}

impl DeviceQp {
    /// Creates a reference to `qp`.
    pub(super) fn new(qp: Arc<Qp>) -> Self {
        Self { first: qp, current: OnceLock::new() }
    }

    /// Returns the current one.
    pub(super) fn get(&self) -> Arc<Qp> {
        match self.borrow() {
            BorrowedQp::First(qp) => Arc::clone(qp),
            BorrowedQp::Replacement(qp) => qp,
        }
    }

    /// Returns the current one without a copy of the reference, if it was not replaced.
    #[inline]
    pub(super) fn borrow(&self) -> BorrowedQp<'_> {
        match self.current.get() {
            None => BorrowedQp::First(&self.first),
            // Not locked while it is used, which may take long.
            Some(current) => BorrowedQp::Replacement(Arc::clone(&sync::read(current))),
        }
    }

    /// Replaces the current one by `fresh`, and returns the one before.
    pub(super) fn replace(&self, fresh: Arc<Qp>) -> Arc<Qp> {
        let current = self.current.get_or_init(|| Box::new(RwLock::new(Arc::clone(&self.first))));
        std::mem::replace(&mut *sync::write(current), fresh)
    }
}
