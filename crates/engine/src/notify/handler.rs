//! Completion handlers and asynchronous events, with descriptors for programs that do not poll.

use super::channel::{EventFdWake, wait_for};
use crate::reactor::class::{Class, SharedClass};
use crate::reactor::handle::LaneHandle;
use crate::sys::sched::set_low_latency;
use ironwarp_rnic::event::{
    self, AsyncEvent, AsyncEvents, CqEvent, EventQueueStats, HandlerId, Moderated, Timer,
};
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// A completion queue, as its handler sees it.
pub(crate) trait ClassFollower: Send + Sync + fmt::Debug {
    /// The class of a handler became low latency, or no longer is. Does nothing if the handler is not its own any more.
    fn on_class_change(&self, class: &Arc<SharedClass>) -> io::Result<()>;
}

/// A completion handler: one descriptor for any number of completion queues.
#[derive(Debug)]
pub struct CompletionHandler {
    inner: Arc<event::CompletionHandler>,
    wake: EventFdWake,
    /// Shared with its completion queues.
    class: Arc<SharedClass>,
    /// Its completion queues.
    queues: Mutex<Vec<Weak<dyn ClassFollower>>>,
}

impl CompletionHandler {
    pub(crate) fn new(inner: Arc<event::CompletionHandler>, wake: EventFdWake) -> Arc<Self> {
        let class = Arc::new(SharedClass::new(Class::DEFAULT));
        Arc::new(Self { inner, wake, class, queues: Mutex::default() })
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
        self.class.get()
    }

    pub(crate) fn shared_class(&self) -> &Arc<SharedClass> {
        &self.class
    }

    /// Changes the class while completions arrive (requirement N6). The queue pairs of the handler's completion queues are served
    /// accordingly from now on.
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        let before = self.class.replace(class);
        if (before == Class::LowLatency) == (class == Class::LowLatency) {
            return Ok(()); // their queue pairs stay on their lanes
        }
        let queues: Vec<_> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        queues.iter().try_for_each(|queue| queue.on_class_change(&self.class))
    }

    /// Adds a completion queue.
    pub(crate) fn add_queue(&self, queue: &Arc<dyn ClassFollower>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0 && !is_same(known, &**queue));
        queues.push(Arc::downgrade(queue));
    }

    pub(crate) fn remove_queue(&self, queue: &dyn ClassFollower) {
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

    /// Waits for an event and takes it. Returns `None` if the timeout expires first.
    ///
    /// A thread that waits for events of a low-latency handler is scheduled before others, like the lane that serves it, until
    /// it waits for those of another handler.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<CqEvent> {
        set_low_latency(self.class() == Class::LowLatency);
        wait_for(&self.wake, timeout, || self.try_next())
    }

    /// Wakes the consumer at most once in each interval, by a timer of this lane (requirement I10).
    pub(crate) fn moderate(&self, interval: Duration, lane: &Arc<LaneHandle>) {
        let moderation = (!interval.is_zero()).then(|| {
            let timer: Arc<dyn Timer> = LaneTimer::new(lane, &self.inner);
            (interval, timer)
        });
        self.inner.moderate(moderation);
    }
}

fn is_same(known: &Weak<dyn ClassFollower>, queue: &dyn ClassFollower) -> bool {
    std::ptr::addr_eq(known.as_ptr(), &raw const *queue)
}

impl AsFd for CompletionHandler {
    /// Returns a descriptor that is readable while an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A timer of a lane that ends an interval of moderation. The lane holds the timer weakly: a timer that is dropped before it
/// expires, because moderation was changed, does nothing. Timers of old settings would start others, and each wake the consumer once
/// in each interval.
#[derive(Debug)]
pub(crate) struct LaneTimer {
    this: Weak<Self>,
    lane: Arc<LaneHandle>,
    moderated: Weak<dyn Moderated>,
}

impl LaneTimer {
    pub(crate) fn new<M: Moderated + 'static>(lane: &Arc<LaneHandle>, moderated: &Arc<M>) -> Arc<Self> {
        let moderated = Arc::downgrade(moderated);
        Arc::new_cyclic(|this| Self { this: Weak::clone(this), lane: Arc::clone(lane), moderated })
    }
}

impl Timer for LaneTimer {
    fn start(&self, after: Duration) {
        let this = Weak::clone(&self.this);
        self.lane.call_at(Instant::now() + after, move || {
            if let Some(moderated) = this.upgrade().and_then(|timer| timer.moderated.upgrade()) {
                moderated.on_timer();
            }
        });
    }
}

/// The asynchronous events of an adapter: what happens to its objects outside of any work request.
#[derive(Debug)]
pub struct AsyncEventQueue {
    events: Arc<AsyncEvents>,
    wake: EventFdWake,
}

impl AsyncEventQueue {
    pub(crate) fn open(events: &Arc<AsyncEvents>) -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        events.open(Box::new(wake.clone()));
        Ok(Arc::new(Self { events: Arc::clone(events), wake }))
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.events.try_next()
    }

    /// Waits for an event and takes it. Returns `None` if the timeout expires first.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        wait_for(&self.wake, timeout, || self.try_next())
    }
}

impl AsFd for AsyncEventQueue {
    /// Returns a descriptor that is readable while an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
