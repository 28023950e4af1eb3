//! What a program takes events from: an event queue, and its descriptor. Before this: [`EventQueue`], which threads of the
//! adapter write to. After it: the program's threads.
//!
//! The descriptor is readable exactly while [`Consumer::next`] has something: programs wait for the one and then rely on
//! the other. So an event does not count before its wake is done, and the queue is armed again when the last was taken:
//! then it is unarmed, woken and not empty, or armed, not woken and empty, and nothing else for longer than a call.

use super::code::Event;
use super::queue::{EventQueue, QueueState, Reader, Refused, Sizes, Ticket};
use super::wake::{Timer, Wake};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;

/// An event queue with its reader, for any number of threads.
#[derive(Debug)]
pub struct Consumer {
    queue: Arc<EventQueue>,
    /// Writers know nothing of this lock, and nobody waits while holding it.
    reader: Mutex<Reader>,
}

impl Consumer {
    /// An empty queue. Nobody is woken before it is [opened](Self::open).
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> Self {
        let (queue, reader) = EventQueue::new(number, sizes, wake);
        Self { queue, reader: Mutex::new(reader) }
    }

    /// Arms the queue for the first time.
    pub fn open(&self) {
        lock(&self.reader).arm();
    }

    /// The queue itself.
    pub fn queue(&self) -> &Arc<EventQueue> {
        &self.queue
    }

    /// Writes an event.
    pub fn post(&self, event: Event) -> Result<Ticket, Refused> {
        self.queue.post(event)
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn next(&self) -> Option<Event> {
        if self.queue.state() == QueueState::Armed {
            return None;
        }
        let mut reader = lock(&self.reader);
        if !self.queue.is_woken() {
            // The descriptor may be readable already, and its writer about to say so.
            self.queue.await_writer();
        }
        while self.queue.is_woken() {
            let event = reader.take();
            if reader.is_empty() {
                self.rest(&mut reader);
            } else {
                reader.advance();
            }
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Takes back the events that `of` chooses, and returns how many: those of an object that is destroyed, once it raises
    /// none any more.
    pub fn revoke(&self, of: impl FnMut(Event) -> bool) -> usize {
        let mut reader = lock(&self.reader);
        let revoked = reader.revoke(of);
        if revoked > 0 && self.queue.is_woken() && reader.is_empty() {
            self.rest(&mut reader);
        } else {
            reader.advance();
        }
        revoked
    }

    /// At most one wake in each interval (requirement I10).
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.queue.moderate(moderation);
    }

    /// The descriptor is readable no more, until the wake that is asked for.
    fn rest(&self, reader: &mut Reader) {
        self.queue.consume_wake();
        reader.arm();
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
