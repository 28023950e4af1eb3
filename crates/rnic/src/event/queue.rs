//! Event queues. The adapter writes events into a ring in memory, from which the reader takes them. The reader is
//! woken at most once each time it arms the queue. [`Consumer`](super::Consumer) builds on this.
//!
//! | state (requirement I2) | events | wakeup |
//! |---|---|---|
//! | undefined: has no memory yet, overflowed, or shut down | refused | none |
//! | unarmed: has [got](EventQueue::define) memory | written | none |
//! | armed | written | one, as soon as the write indicator is ahead of the read indicator and the moderation timer is not running; the queue is then unarmed |
//!
//! There are many writers, serialised by a lock. The reader takes no lock: it reads entries and writes the
//! [register](super::register). Reader and writers synchronise through that one word: a writer updates the register
//! *after* storing its event, and the reader arms the queue by updating the register *before* it checks whether
//! there are events. Whichever update comes second sees the effect of the first, so its thread wakes the reader.
//!
//! The driver, or a writer that finds the ring full, switches the queue to another ring: it stores an end marker in the
//! ring, which tells the reader to go on in the other one.

mod moderation;

use self::moderation::Hold;
use super::code::{Cause, Code, Event};
use super::register::{Command, Register};
use super::ring::Ring;
use super::wake::{Moderated, Moderation, Timer, Wake};
use crate::broken;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
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

/// The size of the smallest ring: room for an event and the end marker.
const MIN_SIZE: usize = 2;

/// The state of an event queue (requirement I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The queue has no memory, and refuses events.
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
    /// Number of entries of the current ring. Zero before the queue got memory.
    pub size: usize,
}

/// Why an event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostEventError {
    /// The queue is undefined: it has no memory yet, or has overflowed before. The adapter stops (requirement I2).
    #[error("the event queue is undefined: give it memory before events are raised")]
    Undefined,
    /// The queue was shut down, because its adapter is closed (requirement N11).
    #[error("the event queue is shut down")]
    ShutDown,
    /// The ring is full (requirement I5). The last entry reports the overflow, and the queue is undefined
    /// from now on.
    #[error("the event queue is full and has reached its maximum size")]
    Overflow,
}

/// Why an event queue was not resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeQueueError {
    /// The size is out of range.
    #[error("cannot resize an event queue to {size} entries: use {MIN_SIZE} to {max}")]
    Size {
        /// The requested size.
        size: usize,
        /// The size of the largest ring.
        max: usize,
    },
    /// The queue was shut down, or has overflowed.
    #[error("cannot resize an event queue that has overflowed or is shut down")]
    Undefined,
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
    /// Number of unread events that are worth a wakeup: more than one only with moderation by count.
    threshold: AtomicU64,
    /// How wakeups are held back. `None` without moderation. Locked after `writer`.
    moderation: Mutex<Option<Hold>>,
}

/// The state of the writers.
#[derive(Debug)]
struct Writer {
    /// The ring that events are written to. [`Ring::none`] before the queue got memory.
    ring: Arc<Ring>,
    /// Sizes of the first ring and of the largest one.
    sizes: Sizes,
    /// Number of events written to this ring. Modulo its size, the position of the next event.
    filled: usize,
    /// Whether the queue was shut down.
    is_shut_down: bool,
}

impl EventQueue {
    /// Creates an undefined queue, and returns it with the ring at which its reader begins.
    pub(super) fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> (Self, Arc<Ring>) {
        assert!(sizes.initial >= MIN_SIZE, "a ring needs room for an event and its end marker");
        assert!(sizes.initial <= sizes.max, "the initial size of a ring exceeds the maximum size");
        let ring = Ring::none();
        let queue = Self {
            register: AtomicU64::new(Register::new(number).0),
            written: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            cause: AtomicU32::new(Cause { code: Code::Completion, lane: 0 }.to_word()),
            writer: Mutex::new(Writer { ring: Arc::clone(&ring), sizes, filled: 0, is_shut_down: false }),
            wake,
            threshold: AtomicU64::new(1),
            moderation: Mutex::new(None),
        };
        (queue, ring)
    }

