//! Asynchronous events: what happens to objects of the adapter outside of any request.

use super::code::{Code, Event};
use super::consumer::Consumer;
use super::queue::{Refused, Sizes, Standing};
use super::wake::Wake;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The number of the event queue for them.
const NUMBER: u16 = 1;

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
    consumer: Consumer,
    wake: Arc<LateWake>,
    stopped: AtomicBool,
    stop: OnceLock<Box<dyn Stop>>,
}

impl AsyncEvents {
    pub(crate) fn new(sizes: Sizes) -> Self {
        let wake = Arc::<LateWake>::default();
        let consumer = Consumer::new(NUMBER, sizes, Box::new(Arc::clone(&wake)));
        Self { consumer, wake, stopped: AtomicBool::new(false), stop: OnceLock::new() }
    }

    /// From now on `wake` tells when there is an event. Once.
    pub fn open(&self, wake: Box<dyn Wake>) {
        if self.wake.0.set(wake).is_ok() {
            self.consumer.open();
        }
    }

    /// Who ends what the adapter does when it fails. Once.
    pub fn set_stop(&self, stop: Box<dyn Stop>) {
        let _ = self.stop.set(stop);
    }

    /// Takes the oldest event, if there is one and the queue is open.
    pub fn next(&self) -> Option<AsyncEvent> {
        self.consumer.next().map(AsyncEvent::of)
    }

    /// Takes back the events that `of` chooses: those of an object that is destroyed. Returns how many.
    pub fn revoke(&self, mut of: impl FnMut(AsyncEvent) -> bool) -> usize {
        self.consumer.revoke(|event| of(AsyncEvent::of(event)))
    }

    /// What its event queue has done so far.
    pub fn standing(&self) -> Standing {
        self.consumer.queue().standing()
    }

    /// Whether the adapter has stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Something happened.
    ///
    /// A program that never looks is told nothing: otherwise peers could fill the queue for it, and end the adapter.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        if self.wake.0.get().is_none() {
            return;
        }
        match self.consumer.post(event.event()) {
            Ok(_) | Err(Refused::Undefined) => {}
            // The queue's last entry says so.
            Err(Refused::Overflow) => self.stop(None),
        }
    }

    /// The adapter cannot go on (requirement I5).
    pub(crate) fn stop(&self, why: Option<AsyncEvent>) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(?why, "the adapter has stopped: an event queue overflowed");
        for event in why.into_iter().chain([AsyncEvent::DeviceFatal]) {
            // There may be no room; then its last entry is another that says the same.
            let _ = self.consumer.post(event.event());
        }
        if let Some(stop) = self.stop.get() {
            stop.stop();
        }
    }

    /// The adapter goes away: nothing is raised any more (requirement N11).
    pub(crate) fn shut_down(&self) {
        self.consumer.queue().shut_down();
    }
}

/// A wake for a queue that exists before anybody can be woken.
#[derive(Debug, Default)]
struct LateWake(OnceLock<Box<dyn Wake>>);

impl Wake for LateWake {
    fn signal(&self) {
        self.wake().signal();
    }

    fn consume(&self) {
        self.wake().consume();
    }
}

impl LateWake {
    fn wake(&self) -> &dyn Wake {
        &**self.0.get().expect("the queue is armed after this was set")
    }
}
