//! The completion queue: the stream adds completions, the consumer polls them.
//!
//! If the consumer has armed the queue, it gets one event through its [`CompletionHandler`].
//!
//! One lock protects the completions and the arming, so that "there is a completion" and "an event is due" are
//! decided together. The event is raised after that lock was released (requirement N9), so that the thread it
//! wakes finds the completion and does not contend for the lock. A second lock, taken only to raise an event or
//! to move the queue to another handler, prevents an event from reaching a handler that the queue has left
//! (requirement N4).

use super::moderation::{EventDecision, Moderation, ModerationState};
use super::{Completion, Status};
use crate::broken;
use crate::event::{AsyncEvent, AsyncEvents, CompletionHandler, HandlerId, Moderated, Ticket, Timer, Wake};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The completions that raise an event (requirement N8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// The next solicited completion, or an error.
    Solicited,
    /// The next completion.
    Next,
}

/// A completion was added to a full queue. It is lost, and the queue accepts no more: the queue pairs that use it
/// fail (requirement I5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completion queue {cq} overflowed: create it with room for all outstanding requests")]
pub struct Overrun {
    /// The queue.
    pub cq: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    id: u32,
    /// What a poll finds: the number of completions, and [`OVERRUN`]. Written with `ring` locked.
    ready: AtomicUsize,
    /// Equals `ring.armed.is_some()`, for readers that need only a hint. Written with `ring` locked.
    armed: AtomicBool,
    ring: Mutex<Ring>,
    target: Mutex<EventTarget>,
    /// Number of threads that sleep on the queue, and what wakes them.
    sleepers: AtomicUsize,
    alarm: OnceLock<Arc<dyn Wake>>,
    /// Where an overrun is reported.
    reports: OnceLock<Arc<AsyncEvents>>,
}

/// Set in `ready` after a completion was lost.
const OVERRUN: usize = 1 << (usize::BITS - 1);

#[derive(Debug)]
struct Ring {
    capacity: usize,
    completions: VecDeque<Completion>,
    /// Number of completions that wake a consumer that waits for solicited ones.
    waking: usize,
    armed: Option<Arm>,
    overrun: bool,
    /// The clock for the times of completions.
    clock: Option<fn() -> u64>,
    /// Moderation of events.
    held: Option<ModerationState>,
}

#[derive(Debug, Default)]
struct EventTarget {
    handler: Option<Arc<CompletionHandler>>,
    /// The last event that the handler got.
    last: Option<Ticket>,
    /// An event is due, but there is no handler. The next handler gets it.
    event_pending: bool,
    /// The queue is shut down: no events are raised.
    closed: bool,
}

