//! Completion handlers and asynchronous events with file descriptors: where a program waits that does not poll. Before this:
//! a completion queue, or whatever else found that an event is due, on a lane or a thread of the program's.

use crate::class::{Class, SharedClass};
use crate::cq::CompletionQueue;
use crate::event::{EventFdWake, wait_for};
use crate::lane::{Due, Job, Lane};
use crate::set::lock;
use crate::sys::hurry::hurry;
use ironwarp_rnic::event::{self, AsyncEvent, AsyncEvents, CqEvent, HandlerId, Moderated, Standing, Timer};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// A completion handler: one descriptor for any number of completion queues.
#[derive(Debug)]
pub struct CompletionHandler {
    inner: Arc<event::CompletionHandler>,
    wake: EventFdWake,
    class: SharedClass,
    /// The completion queues that it serves.
    queues: Mutex<Vec<Weak<CompletionQueue>>>,
}

impl CompletionHandler {
    pub(crate) fn new(inner: Arc<event::CompletionHandler>, wake: EventFdWake) -> Arc<Self> {
        Arc::new(Self { inner, wake, class: SharedClass::new(Class::USUAL), queues: Mutex::default() })
    }

    pub(crate) fn inner(&self) -> &Arc<event::CompletionHandler> {
        &self.inner
    }

    /// What tells it from others.
    pub fn id(&self) -> HandlerId {
        self.inner.id()
    }

    /// How urgent it is what it tells.
    pub fn class(&self) -> Class {
        self.class.get()
    }

    /// Gives it another class, while completions arrive (requirement N6): the queue pairs of its completion queues are served accordingly
    /// from now on.
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        self.class.set(class);
        let queues: Vec<_> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        queues.iter().try_for_each(|queue| queue.follow(self))
    }

    /// Serves this completion queue from now on, and not the one that is gone.
    pub(crate) fn serves(&self, queue: &Arc<CompletionQueue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), &raw const **queue));
        queues.push(Arc::downgrade(queue));
    }

    /// Serves this one no more.
    pub(crate) fn serves_no_more(&self, queue: &CompletionQueue) {
        lock(&self.queues).retain(|known| !std::ptr::eq(known.as_ptr(), &raw const *queue));
    }

    /// What it has done so far.
    pub fn standing(&self) -> Standing {
        self.inner.standing()
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn next(&self) -> Option<CqEvent> {
        self.inner.next()
    }

    /// Waits for an event and takes it; `None` if `timeout` is over first.
    ///
    /// A thread that waits for what is urgent is in a hurry, like the lane that serves it, until it waits for something else.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<CqEvent> {
        hurry(self.class() == Class::LowLatency);
        wait_for(&self.wake, timeout, || self.next())
    }

    /// Wakes its consumer at most once in each interval, on this lane's clock (requirement I10).
    pub(crate) fn moderate(&self, interval: Duration, lane: Arc<Lane>) {
        let moderation = (!interval.is_zero()).then(|| {
            let timer: Arc<dyn Timer> = LaneTimer::new(lane, &self.inner);
            (interval, timer)
        });
        self.inner.moderate(moderation);
    }
}

impl AsFd for CompletionHandler {
    /// Readable exactly while there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Moderation by a lane's timers. The lane knows the timer, not what it is for: a timer that is dropped before its time, because
/// the rules have changed, does not ring. Those of old rules would start others, and each of them wake its consumer in each interval.
#[derive(Debug)]
pub(crate) struct LaneTimer {
    this: Weak<Self>,
    lane: Arc<Lane>,
    of: Weak<dyn Moderated>,
}

impl LaneTimer {
    pub(crate) fn new<M: Moderated + 'static>(lane: Arc<Lane>, of: &Arc<M>) -> Arc<Self> {
        let of = Arc::downgrade(of);
        Arc::new_cyclic(|this| Self { this: Weak::clone(this), lane, of })
    }
}

impl Timer for LaneTimer {
    fn start(&self, after: Duration) {
        let this: Weak<Self> = Weak::clone(&self.this);
        self.lane.submit(Job::Remind(Instant::now() + after, Due::Expired(this)));
    }
}

impl Moderated for LaneTimer {
    fn expired(&self) {
        if let Some(of) = self.of.upgrade() {
            of.expired();
        }
    }
}

/// The asynchronous events of an adapter: what happens to its objects outside of any request.
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
    pub fn next(&self) -> Option<AsyncEvent> {
        self.events.next()
    }

    /// Waits for an event and takes it; `None` if `timeout` is over first.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        wait_for(&self.wake, timeout, || self.next())
    }
}

impl AsFd for AsyncEventQueue {
    /// Readable exactly while there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
