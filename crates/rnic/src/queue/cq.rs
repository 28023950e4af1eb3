//! The completion queue: the stream puts completions in, the consumer polls them out (steps 7 and 8 of the path).
//!
//! Before this: `stream`, which made the [`Completion`]. After it: the consumer's poll and, if it armed the queue, one
//! event through its [`CompletionHandler`].
//!
//! One lock guards the queue and whether it is armed, so that "a completion is there" and "an event is due" are decided
//! together. The event is raised after that lock was released (requirement N9): who is woken finds its completion, and
//! does not run into the lock. A second lock, taken only to raise an event or to move the queue to another handler,
//! keeps an event that is under way from reaching a handler the queue has left (requirement N4).

use super::moderation::{Fate, Held, Moderation};
use super::{Completion, Status};
use crate::broken;
use crate::event::{AsyncEvent, AsyncEvents, CompletionHandler, HandlerId, Moderated, Ticket, Timer, Wake};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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
    /// The same as `ring.armed.is_some()`, for those who need no more than a hint. Written with `ring` locked.
    armed: AtomicBool,
    ring: Mutex<Ring>,
    target: Mutex<Target>,
    /// How many threads sleep on it, and what wakes them.
    sleepers: AtomicUsize,
    alarm: OnceLock<Arc<dyn Wake>>,
    /// Where an overrun is reported.
    reports: OnceLock<Arc<AsyncEvents>>,
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
    /// What tells the time at which a completion came.
    clock: Option<fn() -> u64>,
    /// What holds events back.
    held: Option<Held>,
}

#[derive(Debug, Default)]
struct Target {
    handler: Option<Arc<CompletionHandler>>,
    /// The last event that the handler got.
    last: Option<Ticket>,
    /// An event is due, but there is no handler. The next one gets it.
    owed: bool,
    /// The queue is shut down: no event is raised any more.
    closed: bool,
}

impl Cq {
    /// An empty queue for `capacity` completions, with no handler. Events will name it `id`.
    pub fn new(id: u32, capacity: usize) -> Self {
        let completions = VecDeque::with_capacity(capacity);
        Self {
            id,
            ready: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            ring: Mutex::new(Ring {
                capacity,
                completions,
                waking: 0,
                armed: None,
                overrun: false,
                clock: None,
                held: None,
            }),
            target: Mutex::new(Target::default()),
            sleepers: AtomicUsize::new(0),
            alarm: OnceLock::new(),
            reports: OnceLock::new(),
        }
    }

    /// Who wakes threads that [sleep](Self::begin_sleep) on the queue. Set once.
    pub fn set_alarm(&self, alarm: Arc<dyn Wake>) {
        let _ = self.alarm.set(alarm);
    }

    /// From now on completions have the time at which they came, as this clock has it.
    pub fn set_clock(&self, clock: fn() -> u64) {
        lock(&self.ring).clock = Some(clock);
    }

    /// Where an overrun is reported. Set once.
    pub fn set_reports(&self, reports: &Arc<AsyncEvents>) {
        let _ = self.reports.set(Arc::clone(reports));
    }

    /// A thread is about to sleep until there is something to poll: from now on the alarm is raised for every completion.
    /// What is there already raises none, so [look](Self::has_something) after this. Has nothing to do with
    /// [`arm`](Self::arm), which is the consumer's.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a poll would find something. A thread that began to sleep before this, and is told no, is woken by what comes.
    pub fn has_something(&self) -> bool {
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
        self.several().push(completion)
    }

    /// Appends any number of completions under one lock, which the first of them takes.
    pub(crate) fn several(&self) -> Several<'_> {
        Several { cq: self, ring: None, due: false, lost: false, timer: None }
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
    /// Asked again before the event came, there is still one event, at what is earlier. Asked again before the event was
    /// taken from the handler, that event is the answer to both: whoever takes it finds all completions.
    #[must_use = "a completion that came before the queue was armed raises no event"]
    pub fn arm(&self, arm: Arm) -> bool {
        let mut ring = lock(&self.ring);
        ring.armed = ring.armed.max(Some(arm));
        self.armed.store(true, Ordering::Relaxed);
        let there = match arm {
            Arm::Next => !ring.completions.is_empty(),
            Arm::Solicited => ring.waking > 0,
        };
        there || ring.overrun
    }

