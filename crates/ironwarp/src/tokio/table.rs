//! The requests of a driver that have not completed, or whose completion nobody has taken.
//!
//! The identifier of a work request is the index of its slot and the generation of the slot, so that a completion never
//! reaches a later request in the same slot. The lock is held neither while a task waits, nor while buffers are dropped
//! or tasks are woken: both run code of others.

use super::buffers::Held;
use super::error::Error;
use super::inbox::Inbox;
use crate::completion::CompletionQueue;
use ::tokio::sync::Notify;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::queue::Completion;
use ironwarp_rnic::sync::lock;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};

/// The requests of a driver. Queue pairs, futures and the driver's task share it. It keeps no adapter alive, except
/// through buffers.
#[derive(Debug)]
pub(super) struct Table {
    state: Mutex<State>,
    /// Wakes the driver's task, to check whether it is still needed.
    pub(super) changed: Arc<Changed>,
}

/// Wakes the driver's task.
#[derive(Debug, Default)]
pub(super) struct Changed(pub(super) Notify);

impl Wake for Changed {
    fn signal(&self) {
        self.0.notify_one();
    }

    fn consume(&self) {}
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    /// Indices of free slots.
    free: Vec<u32>,
    /// Number of requests that have not completed.
    waiting: usize,
    /// How many of them are receives of shared receive queues.
    waiting_shared: usize,
    /// Capacity of the completion queue. At least `waiting`, so that the queue cannot overflow.
    capacity: usize,
    /// Numbers of the queue pairs that have a connection, or try to connect.
    open: HashSet<u32>,
    /// The receive queues.
    inboxes: Vec<Weak<Inbox>>,
    /// Why the driver has ended; `None` while it runs.
    ended: Option<Error>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    content: Content,
}

#[derive(Debug, Default)]
enum Content {
    #[default]
    Free,
    /// The request has not completed.
    Waiting {
        /// The queue pair that it was posted to; `None` for a shared receive queue.
        qp: Option<u32>,
        held: Held,
        waiter: Waiter,
    },
    /// The request has completed, and its future was not polled since.
    Done(Completion, Held),
}

/// What happens with a completion.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A future takes it. It has the waker of the task that polled the future last.
    Future(Option<Waker>),
    /// The future was dropped.
    Nobody,
    /// The receive queue takes it.
    Inbox(Arc<Inbox>),
}

impl Table {
    pub(super) fn new(cq: &CompletionQueue) -> Self {
        let state = State { capacity: cq.capacity(), ..State::default() };
        Self { state: Mutex::new(state), changed: Arc::default() }
    }

