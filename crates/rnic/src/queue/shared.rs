//! Shared receive queues, which supply many queue pairs with receives, and XRC domains, in which the sender of a
//! message names the shared receive queue.
//!
//! If the queue is empty, a message waits in its stream, as it does for a receive of the queue pair itself. The queue
//! lists the waiting queue pair, and has it driven when a receive is posted. No receive is missed: a queue pair tries
//! to take a receive again after it was listed, and a thread that posts a receive reads the list afterwards, both with
//! the queue locked. Whichever comes second sees what the first has done.

use super::receive::{Receive, ReceiveQueue};
use super::{Cq, QueueOwner, ReceiveRequest};
use crate::broken;
use crate::error::PostError;
use crate::event::{AsyncEvent, AsyncEvents};
use crate::memory::Domain;
use crate::quota::Place;
use crate::sync::{Mutex, lock};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

/// A shared receive queue (SRQ).
#[derive(Debug)]
pub struct SharedReceiveQueue {
    /// The number of the queue.
    id: u32,
    /// Where the limit event is raised.
    events: Arc<AsyncEvents>,
    /// The protection domain of the buffers.
    domain: Domain,
    /// The completion queue for the receives. `None` for the completion queue of the queue pair that uses a receive.
    cq: Option<Arc<Cq>>,
    inner: Mutex<Inner>,
    /// Its place in the quota of its function; `None` if it does not count.
    _place: Option<Place>,
}

/// The state of the queue that the lock protects.
#[derive(Debug)]
struct Inner {
    queue: ReceiveQueue,
    /// The limit event is raised when fewer receives than this are left. Zero if no event is requested.
    limit: usize,
    /// Queue pairs with a message that waits for a receive, in the order in which they began to wait.
    waiting: VecDeque<Weak<dyn QueueOwner>>,
}

/// The state of a shared receive queue that is frozen (requirement X2).
#[derive(Debug, Serialize, Deserialize)]
pub struct FrozenSrq {
    /// The number of the queue.
    pub id: u32,
    /// The protection domain of the buffers.
    pub domain: Domain,
    /// The number of the completion queue for the receives, as XRC requires.
    pub cq: Option<u32>,
    limit: usize,
    queue: ReceiveQueue,
}

impl FrozenSrq {
    /// The size of the queue.
    pub fn size(&self) -> SrqSize {
        SrqSize { depth: self.queue.capacity(), max_sges: self.queue.max_sges() }
    }

    /// Returns whether the state is one that a queue can have.
    pub(crate) fn is_consistent(&self) -> bool {
        self.queue.is_consistent()
    }
}

/// The size of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqSize {
    /// Maximum number of receives.
    pub depth: usize,
    /// Maximum number of scatter/gather elements of a receive.
    pub max_sges: usize,
}

/// The state of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqStatus {
    /// Maximum number of receives.
    pub depth: usize,
    /// Maximum number of scatter/gather elements of a receive.
    pub max_sges: usize,
    /// The limit event is raised when fewer receives than this are left. Zero if no event is requested, or after it was
    /// raised.
    pub limit: usize,
    /// Number of receives posted.
    pub posted: usize,
}

impl SharedReceiveQueue {
    /// Creates an empty queue with the number `id`, for receives into memory of `domain`. Its receives complete on
    /// `cq`, as XRC requires, or without one on the receive completion queue of the queue pair that uses them.
    pub fn new(
        id: u32,
        events: &Arc<AsyncEvents>,
        domain: Domain,
        size: SrqSize,
        cq: Option<Arc<Cq>>,
    ) -> Arc<Self> {
        Self::with_place(id, events, domain, size, cq, None)
    }

    /// Creates an empty queue like [`new`](Self::new). Dropping it gives `place` back.
    pub fn with_place(
        id: u32,
        events: &Arc<AsyncEvents>,
        domain: Domain,
        size: SrqSize,
        cq: Option<Arc<Cq>>,
        place: Option<Place>,
    ) -> Arc<Self> {
        let queue = ReceiveQueue::new(domain, size.depth, size.max_sges);
        let inner = Mutex::new(Inner { queue, limit: 0, waiting: VecDeque::new() });
        Arc::new(Self { id, events: Arc::clone(events), domain, cq, inner, _place: place })
    }

    /// The number of the queue.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Appends a receive, and drives the queue pairs with a message that waits for a receive.
    pub fn post(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        inner.queue.post(request)?;
        let waiting = inner.waiting.len();
        drop(inner);
        if broken::is("waiter") {
            return Ok(());
        }
        // A queue pair that gets no receive, because another one was faster or an injected fault withholds it, is
        // listed again. The count ends the loop then.
        for _ in 0..waiting {
            let Some(qp) = self.pop_waiter() else { break };
            qp.on_receive_posted();
        }
        Ok(())
    }

    /// Refuses all further receives, because the adapter was shut down (requirement N11). Those that are posted never
    /// complete: no queue pair takes them.
    pub fn shut_down(&self) {
        lock(&self.inner).queue.shut_down();
    }

    /// Takes the receives out of the queue, which refuses receives from now on (requirement X2). The caller has frozen all
    /// queue pairs that use it.
    pub fn freeze(&self) -> FrozenSrq {
        let mut inner = lock(&self.inner);
        let (limit, queue) = (inner.limit, inner.queue.freeze());
        let cq = self.cq.as_ref().map(|cq| cq.id());
        FrozenSrq { id: self.id, domain: self.domain, cq, limit, queue }
    }

