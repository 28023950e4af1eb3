//! The sockets in a poll set.

use crate::reactor::member::Member;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
pub(super) struct Members {
    map: Mutex<HashMap<u64, Arc<dyn Member>>>,
    count: AtomicUsize,
    /// Goes up when a member comes or leaves.
    generation: AtomicU64,
}

/// The queue pair of the only member, as of one generation of the members.
#[derive(Debug)]
pub(crate) struct OnlyMember {
    pub(crate) qp: Arc<Qp>,
    generation: u64,
}

impl Members {
    pub(super) fn insert(&self, token: u64, member: &Arc<dyn Member>) {
        let mut map = lock(&self.map);
        map.insert(token, Arc::clone(member));
        self.changed(map.len());
    }

    pub(super) fn remove(&self, token: u64) -> Option<Arc<dyn Member>> {
        let mut map = lock(&self.map);
        let member = map.remove(&token)?;
        self.changed(map.len());
        Some(member)
    }

    fn changed(&self, count: usize) {
        self.count.store(count, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::SeqCst);
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

    /// The only member, if it is a connection.
    #[inline]
    pub(super) fn only(&self) -> Option<OnlyMember> {
        let map = lock(&self.map);
        let member = map.values().next().filter(|_| map.len() == 1)?;
        let qp = Arc::clone(member.qp()?);
        Some(OnlyMember { qp, generation: self.generation.load(Ordering::SeqCst) })
    }

    /// Whether no member came or left since `only` was the only one.
    #[inline]
    pub(super) fn is_still(&self, only: &OnlyMember) -> bool {
        self.generation.load(Ordering::SeqCst) == only.generation
    }
}
