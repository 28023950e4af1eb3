//! The completion queue: the stream puts completions in, the consumer polls them out (steps 7 and 8 of the path).
//!
//! Before this: `stream`, which made the [`Completion`]. After it: the consumer's poll and, if it armed the queue, one
//! event through [`Notify`].
//!
//! One lock guards the queue and whether it is armed, so that "a completion is there" and "an event is due" are decided
//! together. The event is raised after that lock was released (requirement N9): who is woken finds its completion, and
//! does not run into the lock. A second lock, taken only to raise an event or to move the queue to another handler,
//! keeps an event that is under way from reaching a handler the queue has left (requirement N4).

use super::Completion;
use crate::event::Notify;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, OnceLock};

/// Which completion raises the event (requirement N8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// The next that is solicited, or an error.
    Solicited,
    /// The next.
    Next,
}

/// A completion came when the queue was full. It is lost, and the queue takes no more: the queue pairs that use it fail
/// (requirement I5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completion queue {cq} overran: its consumer made it for fewer completions than it asked for")]
pub struct Overrun {
    /// The queue.
    pub cq: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    id: u32,
    /// What a poll finds: how many completions, and [`OVERRUN`]. Written with `ring` locked.
    ready: AtomicUsize,
    ring: Mutex<Ring>,
    target: Mutex<Target>,
    /// How many threads sleep on it, and what wakes them.
    sleepers: AtomicUsize,
    alarm: OnceLock<Arc<dyn Notify>>,
}

/// Set in `ready` once a completion was lost.
const OVERRUN: usize = 1 << (usize::BITS - 1);

#[derive(Debug)]
struct Ring {
    capacity: usize,
    completions: VecDeque<Completion>,
    /// How many of them wake a consumer that waits for solicited ones.
    waking: usize,
    armed: Option<Arm>,
    overrun: bool,
}

#[derive(Debug)]
struct Target {
    handler: Option<Arc<dyn Notify>>,
    /// Events that came while there was no handler. The next one gets them.
    owed: usize,
}

impl Cq {
    /// An empty queue for `capacity` completions, with no handler. Events will name it `id`.
    pub fn new(id: u32, capacity: usize) -> Self {
        let completions = VecDeque::with_capacity(capacity);
        Self {
            id,
            ready: AtomicUsize::new(0),
            ring: Mutex::new(Ring { capacity, completions, waking: 0, armed: None, overrun: false }),
            target: Mutex::new(Target { handler: None, owed: 0 }),
            sleepers: AtomicUsize::new(0),
            alarm: OnceLock::new(),
        }
    }

    /// Who wakes threads that [sleep](Self::begin_sleep) on the queue. Set once.
    pub fn set_alarm(&self, alarm: Arc<dyn Notify>) {
        let _ = self.alarm.set(alarm);
    }

    /// A thread is about to sleep until there is something to poll: from now on the alarm is raised for every completion.
    /// Returns whether something is there already. Has nothing to do with [`arm`](Self::arm), which is the consumer's.
    #[must_use = "what came before raises no alarm"]
    pub fn begin_sleep(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        // Under the lock: a completion is here before this, or finds the sleeper when it comes.
        let ring = lock(&self.ring);
        !ring.completions.is_empty() || ring.overrun
    }

    /// It woke.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// What events call it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many completions wait to be polled.
    pub fn len(&self) -> usize {
        self.ready.load(Ordering::Relaxed) & !OVERRUN
    }

    /// Whether none do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a completion was lost.
    pub fn overrun(&self) -> bool {
        self.ready.load(Ordering::Relaxed) & OVERRUN != 0
    }

