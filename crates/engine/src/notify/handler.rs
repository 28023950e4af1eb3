//! Completion handlers, which notify the program of completions, and the queue of asynchronous events.

use super::blocking::{BlockedThreads, Descriptors, EventSource};
use super::channel::{EventFdWake, sleep_until, wait_for};
use super::end::EndSignal;
use crate::reactor::class::{Class, Processors, ServicePolicy};
use crate::reactor::handle::LaneHandle;
use crate::sys::sched::set_low_latency;
use crate::sys::thread::{Awaited, wait_readable};
use ironwarp_rnic::event::{
    self, AsyncEvent, AsyncEvents, CqEvent, EventQueue, EventQueueStats, HandlerId, Moderated, Moderation,
    ProgramQueue, ResizeQueueError, Timer,
};
use ironwarp_rnic::quota::Place;
use ironwarp_rnic::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// A completion queue, as far as its handler knows it: the class and the processors of the handler decide which lane
/// serves the queue's queue pairs.
pub(crate) trait ServiceFollower: EventSource {
    /// Moves the queue pairs of the completion queue to lanes that fit class and processors of the handler, which have
    /// changed. `service` identifies the handler: an implementation must do nothing if its queue has another handler by
    /// now.
    fn on_service_change(&self, service: &Arc<ServicePolicy>) -> io::Result<()>;
}

/// A completion handler: one descriptor for any number of completion queues.
#[derive(Debug)]
pub struct CompletionHandler {
    inner: Arc<event::CompletionHandler>,
    /// Signalled by `inner` for each event.
    wake: EventFdWake,
    /// The class and the processors, shared with the handler's completion queues.
    service: Arc<ServicePolicy>,
    /// The name of its consumer; `None` if the program gave none.
    consumer: Mutex<Option<Arc<str>>>,
    /// The handler's completion queues.
    queues: Mutex<Vec<Weak<dyn ServiceFollower>>>,
    /// Threads that wait for events.
    blocked: BlockedThreads,
    /// Whether wakeups of the program are limited.
    is_moderated: AtomicBool,
    /// The end of the adapter.
    end: Arc<EndSignal>,
    /// Its place in the quota of its function; `None` if it does not count.
    _place: Option<Place>,
}

impl CompletionHandler {
    pub(crate) fn new(
        inner: Arc<event::CompletionHandler>,
        wake: EventFdWake,
        end: &Arc<EndSignal>,
        place: Option<Place>,
    ) -> Arc<Self> {
        let service = Arc::new(ServicePolicy::new(Class::DEFAULT));
        let (consumer, queues, blocked) = (Mutex::default(), Mutex::default(), BlockedThreads::default());
        let (is_moderated, end) = (AtomicBool::new(false), Arc::clone(end));
        Arc::new(Self { inner, wake, service, consumer, queues, blocked, is_moderated, end, _place: place })
    }

    pub(crate) fn inner(&self) -> &Arc<event::CompletionHandler> {
        &self.inner
    }

    /// Returns the identifier of the handler.
    pub fn id(&self) -> HandlerId {
        self.inner.id()
    }

    /// Returns the class of the handler.
    pub fn class(&self) -> Class {
        self.service.class()
    }

    pub(crate) fn service(&self) -> &Arc<ServicePolicy> {
        &self.service
    }