    /// Adds a request that is about to be posted, and returns its identifier. Makes room for its completion in `cq`.
    #[expect(clippy::result_large_err, reason = "the buffers are returned, and the driver ends once")]
    pub(super) fn insert(
        &self,
        cq: &CompletionQueue,
        qp: Option<u32>,
        held: Held,
        waiter: Waiter,
    ) -> Result<u64, (Error, Held)> {
        let mut state = lock(&self.state);
        if let Some(ended) = &state.ended {
            return Err((ended.clone(), held));
        }
        if state.waiting == state.capacity {
            let capacity = 2 * state.capacity;
            // Fails only for a smaller capacity.
            let _ = cq.resize(capacity);
            state.capacity = capacity;
        }
        let index = match state.free.pop() {
            Some(index) => index,
            None => {
                state.slots.push(Slot::default());
                u32::try_from(state.slots.len() - 1).expect("memory for fewer requests")
            }
        };
        state.waiting += 1;
        state.waiting_shared += usize::from(qp.is_none());
        let slot = &mut state.slots[index as usize];
        slot.content = Content::Waiting { qp, held, waiter };
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Adds a receive queue, which is told when the driver ends.
    pub(super) fn add_inbox(&self, inbox: &Arc<Inbox>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.ended.clone().map_or(Ok(()), Err)?;
        state.inboxes.retain(|known| known.strong_count() > 0);
        state.inboxes.push(Arc::downgrade(inbox));
        Ok(())
    }

    /// Removes a request that was not posted. If the driver has ended meanwhile, the buffers may be [`Held::Released`],
    /// and the waiter is [`Waiter::Nobody`].
    pub(super) fn remove(&self, id: u64) -> Option<(Held, Waiter)> {
        let mut state = lock(&self.state);
        let taken = state.take_waiting(id, |_| true);
        state.free_slot(id);
        taken
    }

    /// Passes completions to those that wait for them. Empties `batch`.
    pub(super) fn complete(&self, batch: &mut Vec<Completion>) {
        let mut wakers = Vec::new();
        let mut delivered = Vec::new();
        let mut dropped = Vec::new();
        {
            let mut state = lock(&self.state);
            for completion in batch.drain(..) {
                // A completion without a request is one of a request that the driver did not post.
                let id = completion.wr_id;
                let is_own = |qp: Option<u32>| qp.is_none_or(|qp| qp == completion.qp);
                let Some((held, waiter)) = state.take_waiting(id, is_own) else { continue };
                if let Waiter::Future(waker) = waiter {
                    wakers.extend(waker);
                    state.slot(id).expect("it was just emptied").content = Content::Done(completion, held);
                    continue;
                }
                state.free_slot(id);
                match waiter {
                    Waiter::Inbox(inbox) => delivered.push((inbox, completion, held)),
                    _ => dropped.push(held),
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        for (inbox, completion, held) in delivered {
            if let Held::One(chunk) = held {
                inbox.deliver(completion, chunk);
            }
        }
        drop(dropped);
    }

    /// Returns the completion and the buffers of a request. If it has not completed, its completion wakes `waker`.
    /// Fails if the driver has ended.
    pub(super) fn poll(&self, id: u64, waker: &Waker) -> Poll<Result<(Completion, Held), Error>> {
        let mut state = lock(&self.state);
        let ended = state.ended.clone();
        match state.slot(id).map(|slot| &mut slot.content) {
            Some(Content::Done(..)) => Poll::Ready(Ok(state.take_done(id).expect("it is `Done`"))),
            Some(Content::Waiting { waiter, .. }) => match ended {
                Some(error) => {
                    *waiter = Waiter::Nobody;
                    Poll::Ready(Err(error))
                }
                None => {
                    match waiter {
                        Waiter::Future(Some(known)) => known.clone_from(waker),
                        waiter => *waiter = Waiter::Future(Some(waker.clone())),
                    }
                    Poll::Pending
                }
            },
            // Only a driver that has ended releases a request before its future takes it.
            Some(Content::Free) | None => Poll::Ready(Err(ended.unwrap_or(Error::RuntimeShutDown))),
        }
    }

    /// Records that the future of a request was dropped.
    pub(super) fn abandon(&self, id: u64) {
        let mut state = lock(&self.state);
        let done = state.take_done(id);
        let waker = match state.slot(id).map(|slot| &mut slot.content) {
            Some(Content::Waiting { waiter, .. }) => Some(std::mem::replace(waiter, Waiter::Nobody)),
            _ => None,
        };
        drop(state); // before the buffers and the waker are dropped
        drop((done, waker));
    }

    /// Records that a queue pair starts to connect. Returns false if it did before, and is not closed. Fails if the
    /// driver has ended: it may have released the buffers of the queue pair's receives.
    pub(super) fn open(&self, qp: u32) -> Result<bool, Error> {
        let mut state = lock(&self.state);
        state.ended.clone().map_or(Ok(()), Err)?;
        Ok(state.open.insert(qp))
    }

    /// Returns whether a queue pair has a connection, or tries to connect.
    pub(super) fn is_open(&self, qp: u32) -> bool {
        lock(&self.state).open.contains(&qp)
    }

    /// Records that the connection of a queue pair is closed, or was not established: the adapter does not use the
    /// buffers of its requests any more.
    pub(super) fn close(&self, qp: u32) {
        let mut state = lock(&self.state);
        state.open.remove(&qp);
        let released = if state.ended.is_some() { state.release() } else { Vec::new() };
        drop(state);
        drop(released);
        self.changed.signal();
    }

    /// Returns whether no request and no connection needs the driver. Receives of shared receive queues do not: without
    /// a connection they never complete.
    pub(super) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.waiting == state.waiting_shared && state.open.is_empty()
    }

    /// Records that the driver has ended: all requests fail with this error. Their buffers stay here until the adapter
    /// does not use them any more.
    pub(super) fn end(&self, error: Error) {
        let mut wakers = Vec::new();
        let mut posted = Vec::new();
        let mut state = lock(&self.state);
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(error.clone());
        for slot in &mut state.slots {
            if let Content::Waiting { waiter, .. } = &mut slot.content {
                match std::mem::replace(waiter, Waiter::Nobody) {
                    Waiter::Future(waker) => wakers.extend(waker),
                    Waiter::Inbox(inbox) => posted.push(inbox),
                    Waiter::Nobody => {}
                }
            }
        }
        let (released, inboxes) = (state.release(), std::mem::take(&mut state.inboxes));
        drop(state);
        drop(released);
        wakers.into_iter().for_each(Waker::wake);
        let inboxes = inboxes.iter().filter_map(Weak::upgrade);
        inboxes.for_each(|inbox| inbox.end(Some(error.clone())));
        posted.iter().for_each(|inbox| inbox.remove_posted());
    }
}

impl State {
    /// Returns the slot of a request, unless another request has it by now.
    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::try_from(id & u64::from(u32::MAX)).ok()?)?;
        (u64::from(slot.generation) == id >> 32).then_some(slot)
    }

    /// Takes a request that has not completed out of its slot, if `is_own` accepts the queue pair it was posted to
    /// (`None`: a shared receive queue). The slot stays reserved.
    fn take_waiting(&mut self, id: u64, is_own: impl Fn(Option<u32>) -> bool) -> Option<(Held, Waiter)> {
        let slot = self.slot(id)?;
        match std::mem::take(&mut slot.content) {
            Content::Waiting { qp, held, waiter } if is_own(qp) => {
                self.waiting -= 1;
                self.waiting_shared -= usize::from(qp.is_none());
                Some((held, waiter))
            }
            other => {
                slot.content = other;
                None
            }
        }
    }

    /// Takes a completed request out of its slot, and frees the slot.
    fn take_done(&mut self, id: u64) -> Option<(Completion, Held)> {
        let slot = self.slot(id)?;
        match std::mem::take(&mut slot.content) {
            Content::Done(completion, held) => {
                self.free_slot(id);
                Some((completion, held))
            }
            other => {
                slot.content = other;
                None
            }
        }
    }

    /// Makes an empty slot available to the next request.
    fn free_slot(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(u32::try_from(id & u64::from(u32::MAX)).expect("masked"));
    }

    /// Takes the buffers that the adapter does not use any more: those of queue pairs without a connection, and those
    /// of shared receive queues if no queue pair has one. The driver has ended.
    fn release(&mut self) -> Vec<Held> {
        let mut released = Vec::new();
        for slot in &mut self.slots {
            if let Content::Waiting { qp, held, .. } = &mut slot.content
                && qp.map_or(self.open.is_empty(), |qp| !self.open.contains(&qp))
            {
                released.push(std::mem::replace(held, Held::Released));
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapter;
    use ironwarp_rnic::queue::Opcode;

    const QP: u32 = 7;

    /// A program may post requests of its own to the completion queue, with identifiers that the driver has used.
    #[test]
    fn completions_of_other_requests_are_ignored() {
        let cq = Adapter::new().unwrap().completion_queue(1).unwrap();
        let table = Table::new(&cq);
        let complete = |id, qp| table.complete(&mut vec![Completion::succeeded(id, Opcode::Send, qp, 0)]);
        let is_done = |id| table.poll(id, Waker::noop()).is_ready();
        let insert = || table.insert(&cq, Some(QP), Held::None, Waiter::Future(None)).unwrap();

        let first = insert();
        complete(first, QP + 1);
        complete(first + 1, QP);
        assert!(!is_done(first), "another queue pair, and no slot");
        complete(first, QP);
        complete(first, QP);
        assert!(is_done(first));

        let second = insert();
        assert_eq!(second & 0xffff_ffff, first & 0xffff_ffff, "it has the same slot");
        complete(first, QP);
        assert!(!is_done(second));
        table.abandon(first);
        complete(second, QP);
        assert!(is_done(second) && table.is_idle());
    }

    #[test]
    fn the_completion_queue_has_room_for_all_requests() {
        let cq = Adapter::new().unwrap().completion_queue(1).unwrap();
        let table = Table::new(&cq);
        for posted in 1..100 {
            table.insert(&cq, Some(QP), Held::None, Waiter::Nobody).unwrap();
            assert!(cq.capacity() >= posted, "{posted} requests, {} places", cq.capacity());
        }
    }
}
