//! The program's end of an event queue, with a descriptor to wait on. Threads of the adapter write events to the
//! [`EventQueue`]; threads of the program take events from the [`Consumer`].
//!
//! The descriptor is readable exactly while [`Consumer::try_next`] returns an event: a program that finds the
//! descriptor readable relies on getting an event. [`Consumer::try_next`] therefore returns an event only after the
//! reader was woken for it, and arms the queue again when the last event was taken. Between calls, the queue is
//! either unarmed, woken and not empty, or armed, not woken and empty (except for events held back by moderation).
//!
//! A program that would rather not be woken for a while [polls](Consumer::poll_one), which leaves the queue unarmed,
//! and decides itself when to [arm](Consumer::arm) it again (requirement I10).

use super::code::Event;
use super::queue::{EventQueue, PostEventError, QueueState, Sizes, Ticket};
use super::reader::Reader;
use super::wake::{Timer, Wake};
use crate::broken;
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;

/// An event queue with its reader, usable by any number of threads.
#[derive(Debug)]
pub struct Consumer {
    queue: Arc<EventQueue>,
    /// Writers do not take this lock. A thread that holds it never blocks for long.
    reader: Mutex<Reader>,
}

impl Consumer {
    /// Creates an undefined event queue, which wakes the consumer through `wake`.
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> Self {
        let (queue, reader) = Reader::new(number, sizes, wake);
        Self { queue, reader: Mutex::new(reader) }
    }

    /// Gives the queue memory and arms it, so that events wake the consumer. Has no effect if the queue has memory: the
    /// consumer may be [polling](Self::poll_one).
    pub fn open(&self) {
        let mut reader = lock(&self.reader);
        if self.queue.define() {
            reader.arm();
        }
    }

    /// Arms the queue, unless it is armed or the consumer was woken for an event that was not taken. Events that came
    /// before wake the consumer at once.
    pub fn arm(&self) {
        if self.queue.state() == QueueState::Armed {
            return;
        }
        let mut reader = lock(&self.reader);
        if !self.is_woken() && !broken::is("late") {
            reader.arm();
        }
    }

    /// Returns the event queue.
    pub fn queue(&self) -> &Arc<EventQueue> {
        &self.queue
    }

    /// Writes an event of this lane to the queue.
    pub fn post_from(&self, lane: u16, event: Event) -> Result<Ticket, PostEventError> {
        self.queue.post_from(lane, event)
    }

    /// Writes an event of the default lane to the queue.
    pub fn post(&self, event: Event) -> Result<Ticket, PostEventError> {
        self.queue.post(event)
    }

    /// Takes the oldest event, if there is one. Does not block.
    pub fn try_next(&self) -> Option<Event> {
        // The reader of an armed queue was not woken, so there is no event to return. Spares polling threads the lock.
        if self.queue.state() == QueueState::Armed {
            return None;
        }
        let mut reader = lock(&self.reader);
        while self.is_woken() {
            // `None` if the event was revoked: then arm the queue, which may wake the reader for a newer event.
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

    /// Takes the oldest event, if there is one, whether the consumer was woken for it or not. Does not block. Leaves the
    /// queue unarmed and its descriptor unreadable: there are no wakeups until the program [arms](Self::arm) the queue.
    pub fn poll_one(&self) -> Option<Event> {
        let mut reader = lock(&self.reader);
        self.stop_wakeups(&mut reader);
        let event = reader.take();
        reader.advance();
        event
    }

    /// Unarms the queue and makes its descriptor unreadable, until the program [arms](Self::arm) the queue.
    pub fn unarm(&self) {
        self.stop_wakeups(&mut lock(&self.reader));
    }

    /// Removes the events that `select` returns true for, and returns their number. For events of an object that is
    /// being destroyed and raises no more events.
    pub fn revoke(&self, select: impl FnMut(Event) -> bool) -> usize {
        let mut reader = lock(&self.reader);
        let revoked = reader.revoke(select);
        if revoked > 0 && self.queue.is_woken() && reader.is_empty() {
            self.consume_wake_and_arm(&mut reader);
        } else {
            reader.advance();
        }
        revoked
    }

    /// Limits wakeups of the consumer to one per interval (requirement I10). `None` removes the limit.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.queue.moderate(moderation);
    }

    /// Returns whether the consumer was woken, and has not consumed the wakeup. Call with the reader locked.
    fn is_woken(&self) -> bool {
        self.queue.is_woken() || {
            // A writer may have made the descriptor readable and not yet set the flag.
            self.queue.await_writer();
            self.queue.is_woken()
        }
    }

    /// Unarms the queue, without a valid read indicator: nothing was taken. Makes the descriptor unreadable. An undefined
    /// queue gets its memory, because [`open`](Self::open) would arm it later.
    fn stop_wakeups(&self, reader: &mut Reader) {
        if self.queue.state() == QueueState::Undefined {
            self.queue.define();
        }
        reader.write(false, false);
        if self.is_woken() {
            self.queue.consume_wake();
        }
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