    /// Changes the class while completions arrive (requirement N6). The queue pairs of the handler's completion queues
    /// are served accordingly from now on.
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        let before = self.service.replace_class(class);
        if (before == Class::LowLatency) == (class == Class::LowLatency) {
            return Ok(()); // only a change to or from low latency moves connections to another lane
        }
        self.report_change()
    }

    /// Returns the numbers of the processors that its queue pairs are served on, in ascending order; none if any
    /// processor will do.
    pub fn processors(&self) -> Vec<usize> {
        self.service.processors().numbers().to_vec()
    }

    /// Sets the processors. The queue pairs of the handler's completion queues move to lanes that run there.
    pub(crate) fn set_processors(&self, processors: Processors) -> io::Result<()> {
        self.service.set_processors(processors);
        self.report_change()
    }

    /// Tells the completion queues that class or processors have changed.
    fn report_change(&self) -> io::Result<()> {
        let queues: Vec<_> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        queues.iter().try_for_each(|queue| queue.on_service_change(&self.service))
    }

    /// Returns the name of its consumer; `None` if the program gave none.
    pub fn consumer(&self) -> Option<Arc<str>> {
        lock(&self.consumer).clone()
    }

    /// Names the consumer: the part of the program that takes the events (requirement N5). Other processes see the name.
    pub fn set_consumer(&self, name: &str) {
        *lock(&self.consumer) = Some(name.into());
    }

    /// Adds a completion queue, which is told when class or processors change. Adding it twice has no effect.
    pub(crate) fn add_queue(&self, queue: &Arc<dyn ServiceFollower>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0 && !is_same(known, &**queue));
        queues.push(Arc::downgrade(queue));
    }

    /// Removes a completion queue.
    pub(crate) fn remove_queue(&self, queue: &dyn ServiceFollower) {
        lock(&self.queues).retain(|known| !is_same(known, queue));
    }

    /// Returns counters of the handler's event queue.
    pub fn stats(&self) -> EventQueueStats {
        self.inner.stats()
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<CqEvent> {
        self.inner.try_next()
    }

    /// Takes the oldest event, if there is one, whether the descriptor is readable or not. Leaves the event queue
    /// unarmed: the program is not woken before [`arm`](Self::arm) or [`wait`](Self::wait) (requirement I10).
    pub fn poll_one(&self) -> Option<CqEvent> {
        self.inner.poll_one()
    }

    /// Arms the event queue again after [`poll_one`](Self::poll_one).
    pub fn arm(&self) {
        self.inner.arm();
    }

    /// Switches the event queue to a ring with `size` entries, while events are raised and taken (requirement I3).
    pub fn resize(&self, size: usize) -> Result<(), ResizeQueueError> {
        self.inner.resize(size)
    }

    /// Waits for an event and takes it. Returns `None` if the timeout expires first, or the adapter is shut down.
    ///
    /// A thread that waits for events of a low-latency handler is scheduled before others, like the low-latency lane.
    /// This lasts until the thread waits for events of a handler of another class.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<CqEvent> {
        set_low_latency(self.class() == Class::LowLatency);
        self.arm(); // the program may have polled before
        if !self.is_served_directly() {
            return wait_for(&self.wake, Some(&self.end), timeout, || self.try_next());
        }
        let next = || {
            let _taking = self.wake.begin_take();
            self.blocked.end();
            self.try_next()
        };
        let sleep = |timeout| {
            let at_end = self.end.descriptor();
            if self.end.has_ended() {
                return Ok(()); // before there was a descriptor
            }
            let mut fds = Descriptors::new();
            fds.push(Awaited::readable(&self.wake));
            fds.extend(at_end.as_deref().map(Awaited::readable));
            let queues =
                lock(&self.queues).iter().filter_map(Weak::upgrade).map(|queue| queue as _).collect();
            match self.blocked.begin(queues, &mut fds) {
                true => wait_readable(&fds, timeout, || false).inspect_err(|_| self.blocked.end()),
                false => Ok(()),
            }
        };
        sleep_until(Some(&self.end), timeout, next, sleep)
    }

    /// Returns whether a thread that waits for events serves the sockets. Lanes serve them if wakeups are limited, or if
    /// they divide their time between classes.
    fn is_served_directly(&self) -> bool {
        !self.is_moderated.load(Ordering::Relaxed)
            && matches!(self.class(), Class::LowLatency | Class::DEFAULT)
    }

    /// Wakes the program at most once in each interval, with timers of this lane (requirement I10). An interval of zero
    /// turns this off.
    pub(crate) fn moderate(&self, interval: Duration, lane: &Arc<LaneHandle>) {
        let moderation = (!interval.is_zero()).then(|| {
            let timer: Arc<dyn Timer> = LaneTimer::new(lane, &self.inner);
            (interval, timer)
        });
        self.is_moderated.store(moderation.is_some(), Ordering::Relaxed);
        self.inner.moderate(moderation);
    }
}

/// Returns whether both are the same completion queue.
fn is_same(known: &Weak<dyn ServiceFollower>, queue: &dyn ServiceFollower) -> bool {
    std::ptr::addr_eq(known.as_ptr(), &raw const *queue)
}

impl AsFd for CompletionHandler {
    /// Returns a descriptor that is readable while an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A timer that ends an interval of moderation, on a lane.
///
/// The lane holds it weakly. So a timer of an old setting, which is dropped when moderation changes, does nothing when
/// it expires. If it did, it would start another timer, and the program would be woken by both.
#[derive(Debug)]
pub(crate) struct LaneTimer {
    this: Weak<Self>,
    lane: Arc<LaneHandle>,
    /// The completion handler or completion queue whose events are moderated.
    moderated: Weak<dyn Moderated>,
}

impl LaneTimer {
    pub(crate) fn new<M: Moderated + 'static>(lane: &Arc<LaneHandle>, moderated: &Arc<M>) -> Arc<Self> {
        let moderated = Arc::downgrade(moderated);
        Arc::new_cyclic(|this| Self { this: Weak::clone(this), lane: Arc::clone(lane), moderated })
    }
}

