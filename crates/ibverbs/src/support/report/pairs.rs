//! Finds queue pairs by number, because a completion contains only the number. Used only after a failure.

use ironwarp_engine::{Peer, QueuePair};
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The connected queue pairs of this process, by number.
static PAIRS: Mutex<BTreeMap<u32, Weak<QueuePair>>> = Mutex::new(BTreeMap::new());

/// Locks the map of queue pairs.
fn pairs() -> MutexGuard<'static, BTreeMap<u32, Weak<QueuePair>>> {
    lock(&PAIRS)
}

/// Adds a queue pair.
pub(crate) fn register(pair: &Arc<QueuePair>) {
    pairs().insert(pair.id(), Arc::downgrade(pair));
}

/// Removes a queue pair that is about to be destroyed. The end of its connection is then not logged.
pub(crate) fn forget(number: u32) {
    pairs().remove(&number);
}

/// Finds a queue pair, unless it was destroyed.
pub(crate) fn find(number: u32) -> Option<Arc<QueuePair>> {
    pairs().get(&number).and_then(Weak::upgrade)
}

/// Returns the peer of a queue pair, or `None` if the queue pair was destroyed or has no peer.
pub(super) fn peer(number: u32) -> Option<Peer> {
    find(number).and_then(|pair| pair.peer())
}
