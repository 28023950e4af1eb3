//! An event queue: the adapter writes events into a ring in memory, and the reader finds them there; it is woken at most
//! once each time it asked for it. Before this: whoever found that an event is due. After it: [`Consumer`](super::Consumer).
//!
//! | state (requirement I2) | events | wake |
//! |---|---|---|
//! | undefined: it was shut down, or overflowed | refused | none |
//! | unarmed | written | none |
//! | armed | written | one, when the write indicator is or gets ahead of the read indicator and the moderation timer does not run; then it is unarmed |
//!
//! Writers are many, and take turns by a lock. The reader takes none: it looks at entries, and writes the
//! [register](super::register). Reader and writers meet at that one word: a writer changes it *after* its event is in the
//! ring, the reader *before* it looks how far was written. Whichever comes second sees what the other did, and wakes.

use super::code::{Code, Event};
use super::register::Register;
use super::ring::{Entry, Ring};
use super::wake::{Timer, Wake};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How large the rings of a queue are: one entry is always kept for what ends a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The first.
    pub first: usize,
    /// The last. Each is twice the one before.
    pub most: usize,
}

impl Default for Sizes {
    /// From half a kibibyte to eight mebibytes.
    fn default() -> Self {
        Self { first: 64, most: 1 << 20 }
    }
}

/// Where a queue is in its life (requirement I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Nothing is written.
    Undefined,
    /// Events are written, nobody is woken.
    Unarmed,
    /// Events are written, and the first wakes the reader.
    Armed,
}

/// What an event queue has done so far, and how it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Where it is in its life.
    pub state: QueueState,
    /// How many events were written.
    pub written: u64,
    /// How many of them nobody has taken yet.
    pub unread: u64,
    /// How often its reader was woken.
    pub wakes: u64,
    /// How many entries its ring has.
    pub size: usize,
}

/// Why an event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue is undefined.
    #[error("the event queue was shut down")]
    Undefined,
    /// The reader is too far behind (requirement I5). The queue's last entry says so, and it is undefined from now on.
    #[error("the event queue has no room for another event, and can grow no more")]
    Overflow,
}

/// Tells one event of a queue from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The writers' side of an event queue.
#[derive(Debug)]
pub struct EventQueue {
    register: AtomicU64,
    /// The write indicator: how many events were written.
    written: AtomicU64,
    /// The reader was woken, and has not asked for more since.
    woken: AtomicBool,
    /// How often it was.
    wakes: AtomicU64,
    writer: Mutex<Writer>,
    wake: Box<dyn Wake>,
    moderation: Mutex<Option<(Duration, Arc<dyn Timer>)>>,
}

#[derive(Debug)]
struct Writer {
    ring: Arc<Ring>,
    most: usize,
    /// How many events were written to this ring.
    filled: usize,
}

/// The reader's side of an event queue. There is one.
#[derive(Debug)]
pub struct Reader {
    queue: Arc<EventQueue>,
    ring: Arc<Ring>,
    at: usize,
    /// Events that were in the way when others were taken back.
    kept: VecDeque<Event>,
    /// How many were taken since the register was told.
    taken: u64,
}

impl EventQueue {
    /// An unarmed queue, which wakes its reader through `wake`.
    pub fn new(number: u16, sizes: Sizes, wake: Box<dyn Wake>) -> (Arc<Self>, Reader) {
        assert!(2 <= sizes.first && sizes.first <= sizes.most, "a ring has room for an event and its end");
        let ring = Ring::new(sizes.first);
        let queue = Arc::new(Self {
            register: AtomicU64::new(Register::new(number).0),
            written: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            writer: Mutex::new(Writer { ring: Arc::clone(&ring), most: sizes.most, filled: 0 }),
            wake,
            moderation: Mutex::new(None),
        });
        let reader = Reader { queue: Arc::clone(&queue), ring, at: 0, kept: VecDeque::new(), taken: 0 };
        (queue, reader)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.register().number()
    }

    /// Where it is in its life.
    pub fn state(&self) -> QueueState {
        let register = self.register();
        match (register.is_valid(), register.is_armed()) {
            (false, _) => QueueState::Undefined,
            (true, false) => QueueState::Unarmed,
            (true, true) => QueueState::Armed,
        }
    }

    /// What it has done so far. The fields are of one moment, as far as they can be.
    pub fn standing(&self) -> Standing {
        let writer = lock(&self.writer);
        let written = self.written.load(Ordering::Acquire);
        let unread = self.register().unread(written);
        Standing {
            state: self.state(),
            written,
            unread: u64::try_from(unread).unwrap_or_default(),
            wakes: self.wakes.load(Ordering::Relaxed),
            size: writer.ring.size(),
        }
    }