    /// From now on its event waits for more completions, or for a time (requirement I10); `None`: for nothing. An event that waits now
    /// is raised.
    pub fn moderate(&self, by: Option<Moderation>) {
        let mut ring = lock(&self.ring);
        let before = std::mem::replace(&mut ring.held, by.map(Held::new));
        self.raise_held(ring, before.is_some_and(|held| held.holds()));
    }

    fn raise_held(&self, mut ring: MutexGuard<'_, Ring>, held: bool) {
        let due = held && ring.armed.take().is_some();
        if due {
            self.armed.store(false, Ordering::Relaxed);
        }
        drop(ring);
        if due {
            lock(&self.target).raise(self.id);
        }
    }

    /// Whether the event that was asked for has not come yet: whoever asked is asleep, or about to be.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// How many completions it holds at most.
    pub fn capacity(&self) -> usize {
        lock(&self.ring).capacity
    }

    /// From now on it holds up to `capacity` completions. Those that wait stay, and so does the arming. Refused if more
    /// wait than that.
    pub fn resize(&self, capacity: usize) -> Result<(), TooSmall> {
        let mut completions = VecDeque::with_capacity(capacity);
        let mut ring = lock(&self.ring);
        let waiting = ring.completions.len();
        if capacity < waiting.max(1) {
            return Err(TooSmall { cq: self.id, capacity, waiting });
        }
        if broken::is("resize") {
            ring.completions.pop_back();
        }
        ring.capacity = capacity;
        completions.append(&mut ring.completions);
        std::mem::swap(&mut ring.completions, &mut completions);
        drop(ring); // before the memory is given back
        Ok(())
    }

    /// Takes back the completions of one queue pair that were not polled, and returns how many. It is reset or destroyed,
    /// and makes no more.
    pub fn purge(&self, qp: u32) -> usize {
        let mut ring = lock(&self.ring);
        let before = ring.completions.len();
        ring.completions.retain(|completion| completion.qp != qp);
        ring.waking = ring.completions.iter().filter(|completion| completion.wakes()).count();
        self.ready.store(ring.ready(), Ordering::Relaxed);
        before - ring.completions.len()
    }

    /// Whether a request of this queue pair has succeeded, and the consumer has not polled that yet.
    pub(crate) fn has_success_of(&self, qp: u32) -> bool {
        let of = |completion: &Completion| completion.qp == qp && completion.status == Status::Success;
        lock(&self.ring).completions.iter().any(of)
    }

    /// The handler that it has now.
    pub fn handler(&self) -> Option<HandlerId> {
        lock(&self.target).handler.as_ref().map(|handler| handler.id())
    }

    /// Moves the queue to another handler, or to none (*Modify CQ*, requirement N4). It stays armed.
    ///
    /// Once this returns, the old handler gets nothing more. What it got before is the old handler's; an event that is due
    /// goes to the new one. While there is none, it is kept for the next.
    pub fn set_handler(&self, handler: Option<Arc<CompletionHandler>>) {
        if broken::is("move") {
            lock(&self.ring).armed = None;
        }
        let mut target = lock(&self.target);
        if target.closed {
            return;
        }
        target.handler = handler;
        target.last = None;
        if std::mem::take(&mut target.owed) {
            target.raise(self.id);
        }
    }

    /// Nobody will take its events any more: those that were not taken are taken back, and no more are raised (requirement
    /// N11). Completions can still be polled.
    pub fn shut_down(&self) {
        let mut target = lock(&self.target);
        let target = std::mem::replace(&mut *target, Target { closed: true, ..Target::default() });
        if let Some(handler) = target.handler {
            handler.revoke(self.id);
        }
    }
}