impl Cq {
    /// Creates an empty queue for `capacity` completions, without a handler. Events name it `id`.
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
            target: Mutex::new(EventTarget::default()),
            sleepers: AtomicUsize::new(0),
            alarm: OnceLock::new(),
            reports: OnceLock::new(),
        }
    }

    /// Sets what wakes threads that [sleep](Self::begin_sleep) on the queue. Can be set once.
    pub fn set_alarm(&self, alarm: Arc<dyn Wake>) {
        let _ = self.alarm.set(alarm);
    }

    /// Sets the clock that gives completions the time at which they were added.
    pub fn set_clock(&self, clock: fn() -> u64) {
        lock(&self.ring).clock = Some(clock);
    }

    /// Sets where an overrun is reported. Can be set once.
    pub fn set_reports(&self, reports: &Arc<AsyncEvents>) {
        let _ = self.reports.set(Arc::clone(reports));
    }

    /// Registers a thread that is about to sleep until there is something to poll: from now on every completion
    /// wakes it. Existing completions do not, so call [`is_ready`](Self::is_ready) afterwards.
    /// Independent of [`arm`](Self::arm), which belongs to the consumer.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a poll would find something. If not, a thread that called [`begin_sleep`](Self::begin_sleep)
    /// before is woken by the next completion.
    pub fn is_ready(&self) -> bool {
        // With the lock: a completion was added before this, or its thread sees the sleeper.
        let ring = lock(&self.ring);
        !ring.completions.is_empty() || ring.overrun
    }

    /// Unregisters a thread that has woken up.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// The number that events name it by.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Number of completions to be polled.
    pub fn len(&self) -> usize {
        self.ready.load(Ordering::Relaxed) & !OVERRUN
    }

    /// Whether there are no completions to be polled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a completion was lost.
    pub fn has_overrun(&self) -> bool {
        self.ready.load(Ordering::Relaxed) & OVERRUN != 0
    }

    /// Appends a completion, and raises the event if the queue is armed for it.
    ///
    /// If this fails, the queue pair fails as well. The consumer is woken, and [`poll`](Self::poll) returns the
    /// error.
    pub fn push(&self, completion: Completion) -> Result<(), Overrun> {
        self.push_batch().push(completion)
    }

    /// Appends any number of completions under one lock, which is taken for the first of them.
    pub(crate) fn push_batch(&self) -> PushBatch<'_> {
        PushBatch { cq: self, ring: None, due: false, lost: false, timer: None }
    }

    /// Takes up to `most` completions, the oldest first, and returns their number. Calls `each` with the queue
    /// locked.
    ///
    /// After an overrun, the completions from before it are returned first; then every call fails.
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
            ring.waking -= usize::from(completion.raises_solicited_event());
            each(completion);
        }
        self.ready.store(ring.ready(), Ordering::Relaxed);
        Ok(n)
    }

    /// Requests one event for the next completion of this kind. Returns whether there already is such a
    /// completion: it may not raise an event, so the caller must poll again. The queue is armed in either case.
    ///
    /// If the queue is armed again before the event was raised, there is still one event, for whichever
    /// completion comes first. If it is armed again before the event was taken from the handler, that event
    /// serves both: the thread that takes it finds all completions.
    #[must_use = "a completion that came before the queue was armed raises no event"]
    pub fn arm(&self, arm: Arm) -> bool {
        let mut ring = lock(&self.ring);
        ring.armed = ring.armed.max(Some(arm));
        self.armed.store(true, Ordering::Relaxed);
        let has_matching = match arm {
            Arm::Next => !ring.completions.is_empty(),
            Arm::Solicited => ring.waking > 0,
        };
        has_matching || ring.overrun
    }

    /// Makes events wait for more completions, or for a time (requirement I10). `None` ends that, and raises an
    /// event that waits.
    pub fn moderate(&self, by: Option<Moderation>) {
        let mut ring = lock(&self.ring);
        let before = std::mem::replace(&mut ring.held, by.map(ModerationState::new));
        self.raise_if_held(ring, before.is_some_and(|held| held.holds_event()));
    }

    fn raise_if_held(&self, mut ring: MutexGuard<'_, Ring>, held: bool) {
        let due = held && ring.armed.take().is_some();
        if due {
            self.armed.store(false, Ordering::Relaxed);
        }
        drop(ring);
        if due {
            lock(&self.target).raise(self.id);
        }
    }

    /// Whether a requested event is still to come: the thread that armed the queue sleeps, or is about to.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Maximum number of completions.
    pub fn capacity(&self) -> usize {
        lock(&self.ring).capacity
    }

    /// Changes the maximum number of completions. Keeps existing completions and the arming. Fails if there are
    /// more completions than that.
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
        drop(ring); // before the memory is freed
        Ok(())
    }

    /// Removes the completions of a queue pair that were not polled, and returns their number. The queue pair is
    /// being reset or destroyed, and adds no more.
    pub fn purge(&self, qp: u32) -> usize {
        let mut ring = lock(&self.ring);
        let before = ring.completions.len();
        ring.completions.retain(|completion| completion.qp != qp);
        ring.waking =
            ring.completions.iter().filter(|completion| completion.raises_solicited_event()).count();
        self.ready.store(ring.ready(), Ordering::Relaxed);
        before - ring.completions.len()
    }

    /// Whether a request of this queue pair has succeeded whose completion was not polled yet.
    pub(crate) fn has_success_of(&self, qp: u32) -> bool {
        let of = |completion: &Completion| completion.qp == qp && completion.status == Status::Success;
        lock(&self.ring).completions.iter().any(of)
    }

    /// The current handler.
    pub fn handler(&self) -> Option<HandlerId> {
        lock(&self.target).handler.as_ref().map(|handler| handler.id())
    }

    /// Moves the queue to another handler, or to none (*Modify CQ*, requirement N4). It stays armed.
    ///
    /// After this has returned, the old handler gets no more events, but keeps those it already got. A due event
    /// goes to the new handler; if there is none, it is kept for the next one.
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
        if std::mem::take(&mut target.event_pending) {
            target.raise(self.id);
        }
    }

    /// Removes the events that were not taken, and raises no more (requirement N11). Completions can still be
    /// polled.
    pub fn shut_down(&self) {
        let mut target = lock(&self.target);
        let target = std::mem::replace(&mut *target, EventTarget { closed: true, ..EventTarget::default() });
        if let Some(handler) = target.handler {
            handler.revoke(self.id);
        }
    }
}