    /// Writes an event, and wakes the reader if it is to be woken.
    pub fn post(&self, event: Event) -> Result<Ticket, Refused> {
        let mut writer = lock(&self.writer);
        // With what the reader cleared before it advanced the read indicator.
        let register = self.register();
        if !register.is_valid() {
            return Err(Refused::Undefined);
        }
        let written = self.written.load(Ordering::Relaxed);
        let room = writer.make_room(register.unread(written));
        let event =
            if room { event } else { Event { code: Code::EventQueueOverflow, object: register.number() } };
        writer.put(event);
        let written = written.wrapping_add(1);
        // Whoever counts it finds it.
        self.written.store(written, Ordering::Release);
        // Still locked: whoever takes the lock afterwards knows that no wake is under way.
        self.fire(written);
        if room {
            return Ok(Ticket(written));
        }
        self.update(Register::undefined);
        Err(Refused::Overflow)
    }

    /// Whether the reader took this event. If not, it will, and everything that happened before this call is then known
    /// to it.
    pub fn is_taken(&self, ticket: Ticket) -> bool {
        // A write, though it changes nothing: so it comes before or after that of the reader, and not beside it.
        self.update(|register| register).unread(ticket.0) <= 0
    }

    /// From now on nothing is written, and nobody is woken. What is there can still be taken.
    pub fn shut_down(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::undefined);
    }

    /// Wakes the reader at most once in each `interval`; `timer` tells when it is over (requirement I10). `None`: whenever
    /// it is armed. A wake that was held back until now comes.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        let moderated = moderation.is_some();
        *lock(&self.moderation) = moderation;
        let _writer = lock(&self.writer);
        self.update(|register| register.moderated(moderated));
        self.fire_if_ahead();
    }

    /// The moderation timer expired.
    pub fn expired(&self) {
        let _writer = lock(&self.writer);
        self.update(Register::expired);
        self.fire_if_ahead();
    }

    /// Whether the reader was woken and has not armed the queue since.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Waits for a writer that is about to wake the reader.
    pub(super) fn await_writer(&self) {
        drop(lock(&self.writer));
    }

    /// The reader takes note of its wake, and will rest.
    pub(super) fn consume_wake(&self) {
        self.wake.consume();
    }

    /// The register was changed so that a wake may be due for what is there already.
    fn fire_if_ahead(&self) {
        self.fire(self.written.load(Ordering::Acquire));
    }

    /// Wakes the reader if that is due. Of all who find it due, one does. With the writers' lock held, or by the reader.
    fn fire(&self, written: u64) {
        let before = self.update(|register| register.fired(written).unwrap_or(register));
        let Some(after) = before.fired(written) else { return };
        self.rouse();
        if after.is_held()
            && let Some((interval, timer)) = &*lock(&self.moderation)
        {
            timer.start(*interval);
        }
    }

    fn rouse(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.wake.signal();
        self.woken.store(true, Ordering::Release);
    }

    fn register(&self) -> Register {
        Register(self.register.load(Ordering::Acquire))
    }

    /// One atomic step, even if it changes nothing. Returns what was there before.
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
    /// Switches to a larger ring if this one has no room for an event and its end, given how many events are unread in
    /// all. False if there is none larger: then there is room for a last word.
    fn make_room(&mut self, unread: i64) -> bool {
        let unread = usize::try_from(unread).expect("the reader does not pass the writers");
        let here = unread.min(self.filled);
        if here + 1 < self.ring.size() {
            return true;
        }
        if self.ring.size() >= self.most {
            return false;
        }
        let larger = Ring::new((2 * self.ring.size()).min(self.most));
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

    /// Whether there is nothing to take.
    pub fn is_empty(&mut self) -> bool {
        self.kept.is_empty() && self.entry() == Entry::Empty
    }

    /// Tells the writers how far it has read: one atomic step.
    pub fn advance(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.update(|register| register.advanced(by));
    }

    /// Tells the writers how far it has read, and asks for a wake: one atomic step (requirement I3). If there is something
    /// already, the wake comes at once.
    pub fn arm(&mut self) {
        let by = std::mem::take(&mut self.taken);
        self.queue.woken.store(false, Ordering::Relaxed);
        let before = self.queue.update(|register| register.advanced(by).armed());
        if before.is_valid() {
            self.queue.fire_if_ahead();
        } else if !self.is_empty() {
            // It cannot be armed any more, and nothing more will come; but this came before, and nobody was woken for it.
            self.queue.rouse();
        }
    }

    /// Takes back the events that `of` chooses, and returns how many. The others are taken later, in order; until then
    /// they count as unread.
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

    /// Takes the next event out of the ring.
    fn collect(&mut self) -> Option<Event> {
        let Entry::Event(event) = self.entry() else { return None };
        self.ring.clear(self.at);
        self.at = self.at.wrapping_add(1);
        Some(event)
    }

    /// The next entry, in whichever ring it is.
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