    /// Puts the state of a frozen queue into this one: the same, or one that was created for it.
    pub fn thaw(&self, frozen: FrozenSrq) {
        let mut inner = lock(&self.inner);
        (inner.limit, inner.queue) = (frozen.limit, frozen.queue);
    }

    /// Removes the queue pair that has waited longest from the list and returns it, if there is a receive for it.
    fn pop_waiter(&self) -> Option<Arc<dyn QueueOwner>> {
        let mut inner = lock(&self.inner);
        while inner.queue.len() > 0 {
            let qp = inner.waiting.pop_front()?;
            if let Some(qp) = qp.upgrade() {
                qp.on_unlisted(self.id);
                return Some(qp);
            }
        }
        None
    }

    /// Changes the maximum number of receives. Fails if more than `depth` are posted.
    pub fn resize(&self, depth: usize) -> Result<(), PostError> {
        lock(&self.inner).queue.resize(depth)
    }

    /// Requests one event (SRQ limit reached), which is raised when fewer than `limit` receives are left. Zero cancels
    /// the request.
    pub fn set_limit(&self, limit: usize) {
        let mut inner = lock(&self.inner);
        inner.limit = limit;
        let due = inner.take_limit_event();
        drop(inner);
        self.raise_limit_event_if(due, || 0);
    }

    /// Queries the queue.
    pub fn query(&self) -> SrqStatus {
        let inner = lock(&self.inner);
        SrqStatus {
            depth: inner.queue.capacity(),
            max_sges: inner.queue.max_sges(),
            limit: inner.limit,
            posted: inner.queue.len(),
        }
    }

    /// Takes the oldest receive, for a message that begins. `lane` returns the lane that serves the message.
    pub(crate) fn take(&self, lane: impl FnOnce() -> u16) -> Option<Receive> {
        self.take_with(lane, ReceiveQueue::take)
    }

    /// Takes the oldest receive, for a message that begins, if `ready` returns true for it.
    pub(crate) fn take_if(
        &self,
        lane: impl FnOnce() -> u16,
        ready: impl FnOnce(&ReceiveRequest) -> bool,
    ) -> Option<Receive> {
        self.take_with(lane, |queue| queue.take_if(ready))
    }

    /// Takes a receive with `take`, and raises the limit event if it is due.
    fn take_with(
        &self,
        lane: impl FnOnce() -> u16,
        take: impl FnOnce(&mut ReceiveQueue) -> Option<Receive>,
    ) -> Option<Receive> {
        let mut inner = lock(&self.inner);
        let receive = take(&mut inner.queue)?;
        let due = inner.take_limit_event();
        drop(inner);
        self.raise_limit_event_if(due, lane);
        Some(Receive { cq: self.cq.clone(), ..receive })
    }

    /// Adds a queue pair with a message that waits for a receive to the list, unless it is listed already.
    pub(crate) fn add_waiter(&self, qp: Weak<dyn QueueOwner>) {
        let mut inner = lock(&self.inner);
        if !inner.waiting.iter().any(|known| known.ptr_eq(&qp)) {
            inner.waiting.push_back(qp);
        }
    }

    /// Raises the limit event if it is `due`, as one of the lane that `lane` returns. Called without the lock.
    fn raise_limit_event_if(&self, due: bool, lane: impl FnOnce() -> u16) {
        if due {
            self.events.raise_from(lane(), AsyncEvent::SrqLimitReached(self.id));
        }
    }
}

impl Drop for SharedReceiveQueue {
    /// Removes the events about this queue that were not taken.
    fn drop(&mut self) {
        self.events.revoke(&AsyncEvent::of_shared_receive_queue(self.id));
    }
}

impl Inner {
    /// Returns whether the limit event is due, and clears the request for it if so.
    fn take_limit_event(&mut self) -> bool {
        let low = self.queue.len() < self.limit;
        if low {
            self.limit = 0;
        }
        low
    }
}

/// An XRC domain: shared receive queues that are reached by number, through any connection of the domain.
#[derive(Debug, Default)]
pub struct XrcDomain {
    queues: Mutex<HashMap<u32, Weak<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a queue to the domain.
    pub fn add(&self, srq: &Arc<SharedReceiveQueue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|_, known| known.strong_count() > 0);
        queues.insert(srq.id, Arc::downgrade(srq));
    }

    /// Returns the numbers of all queues of the domain, in order.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let queues = lock(&self.queues);
        let mut numbers: Vec<_> =
            queues.iter().filter(|(_, srq)| srq.strong_count() > 0).map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the queue with this number, if it is in the domain.
    pub(crate) fn find(&self, srq: u32) -> Option<Arc<SharedReceiveQueue>> {
        lock(&self.queues).get(&srq)?.upgrade()
    }

    /// Returns the protection domains of all queues of the XRC domain, without duplicates. Peers can access memory of
    /// any of them, because a Write does not name a queue, unlike in InfiniBand.
    pub(crate) fn domains(&self) -> Vec<Domain> {
        let queues = lock(&self.queues);
        let mut domains: Vec<_> = queues.values().filter_map(|srq| Some(srq.upgrade()?.domain)).collect();
        domains.sort_unstable();
        domains.dedup();
        domains
    }
}
