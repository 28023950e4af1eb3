//! A channel of events that carry more than an event queue's entry has room for: those of connections. Before this: whoever
//! found that an event is due; after: the program's thread, woken through a file descriptor.

use super::Wake;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;

/// A queue of events, each of which one thread takes.
///
/// It has no bound of its own, because it must lose nothing (requirement I5) and an event cannot wait outside. Whoever
/// pushes has one: a connection has three events in its life.
#[derive(Debug)]
pub struct Channel<E> {
    events: Mutex<VecDeque<E>>,
    wake: Box<dyn Wake>,
}

impl<E> Channel<E> {
    /// An empty channel that makes itself noticed through `wake`.
    pub fn new(wake: Box<dyn Wake>) -> Self {
        Self { events: Mutex::new(VecDeque::new()), wake }
    }

    /// Appends an event. It is signalled by itself, even if others wait before it, as programs that watch the descriptor
    /// for edges expect.
    pub fn push(&self, event: E) {
        let mut events = lock(&self.events);
        events.push_back(event);
        // Locked, here and below: whenever the lock is free there are as many signals as events. Otherwise a thread
        // could take the event before its signal, which would then stand for nothing.
        self.wake.signal();
    }

    /// Takes the oldest event, if there is one.
    pub fn next(&self) -> Option<E> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        self.wake.consume();
        Some(event)
    }

    /// Takes back the events that `of` chooses, and returns how many: those of a queue that is destroyed, once it has no
    /// handler any more.
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