impl Moderated for Cq {
    /// The time of [`moderate`](Cq::moderate) has passed.
    fn on_timer(&self) {
        let mut ring = lock(&self.ring);
        let held = ring.held.as_mut().is_some_and(ModerationState::on_timer);
        self.raise_if_held(ring, held);
    }
}

/// Appends completions together. When dropped, it unlocks the queue and wakes threads that wait for one of them.
pub(crate) struct PushBatch<'c> {
    cq: &'c Cq,
    ring: Option<MutexGuard<'c, Ring>>,
    /// An event is due.
    due: bool,
    /// The queue overflowed for the first time.
    lost: bool,
    /// An event is held back, and this timer has to be started.
    timer: Option<(Duration, Arc<dyn Timer>)>,
}

impl PushBatch<'_> {
    /// Appends a completion, as [`Cq::push`] does.
    pub(crate) fn push(&mut self, completion: Completion) -> Result<(), Overrun> {
        let ring = self.ring.get_or_insert_with(|| lock(&self.cq.ring));
        let (wakes, failed) = (completion.raises_solicited_event(), completion.status != Status::Success);
        let overrun = ring.overrun;
        let pushed = ring.push(completion, wakes);
        if ring.is_due(wakes || pushed.is_err()) {
            match ring.decide_event(failed || pushed.is_err()) {
                EventDecision::Raise => {
                    self.due = true;
                    self.cq.armed.store(false, Ordering::Relaxed);
                }
                EventDecision::StartTimer(period, timer) => self.timer = Some((period, timer)),
                EventDecision::Hold => {}
            }
        }
        self.lost |= pushed.is_err() && !overrun;
        pushed.map_err(|Full| Overrun { cq: self.cq.id })
    }
}

impl Drop for PushBatch<'_> {
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

/// A completion queue cannot be resized to so few completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot resize completion queue {cq} to {capacity}: it holds {waiting} completions, and the minimum is 1"
)]
pub struct TooSmall {
    /// The queue.
    pub cq: u32,
    /// The requested size.
    pub capacity: usize,
    /// Number of completions to be polled.
    pub waiting: usize,
}

/// The queue is full.
struct Full;

impl Ring {
    fn push(&mut self, mut completion: Completion, wakes: bool) -> Result<(), Full> {
        // After an overrun there may be room again, but later completions would hide that some are missing.
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

    /// Raises the event, or holds it back. Raising disarms: one event for each arming (requirement I2).
    fn decide_event(&mut self, failed: bool) -> EventDecision {
        let fate = match &mut self.held {
            None => EventDecision::Raise,
            Some(held) if failed => {
                held.reset_count();
                EventDecision::Raise
            }
            Some(held) => held.count_completion(),
        };
        if let EventDecision::Raise = fate {
            self.armed = None;
        }
        fate
    }
}

impl EventTarget {
    fn raise(&mut self, cq: u32) {
        match &self.handler {
            Some(handler) => handler.raise(cq, &mut self.last),
            None => self.event_pending = true,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
