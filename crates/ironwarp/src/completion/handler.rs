//! Completion handlers: where threads wait for the events of completion queues.

use crate::adapter::Adapter;
use crate::shared::Shared;
use crate::wait::WaitError;
use ironwarp_engine::{Class, CompletionHandler as Inner, Engine, SetMapError};
use ironwarp_rnic::event::{CqEvent, EventQueueStats, HandlerId};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// A completion handler: reports the events of the completion queues that are assigned to it and armed. Clones are
/// handles to the same handler.
///
/// Every completion queue has a private handler, and is assigned to it unless it was [created](Adapter::completion_queue_builder)
/// with another one. A thread that serves many completion queues assigns all of them to one handler.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::completion::Arm;
/// # use ironwarp::queue::WorkRequest;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # let adapter = server.adapter.clone();
/// # server.qp.post_receive(1, &[server.region.slice(..8)?])?;
/// # client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
/// let handler = adapter.completion_handler()?;
/// let other = adapter.completion_queue_builder(64).handler(&handler).create()?;
/// server.cq.set_handler(&handler);
/// let queues = [&server.cq, &other];
/// // Arm, and sleep only if no completion arrived before.
/// if !queues.iter().any(|cq| cq.arm(Arm::Next)) {
///     let event = handler.wait(Duration::from_secs(5))?;
///     assert_eq!(event.cq, server.cq.id());
/// }
/// assert!(server.cq.poll_one()?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionHandler {
    shared: Arc<Shared>,
    pub(crate) inner: Arc<Inner>,
}

impl CompletionHandler {
    /// Wraps a handler of the engine.
    pub(crate) fn new(shared: &Arc<Shared>, inner: Arc<Inner>) -> Self {
        Self { shared: Arc::clone(shared), inner }
    }

    /// Returns whether this is the adapter of the handler.
    pub(super) fn belongs_to(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Returns the engine of the handler's adapter.
    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Returns the identifier of the handler, unique in the adapter (requirement N2).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let (cq, handler) = (adapter.completion_queue(16)?, adapter.completion_handler()?);
    /// assert!(cq.own_handler().id().is_private() && !handler.id().is_private());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn id(&self) -> HandlerId {
        self.inner.id()
    }

    /// Returns the service class. Defaults to [`Class::DEFAULT`].
    pub fn class(&self) -> Class {
        self.inner.class()
    }