    /// Gives the queue its first ring, so that the undefined queue becomes unarmed (requirement I2). Returns false, and
    /// changes nothing, if the queue has memory already or was shut down.
    pub fn define(&self) -> bool {
        let mut writer = lock(&self.writer);
        if writer.has_memory() || writer.is_shut_down {
            return false;
        }
        let size = writer.sizes.initial;
        writer.switch_to(size);
        self.update(Register::define);
        true
    }

    /// Switches the queue to a ring with `size` entries, larger or smaller than the current one (requirement I3). The
    /// reader finds the unread events of the old ring first, so none is lost or reordered, whatever the size. Other
    /// threads may write and read meanwhile. Of an undefined queue, this is the size of its first ring.
    pub fn resize(&self, size: usize) -> Result<(), ResizeQueueError> {
        let mut writer = lock(&self.writer);
        let max = writer.sizes.max;
        if !(MIN_SIZE..=max).contains(&size) {
            return Err(ResizeQueueError::Size { size, max });
        }
        match (self.register().is_defined(), writer.has_memory() || writer.is_shut_down) {
            (true, _) => {
                writer.switch_to(size);
                if broken::is("switch") {
                    self.update(|register| register.write(Command::new(register.number(), false)));
                }
            }
            (false, false) => writer.sizes.initial = size,
            (false, true) => return Err(ResizeQueueError::Undefined),
        }
        Ok(())
    }

    /// Returns the number of the queue.
    pub fn number(&self) -> u32 {
        self.register().number()
    }