impl Timer for LaneTimer {
    /// Has the lane end the interval after this time, unless the timer is dropped before.
    fn start(&self, after: Duration) {
        let this = Weak::clone(&self.this);
        self.lane.call_at(Instant::now() + after, move || {
            if let Some(moderated) = this.upgrade().and_then(|timer| timer.moderated.upgrade()) {
                moderated.on_timer();
            }
        });
    }
}

/// The asynchronous events of an adapter, which report what happens to its objects outside of any work request; or those
/// that the event map sends to one event queue (requirement I6).
#[derive(Debug)]
pub struct AsyncEventQueue {
    events: Arc<AsyncEvents>,
    /// The event queue; `None` for those of global and of asynchronous events.
    queue: Option<Arc<ProgramQueue>>,
    wake: EventFdWake,
    /// The end of the adapter.
    end: Arc<EndSignal>,
    /// Its place in the quota of its function; `None` if it does not count.
    _place: Option<Place>,
}

impl AsyncEventQueue {
    /// Opens the queue, which finds the events so far.
    pub(crate) fn open(events: &Arc<AsyncEvents>, end: &Arc<EndSignal>) -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        events.open(Box::new(wake.clone()));
        Ok(Arc::new(Self {
            events: Arc::clone(events),
            queue: None,
            wake,
            end: Arc::clone(end),
            _place: None,
        }))
    }

    /// Opens the queue of channel events, which must not be open.
    pub(crate) fn open_channel(events: &Arc<AsyncEvents>, end: &Arc<EndSignal>) -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        let queue = Some(events.open_channel_queue(Arc::new(wake.clone())));
        Ok(Arc::new(Self { events: Arc::clone(events), queue, wake, end: Arc::clone(end), _place: None }))
    }

    /// Creates a queue to which the map may send events.
    pub(crate) fn create(
        events: &Arc<AsyncEvents>,
        end: &Arc<EndSignal>,
        place: Place,
    ) -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        let queue = events.create_queue(Arc::new(wake.clone())).map_err(io::Error::other)?;
        let (events, queue, end) = (Arc::clone(events), Some(queue), Arc::clone(end));
        Ok(Arc::new(Self { events, queue, wake, end, _place: Some(place) }))
    }

    /// Returns the number of the event queue; `None` for both queues of global and of asynchronous events.
    pub fn number(&self) -> Option<u16> {
        self.queue.as_ref().map(|queue| queue.number())
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        match &self.queue {
            Some(queue) => queue.try_next(),
            None => self.events.try_next(),
        }
    }

    /// Takes the oldest event, if there is one, whether the descriptor is readable or not. Leaves the event queues
    /// unarmed: the program is not woken before [`arm`](Self::arm) or [`wait`](Self::wait) (requirement I10).
    pub fn poll_one(&self) -> Option<AsyncEvent> {
        match &self.queue {
            Some(queue) => queue.poll_one(),
            None => self.events.poll_one(),
        }
    }

    /// Arms the event queues again after [`poll_one`](Self::poll_one).
    pub fn arm(&self) {
        match &self.queue {
            Some(queue) => queue.arm(),
            None => self.events.arm(),
        }
    }

    /// Wakes the program when an event queue has `count` events, or `period` after the first, with timers of this lane
    /// (requirement I10).
    pub(crate) fn moderate(&self, count: usize, period: Duration, lane: &Arc<LaneHandle>) {
        let settings = |queue: &Arc<EventQueue>| {
            (count > 1).then(|| Moderation { count, period, timer: LaneTimer::new(lane, queue) })
        };
        match &self.queue {
            Some(queue) => queue.moderate(settings),
            None => self.events.moderate(settings),
        }
    }

    /// Waits for an event and takes it. Returns `None` if the timeout expires first, or the adapter is shut down.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        self.arm(); // the program may have polled before
        wait_for(&self.wake, Some(&self.end), timeout, || self.try_next())
    }
}

impl AsFd for AsyncEventQueue {
    /// Returns a descriptor that is readable while an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
