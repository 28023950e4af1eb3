//! Shared send queues (requirement X7): one send queue that feeds many connections. It is bounded once, and its completions come
//! in the order of transmission, whichever connection each was for.
//!
//! A request is transmitted when the link has taken the last byte of its message, or when it was executed if nothing leaves for
//! it. Those of one connection are transmitted in the order of posting. A connection that cannot send now (its socket is full, a
//! fence, memory that is being registered) does not hold up those of others: they are transmitted before, and complete before.
//! What was transmitted completes in that order, so a completion may wait for that of another connection. Requests that are
//! flushed without having been transmitted count as transmitted then. One whose completion has no room ends its connection, as with a
//! send queue of its own (requirement I5).
//!
//! A queue pair keeps its requests while they are outstanding, in a ring that is lent to it for that time: one that has none
//! has no ring. Before this: `send.rs`, which says what was transmitted and what is done; after: the completion queue.

use super::send::Entry;
use super::{Completion, Cq, WorkRequest};
use crate::error::PostError;
use crate::qp::Qp;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// So many rings are kept for the next who needs one.
const SPARE: usize = 64;

/// A shared send queue (SSQ).
#[derive(Debug)]
pub struct SharedSendQueue {
    depth: usize,
    cq: Arc<Cq>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Posted, and not completed.
    outstanding: usize,
    /// The number of the first of `order`, less one.
    before: u64,
    /// What was transmitted and has not completed, in order.
    order: VecDeque<Slot>,
    rings: Vec<Ring>,
}

/// For requests, and for their numbers.
pub(super) type Ring = (VecDeque<Entry>, VecDeque<u64>);

/// What is known of a request that was transmitted.
#[derive(Debug)]
enum Slot {
    Outstanding,
    /// Whatever came before it has to complete first. No completion: none is wanted.
    Done(Option<Due>),
}

/// A completion, and whose it is: who has it completed may be another queue pair.
pub(super) type Due = (Completion, Weak<Qp>);

impl SharedSendQueue {
    /// An empty queue for `depth` requests, which complete on `cq`.
    pub fn new(depth: usize, cq: &Arc<Cq>) -> Arc<Self> {
        Arc::new(Self { depth, cq: Arc::clone(cq), inner: Mutex::default() })
    }

    /// How many requests it holds.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// How many requests are posted, and have not completed.
    pub fn outstanding(&self) -> usize {
        lock(&self.inner).outstanding
    }

    /// Posts requests for a queue pair that it feeds, all or none, and sends what can be sent at once.
    pub fn post(&self, qp: &Qp, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        qp.post_shared(self, requests)
    }

    /// Takes a place for one request.
    pub(super) fn reserve(&self) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if inner.outstanding == self.depth {
            return Err(PostError::Full { capacity: self.depth });
        }
        inner.outstanding += 1;
        Ok(())
    }

    /// Gives places back that were not used.
    pub(super) fn release(&self, places: usize) {
        lock(&self.inner).outstanding -= places;
    }

    /// A request was transmitted: its number, from one on.
    pub(super) fn transmitted(&self) -> u64 {
        lock(&self.inner).append(Slot::Outstanding)
    }

    /// A request is done. `number` is zero if it was not transmitted. What has its turn completes.
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
            inner.outstanding -= 1; // before the completion is seen: then there is room
            if let Some((completion, qp)) = completion
                && self.cq.push(completion).is_err()
            {
                lost.push(qp);
            }
        }
        drop(inner); // a queue pair that goes with this comes here once more
        lost.iter().filter_map(Weak::upgrade).for_each(|qp| qp.overran());
    }

    /// Nobody wants to hear of this queue pair any more.
    pub(super) fn purge(&self, qp: u32) {
        for slot in &mut lock(&self.inner).order {
            if let Slot::Done(completion) = slot {
                completion.take_if(|(completion, _)| completion.qp == qp);
            }
        }
    }

    /// A ring for a queue pair that has a request from now on.
    pub(super) fn lend(&self) -> Ring {
        lock(&self.inner).rings.pop().unwrap_or_default()
    }

    /// It has none any more.
    pub(super) fn take_back(&self, ring: Ring) {
        let mut inner = lock(&self.inner);
        if inner.rings.len() < SPARE {
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
