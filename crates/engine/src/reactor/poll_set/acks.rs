//! The list of queue pairs in a poll set that owe an acknowledgement.

use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Queue pairs that owe an acknowledgement. Each is listed once, see `Qp::take_owed_acknowledgement`.
#[derive(Debug, Default)]
pub(super) struct PendingAcks {
    owing: Mutex<Vec<Arc<Qp>>>,
    /// Whether the list may have entries: `flush`, which finds none most of the time, does not take the lock then. Set
    /// after an entry was added, and cleared before the entries are taken, so that no entry is overlooked.
    any: AtomicBool,
}

impl PendingAcks {
    /// Adds a queue pair that owes an acknowledgement.
    pub(super) fn push(&self, qp: &Arc<Qp>) {
        lock(&self.owing).push(Arc::clone(qp));
        self.any.store(true, Ordering::Release);
    }

    /// Sends the acknowledgements of all listed queue pairs, and clears the list.
    #[inline]
    pub(super) fn flush(&self) {
        if self.any.load(Ordering::Acquire) {
            self.flush_all();
        }
    }

    /// The part of [`flush`](Self::flush) that is not inlined, for a list that may have entries.
    fn flush_all(&self) {
        if !self.any.swap(false, Ordering::AcqRel) {
            return; // since `flush` loaded the flag, another thread has cleared it, and sends the acknowledgements
        }
        let owing = std::mem::take(&mut *lock(&self.owing));
        for qp in owing {
            qp.acknowledge();
        }
    }
}