    /// Changes the service class (requirement N6). The class applies to the queue pairs whose receives complete on the
    /// handler's completion queues. A dedicated thread serves queue pairs of the low-latency class; queue pairs of
    /// other classes get weighted shares of the adapter's other threads. The change is safe while completions arrive:
    /// none is lost or reported twice.
    ///
    /// A thread that [waits](Self::wait) at a low-latency handler gets the lowest real-time priority until it waits at
    /// another handler, if the process has permission (root, or `ulimit -r 1`). Without permission the thread gets
    /// short time slices, and threads of the process that move bulk data yield to it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::num::NonZero;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::completion::Class;
    /// let (urgent, backup) = (adapter.completion_handler()?, adapter.completion_handler()?);
    /// urgent.set_class(Class::LowLatency)?;
    /// backup.set_class(Class::Bulk(NonZero::new(4).expect("not zero")))?; // a quarter of the usual share
    /// assert_eq!((urgent.class(), Class::DEFAULT.to_string()), (Class::LowLatency, "bulk, share 16".to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a queue pair cannot be moved to the threads that serve the new class, for example because the thread
    /// for low latency cannot be started.
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        self.inner.set_class(class)
    }

    /// Returns the numbers of the processors that the handler is [restricted](Self::set_processors) to, in ascending
    /// order. Empty if it is not restricted.
    pub fn processors(&self) -> Vec<usize> {
        self.inner.processors()
    }

    /// Restricts the handler to the processors with these numbers (requirement N5). A queue pair belongs to the handler
    /// of its receives: lanes that run on these processors only serve it from now on, and neither the redirection table
    /// nor rebalancing assigns it to another lane. Queue pairs that are served elsewhere move. The change is safe while
    /// completions arrive. An empty set removes the restriction.
    ///
    /// If no lane is [bound](crate::steering::Steering::set_processors) to these processors, the adapter binds lanes
    /// that are not bound yet. Threads of the program that poll or wait run where the program lets them.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # let adapter = server.adapter.clone();
    /// let steering = adapter.steering();
    /// let processor = steering.processors(0)?[0];
    /// let handler = adapter.completion_handler()?;
    /// handler.set_consumer("storage");
    /// handler.set_processors(&[processor])?;
    /// server.cq.set_handler(&handler);
    ///
    /// let lane = server.qp.lane().expect("the queue pair is connected");
    /// assert_eq!(steering.processors(lane)?, [processor]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if every lane is bound to other processors, if the process may use none of the processors, or if the
    /// adapter's threads cannot be started.
    pub fn set_processors(&self, processors: &[usize]) -> io::Result<()> {
        self.shared.engine.set_handler_processors(&self.inner, processors)
    }

    /// Returns the name of the handler's [consumer](Self::set_consumer). `None` until one is set.
    pub fn consumer(&self) -> Option<Arc<str>> {
        self.inner.consumer()
    }

    /// Names the consumer of the handler: the part of the program that takes its events, such as a protocol or a thread
    /// (requirement N5). `ironwarp show` prints the name with the handler's event queue.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// handler.set_consumer("iSER");
    /// assert_eq!(handler.consumer().as_deref(), Some("iSER"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_consumer(&self, name: &str) {
        self.inner.set_consumer(name);
    }

    /// Returns how many events and wakeups the handler has had so far.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.completion_handler()?.stats().wakes, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stats(&self) -> EventQueueStats {
        self.inner.stats()
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<CqEvent> {
        self.inner.try_next()
    }

    /// Waits for an event and takes it. A timeout of `None` waits forever.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// assert!(handler.wait(std::time::Duration::from_millis(1)).is_err(), "no queue is armed");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if `timeout` expires, and [`WaitError::Stopped`] if the adapter was
    /// [shut down](Adapter::shutdown) and no event is left.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<CqEvent, WaitError> {
        self.inner.wait(timeout.into()).ok_or_else(|| WaitError::no_event(self.engine()))
    }

    /// Takes the oldest event, if there is one, whether the handler's descriptor is readable or not. From then on, events
    /// make the descriptor readable again only after [`arm`](Self::arm) (requirement I10): a thread that is busy polls,
    /// and is not woken meanwhile. [`wait`](Self::wait) arms the handler itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::completion::Arm;
    /// # use ironwarp::queue::WorkRequest;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[])?;
    /// let handler = server.adapter.completion_handler()?;
    /// assert_eq!(handler.poll_one(), None);
    /// server.cq.set_handler(&handler);
    /// assert!(!server.cq.arm(Arm::Next));
    /// client.qp.post_send(WorkRequest::send_inline(1, b""))?;
    /// let event = loop {
    ///     // Do other work, and look for an event from time to time.
    ///     if let Some(event) = handler.poll_one() {
    ///         break event;
    ///     }
    /// };
    /// assert_eq!((event.cq, handler.stats().wakes), (server.cq.id(), 0));
    /// handler.arm(); // the next event makes the descriptor readable
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_one(&self) -> Option<CqEvent> {
        self.inner.poll_one()
    }

    /// Makes events wake the program again after [`poll_one`](Self::poll_one). If there are events, the descriptor is
    /// readable at once.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// assert_eq!(handler.poll_one(), None);
    /// handler.arm();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn arm(&self) {
        self.inner.arm();
    }

    /// Limits how often the handler's descriptor becomes readable: at most once per `interval`, for all events that
    /// arrived in between. An interval of zero disables the limit (requirement I10).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// handler.moderate(Duration::from_micros(200))?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter's threads cannot be started.
    pub fn moderate(&self, interval: Duration) -> io::Result<()> {
        self.shared.engine.moderate(&self.inner, interval)
    }
}

impl AsFd for CompletionHandler {
    /// Returns a descriptor that is readable while [`try_next`](Self::try_next) has an event. The descriptor becomes
    /// readable once for all pending events: with edge-triggered polling, take events until there are no more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Adapter {
    /// Registers a completion handler, which can serve many completion queues: *Set Completion Handler* (requirement N2).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let (one, another) = (adapter.completion_handler()?, adapter.completion_handler()?);
    /// assert_ne!(one.id(), another.id());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::QuotaExceeded`] if the limit that [`query`](Self::query) returns is reached. Fails, too, if
    /// the process has no file descriptors left.
    pub fn completion_handler(&self) -> io::Result<CompletionHandler> {
        Ok(CompletionHandler::new(&self.shared, self.shared.engine.create_handler()?))
    }

    /// Registers `count` completion handlers in one call, each with an identifier of its own: all of them, or none if it
    /// fails (requirement N2).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// // One handler for each processor.
    /// let handlers = adapter.completion_handlers(4)?;
    /// assert_eq!(handlers.len(), 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`completion_handler`](Self::completion_handler).
    pub fn completion_handlers(&self, count: usize) -> io::Result<Vec<CompletionHandler>> {
        let handlers = self.shared.engine.create_handlers(count)?;
        Ok(handlers.into_iter().map(|handler| CompletionHandler::new(&self.shared, handler)).collect())
    }

    /// Returns the completion handler that the [event map](Self::event_map) assigns to a lane, for completion queues
    /// that [follow the map](crate::completion::CompletionQueue::follow_map).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::event::EventCode;
    ///
    /// let handler = adapter.lane_handler(0).expect("there is a lane 0");
    /// assert_eq!(handler.id().event_queue(), Some(adapter.event_map().route(EventCode::Completion, 0).queue));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter has no lane with this number, or if the process has no file descriptors left.
    pub fn lane_handler(&self, lane: usize) -> Result<CompletionHandler, SetMapError> {
        Ok(CompletionHandler::new(&self.shared, self.shared.engine.event_queues().lane_handler(lane)?))
    }
}
