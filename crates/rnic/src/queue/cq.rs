//! The completion queue: streams add completions, the consumer polls them.
//!
//! A consumer that has armed the queue gets one event through the queue's [`CompletionHandler`].
//!
//! The lock `ring` protects the completions and the arming, so that a completion is added and its event is found to be
//! due in one step. The event is raised after `ring` was released (requirement N9): the woken thread finds the
//! completion and does not contend for the lock. The lock `target`, taken only to raise an event or to move the queue
//! to another handler, prevents an event from reaching a handler that the queue has left (requirement N4).

mod adversary;
mod frozen;
mod held;
mod ring;
mod target;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use self::adversary::HeldTimer;
pub use self::frozen::{CqTooLarge, FrozenCq};

pub use self::ring::Arm;

use self::ring::{OVERRUN, Ring};
use self::target::EventTarget;
use super::moderation::{EventDecision, Moderation, ModerationState};
use super::{Completion, Status};
use crate::broken;
use crate::event::{AsyncEvent, AsyncEvents, CompletionHandler, HandlerId, Moderated, Timer, Wake};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A completion was added to a full queue. It is lost, and the queue accepts no more: the queue pairs that use it
/// fail (requirement I5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completion queue {cq} overflowed: create it with room for all completions that are not polled yet")]
pub struct Overrun {
    /// The number of the queue.
    pub cq: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// The number by which events name the queue.
    id: u32,
    /// The number of completions, plus [`OVERRUN`] after an overrun. Lets a poll of an empty queue return without the
    /// lock. Written with `ring` locked.
    ready: AtomicUsize,
    /// Equals `ring.armed.is_some()`, for readers that need only a hint. Written with `ring` locked.
    armed: AtomicBool,
    ring: Mutex<Ring>,
    target: Mutex<EventTarget>,
    /// Number of threads that sleep on the queue.
    sleepers: AtomicUsize,
    /// Wakes the threads that sleep on the queue. Empty until set.
    alarm: OnceLock<Arc<dyn Wake>>,
    /// Where an overrun is reported. Empty until set.
    reports: OnceLock<Arc<AsyncEvents>>,
}

