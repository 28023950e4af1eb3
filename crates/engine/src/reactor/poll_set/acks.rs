//! Queue pairs of a poll set that may owe an acknowledgement.

use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
pub(super) struct PendingAcks {
    owing: Mutex<Vec<Arc<Qp>>>,
    /// Whether the list has any.
    any: AtomicBool,
}

impl PendingAcks {
    pub(super) fn push(&self, qp: &Arc<Qp>) {
        lock(&self.owing).push(Arc::clone(qp));
        self.any.store(true, Ordering::Release);
    }

    /// Has all of them acknowledge.
    #[inline]
    pub(super) fn flush(&self) {
        if self.any.load(Ordering::Acquire) {
            self.flush_all();
        }
    }

    fn flush_all(&self) {
        if !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        let owing = std::mem::take(&mut *lock(&self.owing));
        for qp in owing {
            qp.acknowledge();
        }
    }
}
