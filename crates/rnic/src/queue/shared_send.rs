//! Shared send queues (requirement X7): one send queue that feeds many connections. It has one bound, and its
//! completions come in the order of transmission, across all connections.
//!
//! A request is transmitted when the thread that passed the last byte of its message to the link records it, or,
//! if it sends nothing, when it was executed. The requests of one connection are transmitted in the order of
//! posting. A connection that cannot send (its socket is full, a fence, memory that is still being registered)
//! does not hold up the others: their requests are transmitted, and complete, before its own. The same applies
//! while another thread drives the tx half of a connection: a post leaves its requests to that thread. Completion
//! follows the order of transmission, so it may wait for another connection. Requests that are flushed without
//! having been transmitted, or acknowledged before their transmission is recorded, count as transmitted then. If
//! a completion does not fit its completion queue, its connection ends, as with a send queue of its own
//! (requirement I5).
//!
//! A queue pair holds its outstanding requests in a ring that is lent to it for that time: without requests, it
//! has no ring.

use super::entry::Entry;
use super::{Completion, Cq, QueueOwner};
use crate::error::PostError;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Maximum number of rings kept for reuse.
const MAX_SPARE_RINGS: usize = 64;

/// A shared send queue (SSQ).
#[derive(Debug)]
pub struct SharedSendQueue {
    depth: usize,
    cq: Arc<Cq>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Number of requests posted and not complete.
    outstanding: usize,
    /// The number of the first element of `order`, minus one.
    before: u64,
    /// Requests that were transmitted and have not completed, in order.
    order: VecDeque<Slot>,
    rings: Vec<Ring>,
}

/// A ring of requests, and of their transmission numbers.
pub(super) type Ring = (VecDeque<Entry>, VecDeque<u64>);

/// A request that was transmitted.
#[derive(Debug)]
enum Slot {
    Outstanding,
    /// The request is done, but everything before it has to complete first. `None` if it needs no completion.
    Done(Option<Due>),
}

/// A completion and its queue pair, which may differ from the one that causes it to complete.
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

    /// Reserves room for one request.
    pub(super) fn reserve(&self) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if inner.outstanding == self.depth {
            return Err(PostError::Full { capacity: self.depth });
        }
        inner.outstanding += 1;
        Ok(())
    }

    /// Releases room that was not used.
    pub(super) fn release(&self, places: usize) {
        lock(&self.inner).outstanding -= places;
    }

    /// A request was transmitted. Returns its number, counted from one.
    pub(super) fn record_transmission(&self) -> u64 {
        lock(&self.inner).append(Slot::Outstanding)
    }

    /// A request is done. `number` is zero if it was not transmitted. Completes the requests whose turn has come.
    pub(super) fn finish(&self, number: u64, completion: Option<Due>) {
        let mut lost = Vec::new();
        let mut inner = lock(&self.inner);
        let index = number.checked_sub(inner.before + 1).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| inner.order.get_mut(index)) {
            Some(slot) => *slot = Slot::Done(completion),
            None => {
                inner.append(Slot::Done(completion));
            }
        }
        while let Some(Slot::Done(completion)) = inner.order.front_mut() {
            let completion = completion.take();
            inner.order.pop_front();
            inner.before += 1;
            inner.outstanding -= 1; // before the completion can be seen, so that there is room then
            if let Some((completion, qp)) = completion
                && self.cq.push(completion).is_err()
            {
                lost.push(qp);
            }
        }
        drop(inner); // dropping the last reference to a queue pair locks it again
        lost.iter().filter_map(Weak::upgrade).for_each(|qp| qp.on_completion_lost());
    }

    /// Drops the completions of a queue pair that is being destroyed.
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
    fn append(&mut self, slot: Slot) -> u64 {
        self.order.push_back(slot);
        self.before + self.order.len() as u64
    }
}
