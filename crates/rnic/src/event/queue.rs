//! An event queue: the adapter writes events into a ring in memory, where the reader finds them. The reader
//! is woken at most once each time it arms the queue. [`Consumer`](super::Consumer) builds on it.
//!
//! | state (requirement I2) | events | wakeup |
//! |---|---|---|
//! | undefined: shut down, or overflowed | refused | none |
//! | unarmed | written | none |
//! | armed | written | one, as soon as the write indicator is ahead of the read indicator and the moderation timer is not running; the queue is then unarmed |
//!
//! There are many writers, serialised by a lock. The reader takes no lock: it reads entries and writes the
//! [register](super::register). Reader and writers synchronise through that one word: a writer updates it
//! *after* its event is in the ring, the reader *before* it checks how far was written. Whichever comes
//! second sees what the other did, and wakes the reader.

use super::code::{Code, Event};
use super::register::Register;
use super::ring::{Entry, Ring};
use super::wake::{Timer, Wake};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Sizes of the rings of a queue, in entries. One entry of each ring is reserved for its end marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the first ring.
    pub initial: usize,
    /// Size of the largest ring. Each ring is twice as large as the one before.
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

/// Identifies an event within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The writers' side of an event queue.
#[derive(Debug)]
pub struct EventQueue {
    register: AtomicU64,
    /// The write indicator: number of events written.
    written: AtomicU64,
    /// The reader was woken and has not armed the queue since.
    woken: AtomicBool,
    /// Number of times the reader was woken.
    wakes: AtomicU64,
    writer: Mutex<Writer>,
    wake: Box<dyn Wake>,
    moderation: Mutex<Option<(Duration, Arc<dyn Timer>)>>,
}

#[derive(Debug)]
struct Writer {
    ring: Arc<Ring>,
    max_size: usize,
    /// Number of events written to this ring.
    filled: usize,
}

/// The reader's side of an event queue. There is exactly one.
#[derive(Debug)]
pub struct Reader {
    queue: Arc<EventQueue>,
    ring: Arc<Ring>,
    at: usize,
    /// Events removed from the ring while others were being revoked.
    kept: VecDeque<Event>,
    /// Number of events taken since the register was last updated.
    taken: u64,
}

impl EventQueue {
    /// Creates an unarmed queue that wakes its reader through `wake`.
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> (Arc<Self>, Reader) {
        assert!(
            2 <= sizes.initial && sizes.initial <= sizes.max,
            "a ring needs room for an event and its end marker"
        );
        let ring = Ring::new(sizes.initial);
        let queue = Arc::new(Self {
            register: AtomicU64::new(Register::new(number).0),
            written: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            writer: Mutex::new(Writer { ring: Arc::clone(&ring), max_size: sizes.max, filled: 0 }),
            wake,
            moderation: Mutex::new(None),
        });
        let reader = Reader { queue: Arc::clone(&queue), ring, at: 0, kept: VecDeque::new(), taken: 0 };
        (queue, reader)
    }

    /// The number of the queue.
    pub fn number(&self) -> u32 {
        self.register().number()
    }

    /// The state of the queue.
    pub fn state(&self) -> QueueState {
        let register = self.register();
        match (register.is_valid(), register.is_armed()) {
            (false, _) => QueueState::Undefined,
            (true, false) => QueueState::Unarmed,
            (true, true) => QueueState::Armed,
        }
    }

    /// State and statistics, as consistent with each other as possible.
    pub fn stats(&self) -> EventQueueStats {
        let writer = lock(&self.writer);
        let written = self.written.load(Ordering::Acquire);
        let unread = self.register().unread(written);
        EventQueueStats {
            state: self.state(),
            written,
            unread: u64::try_from(unread).unwrap_or_default(),
            wakes: self.wakes.load(Ordering::Relaxed),
            size: writer.ring.size(),
        }
    }

    /// Writes an event, and wakes the reader if the queue is armed and not held by moderation.
    pub fn post(&self, event: Event) -> Result<Ticket, PostEventError> {
        let mut writer = lock(&self.writer);
        // Acquires the entries that the reader cleared before it advanced the read indicator.
        let register = self.register();
        if !register.is_valid() {
            return Err(PostEventError::Undefined);
        }
        let written = self.written.load(Ordering::Relaxed);
        let room = writer.make_room(register.unread(written));
        let event =
            if room { event } else { Event { code: Code::EventQueueOverflow, object: register.number() } };
        writer.put(event);
        let written = written.wrapping_add(1);
        // Release: a thread that sees the count finds the event.
        self.written.store(written, Ordering::Release);
        // Still locked: a thread that takes the lock afterwards knows that no wakeup is in progress.
        self.fire(written);
        if room {
            return Ok(Ticket(written));
        }
        self.update(Register::undefined);
        Err(PostEventError::Overflow)
    }

