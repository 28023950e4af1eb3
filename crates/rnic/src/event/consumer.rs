//! The program's end of an event queue: the queue and its descriptor. Threads of the adapter write to the
//! [`EventQueue`]; threads of the program take events from the [`Consumer`].
//!
//! The descriptor is readable exactly while [`Consumer::try_next`] returns an event: programs wait for the former
//! and then rely on the latter. An event therefore does not count before its wakeup is done, and the queue is
//! armed again when the last event was taken. It is either unarmed, woken and not empty, or armed, not woken
//! and empty, except during a call.

use super::code::Event;
use super::queue::{EventQueue, PostEventError, QueueState, Reader, Sizes, Ticket};
use super::wake::{Timer, Wake};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;

/// An event queue with its reader, usable by any number of threads.
#[derive(Debug)]
pub struct Consumer {
    queue: Arc<EventQueue>,
    /// Writers do not use this lock, and no thread blocks while holding it.
    reader: Mutex<Reader>,
}

impl Consumer {
    /// Creates an empty queue. The consumer is not woken before [`open`](Self::open).
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> Self {
        let (queue, reader) = EventQueue::new(number, sizes, wake);
        Self { queue, reader: Mutex::new(reader) }
    }

    /// Arms the queue for the first time.
    pub fn open(&self) {
        lock(&self.reader).arm();
    }

    /// The event queue.
    pub fn queue(&self) -> &Arc<EventQueue> {
        &self.queue
    }

    /// Writes an event.
    pub fn post(&self, event: Event) -> Result<Ticket, PostEventError> {
        self.queue.post(event)
    }

    /// Takes the oldest event, if there is one. Does not block.
    pub fn try_next(&self) -> Option<Event> {
        if self.queue.state() == QueueState::Armed {
            return None;
        }
        let mut reader = lock(&self.reader);
        if !self.queue.is_woken() {
            // The descriptor may be readable already, with its writer about to set the flag.
            self.queue.await_writer();
        }
        while self.queue.is_woken() {
            let event = reader.take();
            if reader.is_empty() {
                self.consume_wake_and_arm(&mut reader);
            } else {
                reader.advance();
            }
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Removes the events selected by `of`, and returns their number. For an object that is being destroyed
    /// and raises no more events.
    pub fn revoke(&self, of: impl FnMut(Event) -> bool) -> usize {
        let mut reader = lock(&self.reader);
        let revoked = reader.revoke(of);
        if revoked > 0 && self.queue.is_woken() && reader.is_empty() {
            self.consume_wake_and_arm(&mut reader);
        } else {
            reader.advance();
        }
        revoked
    }

    /// Wakes the consumer at most once per interval (requirement I10). `None` removes the limit.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.queue.moderate(moderation);
    }

    /// Makes the descriptor unreadable and arms the queue for the next wakeup.
    fn consume_wake_and_arm(&self, reader: &mut Reader) {
        self.queue.consume_wake();
        reader.arm();
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
