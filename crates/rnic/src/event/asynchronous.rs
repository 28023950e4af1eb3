//! Asynchronous events, which report changes and failures of queue pairs, queues, ports and the adapter that are
//! not the result of a work request.

use super::code::{Cause, Code, Event, Function};
use super::consumer::Consumer;
use super::early::EarlyEvents;
use super::map::{ASYNC_QUEUE, CHANNEL_QUEUE, GLOBAL_QUEUE};
use super::program_queue::{ProgramQueue, ProgramQueues, TooManyQueues};
use super::queue::{EventQueue, EventQueueStats, PostEventError, Sizes};
use super::routing::{Interrupt, Routing};
use super::wake::{Moderation, Wake};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

/// An asynchronous event, with the number of the object that it is about.
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
    /// An administrative command took effect.
    #[error("{0} has changed")]
    AdminCommand(AdminCommand),
    /// A peer requests a connection at the listener with this TCP port. A channel event.
    #[error("a connection is requested at port {0}")]
    ConnectionRequest(u32),
    /// A queue pair was connected, failed to connect, or is no longer connected. A channel event.
    #[error("the connection of queue pair {0} has changed")]
    ConnectionChange(u32),
}

/// A command that changes a table of the adapter while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdminCommand {
    /// Replaces the event map.
    SetEventMap = 1,
    /// Replaces the redirection table.
    SetRedirectionTable,
    /// Replaces the key of the steering hash.
    SetHashKey,
}

impl AdminCommand {
    /// Returns the command with this number.
    const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::SetEventMap,
            2 => Self::SetRedirectionTable,
            3 => Self::SetHashKey,
            _ => panic!("unknown administrative command"),
        }
    }
}

impl fmt::Display for AdminCommand {
    /// Names the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetEventMap => "the event map",
            Self::SetRedirectionTable => "the redirection table",
            Self::SetHashKey => "the key of the steering hash",
        })
    }
}

impl AsyncEvent {
    /// Returns the number of the queue pair that the event is about, if any.
    pub const fn queue_pair(self) -> Option<u32> {
        match self {
            Self::QpFatal(qp)
            | Self::QpRequestError(qp)
            | Self::QpAccessError(qp)
            | Self::Established(qp)
            | Self::SqDrained(qp)
            | Self::LastWqeReached(qp)
            | Self::ConnectionChange(qp) => Some(qp),
            _ => None,
        }
    }

    /// Returns the number of the shared receive queue that the event is about, if any.
    pub const fn shared_receive_queue(self) -> Option<u32> {
        match self {
            Self::SrqLimitReached(srq) | Self::SrqError(srq) => Some(srq),
            _ => None,
        }
    }

    /// Returns all events that a queue pair can have.
    #[doc(hidden)]
    pub const fn of_queue_pair(qp: u32) -> [Self; 6] {
        [
            Self::QpFatal(qp),
            Self::QpRequestError(qp),
            Self::QpAccessError(qp),
            Self::Established(qp),
            Self::SqDrained(qp),
            Self::LastWqeReached(qp),
        ]
    }

    /// Returns all events that a shared receive queue can have.
    #[doc(hidden)]
    pub const fn of_shared_receive_queue(srq: u32) -> [Self; 2] {
        [Self::SrqLimitReached(srq), Self::SrqError(srq)]
    }

    /// Encodes the event for an event queue.
    const fn to_event(self) -> Event {
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
            Self::AdminCommand(command) => (Code::AdminCommand, command as u32),
            Self::ConnectionRequest(port) => (Code::ConnectionRequest, port),
            Self::ConnectionChange(qp) => (Code::ConnectionChange, qp),
        };
        Event { code, object }
    }

    /// Decodes an event from a queue of asynchronous events.
    const fn from_event(event: Event) -> Self {
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
            Code::AdminCommand => Self::AdminCommand(AdminCommand::from_number(object)),
            Code::ConnectionRequest => Self::ConnectionRequest(object),
            Code::ConnectionChange => Self::ConnectionChange(object),
            Code::Completion => panic!("completion event in a queue of asynchronous events"),
        }
    }
}

