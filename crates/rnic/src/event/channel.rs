//! A channel for connection events, which carry more than an entry of an event queue can hold. The program's
//! thread is woken through a file descriptor.

use super::Wake;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;

/// A queue of events, each of which is taken by one thread.
///
/// It is unbounded, because it must not lose events (requirement I5) and has nowhere else to keep them. The
/// number of events is bounded by their source: a connection has three in its lifetime.
#[derive(Debug)]
pub struct Channel<E> {
    events: Mutex<VecDeque<E>>,
    wake: Box<dyn Wake>,
}

impl<E> Channel<E> {
    /// Creates an empty channel that wakes its consumer through `wake`.
    pub fn new(wake: Box<dyn Wake>) -> Self {
        Self { events: Mutex::new(VecDeque::new()), wake }
    }

    /// Appends an event and signals it, even if other events are pending, as programs that use edge-triggered
    /// polling expect.
    pub fn push(&self, event: E) {
        let mut events = lock(&self.events);
        events.push_back(event);
        // Signal with the lock held, here and below, so that there are as many signals as events whenever the
        // lock is free. Otherwise a thread could take an event before its signal, which would then announce
        // nothing.
        self.wake.signal();
    }

    /// Takes the oldest event, if there is one.
    pub fn try_next(&self) -> Option<E> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        self.wake.consume();
        Some(event)
    }

    /// Removes the events selected by `of`, and returns their number. For an object that is being destroyed
    /// and raises no more events.
    pub fn revoke(&self, mut of: impl FnMut(&E) -> bool) -> usize {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|event| !of(event));
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