impl Cq {
    /// Creates an empty queue for `capacity` completions, without a handler. Events name it `id`.
    pub fn new(id: u32, capacity: usize) -> Self {
        Self {
            id,
            ready: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            ring: Mutex::new(Ring::new(capacity)),
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

    /// Registers a thread that is about to sleep until [`is_ready`](Self::is_ready) returns true: from now on every new
    /// completion wakes the thread. Existing completions do not, so call `is_ready` before sleeping. Sleeping is
    /// independent of [`arm`](Self::arm), which belongs to the consumer.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a poll would return a completion or an overrun. If not, the next completion wakes every thread that has
    /// called [`begin_sleep`](Self::begin_sleep).
    pub fn is_ready(&self) -> bool {
        // With the lock, so that no completion is missed: either it was added before, or the thread that adds it takes
        // the lock later and therefore sees the sleeper.
        let ring = lock(&self.ring);
        !ring.completions.is_empty() || ring.overrun
    }

    /// Unregisters a thread that has woken up.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// The number by which events name the queue.
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

    /// Appends a completion that no packet caused: see `push_from`. Its event is one of the default
    /// lane.
    pub fn push(&self, completion: Completion) -> Result<(), Overrun> {
        self.push_from(|| 0, completion)
    }

    /// Appends a completion, and raises the event if the queue is armed for it. `lane` returns the lane that the event
    /// belongs to (requirement I8), and is called only if there is one.
    ///
    /// If this fails, the queue pair fails as well. The consumer is woken, and [`poll`](Self::poll) returns the
    /// error.
    pub(crate) fn push_from(&self, lane: impl Fn() -> u16, completion: Completion) -> Result<(), Overrun> {
        let mut ring = lock(&self.ring);
        if ring.armed.is_some() || !ring.has_room() {
            let mut batch = self.push_batch(lane);
            batch.ring = Some(ring);
            return batch.push(completion);
        }
        let wakes = completion.raises_solicited_event();
        ring.append(completion, wakes);
        self.ready.store(ring.ready(), Ordering::Relaxed);
        drop(ring);
        self.wake_sleepers();
        Ok(())
    }

    /// Returns an object that appends any number of completions and locks the queue only once, for the first of them.
    /// `lane` is as for [`push_from`](Self::push_from).
    pub(crate) fn push_batch<L: Fn() -> u16>(&self, lane: L) -> PushBatch<'_, L> {
        PushBatch { cq: self, lane, ring: None, due: false, first_overrun: false, timer: None }
    }

    /// Wakes the threads that sleep on the queue, after a completion was added and the queue was unlocked.
    #[inline]
    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::Acquire) > 0
            && let Some(alarm) = self.alarm.get()
        {
            alarm.signal();
        }
    }

    /// Takes up to `max` completions, the oldest first, calls `each` with each of them while the queue is locked, and
    /// returns their number.
    ///
    /// After an overrun, the completions from before it are returned first; then every call fails.
    #[inline]
    pub fn poll(&self, max: usize, each: impl FnMut(Completion)) -> Result<usize, Overrun> {
        match self.ready.load(Ordering::Relaxed) {
            0 => Ok(0),
            OVERRUN => Err(Overrun { cq: self.id }),
            _ => Ok(self.take(max, each)),
        }
    }

    /// Takes up to `max` completions, as [`poll`](Self::poll) does, and returns their number. Not inlined, so that a poll of
    /// an empty queue costs little.
    #[inline(never)]
    fn take(&self, max: usize, mut each: impl FnMut(Completion)) -> usize {
        let mut ring = lock(&self.ring);
        let n = max.min(ring.completions.len());
        for _ in 0..n {
            let Some(completion) = ring.completions.pop_front() else { break };
            ring.waking -= usize::from(completion.raises_solicited_event());
            each(completion);
        }
        self.ready.store(ring.ready(), Ordering::Relaxed);
        n
    }

    /// Arms the queue: requests one event for the next completion of this kind. Returns whether the queue already holds
    /// such a completion, or has overrun. Existing completions raise no event, so the caller must poll again. The queue
    /// is armed in either case.
    ///
    /// If the queue is armed twice before an event was raised, there is one event, for whichever completion comes
    /// first. If the queue is armed again before an event was taken from the handler, that event serves both arms:
    /// the thread that takes it finds all completions.
    #[must_use = "a completion that came before the queue was armed raises no event"]
    pub fn arm(&self, arm: Arm) -> bool {
        let mut ring = lock(&self.ring);
        if !ring.may_raise {
            drop(ring);
            lock(&self.target).prepare();
            ring = lock(&self.ring);
            ring.may_raise = true;
        }
        ring.armed = ring.armed.max(Some(arm)); // `Next` includes `Solicited`
        self.armed.store(true, Ordering::Relaxed);
        let has_matching = match arm {
            Arm::Next => !ring.completions.is_empty(),
            Arm::Solicited => ring.waking > 0,
        };
        has_matching || ring.overrun
    }

    /// Sets the moderation of events, which holds an event back for more completions or for a time (requirement I10).
    /// `None` ends moderation. Raises the event that the previous moderation held back, if any.
    pub fn moderate(&self, settings: Option<Moderation>) {
        let mut ring = lock(&self.ring);
        let before = std::mem::replace(&mut ring.moderation, settings.map(ModerationState::new));
        self.raise_if_held(ring, before.is_some_and(|moderation| moderation.holds_event()));
    }

    /// Raises the event of an armed queue, as one of this lane, although no completion was added. Consumers must expect such events: between
    /// arming and the event, another thread may have polled the completion. Does nothing if the queue is not armed.
    pub fn raise_early(&self, lane: u16) {
        if self.is_armed() {
            let mut ring = lock(&self.ring);
            ring.held_lane = lane;
            self.raise_if_held(ring, true);
        }
    }

    /// Unlocks the queue, and raises the event that moderation `held` back, unless the queue is no longer armed.
    fn raise_if_held(&self, mut ring: MutexGuard<'_, Ring>, held: bool) {
        let due = held && ring.armed.take().is_some();
        if due {
            self.armed.store(false, Ordering::Relaxed);
        }
        let lane = ring.held_lane;
        drop(ring);
        if due {
            lock(&self.target).raise(self.id, lane);
        }
    }

    /// Whether the queue is armed and its event was not raised yet: the thread that armed the queue sleeps, or is about
    /// to sleep.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Maximum number of completions.
    pub fn capacity(&self) -> usize {
        lock(&self.ring).max_len()
    }

    /// Changes the maximum number of completions to `capacity`. Keeps existing completions and the arming. Fails if the
    /// queue holds more than `capacity` completions.
    pub fn resize(&self, capacity: usize) -> Result<(), TooSmall> {
        let mut completions = VecDeque::with_capacity(capacity);
        let mut ring = lock(&self.ring);
        let waiting = ring.total_len();
        if capacity < waiting.max(1) {
            return Err(TooSmall { cq: self.id, capacity, waiting });
        }
        if broken::is("resize") {
            ring.completions.pop_back();
        }
        match &mut ring.held {
            None => ring.capacity = capacity,
            Some(held) => held.capacity = capacity,
        }
        completions.append(&mut ring.completions);
        std::mem::swap(&mut ring.completions, &mut completions);
        drop(ring); // unlock before the old ring, now in `completions`, is freed
        Ok(())
    }

    /// Removes the completions of the queue pair `qp` that were not polled, and returns their number. For a queue pair
    /// that is being reset or destroyed, and adds no more.
    pub fn purge(&self, qp: u32) -> usize {
        let mut ring = lock(&self.ring);
        let before = ring.total_len();
        ring.completions.retain(|completion| completion.qp != qp);
        if let Some(held) = &mut ring.held {
            held.completions.retain(|completion| completion.qp != qp);
        }
        ring.waking =
            ring.completions.iter().filter(|completion| completion.raises_solicited_event()).count();
        self.ready.store(ring.ready(), Ordering::Relaxed);
        before - ring.total_len()
    }

    /// Whether the queue holds the completion of a request of `qp` that succeeded.
    pub(crate) fn has_success_of(&self, qp: u32) -> bool {
        let of = |completion: &Completion| completion.qp == qp && completion.status == Status::Success;
        let ring = lock(&self.ring);
        ring.completions.iter().chain(ring.held.iter().flat_map(|held| &held.completions)).any(of)
    }

    /// The identifier of the current handler, if there is one. If there is one for each lane, that of lane 0.
    pub fn handler(&self) -> Option<HandlerId> {
        lock(&self.target).handler()
    }

    /// Moves the queue to another handler, or to none (*Modify CQ*, requirement N4). The queue stays armed.
    ///
    /// After this has returned, the old handler gets no more events, but keeps those it already got. A due event
    /// goes to the new handler; if there is none, it is kept for the next one.
    pub fn set_handler(&self, handler: Option<Arc<CompletionHandler>>) {
        if broken::is("move") {
            lock(&self.ring).armed = None;
        }
        lock(&self.target).set_handlers(self.id, handler.into_iter());
    }

    /// Moves the queue to a handler for each lane (requirement I8): the event of a completion goes to the handler of the
    /// lane that it belongs to. `handlers` has the handlers in the order of the lanes. Apart from that, as
    /// [`set_handler`](Self::set_handler).
    pub fn set_lane_handlers(&self, handlers: &[Arc<CompletionHandler>]) {
        lock(&self.target).set_handlers(self.id, handlers.iter().cloned());
    }

    /// Removes the events of this queue that were not taken from its handler, and raises no more (requirement N11).
    /// Completions can still be polled.
    pub fn shut_down(&self) {
        lock(&self.target).shut_down(self.id);
    }
}