/// Stops an adapter that has failed.
pub trait Stop: Send + Sync + fmt::Debug {
    /// Makes another thread flush requests in progress and abort connections: the calling thread may hold locks.
    fn stop(&self);
}

/// The asynchronous events of an adapter. Its queues have memory and are unarmed until the program [opens](Self::open)
/// them, which finds the events that came before.
#[derive(Debug)]
pub struct AsyncEvents {
    /// The queue of global and management events, and the queue of events of RDMA objects (requirement I6), each with
    /// its wake.
    queues: [(Consumer, Arc<DeferredWake>); 2],
    /// The events from before the program opens the queues. `None` from then on.
    early: Mutex<Option<EarlyEvents>>,
    /// Maximum number of early events.
    max_early: usize,
    /// The queue of channel events, and those that the program has created.
    program_queues: ProgramQueues,
    /// Decides which queue an event goes to.
    routing: Arc<Routing>,
    /// Whether the adapter has stopped.
    stopped: AtomicBool,
    /// Stops the adapter. Unset until [`set_stop`](Self::set_stop).
    stop: OnceLock<Box<dyn Stop>>,
    /// Signalled when the adapter stops.
    stop_wakes: Mutex<Vec<Weak<dyn Wake>>>,
}

impl AsyncEvents {
    /// Creates the two event queues, unarmed.
    pub(crate) fn new(sizes: Sizes, routing: &Arc<Routing>) -> Self {
        let queues = [GLOBAL_QUEUE, ASYNC_QUEUE].map(|number| {
            let wake = Arc::<DeferredWake>::default();
            let queue = Consumer::new(number, sizes, Box::new(Arc::clone(&wake)));
            queue.queue().define();
            (queue, wake)
        });
        let routing = Arc::clone(routing);
        Self {
            queues,
            early: Mutex::new(Some(EarlyEvents::default())),
            max_early: sizes.max - 1, // one entry of a ring is reserved
            program_queues: ProgramQueues::new(sizes),
            routing,
            stopped: AtomicBool::new(false),
            stop: OnceLock::new(),
            stop_wakes: Mutex::new(Vec::new()),
        }
    }

    /// Opens the queues: from now on, events wake the program through `wake`, at once if there were some before. Further
    /// calls have no effect.
    pub fn open(&self, wake: Box<dyn Wake>) {
        let wake: Arc<dyn Wake> = wake.into();
        let mut early = lock(&self.early); // until they are written: later events follow them
        for event in early.take().into_iter().flat_map(EarlyEvents::into_events) {
            // There are fewer than a queue has room for, unless the adapter has stopped.
            let _ = self.fixed_queue(self.routing.route(event.code, 0).queue).post(event);
        }
        drop(early);
        for (queue, deferred) in &self.queues {
            let number = u16::try_from(queue.queue().number())
                .expect("the number was a `u16` when the queue was created");
            if deferred.0.get().is_none()
                && deferred.0.set(self.routing.create_interrupt(number, Arc::clone(&wake))).is_ok()
            {
                queue.arm();
            }
        }
    }

    /// Arms the queues, unless they are armed or the program was woken for events that it has not taken. Has no effect
    /// before the queues are [open](Self::open).
    pub fn arm(&self) {
        self.queues.iter().filter(|(_, wake)| wake.0.get().is_some()).for_each(|(queue, _)| queue.arm());
    }

    /// Sets for each queue how its wakeups are held back (requirement I10). An event that reports the end of the adapter
    /// is never held back.
    pub fn moderate(&self, settings: impl Fn(&Arc<EventQueue>) -> Option<Moderation>) {
        self.queues.iter().for_each(|(queue, _)| queue.queue().moderate_by_count(settings(queue.queue())));
    }

    /// Opens the queue of channel events (requirement I6), which `wake` wakes the program for, or returns it if it is
    /// open. While it is not, channel events that the map sends there are not written.
    pub fn open_channel_queue(&self, wake: Arc<dyn Wake>) -> Arc<ProgramQueue> {
        self.program_queues.open_channel(&self.routing, wake)
    }

    /// Creates a queue for asynchronous and channel events, to which the map may send them, and which `wake` wakes the
    /// program for (requirement I6).
    pub fn create_queue(&self, wake: Arc<dyn Wake>) -> Result<Arc<ProgramQueue>, TooManyQueues> {
        self.program_queues.create(&self.routing, wake)
    }

