//! Asynchronous events: what happens to objects of the adapter, unrelated to any request.

use super::code::{Code, Event};
use super::consumer::Consumer;
use super::map::{ASYNC_QUEUE, GLOBAL_QUEUE};
use super::queue::{EventQueueStats, PostEventError, Sizes};
use super::routing::{Interrupt, Routing};
use super::wake::Wake;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// An asynchronous event, with the number of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair failed because of a local error.
    #[error("queue pair {0} failed")]
    QpFatal(u32),
    /// The peer of a queue pair sent an invalid message.
    #[error("the peer of queue pair {0} sent an invalid message")]
    QpRequestError(u32),
    /// The peer of a queue pair accessed memory that it may not use.
    #[error("the peer of queue pair {0} accessed memory that it may not use")]
    QpAccessError(u32),
    /// The first message arrived for a queue pair that was ready to receive.
    #[error("the first message arrived for queue pair {0}")]
    Established(u32),
    /// All requests that were started on a draining send queue are complete.
    #[error("the send queue of queue pair {0} is drained")]
    SqDrained(u32),
    /// A queue pair with a shared receive queue has failed and takes no more receives from it.
    #[error("queue pair {0} takes no more receives from its shared receive queue")]
    LastWqeReached(u32),
    /// A completion queue overran.
    #[error("completion queue {0} overran")]
    CqError(u32),
    /// A shared receive queue has fewer receives left than its limit.
    #[error("shared receive queue {0} has fewer receives left than its limit")]
    SrqLimitReached(u32),
    /// A shared receive queue failed.
    #[error("shared receive queue {0} failed")]
    SrqError(u32),
    /// A port became usable.
    #[error("port {0} became usable")]
    PortActive(u32),
    /// A port became unusable.
    #[error("port {0} became unusable")]
    PortError(u32),
    /// The addresses of a port changed.
    #[error("the addresses of port {0} changed")]
    GidChange(u32),
    /// An event queue is full and has reached its maximum size (requirement I5). The adapter stops.
    #[error("event queue {0} overflowed: its events were not taken")]
    EventQueueOverflow(u32),
    /// The adapter has stopped.
    #[error("the adapter has stopped")]
    DeviceFatal,
}

impl AsyncEvent {
    /// The queue pair that the event is about, if any.
    pub const fn queue_pair(self) -> Option<u32> {
        match self {
            Self::QpFatal(qp)
            | Self::QpRequestError(qp)
            | Self::QpAccessError(qp)
            | Self::Established(qp)
            | Self::SqDrained(qp)
            | Self::LastWqeReached(qp) => Some(qp),
            _ => None,
        }
    }

    /// The shared receive queue that the event is about, if any.
    pub const fn shared_receive_queue(self) -> Option<u32> {
        match self {
            Self::SrqLimitReached(srq) | Self::SrqError(srq) => Some(srq),
            _ => None,
        }
    }

    const fn event(self) -> Event {
        let (code, object) = match self {
            Self::QpFatal(qp) => (Code::QpFatal, qp),
            Self::QpRequestError(qp) => (Code::QpRequestError, qp),
            Self::QpAccessError(qp) => (Code::QpAccessError, qp),
            Self::Established(qp) => (Code::Established, qp),
            Self::SqDrained(qp) => (Code::SqDrained, qp),
            Self::LastWqeReached(qp) => (Code::LastWqeReached, qp),
            Self::CqError(cq) => (Code::CqError, cq),
            Self::SrqLimitReached(srq) => (Code::SrqLimitReached, srq),
            Self::SrqError(srq) => (Code::SrqError, srq),
            Self::PortActive(port) => (Code::PortActive, port),
            Self::PortError(port) => (Code::PortError, port),
            Self::GidChange(port) => (Code::GidChange, port),
            Self::EventQueueOverflow(queue) => (Code::EventQueueOverflow, queue),
            Self::DeviceFatal => (Code::DeviceFatal, 0),
        };
        Event { code, object }
    }

    const fn of(event: Event) -> Self {
        let object = event.object;
        match event.code {
            Code::QpFatal => Self::QpFatal(object),
            Code::QpRequestError => Self::QpRequestError(object),
            Code::QpAccessError => Self::QpAccessError(object),
            Code::Established => Self::Established(object),
            Code::SqDrained => Self::SqDrained(object),
            Code::LastWqeReached => Self::LastWqeReached(object),
            Code::CqError => Self::CqError(object),
            Code::SrqLimitReached => Self::SrqLimitReached(object),
            Code::SrqError => Self::SrqError(object),
            Code::PortActive => Self::PortActive(object),
            Code::PortError => Self::PortError(object),
            Code::GidChange => Self::GidChange(object),
            Code::EventQueueOverflow => Self::EventQueueOverflow(object),
            Code::DeviceFatal => Self::DeviceFatal,
            Code::Completion => panic!("completion event in a queue of asynchronous events"),
        }
    }
}