    /// Whether the reader has taken this event. If not, it will, and will then see everything that happened
    /// before this call.
    pub fn is_taken(&self, ticket: Ticket) -> bool {
        // An atomic write even though it changes nothing, so that it is ordered before or after the reader's
        // write.
        self.update(|register| register).unread(ticket.0) <= 0
    }

    /// Shuts the queue down: no more events are written and the reader is not woken. Remaining events can
    /// still be taken.
    pub fn shut_down(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::undefined);
    }

    /// Wakes the reader at most once per interval, with `timer` reporting its end (requirement I10). `None`
    /// removes the limit. A wakeup that was held back so far is delivered now.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        let moderated = moderation.is_some();
        *lock(&self.moderation) = moderation;
        let _writer = lock(&self.writer);
        self.update(|register| register.moderated(moderated));
        self.fire_if_ahead();
    }

    /// Called when the moderation timer expires.
    pub fn on_timer(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::expired);
        self.fire_if_ahead();
    }

    /// Whether the reader was woken and has not armed the queue since.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Waits for a writer that may be about to wake the reader.
    pub(super) fn await_writer(&self) {
        drop(lock(&self.writer));
    }

    /// Consumes the wakeup that the reader got, before it arms the queue again.
    pub(super) fn consume_wake(&self) {
        self.wake.consume();
    }

    /// Wakes the reader if, after a change of the register, that is due for existing events.
    fn fire_if_ahead(&self) {
        self.fire(self.written.load(Ordering::Acquire));
    }

    /// Wakes the reader if that is due. Of several threads that find it due, one does. Call with the writers'
    /// lock held, or as the reader.
    fn fire(&self, written: u64) {
        let before = self.update(|register| register.fired(written).unwrap_or(register));
        let Some(after) = before.fired(written) else { return };
        self.wake_reader();
        if after.is_held()
            && let Some((interval, timer)) = &*lock(&self.moderation)
        {
            timer.start(*interval);
        }
    }

    fn wake_reader(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.wake.signal();
        self.woken.store(true, Ordering::Release);
    }

    fn register(&self) -> Register {
        Register(self.register.load(Ordering::Acquire))
    }

    /// Applies a change as a single atomic write, even if nothing changes. Returns the previous value.
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
    /// Switches to a larger ring if the current one has no room for an event and the end marker, given the
    /// total number of unread events. Returns false if the maximum size is reached; there is then room for
    /// one last entry.
    fn make_room(&mut self, unread: i64) -> bool {
        let unread = usize::try_from(unread).expect("the reader is never ahead of the writers");
        let here = unread.min(self.filled);
        if here + 1 < self.ring.size() {
            return true;
        }
        if self.ring.size() >= self.max_size {
            return false;
        }
        let larger = Ring::new((2 * self.ring.size()).min(self.max_size));
        self.ring.end(self.filled, Arc::clone(&larger));
        (self.ring, self.filled) = (larger, 0);
        true
    }

    fn put(&mut self, event: Event) {
        self.ring.put(self.filled, event);
        self.filled = self.filled.wrapping_add(1);
    }
}

impl Reader {
    /// Takes the next event, whether the queue is armed or not (requirement I4).
    pub fn take(&mut self) -> Option<Event> {
        let event = self.kept.pop_front().or_else(|| self.collect())?;
        self.taken += 1;
        Some(event)
    }

    /// Whether there is no event to take.
    pub fn is_empty(&mut self) -> bool {
        self.kept.is_empty() && self.entry() == Entry::Empty
    }

    /// Publishes how far the reader has read, as a single atomic write.
    pub fn advance(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.update(|register| register.advanced(by));
    }

    /// Publishes how far the reader has read and arms the queue, as a single atomic write (requirement I3).
    /// If there is an event already, the reader is woken at once.
    pub fn arm(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.woken.store(false, Ordering::Relaxed);
        let before = self.queue.update(|register| register.advanced(by).armed());
        if before.is_valid() {
            self.queue.fire_if_ahead();
        } else if !self.is_empty() {
            // The queue was shut down and cannot be armed, but the reader was not woken for these events yet.
            self.queue.wake_reader();
        }
    }

    /// Removes the events selected by `of`, and returns their number. The others are taken later, in order;
    /// until then they count as unread.
    pub(super) fn revoke(&mut self, mut of: impl FnMut(Event) -> bool) -> usize {
        while let Some(event) = self.collect() {
            self.kept.push_back(event);
        }
        let before = self.kept.len();
        self.kept.retain(|event| !of(*event));
        let revoked = before - self.kept.len();
        self.taken += revoked as u64;
        revoked
    }

    /// Removes the next event from the ring.
    fn collect(&mut self) -> Option<Event> {
        let Entry::Event(event) = self.entry() else { return None };
        self.ring.clear(self.at);
        self.at = self.at.wrapping_add(1);
        Some(event)
    }

    /// The next entry, following the switch to a larger ring.
    fn entry(&mut self) -> Entry {
        let entry = self.ring.get(self.at);
        if entry != Entry::Moved {
            return entry;
        }
        (self.ring, self.at) = (self.ring.next(), 0);
        self.entry()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
