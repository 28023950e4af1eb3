//! The reader's side of an event queue.

use super::code::Event;
use super::queue::{EventQueue, Sizes};
use super::register::Command;
use super::ring::{Entry, Ring};
use super::wake::Wake;
use std::collections::VecDeque;
use std::sync::Arc;

/// The reader's side of an event queue. There is exactly one.
#[derive(Debug)]
pub struct Reader {
    queue: Arc<EventQueue>,
    /// The ring that events are read from: that of the writers, or an older one.
    ring: Arc<Ring>,
    /// The position of the next entry to read.
    position: usize,
    /// Events that `revoke` has removed from the ring but not revoked. They are older than those in the ring.
    kept: VecDeque<Event>,
    /// Number of events taken or revoked that the register does not know of.
    taken: u64,
}

impl Reader {
    /// Creates an undefined queue that wakes its reader through `wake`, and its reader.
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> (Arc<EventQueue>, Self) {
        let (queue, ring) = EventQueue::new(number, sizes, wake);
        let queue = Arc::new(queue);
        let reader = Self { queue: Arc::clone(&queue), ring, position: 0, kept: VecDeque::new(), taken: 0 };
        (queue, reader)
    }

    /// Takes the next event, whether the queue is armed or not (requirement I4). The event counts as unread until it is
    /// [reported](Self::write) or the reader [advances](Self::advance).
    pub fn take(&mut self) -> Option<Event> {
        let event = self.kept.pop_front().or_else(|| self.pop_entry())?;
        self.taken += 1;
        Some(event)
    }

    /// Returns whether there is no event to take.
    pub fn is_empty(&mut self) -> bool {
        self.kept.is_empty() && self.peek_entry() == Entry::Empty
    }

    /// Advances the read indicator by the number of events taken, in one atomic step. The queue stays armed or unarmed.
    pub fn advance(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.advance(by);
    }

    /// Writes the register (requirement I3): arms or unarms the queue and, if `valid`, reports the events taken, in one
    /// atomic step. Otherwise they count as unread until they are reported later, so arming the queue wakes the reader
    /// for them. If there is an event when the queue is armed, wakes the reader at once.
    pub fn write(&mut self, armed: bool, valid: bool) {
        let command = Command::new(self.queue.number(), armed);
        let command = if valid { command.advancing(std::mem::take(&mut self.taken)) } else { command };
        // An undefined queue cannot be armed. Wake the reader for the remaining events.
        if !self.queue.write(command) && armed && !self.is_empty() {
            self.queue.wake_reader();
        }
    }

    /// Reports the events taken, and arms the queue, in one atomic step.
    pub fn arm(&mut self) {
        self.write(true, true);
    }

    /// Removes the events that `select` returns true for, and returns their number. The other events stay, in their
    /// order, and count as unread until they are taken.
    pub(super) fn revoke(&mut self, mut select: impl FnMut(Event) -> bool) -> usize {
        while let Some(event) = self.pop_entry() {
            self.kept.push_back(event);
        }
        let before = self.kept.len();
        self.kept.retain(|event| !select(*event));
        let revoked = before - self.kept.len();
        self.taken += revoked as u64;
        revoked
    }

    /// Removes the next event from the ring and returns it.
    fn pop_entry(&mut self) -> Option<Event> {
        let Entry::Event(event) = self.peek_entry() else { return None };
        self.ring.clear(self.position);
        self.position = self.position.wrapping_add(1);
        Some(event)
    }

    /// Returns the next entry. At the end marker of a ring, continues with the next ring.
    fn peek_entry(&mut self) -> Entry {
        loop {
            let entry = self.ring.get(self.position);
            if entry != Entry::Moved {
                return entry;
            }
            (self.ring, self.position) = (self.ring.next(), 0);
        }
    }
}
