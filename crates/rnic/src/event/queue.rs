//! Event queues. The adapter writes events into a ring in memory, from which the reader takes them. The reader is
//! woken at most once each time it arms the queue. [`Consumer`](super::Consumer) builds on this.
//!
//! | state (requirement I2) | events | wakeup |
//! |---|---|---|
//! | undefined: shut down, or overflowed | refused | none |
//! | unarmed | written | none |
//! | armed | written | one, as soon as the write indicator is ahead of the read indicator and the moderation timer is not running; the queue is then unarmed |
//!
//! There are many writers, serialised by a lock. The reader takes no lock: it reads entries and writes the
//! [register](super::register). Reader and writers synchronise through that one word: a writer updates the register
//! *after* storing its event, and the reader arms the queue by updating the register *before* it checks whether
//! there are events. Whichever update comes second sees the effect of the first, so its thread wakes the reader.

use super::code::{Cause, Code, Event};
use super::register::Register;
use super::ring::{Entry, Ring};
use super::wake::{Timer, Wake};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
// Not of `crate::sync`: a model need not branch on which vector is woken.
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sizes of the rings of a queue, in entries of 8 bytes. One entry of each ring is reserved for its end marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the first ring.
    pub initial: usize,
    /// Size of the largest ring. A full ring is replaced by one of twice the size, up to this maximum.
    pub max: usize,
}

impl Default for Sizes {
    /// From 512 bytes to 8 MiB.
    fn default() -> Self {
        Self { initial: 64, max: 1 << 20 }
    }
}

/// The state of an event queue (requirement I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Events are refused.
    Undefined,
    /// Events are written, but the reader is not woken.
    Unarmed,
    /// Events are written, and the first wakes the reader.
    Armed,
}

/// State and statistics of an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventQueueStats {
    /// The state of the queue.
    pub state: QueueState,
    /// Number of events written.
    pub written: u64,
    /// Number of events not taken yet.
    pub unread: u64,
    /// Number of times the reader was woken.
    pub wakes: u64,
    /// Number of entries of the current ring.
    pub size: usize,
}

/// Why an event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostEventError {
    /// The queue is undefined: it was shut down, or has overflowed before.
    #[error("the event queue is shut down")]
    Undefined,
    /// The ring is full (requirement I5). The last entry reports the overflow, and the queue is undefined
    /// from now on.
    #[error("the event queue is full and has reached its maximum size")]
    Overflow,
}

/// Identifies an event within its queue: the number of events written up to and including this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The writers' side of an event queue.
#[derive(Debug)]
pub struct EventQueue {
    /// A [`Register`].
    register: AtomicU64,
    /// The write indicator: number of events written.
    written: AtomicU64,
    /// Whether the reader was woken and has not armed the queue since.
    woken: AtomicBool,
    /// Number of times the reader was woken.
    wakes: AtomicU64,
    /// The [`Cause`] of the newest event, which decides only which vector a wakeup signals.
    cause: AtomicU32,
    writer: Mutex<Writer>,
    /// Wakes the reader.
    wake: Box<dyn Wake>,
    /// The minimum time between two wakeups, and the timer that measures it. `None` without moderation.
    moderation: Mutex<Option<(Duration, Arc<dyn Timer>)>>,
}

/// The state of the writers.
#[derive(Debug)]
struct Writer {
    /// The ring that events are written to.
    ring: Arc<Ring>,
    /// Size of the largest ring, in entries.
    max_size: usize,
    /// Number of events written to this ring. Modulo its size, the position of the next event.
    filled: usize,
}

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
    /// Number of events taken or revoked since the reader last updated the register.
    taken: u64,
}

impl EventQueue {
    /// Creates an unarmed queue that wakes its reader through `wake`, and its reader.
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> (Arc<Self>, Reader) {
        assert!(sizes.initial >= 2, "a ring needs room for an event and its end marker");
        assert!(sizes.initial <= sizes.max, "the initial size of a ring exceeds the maximum size");
        let ring = Ring::new(sizes.initial);
        let queue = Arc::new(Self {
            register: AtomicU64::new(Register::new(number).0),
            written: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            cause: AtomicU32::new(Cause { code: Code::Completion, lane: 0 }.to_word()),
            writer: Mutex::new(Writer { ring: Arc::clone(&ring), max_size: sizes.max, filled: 0 }),
            wake,
            moderation: Mutex::new(None),
        });
        let reader = Reader { queue: Arc::clone(&queue), ring, position: 0, kept: VecDeque::new(), taken: 0 };
        (queue, reader)
    }