    /// Appends a completion, and raises the event if the queue is armed for it.
    ///
    /// An error is the stream's: its queue pair fails. The consumer is told by [`poll`](Self::poll), and woken for it.
    pub fn push(&self, completion: Completion) -> Result<(), Overrun> {
        let mut ring = lock(&self.ring);
        let wakes = completion.wakes();
        let pushed = ring.push(completion, wakes);
        self.ready.store(ring.ready(), Ordering::Relaxed);
        let due = ring.fire(wakes || pushed.is_err());
        drop(ring);
        if due {
            lock(&self.target).raise(self.id);
        }
        if self.sleepers.load(Ordering::Acquire) > 0
            && let Some(alarm) = self.alarm.get()
        {
            alarm.notify(self.id);
        }
        pushed.map_err(|Full| Overrun { cq: self.id })
    }

    /// Takes up to `most` completions, the oldest first, and returns how many. `each` is called with the queue locked.
    ///
    /// After an overrun, what was there before it is handed out first; then it is an error, and stays one.
    pub fn poll(&self, most: usize, mut each: impl FnMut(Completion)) -> Result<usize, Overrun> {
        match self.ready.load(Ordering::Relaxed) {
            0 => return Ok(0),
            OVERRUN => return Err(Overrun { cq: self.id }),
            _ => {}
        }
        let mut ring = lock(&self.ring);
        let n = most.min(ring.completions.len());
        for _ in 0..n {
            let Some(completion) = ring.completions.pop_front() else { break };
            ring.waking -= usize::from(completion.wakes());
            each(completion);
        }
        self.ready.store(ring.ready(), Ordering::Relaxed);
        Ok(n)
    }

    /// Asks for one event at the next completion of this kind. Returns whether such a completion is there already: no
    /// event may come for it, so the caller polls again. The queue stays armed in either case.
    ///
    /// Asked again before the event came, there is still one event, at what is earlier.
    #[must_use = "a completion that came before the queue was armed raises no event"]
    pub fn arm(&self, arm: Arm) -> bool {
        let mut ring = lock(&self.ring);
        ring.armed = ring.armed.max(Some(arm));
        let there = match arm {
            Arm::Next => !ring.completions.is_empty(),
            Arm::Solicited => ring.waking > 0,
        };
        there || ring.overrun
    }

    /// Takes back the completions of one queue pair that were not polled.
    pub fn purge(&self, qp: u32) {
        let mut ring = lock(&self.ring);
        ring.completions.retain(|completion| completion.qp != qp);
        ring.waking = ring.completions.iter().filter(|completion| completion.wakes()).count();
        self.ready.store(ring.ready(), Ordering::Relaxed);
    }

    /// Moves the queue to another handler, or to none (requirement N4). It stays armed.
    ///
    /// Once this returns, the old handler gets nothing more. What it got before is the old handler's; events that are due
    /// go to the new one. While there is none, events are kept for the next.
    pub fn set_handler(&self, handler: Option<Arc<dyn Notify>>) {
        let mut target = lock(&self.target);
        target.handler = handler;
        for _ in 0..mem::take(&mut target.owed) {
            target.raise(self.id);
        }
    }
}

/// There is no room.
struct Full;

impl Ring {
    fn push(&mut self, completion: Completion, wakes: bool) -> Result<(), Full> {
        // After an overrun there may be room again, but what follows would hide that something is missing before it.
        if self.overrun || self.completions.len() == self.capacity {
            self.overrun = true;
            return Err(Full);
        }
        self.completions.push_back(completion);
        self.waking += usize::from(wakes);
        Ok(())
    }

    fn ready(&self) -> usize {
        self.completions.len() | if self.overrun { OVERRUN } else { 0 }
    }

    /// Whether an event is due now. It disarms: exactly one event for each time the queue was armed (requirement I2).
    fn fire(&mut self, wakes: bool) -> bool {
        let due = self.armed.is_some_and(|arm| arm == Arm::Next || wakes);
        if due {
            self.armed = None;
        }
        due
    }
}

impl Target {
    fn raise(&mut self, cq: u32) {
        match &self.handler {
            Some(handler) => handler.notify(cq),
            None => self.owed += 1,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
