//! Asynchronous events: what happens to objects of the adapter outside of any request.

use super::code::{Code, Event};
use super::consumer::Consumer;
use super::map::{ASYNC_QUEUE, GLOBAL_QUEUE};
use super::queue::{Refused, Sizes, Standing};
use super::routing::{Interrupt, Routing};
use super::wake::Wake;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// What happened, and the number of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair failed by its own doing.
    #[error("queue pair {0} failed")]
    QpFatal(u32),
    /// The peer of a queue pair sent what it must not.
    #[error("the peer of queue pair {0} sent what it must not")]
    QpRequestError(u32),
    /// The peer of a queue pair reached for memory that it may not use.
    #[error("the peer of queue pair {0} reached for memory that it may not use")]
    QpAccessError(u32),
    /// The first message came for a queue pair that was ready to receive.
    #[error("the first message came for queue pair {0}")]
    Established(u32),
    /// All that was begun on a send queue that is being drained is complete.
    #[error("the send queue of queue pair {0} is drained")]
    SqDrained(u32),
    /// A queue pair with a shared receive queue has failed, and takes no receive of it any more.
    #[error("queue pair {0} takes no receive of its shared receive queue any more")]
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
    /// A port can be used.
    #[error("port {0} can be used")]
    PortActive(u32),
    /// A port cannot be used.
    #[error("port {0} cannot be used")]
    PortError(u32),
    /// The addresses of a port changed.
    #[error("the addresses of port {0} changed")]
    GidChange(u32),
    /// An event queue has no room, and can grow no more (requirement I5). The adapter stops.
    #[error("event queue {0} overflowed: nobody took its events")]
    EventQueueOverflow(u32),
    /// The adapter has stopped.
    #[error("the adapter has stopped")]
    DeviceFatal,
}

impl AsyncEvent {
    /// The queue pair that it is about.
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

    /// The shared receive queue that it is about.
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
            Code::Completion => panic!("completions go to completion handlers"),
        }
    }
}

/// Ends whatever the adapter still does, once it has failed. Not on the caller's thread, which may hold locks.
pub trait Stop: Send + Sync + fmt::Debug {
    /// Requests that are under way are flushed, connections cut.
    fn stop(&self);
}

/// The asynchronous events of an adapter. Nothing is written before the program [opens](Self::open) the queue: it may never
/// look at it.
#[derive(Debug)]
pub struct AsyncEvents {
    /// That of global and management events, and that of RDMA objects (requirement I6).
    queues: [(Consumer, Arc<LateWake>); 2],
    /// Says which of them an event goes to.
    routing: Arc<Routing>,
    stopped: AtomicBool,
    stop: OnceLock<Box<dyn Stop>>,
}

impl AsyncEvents {
    pub(crate) fn new(sizes: Sizes, routing: &Arc<Routing>) -> Self {
        let queues = [GLOBAL_QUEUE, ASYNC_QUEUE].map(|number| {
            let wake = Arc::<LateWake>::default();
            (Consumer::new(number, sizes, Box::new(Arc::clone(&wake))), wake)
        });
        let routing = Arc::clone(routing);
        Self { queues, routing, stopped: AtomicBool::new(false), stop: OnceLock::new() }
    }

    /// From now on `wake` tells when there is an event. Once.
    pub fn open(&self, wake: Box<dyn Wake>) {
        let wake: Arc<dyn Wake> = wake.into();
        for (queue, late) in &self.queues {
            let number = u16::try_from(queue.queue().number()).expect("it was made of one");
            if late.0.get().is_none() && late.0.set(self.routing.interrupt(number, Arc::clone(&wake))).is_ok()
            {
                queue.open();
            }
        }
    }

    /// Who ends what the adapter does when it fails. Once.
    pub fn set_stop(&self, stop: Box<dyn Stop>) {
        let _ = self.stop.set(stop);
    }

    /// Takes the oldest event, if there is one and the queues are open: of the adapter itself before those of its objects.
    pub fn next(&self) -> Option<AsyncEvent> {
        self.queues.iter().find_map(|(queue, _)| queue.next()).map(AsyncEvent::of)
    }

    /// Takes back the events that `of` chooses: those of an object that is destroyed. Returns how many.
    pub fn revoke(&self, mut of: impl FnMut(AsyncEvent) -> bool) -> usize {
        self.queues.iter().map(|(queue, _)| queue.revoke(|event| of(AsyncEvent::of(event)))).sum()
    }

    /// What its two event queues have done so far.
    pub fn standing(&self) -> [Standing; 2] {
        self.queues.each_ref().map(|(queue, _)| queue.queue().standing())
    }

    /// Whether the adapter has stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Something happened.
    ///
    /// A program that never looks is told nothing: otherwise peers could fill the queue for it, and end the adapter.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        if self.queues.iter().any(|(_, late)| late.0.get().is_none()) {
            return;
        }
        match self.queue_of(event).post(event.event()) {
            Ok(_) | Err(Refused::Undefined) => {}
            // The queue's last entry says so.
            Err(Refused::Overflow) => self.stop(None),
        }
    }

    /// The adapter cannot go on (requirement I5): an event queue overflowed.
    pub(crate) fn stop(&self, overflow: Option<AsyncEvent>) {
        self.stop_for(overflow, &"an event queue overflowed: take its events");
    }

    /// The adapter cannot go on, for a reason that whoever drives it knows.
    pub fn fail(&self, why: &dyn fmt::Display) {
        self.stop_for(None, why);
    }

    fn stop_for(&self, first: Option<AsyncEvent>, why: &dyn fmt::Display) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(%why, "the adapter has stopped");
        for event in first.into_iter().chain([AsyncEvent::DeviceFatal]) {
            // There may be no room; then its last entry is another that says the same.
            let _ = self.queue_of(event).post(event.event());
        }
        if let Some(stop) = self.stop.get() {
            stop.stop();
        }
    }

    /// The adapter goes away: nothing is raised any more (requirement N11).
    pub(crate) fn shut_down(&self) {
        self.queues.iter().for_each(|(queue, _)| queue.queue().shut_down());
    }

    /// The map has these events in one of the two queues, and nowhere else.
    fn queue_of(&self, event: AsyncEvent) -> &Consumer {
        let number = self.routing.route(event.event().code, 0).queue;
        &self.queues[usize::from(number == ASYNC_QUEUE)].0
    }
}

/// A wake for a queue that exists before anybody can be woken.
#[derive(Debug, Default)]
struct LateWake(OnceLock<Arc<Interrupt>>);

impl Wake for LateWake {
    fn signal(&self) {
        self.wake().signal();
    }

    fn consume(&self) {
        self.wake().consume();
    }
}

impl LateWake {
    fn wake(&self) -> &Interrupt {
        self.0.get().expect("the queue is armed after this was set")
    }
}