    /// Returns the state of the queue.
    pub fn state(&self) -> QueueState {
        let register = self.register();
        match (register.is_defined(), register.is_armed()) {
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
            size: if writer.has_memory() { writer.ring.size() } else { 0 },
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
        if !register.is_defined() {
            let shut_down = writer.is_shut_down;
            return Err(if shut_down { PostEventError::ShutDown } else { PostEventError::Undefined });
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
        if room {
            self.wake_if_due(written);
            return Ok(Ticket(written));
        }
        self.undefine(written);
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
    /// events can still be taken; the reader is woken for them if moderation held its wakeup back.
    pub fn shut_down(&self) {
        let mut writer = lock(&self.writer);
        writer.is_shut_down = true;
        self.undefine(self.written.load(Ordering::Relaxed));
    }

    /// Makes the queue undefined. If it is armed with unread events, wakes the reader, whatever moderation says: nothing
    /// would wake the reader later. Call with the writers' lock held.
    fn undefine(&self, written: u64) {
        let before = self.update(Register::undefine);
        if before.is_armed() && before.unread(written) > 0 {
            self.wake_reader();
        }
    }

    /// Applies a write of the register, and wakes the reader if that arms the queue and a wakeup is due. Returns whether
    /// the queue is defined. Call as the reader.
    pub(super) fn write(&self, command: Command) -> bool {
        if command.arms() {
            self.woken.store(false, Ordering::Relaxed);
        }
        let before = self.update(|register| register.write(command));
        if command.arms() && before.is_defined() {
            self.wake_if_due(self.written.load(Ordering::Acquire));
        }
        before.is_defined()
    }

    /// Advances the read indicator by the number of events that the reader took.
    pub(super) fn advance(&self, by: u64) {
        self.update(|register| register.advance(by));
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
        self.woken.store(false, Ordering::Relaxed);
        self.wake.consume();
    }

    /// Wakes the reader, whether a wakeup is due or not.
    pub(super) fn wake_reader(&self) {
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

/// Wakeups, and how moderation holds them back (requirement I10).
impl EventQueue {
    /// Limits wakeups to one per interval, or removes the limit if `None`. The timer must call
    /// [`on_timer`](Moderated::on_timer) at the end of the interval. A wakeup that is being held back is delivered now.
    /// Replaces moderation [by count](Self::moderate_by_count).
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.set_hold(moderation.map(|(interval, timer)| Hold::Interval(interval, timer)));
    }

    /// Wakes the reader when a number of events are unread, or some time after the first of them. `None` removes the
    /// limit. A wakeup that is being held back is delivered now. Replaces moderation [by interval](Self::moderate).
    pub fn moderate_by_count(&self, moderation: Option<Moderation>) {
        self.set_hold(moderation.map(|settings| Hold::Batch { settings, is_timed: false }));
    }

    /// Replaces the moderation.
    fn set_hold(&self, hold: Option<Hold>) {
        let by_interval = matches!(hold, Some(Hold::Interval(..)));
        let threshold = hold.as_ref().map_or(1, Hold::threshold);
        let writer = lock(&self.writer);
        let before = std::mem::replace(&mut *lock(&self.moderation), hold);
        // Relaxed: published by the update of the register. A reader that arms the queue before that update may use the
        // old threshold; this thread then finds the queue armed.
        self.threshold.store(threshold, Ordering::Relaxed);
        self.update(|register| register.set_moderated(by_interval));
        self.wake_at(self.written.load(Ordering::Acquire), 1);
        drop(writer); // before `before` is dropped with its timer
        drop(before);
    }

    /// Wakes the reader if moderation holds a wakeup back, for example because an event is urgent.
    pub fn wake_now(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::end_hold);
        self.wake_at(self.written.load(Ordering::Acquire), 1);
    }

    /// Wakes the reader if the queue is armed, and `written` events are enough for a wakeup now. Call with the writers'
    /// lock held, or as the reader.
    fn wake_if_due(&self, written: u64) {
        let threshold = self.threshold.load(Ordering::Relaxed).cast_signed();
        if !self.wake_at(written, threshold) && threshold > 1 {
            self.time_batch(written);
        }
    }

    /// Wakes the reader if the queue is armed, the moderation timer is not running, and at least `threshold` of
    /// `written` events are unread. Of several threads that find this, only the one that unarms the queue wakes the
    /// reader, and returns true.
    fn wake_at(&self, written: u64, threshold: i64) -> bool {
        let before = self.update(|register| register.unarm_if_due(written, threshold).unwrap_or(register));
        // Compute the same change again: if there is none, another thread has woken the reader, or it was not due.
        let Some(after) = before.unarm_if_due(written, threshold) else { return false };
        self.wake_reader();
        if after.is_held()
            && let Some(hold) = &*lock(&self.moderation)
        {
            hold.start_interval();
        }
        true
    }

    /// Starts the timer of moderation by count, if a wakeup is held back and the timer does not run.
    fn time_batch(&self, written: u64) {
        if self.register().unarm_if_due(written, 1).is_none() {
            return;
        }
        if let Some(hold) = &mut *lock(&self.moderation) {
            hold.start_batch();
        }
    }
}

impl Moderated for EventQueue {
    /// Wakes the reader if a wakeup was held back by moderation. Called when the moderation timer expires.
    fn on_timer(&self) {
        // First, so that a reader that arms the queue after the check below starts the timer again.
        if let Some(hold) = &mut *lock(&self.moderation) {
            hold.on_timer();
        }
        self.wake_now();
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
        if self.ring.size() >= self.sizes.max {
            return false;
        }
        self.switch_to((2 * self.ring.size()).min(self.sizes.max));
        true
    }

    /// Continues in a new ring with `size` entries. The entry for the end marker of the current ring must be free.
    fn switch_to(&mut self, size: usize) {
        let next = Ring::new(size);
        self.ring.store_end_marker(self.filled, Arc::clone(&next));
        (self.ring, self.filled) = (next, 0);
    }

    /// Returns whether the queue has got memory.
    fn has_memory(&self) -> bool {
        self.ring.size() >= MIN_SIZE
    }

    /// Stores an event at the next position of the ring.
    fn put(&mut self, event: Event) {
        self.ring.store_event(self.filled, event);
        self.filled = self.filled.wrapping_add(1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