/// Stops an adapter that has failed. Must not do so on the calling thread, which may hold locks.
pub trait Stop: Send + Sync + fmt::Debug {
    /// Flushes requests in progress and aborts connections.
    fn stop(&self);
}

/// The asynchronous events of an adapter. No event is written before the program [opens](Self::open) the
/// queues, because it may never read them.
#[derive(Debug)]
pub struct AsyncEvents {
    /// The queue of global and management events, and that of RDMA objects (requirement I6).
    queues: [(Consumer, Arc<DeferredWake>); 2],
    /// Decides which queue an event goes to.
    routing: Arc<Routing>,
    stopped: AtomicBool,
    stop: OnceLock<Box<dyn Stop>>,
}

impl AsyncEvents {
    pub(crate) fn new(sizes: Sizes, routing: &Arc<Routing>) -> Self {
        let queues = [GLOBAL_QUEUE, ASYNC_QUEUE].map(|number| {
            let wake = Arc::<DeferredWake>::default();
            (Consumer::new(number, sizes, Box::new(Arc::clone(&wake))), wake)
        });
        let routing = Arc::clone(routing);
        Self { queues, routing, stopped: AtomicBool::new(false), stop: OnceLock::new() }
    }

    /// Opens the queues and reports events through `wake`. Further calls have no effect.
    pub fn open(&self, wake: Box<dyn Wake>) {
        let wake: Arc<dyn Wake> = wake.into();
        for (queue, deferred) in &self.queues {
            let number = u16::try_from(queue.queue().number())
                .expect("the number was a `u16` when the queue was created");
            if deferred.0.get().is_none()
                && deferred.0.set(self.routing.create_interrupt(number, Arc::clone(&wake))).is_ok()
            {
                queue.open();
            }
        }
    }

    /// Sets what stops the adapter when it fails. Further calls have no effect.
    pub fn set_stop(&self, stop: Box<dyn Stop>) {
        let _ = self.stop.set(stop);
    }

    /// Takes the oldest event, if there is one and the queues are open. Events of the adapter itself come
    /// before those of its objects.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.queues.iter().find_map(|(queue, _)| queue.try_next()).map(AsyncEvent::of)
    }

    /// Removes the events selected by `of`, for an object that is being destroyed. Returns their number.
    pub fn revoke(&self, mut of: impl FnMut(AsyncEvent) -> bool) -> usize {
        self.queues.iter().map(|(queue, _)| queue.revoke(|event| of(AsyncEvent::of(event)))).sum()
    }

    /// State and statistics of the two event queues.
    pub fn stats(&self) -> [EventQueueStats; 2] {
        self.queues.each_ref().map(|(queue, _)| queue.queue().stats())
    }

    /// Whether the adapter has stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Raises an event.
    ///
    /// Does nothing before the queues are open: otherwise peers could fill the queue of a program that never
    /// reads it, and stop the adapter.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        if self.queues.iter().any(|(_, wake)| wake.0.get().is_none()) {
            return;
        }
        match self.queue_of(event).post(event.event()) {
            Ok(_) | Err(PostEventError::Undefined) => {}
            // The last entry of the queue reports the overflow.
            Err(PostEventError::Overflow) => self.stop(None),
        }
    }

    /// Stops the adapter because an event queue overflowed (requirement I5).
    pub(crate) fn stop(&self, overflow: Option<AsyncEvent>) {
        self.stop_for(overflow, &"an event queue overflowed: the program must take its events");
    }

    /// Stops the adapter for a reason that the caller states.
    pub fn fail(&self, why: &dyn fmt::Display) {
        self.stop_for(None, why);
    }

    fn stop_for(&self, first: Option<AsyncEvent>, why: &dyn fmt::Display) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(%why, "adapter stopped");
        for event in first.into_iter().chain([AsyncEvent::DeviceFatal]) {
            // The queue may be full, in which case its last entry reports an overflow, which means the same.
            let _ = self.queue_of(event).post(event.event());
        }
        if let Some(stop) = self.stop.get() {
            stop.stop();
        }
    }

    /// Stops raising events because the adapter is being closed (requirement N11).
    pub(crate) fn shut_down(&self) {
        self.queues.iter().for_each(|(queue, _)| queue.queue().shut_down());
    }

    /// The queue for an event. The map sends these events to one of the two queues only.
    fn queue_of(&self, event: AsyncEvent) -> &Consumer {
        let number = self.routing.route(event.event().code, 0).queue;
        &self.queues[usize::from(number == ASYNC_QUEUE)].0
    }
}

/// The wake of a queue that exists before there is a consumer to wake.
#[derive(Debug, Default)]
struct DeferredWake(OnceLock<Arc<Interrupt>>);

impl Wake for DeferredWake {
    fn signal(&self) {
        self.wake().signal();
    }

    fn consume(&self) {
        self.wake().consume();
    }
}

impl DeferredWake {
    fn wake(&self) -> &Interrupt {
        self.0.get().expect("the wake is set before the queue is armed")
    }
}
