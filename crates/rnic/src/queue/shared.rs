//! Shared receive queues: one supply of receives for many queue pairs. And XRC domains, in which the sender names the shared
//! receive queue that its message is for.
//!
//! A message that finds the queue empty waits on its stream, as it does for a queue pair's own receive; the queue pair is
//! put down here, and driven when a receive is posted. Whoever is put down looks once more afterwards, and whoever posts
//! looks who is put down afterwards, both under the lock of the queue: so one of the two sees the other.

use super::receive::{Receive, ReceiveQueue};
use super::{Cq, ReceiveRequest};
use crate::broken;
use crate::device::Device;
use crate::error::PostError;
use crate::event::AsyncEvent;
use crate::memory::Domain;
use crate::qp::Qp;
use crate::sync::{Mutex, lock};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

/// A shared receive queue (SRQ).
#[derive(Debug)]
pub struct SharedReceiveQueue {
    id: u32,
    device: Arc<Device>,
    domain: Domain,
    /// Where its receives complete; `None`: where the queue pair that used one has its own complete.
    cq: Option<Arc<Cq>>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: ReceiveQueue,
    /// An event is due when fewer receives than this are left. Zero: none is.
    limit: usize,
    /// Queue pairs with a message that waits for a receive.
    waiting: VecDeque<Weak<Qp>>,
}

/// What a shared receive queue is like now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqStatus {
    /// How many receives it holds.
    pub depth: usize,
    /// How many scatter/gather elements a receive has at most.
    pub max_sges: usize,
    /// An event is due when fewer receives than this are left; zero once it was raised.
    pub limit: usize,
    /// How many receives are posted.
    pub posted: usize,
}

impl SharedReceiveQueue {
    /// An empty queue for `depth` receives into memory of `domain`. Its receives complete on `cq`, if it is for XRC.
    pub fn new(
        id: u32,
        device: &Arc<Device>,
        domain: Domain,
        (depth, max_sges): (usize, usize),
        cq: Option<Arc<Cq>>,
    ) -> Arc<Self> {
        let queue = ReceiveQueue::new(domain, depth, max_sges);
        let inner = Mutex::new(Inner { queue, limit: 0, waiting: VecDeque::new() });
        Arc::new(Self { id, device: Arc::clone(device), domain, cq, inner })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Posts a receive. A message that waits for one goes on.
    pub fn post(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        inner.queue.post(request)?;
        let waiting = inner.waiting.len();
        drop(inner);
        if broken::is("waiter") {
            return Ok(());
        }
        // Each is called once: one that finds another was faster, or that receives are withheld from it, waits again.
        for _ in 0..waiting {
            let Some(qp) = self.next_waiting() else { break };
            qp.receive_posted();
        }
        Ok(())
    }

    /// The queue pair that has waited longest, if there is something for it.
    fn next_waiting(&self) -> Option<Arc<Qp>> {
        let mut inner = lock(&self.inner);
        while inner.queue.len() > 0 {
            let qp = inner.waiting.pop_front()?;
            if let Some(qp) = qp.upgrade() {
                qp.called_for_receive(self.id);
                return Some(qp);
            }
        }
        None
    }

    /// From now on it holds so many receives. Refused if more are posted.
    pub fn resize(&self, depth: usize) -> Result<(), PostError> {
        lock(&self.inner).queue.resize(depth)
    }

    /// Asks for one event when fewer than `limit` receives are left (SRQ limit reached); zero asks for none.
    pub fn set_limit(&self, limit: usize) {
        let mut inner = lock(&self.inner);
        inner.limit = limit;
        let due = inner.is_low();
        drop(inner);
        self.raise(due);
    }

    /// What it is like now.
    pub fn query(&self) -> SrqStatus {
        let inner = lock(&self.inner);
        SrqStatus {
            depth: inner.queue.capacity(),
            max_sges: inner.queue.max_sges(),
            limit: inner.limit,
            posted: inner.queue.len(),
        }
    }

    /// The receive for a message that begins.
    pub(crate) fn take(&self) -> Option<Receive> {
        self.take_by(ReceiveQueue::take)
    }

    /// The same, if it is `ready`.
    pub(crate) fn take_if(&self, ready: impl FnOnce(&ReceiveRequest) -> bool) -> Option<Receive> {
        self.take_by(|queue| queue.take_if(ready))
    }

    fn take_by(&self, take: impl FnOnce(&mut ReceiveQueue) -> Option<Receive>) -> Option<Receive> {
        let mut inner = lock(&self.inner);
        let receive = take(&mut inner.queue)?;
        let due = inner.is_low();
        drop(inner);
        self.raise(due);
        Some(Receive { cq: self.cq.clone(), ..receive })
    }

    /// A message on this queue pair waits for a receive. It is put down once, however often it comes back.
    pub(crate) fn wait(&self, qp: Weak<Qp>) {
        let mut inner = lock(&self.inner);
        if !inner.waiting.iter().any(|known| known.ptr_eq(&qp)) {
            inner.waiting.push_back(qp);
        }
    }

    fn raise(&self, due: bool) {
        if due {
            self.device.raise(AsyncEvent::SrqLimitReached(self.id));
        }
    }
}

impl Drop for SharedReceiveQueue {
    /// Events that nobody took are about nothing any more.
    fn drop(&mut self) {
        self.device.events().revoke(|event| event.shared_receive_queue() == Some(self.id));
    }
}

impl Inner {
    /// Whether the event is due, once.
    fn is_low(&mut self) -> bool {
        let low = self.queue.len() < self.limit;
        if low {
            self.limit = 0;
        }
        low
    }
}

/// An XRC domain: shared receive queues that are reached through one connection, by number.
#[derive(Debug, Default)]
pub struct XrcDomain {
    queues: Mutex<HashMap<u32, Weak<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// A domain without queues.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes a queue known under its number.
    pub fn add(&self, srq: &Arc<SharedReceiveQueue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|_, known| known.strong_count() > 0);
        queues.insert(srq.id, Arc::downgrade(srq));
    }

    pub(crate) fn find(&self, srq: u32) -> Option<Arc<SharedReceiveQueue>> {
        lock(&self.queues).get(&srq)?.upgrade()
    }

    /// The domains of its queues: peers reach memory of any of them. (In InfiniBand a Write names a queue as well.)
    pub(crate) fn domains(&self) -> Vec<Domain> {
        let queues = lock(&self.queues);
        let mut domains: Vec<_> = queues.values().filter_map(|srq| Some(srq.upgrade()?.domain)).collect();
        domains.sort_unstable();
        domains.dedup();
        domains
    }
}
