//! Queue pairs by number, which is all that a completion contains. Consulted only after a failure.

use ironwarp_engine::{Peer, QueuePair};
use ironwarp_rnic::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

static PAIRS: Mutex<BTreeMap<u32, Weak<QueuePair>>> = Mutex::new(BTreeMap::new());

fn pairs() -> MutexGuard<'static, BTreeMap<u32, Weak<QueuePair>>> {
    lock(&PAIRS)
}

/// Adds a queue pair.
pub(crate) fn register(pair: &Arc<QueuePair>) {
    pairs().insert(pair.id(), Arc::downgrade(pair));
}

/// Removes a queue pair that is about to be destroyed: what happens to its connection from now on is not
/// logged.
pub(crate) fn forget(number: u32) {
    pairs().remove(&number);
}

/// Finds a queue pair of this process.
pub(crate) fn find(number: u32) -> Option<Arc<QueuePair>> {
    pairs().get(&number).and_then(Weak::upgrade)
}

/// The peer of a queue pair.
pub(super) fn peer(number: u32) -> Option<Peer> {
    find(number).and_then(|pair| pair.peer())
}