impl Moderated for Cq {
    /// The time of [`moderate`](Cq::moderate) has passed.
    fn on_timer(&self) {
        let mut ring = lock(&self.ring);
        let held = ring.moderation.as_mut().is_some_and(ModerationState::on_timer);
        self.raise_if_held(ring, held);
    }
}

/// Appends completions to a queue. When dropped, it unlocks the queue, raises the event that is due, and wakes threads
/// that sleep on the queue.
pub(crate) struct PushBatch<'c, L: Fn() -> u16> {
    cq: &'c Cq,
    /// Returns the lane that an event belongs to.
    lane: L,
    /// The locked queue. `None` before the first completion.
    ring: Option<MutexGuard<'c, Ring>>,
    /// An event is due.
    due: bool,
    /// The queue overflowed, and had not overflowed before.
    first_overrun: bool,
    /// Set if moderation holds an event back: the timer to start, and its period.
    timer: Option<(Duration, Arc<dyn Timer>)>,
}

impl<L: Fn() -> u16> PushBatch<'_, L> {
    /// Appends a completion, as [`Cq::push`] does.
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) -> Result<(), Overrun> {
        if self.ring.get_or_insert_with(|| lock(&self.cq.ring)).has_room() {
            self.append(completion);
            Ok(())
        } else {
            self.push_without_room(completion)
        }
    }

    /// Appends a completion to the locked queue, which has room.
    #[inline]
    fn append(&mut self, completion: Completion) {
        let Some(ring) = &mut self.ring else { return };
        let (wakes, failed) = (completion.raises_solicited_event(), completion.status != Status::Success);
        ring.append(completion, wakes);
        if ring.is_due(wakes) {
            self.decide_event(failed);
        }
    }

    /// Decides what to do with the event that is due.
    #[inline]
    fn decide_event(&mut self, failed: bool) {
        let Some(ring) = &mut self.ring else { return };
        match ring.decide_event(failed) {
            EventDecision::Raise => {
                self.due = true;
                self.cq.armed.store(false, Ordering::Relaxed);
            }
            EventDecision::StartTimer(period, timer) => {
                ring.held_lane = (self.lane)();
                self.timer = Some((period, timer));
            }
            EventDecision::Hold => ring.held_lane = (self.lane)(),
        }
    }

    /// Loses a completion, because the queue is full. Afterwards every call fails, even if there is room again: later
    /// completions would hide that some are missing. Every completion comes here if the adversary may hold it back.
    #[cold]
    fn push_without_room(&mut self, completion: Completion) -> Result<(), Overrun> {
        if self.push_adversely(completion) {
            return Ok(());
        }
        if let Some(ring) = &mut self.ring {
            ring.add_held(); // those before the lost one can still be polled
            self.first_overrun |= !std::mem::replace(&mut ring.overrun, true);
            if ring.is_due(true) {
                self.decide_event(true);
            }
        }
        Err(Overrun { cq: self.cq.id })
    }
}

impl<L: Fn() -> u16> Drop for PushBatch<'_, L> {
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        let cq = self.cq;
        cq.ready.store(ring.ready(), Ordering::Relaxed);
        drop(ring); // before the event is raised (requirement N9)
        if let Some((period, timer)) = self.timer.take() {
            timer.start(period);
        }
        if self.due {
            lock(&cq.target).raise(cq.id, (self.lane)());
        }
        cq.wake_sleepers();
        if let (true, Some(reports)) = (self.first_overrun, cq.reports.get()) {
            reports.raise_from((self.lane)(), AsyncEvent::CqError(cq.id));
        }
    }
}

/// A completion queue cannot be resized: it holds more completions than the requested size, or that is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot resize completion queue {cq} to {capacity}: it holds {waiting} completions, and the minimum is 1"
)]
pub struct TooSmall {
    /// The number of the queue.
    pub cq: u32,
    /// The requested size.
    pub capacity: usize,
    /// Number of completions to be polled.
    pub waiting: usize,
}