impl Moderated for Cq {
    /// The time of [`moderate`](Cq::moderate) is over.
    fn expired(&self) {
        let mut ring = lock(&self.ring);
        let held = ring.held.as_mut().is_some_and(Held::expired);
        self.raise_held(ring, held);
    }
}

/// Completions that are appended together. Dropped, it lets go of the queue, and wakes who waits for one of them.
pub(crate) struct Several<'c> {
    cq: &'c Cq,
    ring: Option<MutexGuard<'c, Ring>>,
    /// The event is.
    due: bool,
    /// The first that ever was.
    lost: bool,
    /// The event waits, and this is to be started.
    timer: Option<(Duration, Arc<dyn Timer>)>,
}

impl Several<'_> {
    /// As [`Cq::push`] does.
    pub(crate) fn push(&mut self, completion: Completion) -> Result<(), Overrun> {
        let ring = self.ring.get_or_insert_with(|| lock(&self.cq.ring));
        let (wakes, failed) = (completion.wakes(), completion.status != Status::Success);
        let overrun = ring.overrun;
        let pushed = ring.push(completion, wakes);
        if ring.is_due(wakes || pushed.is_err()) {
            match ring.fire(failed || pushed.is_err()) {
                Fate::Raised => {
                    self.due = true;
                    self.cq.armed.store(false, Ordering::Relaxed);
                }
                Fate::Timed(period, timer) => self.timer = Some((period, timer)),
                Fate::Waits => {}
            }
        }
        self.lost |= pushed.is_err() && !overrun;
        pushed.map_err(|Full| Overrun { cq: self.cq.id })
    }
}

impl Drop for Several<'_> {
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        let cq = self.cq;
        cq.ready.store(ring.ready(), Ordering::Relaxed);
        drop(ring);
        if let Some((period, timer)) = self.timer.take() {
            timer.start(period);
        }
        if self.due {
            lock(&cq.target).raise(cq.id);
        }
        if cq.sleepers.load(Ordering::Acquire) > 0
            && let Some(alarm) = cq.alarm.get()
        {
            alarm.signal();
        }
        if let (true, Some(reports)) = (self.lost, cq.reports.get()) {
            reports.raise(AsyncEvent::CqError(cq.id));
        }
    }
}

/// A completion queue cannot be made that small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "completion queue {cq} cannot be resized to {capacity}: {waiting} completions wait, and one must fit"
)]
pub struct TooSmall {
    /// The queue.
    pub cq: u32,
    /// What was asked for.
    pub capacity: usize,
    /// How many completions wait.
    pub waiting: usize,
}

/// There is no room.
struct Full;

impl Ring {
    fn push(&mut self, mut completion: Completion, wakes: bool) -> Result<(), Full> {
        // After an overrun there may be room again, but what follows would hide that something is missing before it.
        if self.overrun || self.completions.len() == self.capacity {
            self.overrun = true;
            return Err(Full);
        }
        if let Some(clock) = self.clock {
            completion.time = clock();
        }
        self.completions.push_back(completion);
        self.waking += usize::from(wakes);
        Ok(())
    }

    fn ready(&self) -> usize {
        self.completions.len() | if self.overrun { OVERRUN } else { 0 }
    }

    /// Whether an event is due for a completion.
    fn is_due(&self, wakes: bool) -> bool {
        self.armed.is_some_and(|arm| arm == Arm::Next || wakes)
    }

    /// It is. Raised, it disarms: exactly one event for each time the queue was armed (requirement I2).
    fn fire(&mut self, failed: bool) -> Fate {
        let fate = match &mut self.held {
            None => Fate::Raised,
            Some(held) if failed => {
                held.failed();
                Fate::Raised
            }
            Some(held) => held.came(),
        };
        if let Fate::Raised = fate {
            self.armed = None;
        }
        fate
    }
}

impl Target {
    fn raise(&mut self, cq: u32) {
        match &self.handler {
            Some(handler) => handler.raise(cq, &mut self.last),
            None => self.owed = true,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