    /// Returns the number of the queue.
    pub fn number(&self) -> u32 {
        self.register().number()
    }

    /// Returns the state of the queue.
    pub fn state(&self) -> QueueState {
        let register = self.register();
        match (register.is_valid(), register.is_armed()) {
            (false, _) => QueueState::Undefined,
            (true, false) => QueueState::Unarmed,
            (true, true) => QueueState::Armed,
        }
    }

    /// Returns state and statistics. Holds the writers' lock, so that no event is written between two of the values.
    /// The reader takes no lock, and may change some of them meanwhile.
    pub fn stats(&self) -> EventQueueStats {
        let writer = lock(&self.writer);
        let written = self.written.load(Ordering::Acquire);
        let unread = self.register().unread(written);
        EventQueueStats {
            state: self.state(),
            written,
            unread: u64::try_from(unread).unwrap_or_default(), // the reader is never ahead of the writers
            wakes: self.wakes.load(Ordering::Relaxed),
            size: writer.ring.size(),
        }
    }

    /// Writes an event of the default lane: see [`post_from`](Self::post_from).
    pub fn post(&self, event: Event) -> Result<Ticket, PostEventError> {
        self.post_from(0, event)
    }

    /// Writes an event of this lane, and wakes the reader if the queue is armed and the moderation timer is not running.
    pub fn post_from(&self, lane: u16, event: Event) -> Result<Ticket, PostEventError> {
        let mut writer = lock(&self.writer);
        // Acquire: the entries that the reader cleared before it advanced the read indicator are seen as cleared.
        let register = self.register();
        if !register.is_valid() {
            return Err(PostEventError::Undefined);
        }
        let written = self.written.load(Ordering::Relaxed);
        let room = writer.make_room(register.unread(written));
        // Without room for this event, the last entry of the ring reports the overflow instead.
        let event =
            if room { event } else { Event { code: Code::EventQueueOverflow, object: register.number() } };
        writer.put(event);
        let written = written.wrapping_add(1);
        self.cause.store(Cause { code: event.code, lane }.to_word(), Ordering::Relaxed);
        // Release: a thread that sees the new count also sees the event.
        self.written.store(written, Ordering::Release);
        // With the lock held: a thread that takes the lock afterwards (`await_writer`) knows that this wakeup is done.
        self.wake_if_due(written);
        if room {
            return Ok(Ticket(written));
        }
        self.update(Register::invalidate);
        Err(PostEventError::Overflow)
    }

    /// Returns whether the reader has advanced past this event. If false, the reader will take the event later, and will
    /// then see everything that the calling thread did before this call.
    pub fn is_taken(&self, ticket: Ticket) -> bool {
        // Writes the register, although the value does not change: a write is ordered before or after the write by
        // which the reader publishes that it took the event. A load would give no such order.
        self.update(|register| register).unread(ticket.0) <= 0
    }

