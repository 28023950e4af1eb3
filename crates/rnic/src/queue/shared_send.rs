//! Shared send queues (requirement X7): one send queue that feeds many connections. It limits the total number of
//! outstanding requests, and its completions come in the order of transmission, across all connections.
//!
//! A request counts as transmitted when the thread that passed the last byte of its message to the link records this,
//! or, if the request sends nothing, when it was executed. A request that is flushed without having been sent, or
//! acknowledged before its transmission is recorded, counts as transmitted at that moment.
//!
//! The requests of one connection are transmitted in the order of posting. A connection that cannot send (its socket
//! is full, a request is fenced, or memory is still being registered) does not delay the others: their requests are
//! transmitted and complete before its own. The same applies to a connection whose tx half another thread is driving,
//! because a post leaves the requests to that thread.
//!
//! Completion follows the order of transmission, so a request that is done may have to wait for a request of another
//! connection. If a completion does not fit into the completion queue, the connection of its request ends, as it does
//! without a shared send queue (requirement I5).
//!
//! A queue pair stores its outstanding requests in a ring that the shared queue lends to it. A queue pair without
//! requests has no ring.

use super::entry::Entry;
use super::{Completion, Cq, QueueOwner};
use crate::error::PostError;
use crate::sync::{Mutex, lock};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Maximum number of rings kept for reuse.
const MAX_SPARE_RINGS: usize = 64;

/// A shared send queue (SSQ).
#[derive(Debug)]
pub struct SharedSendQueue {
    /// Maximum number of requests that are posted and not complete.
    depth: usize,
    /// The completion queue for all requests.
    cq: Arc<Cq>,
    inner: Mutex<Inner>,
}

/// The state of the queue that the lock protects.
#[derive(Debug, Default)]
struct Inner {
    /// Number of requests posted and not complete.
    outstanding: usize,
    /// Number of requests that were transmitted and have completed. The first element of `order` has the next number.
    completed: u64,
    /// Requests that were transmitted and have not completed, in the order of transmission.
    order: VecDeque<Slot>,
    /// Empty rings for queue pairs that get their first request.
    rings: Vec<Ring>,
}

/// The rings of a queue pair: of its requests, and of the numbers of those that were transmitted.
pub(super) type Ring = (VecDeque<Entry>, VecDeque<u64>);

/// A request that was transmitted and has not completed.
#[derive(Debug)]
enum Slot {
    /// The request is not done.
    Outstanding,
    /// The request is done, but the requests before it have to complete first. `None` if it needs no completion.
    Done(Option<Due>),
}

/// A completion and its queue pair, which is not always the one whose request is finished at that moment.
pub(super) type Due = (Completion, Weak<dyn QueueOwner>);

impl SharedSendQueue {
    /// Creates an empty queue for `depth` requests, which complete on `cq`.
    pub fn new(depth: usize, cq: &Arc<Cq>) -> Arc<Self> {
        Arc::new(Self { depth, cq: Arc::clone(cq), inner: Mutex::default() })
    }

    /// Maximum number of requests.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of requests posted and not complete.
    pub fn outstanding(&self) -> usize {
        lock(&self.inner).outstanding
    }

    /// Reserves room for one request. Fails if the queue is full.
    pub(super) fn reserve(&self) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if inner.outstanding == self.depth {
            return Err(PostError::Full { capacity: self.depth });
        }
        inner.outstanding += 1;
        Ok(())
    }

    /// Releases reserved room for this many requests, which were not posted after all.
    pub(super) fn release(&self, requests: usize) {
        lock(&self.inner).outstanding -= requests;
    }

    /// Records that a request was transmitted. Returns its number, counted from one.
    pub(super) fn record_transmission(&self) -> u64 {
        lock(&self.inner).append(Slot::Outstanding)
    }

    /// Records that a request is done, then completes all requests at the front that are done. `number` is what
    /// [`record_transmission`](Self::record_transmission) returned, or zero if the request was not transmitted; such a
    /// request counts as transmitted now.
    pub(super) fn finish(&self, number: u64, completion: Option<Due>) {
        let mut lost = Vec::new();
        // Dropped after `inner`: dropping the last reference to a queue pair locks `inner`.
        let kept = RefCell::new(Vec::new());
        let mut inner = lock(&self.inner);
        let index = number.checked_sub(inner.completed + 1).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| inner.order.get_mut(index)) {
            Some(slot) => *slot = Slot::Done(completion),
            None => {
                inner.append(Slot::Done(completion));
            }
        }
        while let Some(Slot::Done(completion)) = inner.order.front_mut() {
            let completion = completion.take();
            inner.order.pop_front();
            inner.completed += 1;
            inner.outstanding -= 1; // before the push: a consumer that polls the completion can post again
            let Some((completion, qp)) = completion else { continue };
            let lane = || {
                let qp = qp.upgrade();
                let lane = qp.as_ref().map_or(0, |qp| qp.lane());
                kept.borrow_mut().push(qp);
                lane
            };
            if self.cq.push_from(lane, completion).is_err() {
                lost.push(qp);
            }
        }
        drop(inner); // before upgrade(): dropping the last reference to a queue pair locks `inner`
        lost.iter().filter_map(Weak::upgrade).for_each(|qp| qp.on_completion_lost());
    }

    /// Drops the completions of a queue pair, which is being destroyed, that wait for earlier requests.
    pub(super) fn purge(&self, qp: u32) {
        for slot in &mut lock(&self.inner).order {
            if let Slot::Done(completion) = slot {
                completion.take_if(|(completion, _)| completion.qp == qp);
            }
        }
    }

    /// Lends a ring to a queue pair that gets its first request.
    pub(super) fn lend_ring(&self) -> Ring {
        lock(&self.inner).rings.pop().unwrap_or_default()
    }

    /// Takes back the ring of a queue pair without requests.
    pub(super) fn take_back_ring(&self, ring: Ring) {
        let mut inner = lock(&self.inner);
        if inner.rings.len() < MAX_SPARE_RINGS {
            inner.rings.push(ring);
        }
    }
}

impl Inner {
    /// Appends a request in the order of transmission. Returns its number.
    fn append(&mut self, slot: Slot) -> u64 {
        self.order.push_back(slot);
        self.completed + self.order.len() as u64
    }
}