    /// Returns the queues that the program has opened: that of channel events, and those that it has created.
    pub fn program_queues(&self) -> Vec<Arc<ProgramQueue>> {
        self.program_queues.all()
    }

    /// Sets the callback that stops the adapter when it fails. Further calls have no effect.
    pub fn set_stop(&self, stop: Box<dyn Stop>) {
        let _ = self.stop.set(stop);
    }

    /// Adds a wake that is signalled when the adapter stops, at once if it has stopped. The signal comes while the
    /// stopping thread may hold locks.
    pub fn add_stop_wake(&self, wake: &Arc<dyn Wake>) {
        let mut wakes = lock(&self.stop_wakes);
        wakes.retain(|known| known.strong_count() > 0);
        wakes.push(Arc::downgrade(wake));
        drop(wakes);
        // After the wake was added: of this thread and the one that stops the adapter, at least one signals.
        if self.is_stopped() {
            wake.signal();
        }
    }

    /// Takes the oldest event, if there is one and the queues are open. Events of the adapter itself come
    /// before those of its objects.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.queues.iter().find_map(|(queue, _)| queue.try_next()).map(AsyncEvent::from_event)
    }

    /// Takes the oldest event, if there is one, whether the program was woken for it or not, and leaves the queues
    /// unarmed until [`arm`](Self::arm) (requirement I10). Events of the adapter itself come before those of its objects.
    pub fn poll_one(&self) -> Option<AsyncEvent> {
        self.queues.iter().for_each(|(queue, _)| queue.unarm());
        self.queues.iter().find_map(|(queue, _)| queue.poll_one()).map(AsyncEvent::from_event)
    }

    /// Removes these events, and returns the number of those that were there. For the events of an object that is being
    /// destroyed.
    pub fn revoke(&self, events: &[AsyncEvent]) -> usize {
        let early = match &mut *lock(&self.early) {
            Some(early) => events.iter().filter(|event| early.remove(event.to_event())).count(),
            None => 0,
        };
        let select = |event| events.contains(&AsyncEvent::from_event(event));
        let fixed: usize = self.queues.iter().map(|(queue, _)| queue.revoke(select)).sum();
        let opened = self.program_queues.all();
        early + fixed + opened.iter().map(|queue| queue.consumer.revoke(select)).sum::<usize>()
    }

    /// Returns state and statistics of the queue of global and management events, and of that of RDMA objects.
    pub fn stats(&self) -> [EventQueueStats; 2] {
        self.queues.each_ref().map(|(queue, _)| queue.queue().stats())
    }

    /// Returns whether the adapter has stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Writes an event of the default lane to its queue: see [`raise_from`](Self::raise_from).
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.raise_from(0, event);
    }

    /// Writes an event of this lane to its queue, or keeps it until the queues are open. Stops the adapter if there are
    /// too many.
    pub(crate) fn raise_from(&self, lane: u16, event: AsyncEvent) {
        if let Err((error, queue)) = self.post(lane, event.to_event()) {
            self.on_post_error(error, queue);
        }
    }

    /// Writes an event to the queue that the map has for it. If the program has dropped that queue, to the default queue
    /// of its function. Does nothing if that is the queue of channel events, and is not open. An error comes with the
    /// number of the queue if an overflow is still to be reported.
    fn post(&self, lane: u16, event: Event) -> Result<(), (PostEventError, Option<u32>)> {
        let number = self.routing.route(event.code, lane.into()).queue;
        // The last entry of a queue reports an overflow.
        let post = |to: &Consumer| to.post_from(lane, event).map(drop).map_err(|error| (error, None));
        if let Some(queue) = self.program_queues.get(number) {
            return post(&queue.consumer);
        }
        if event.code.function() == Function::Channel {
            return self.program_queues.get(CHANNEL_QUEUE).map_or(Ok(()), |queue| post(&queue.consumer));
        }
        let queue = self.fixed_queue(number);
        match &mut *lock(&self.early) {
            Some(early) => match early.insert(event, self.max_early) {
                true => Ok(()),
                false => Err((PostEventError::Overflow, Some(queue.queue().number()))),
            },
            None => post(queue),
        }
    }

    /// Returns the queue of global and management events if `number` is its number, and that of RDMA objects otherwise.
    fn fixed_queue(&self, number: u16) -> &Consumer {
        &self.queues[usize::from(number != GLOBAL_QUEUE)].0
    }

    /// Handles an event that was not written: stops the adapter, unless it is closed. `queue` is the number of the queue
    /// if an overflow is still to be reported. It is `None` for the queues of this object, whose last entry reports it.
    pub(crate) fn on_post_error(&self, error: PostEventError, queue: Option<u32>) {
        match error {
            PostEventError::ShutDown => {}
            // Requirement I2: a mistake in the driver, or the queue has overflowed and the adapter has stopped.
            PostEventError::Undefined => self.stop_once(None, &error),
            // Requirement I5.
            PostEventError::Overflow => self.stop_once(
                queue.map(AsyncEvent::EventQueueOverflow),
                &"an event queue overflowed: the program must take its events",
            ),
        }
    }

    /// Stops the adapter, and logs `why`.
    pub fn fail(&self, why: &dyn fmt::Display) {
        self.stop_once(None, why);
    }

    /// Stops the adapter, unless it has stopped already. Writes the event `first`, if any, before the one that
    /// reports the stop.
    fn stop_once(&self, first: Option<AsyncEvent>, why: &dyn fmt::Display) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(%why, "adapter stopped");
        for event in first.into_iter().chain([AsyncEvent::DeviceFatal]) {
            // Both are global events, and are written although the queue may not be open yet. Ignore an overflow: the
            // last entry of a full queue reports it, which tells the program as much.
            let [(global, _), _] = &self.queues;
            let _ = global.post(event.to_event());
            global.queue().wake_now(); // whatever moderation says
        }
        if let Some(stop) = self.stop.get() {
            stop.stop();
        }
        self.signal_stop_wakes();
    }

    /// Shuts all queues down, so that no more events are written, and wakes the threads that wait for completions. Called
    /// when the adapter is closed (requirement N11).
    pub(crate) fn shut_down(&self) {
        self.queues.iter().for_each(|(queue, _)| queue.queue().shut_down());
        self.program_queues.all().iter().for_each(|queue| queue.consumer.queue().shut_down());
        self.stopped.store(true, Ordering::Release);
        self.signal_stop_wakes();
    }

    /// Signals what waits for the adapter to stop.
    fn signal_stop_wakes(&self) {
        let wakes = std::mem::take(&mut *lock(&self.stop_wakes));
        wakes.iter().filter_map(Weak::upgrade).for_each(|wake| wake.signal());
    }
}

