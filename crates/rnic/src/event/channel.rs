//! A channel for connection events, which are larger than an entry of an event queue. The program's thread is woken
//! through a file descriptor.

use super::Wake;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;

/// A first-in first-out queue of events. Any number of threads may append and take events.
///
/// The queue is unbounded, because no event may be lost (requirement I5). The sources of events bound their number:
/// a connection raises at most three in its lifetime.
#[derive(Debug)]
pub struct Channel<E> {
    events: Mutex<VecDeque<E>>,
    /// A semaphore that counts the events in the queue.
    wake: Box<dyn Wake>,
}

impl<E> Channel<E> {
    /// Creates an empty channel that wakes its consumer through `wake`.
    pub fn new(wake: Box<dyn Wake>) -> Self {
        Self { events: Mutex::new(VecDeque::new()), wake }
    }

    /// Appends an event and wakes the consumer, even if other events are pending: programs that use edge-triggered
    /// polling expect a wakeup for each.
    pub fn push(&self, event: E) {
        let mut events = lock(&self.events);
        events.push_back(event);
        // Signal with the lock held, here and below, so that there are as many signals as events whenever the lock
        // is free. Otherwise a thread could take the event before it is signalled, and the descriptor would become
        // readable without an event.
        self.wake.signal();
    }

    /// Takes the oldest event, if there is one.
    pub fn try_next(&self) -> Option<E> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        self.wake.consume();
        Some(event)
    }

    /// Removes the events that `select` returns true for, and returns their number. For events of an object that is
    /// being destroyed and raises no more events.
    pub fn revoke(&self, mut select: impl FnMut(&E) -> bool) -> usize {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|event| !select(event));
        let revoked = before - events.len();
        for _ in 0..revoked {
            self.wake.consume();
        }
        revoked
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
