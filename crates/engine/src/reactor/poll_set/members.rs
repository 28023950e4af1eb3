//! The sockets in a poll set, by token.

use crate::reactor::member::Member;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The members of a poll set.
#[derive(Debug, Default)]
pub(super) struct Members {
    map: Mutex<HashMap<u64, Arc<dyn Member>>>,
    /// Number of entries in the map, to read without the lock.
    count: AtomicUsize,
    /// Incremented when a member or a carrier is added or removed.
    generation: AtomicU64,
}

/// The only member of a poll set, which is a connection. Valid until a member or a carrier is added or removed.
#[derive(Debug)]
pub(crate) struct OnlyMember {
    pub(crate) qp: Arc<Qp>,
    /// Generation of the members when this one was the only one.
    generation: u64,
}

impl Members {
    pub(super) fn insert(&self, token: u64, member: &Arc<dyn Member>) {
        let mut map = lock(&self.map);
        map.insert(token, Arc::clone(member));
        self.record_change(map.len());
    }

    pub(super) fn remove(&self, token: u64) -> Option<Arc<dyn Member>> {
        let mut map = lock(&self.map);
        let member = map.remove(&token)?;
        self.record_change(map.len());
        Some(member)
    }

    /// Publishes the number of members after a change. The caller holds the lock of the map.
    fn record_change(&self, count: usize) {
        self.count.store(count, Ordering::SeqCst);
        self.begin_generation();
    }

    /// Begins a new generation, after members or carriers have changed.
    pub(super) fn begin_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the current generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Returns whether this is the current generation.
    #[inline]
    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.generation() == generation
    }

    pub(super) fn get(&self, token: u64) -> Option<Arc<dyn Member>> {
        lock(&self.map).get(&token).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<dyn Member>> {
        lock(&self.map).values().cloned().collect()
    }

    pub(super) fn tokens(&self) -> Vec<u64> {
        lock(&self.map).keys().copied().collect()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns the only member, if there is exactly one and it is a connection.
    pub(super) fn only_member(&self) -> Option<OnlyMember> {
        let map = lock(&self.map);
        let qp = Arc::clone(only_of(&map)?.qp()?);
        Some(OnlyMember { qp, generation: self.generation() })
    }

    /// Returns the only member, if there is exactly one.
    pub(super) fn only(&self) -> Option<Arc<dyn Member>> {
        only_of(&lock(&self.map)).cloned()
    }

    /// Returns whether no member or carrier was added or removed since `only` was returned.
    #[inline]
    pub(super) fn is_unchanged_since(&self, only: &OnlyMember) -> bool {
        self.is_current(only.generation)
    }
}

/// Returns the only entry of the map, if there is exactly one.
fn only_of(map: &HashMap<u64, Arc<dyn Member>>) -> Option<&Arc<dyn Member>> {
    map.values().next().filter(|_| map.len() == 1)
}