impl ProgramQueue {
    /// Takes the oldest event, if there is one. Does not block.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.consumer.try_next().map(AsyncEvent::from_event)
    }

    /// Takes the oldest event, if there is one, whether the program was woken for it or not, and leaves the queue unarmed
    /// until [`arm`](Self::arm) (requirement I10).
    pub fn poll_one(&self) -> Option<AsyncEvent> {
        self.consumer.poll_one().map(AsyncEvent::from_event)
    }

    /// Arms the queue, unless it is armed or the program was woken for an event that it has not taken.
    pub fn arm(&self) {
        self.consumer.arm();
    }

    /// Sets how wakeups are held back (requirement I10).
    pub fn moderate(&self, settings: impl Fn(&Arc<EventQueue>) -> Option<Moderation>) {
        self.consumer.queue().moderate_by_count(settings(self.consumer.queue()));
    }
}

/// The wake of a queue that is created before the program opens it. The interrupt is set when the queue is opened.
#[derive(Debug, Default)]
struct DeferredWake(OnceLock<Arc<Interrupt>>);

impl Wake for DeferredWake {
    fn signal(&self) {
        self.interrupt().signal();
    }

    fn signal_for(&self, cause: Cause) {
        self.interrupt().signal_for(cause);
    }

    fn consume(&self) {
        self.interrupt().consume();
    }
}

impl DeferredWake {
    /// Returns the interrupt of the open queue.
    fn interrupt(&self) -> &Interrupt {
        self.0.get().expect("the wake is set before the queue is armed")
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
