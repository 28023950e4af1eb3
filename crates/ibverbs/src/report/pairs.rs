//! Queue pairs by their numbers, which is all that a completion has of them: who is at the other end, and what becomes of
//! the connection. Asked only when something failed.

use super::{ended, not_connected};
use crate::sync::lock;
use ironwarp_engine::{ConnectionEvent, Peer, QueuePair, Watcher, What};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

static PAIRS: Mutex<BTreeMap<u32, Weak<QueuePair>>> = Mutex::new(BTreeMap::new());

fn pairs() -> MutexGuard<'static, BTreeMap<u32, Weak<QueuePair>>> {
    lock(&PAIRS)
}

/// A queue pair was made.
pub(crate) fn know(pair: &Arc<QueuePair>) {
    pairs().insert(pair.id(), Arc::downgrade(pair));
}

/// It is about to be destroyed: what happens to its connection now is nobody's concern.
pub(crate) fn forget(number: u32) {
    pairs().remove(&number);
}

/// The queue pair of this process with this number.
pub(crate) fn find(number: u32) -> Option<Arc<QueuePair>> {
    pairs().get(&number).and_then(Weak::upgrade)
}

/// Who is at the other end.
pub(super) fn peer(number: u32) -> Option<Peer> {
    find(number).and_then(|pair| pair.peer())
}

/// Who is told what happens to a connection: this, and then the connection manager that asked for it.
#[derive(Debug)]
pub(crate) struct Told(Option<Arc<dyn Watcher<ConnectionEvent>>>);

pub(crate) fn told(next: Option<Arc<dyn Watcher<ConnectionEvent>>>) -> Arc<Told> {
    Arc::new(Told(next))
}

impl Watcher<ConnectionEvent> for Told {
    fn tell(&self, event: ConnectionEvent) {
        match (&event.what, &self.0) {
            (What::Ended(fault), _) => ended(event.qp, fault),
            // A connection manager may try again, and tells the program in the end.
            (What::Failed(error), None) => not_connected(event.qp, error),
            _ => {}
        }
        if let Some(next) = &self.0 {
            next.tell(event);
        }
    }
}