    /// Shuts the queue down: further events are refused, and writers do not wake the reader any more. Remaining
    /// events can still be taken.
    pub fn shut_down(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::invalidate);
    }

    /// Limits wakeups to one per interval (requirement I10), or removes the limit if `None`. The timer must call
    /// [`on_timer`](Self::on_timer) at the end of the interval. A wakeup that is being held back is delivered now.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        let moderated = moderation.is_some();
        *lock(&self.moderation) = moderation;
        let _writer = lock(&self.writer);
        self.update(|register| register.set_moderated(moderated));
        self.wake_if_unread();
    }

    /// Wakes the reader if a wakeup was held back by moderation. Called when the moderation timer expires.
    pub fn on_timer(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::end_hold);
        self.wake_if_unread();
    }

    /// Returns whether the reader was woken and has not armed the queue since.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Waits until no writer is in the middle of waking the reader.
    pub(super) fn await_writer(&self) {
        drop(lock(&self.writer));
    }

    /// Consumes the wakeup of the reader, so that its descriptor is no longer readable. Call before arming the queue.
    pub(super) fn consume_wake(&self) {
        self.wake.consume();
    }

    /// Wakes the reader if a wakeup is due for existing events. Call after a change of the register.
    fn wake_if_unread(&self) {
        self.wake_if_due(self.written.load(Ordering::Acquire));
    }

    /// Wakes the reader if the queue is armed, the moderation timer is not running, and fewer than `written` events
    /// were read. Of several threads that find this, only the one that unarms the queue wakes the reader. Call with
    /// the writers' lock held, or as the reader.
    fn wake_if_due(&self, written: u64) {
        let before = self.update(|register| register.unarm_if_due(written).unwrap_or(register));
        // Compute the same change again: if there is none, another thread has woken the reader, or it was not due.
        let Some(after) = before.unarm_if_due(written) else { return };
        self.wake_reader();
        if after.is_held()
            && let Some((interval, timer)) = &*lock(&self.moderation)
        {
            timer.start(*interval);
        }
    }

    /// Wakes the reader, whether a wakeup is due or not.
    fn wake_reader(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.wake.signal_for(Cause::from_word(self.cause.load(Ordering::Relaxed)));
        // After the signal: a reader that sees this flag consumes the signal, which must exist by then.
        self.woken.store(true, Ordering::Release);
    }

    /// Returns the value of the register.
    fn register(&self) -> Register {
        Register(self.register.load(Ordering::Acquire))
    }

    /// Applies a change to the register in one atomic step, and returns the previous value. Writes the register even
    /// if its value stays the same.
    fn update(&self, change: impl Fn(Register) -> Register) -> Register {
        let mut before = self.register.load(Ordering::Relaxed);
        loop {
            let after = change(Register(before)).0;
            match self.register.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(before) => return Register(before),
                Err(now) => before = now,
            }
        }
    }
}

impl Writer {
    /// Makes room for one event, in addition to the entry reserved for the end marker. Switches to a larger ring if
    /// needed; `unread` is the number of unread events in all rings. Returns false if the ring is full and has the
    /// maximum size: then there is room for one last entry.
    fn make_room(&mut self, unread: i64) -> bool {
        let unread = usize::try_from(unread).expect("the reader is never ahead of the writers");
        // The newest events are in the current ring.
        let unread_in_ring = unread.min(self.filled);
        if unread_in_ring + 1 < self.ring.size() {
            return true;
        }
        if self.ring.size() >= self.max_size {
            return false;
        }
        let larger = Ring::new((2 * self.ring.size()).min(self.max_size));
        self.ring.store_end_marker(self.filled, Arc::clone(&larger));
        (self.ring, self.filled) = (larger, 0);
        true
    }

    /// Stores an event at the next position of the ring.
    fn put(&mut self, event: Event) {
        self.ring.store_event(self.filled, event);
        self.filled = self.filled.wrapping_add(1);
    }
}

impl Reader {
    /// Takes the next event, whether the queue is armed or not (requirement I4). The event counts as unread until
    /// [`advance`](Self::advance) or [`arm`](Self::arm).
    pub fn take(&mut self) -> Option<Event> {
        let event = self.kept.pop_front().or_else(|| self.pop_entry())?;
        self.taken += 1;
        Some(event)
    }

    /// Returns whether there is no event to take.
    pub fn is_empty(&mut self) -> bool {
        self.kept.is_empty() && self.peek_entry() == Entry::Empty
    }

    /// Advances the read indicator by the number of events taken, in one atomic step.
    pub fn advance(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.update(|register| register.advance(by));
    }

    /// Advances the read indicator and arms the queue, in one atomic step (requirement I3). If there is an event
    /// already, wakes the reader at once.
    pub fn arm(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.woken.store(false, Ordering::Relaxed);
        let before = self.queue.update(|register| register.advance(by).arm());
        if before.is_valid() {
            self.queue.wake_if_unread();
        } else if !self.is_empty() {
            // The queue is undefined and cannot be armed. Wake the reader for the remaining events.
            self.queue.wake_reader();
        }
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
        let entry = self.ring.get(self.position);
        if entry != Entry::Moved {
            return entry;
        }
        (self.ring, self.position) = (self.ring.next(), 0);
        self.peek_entry()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
