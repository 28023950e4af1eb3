//! Asynchronous events, which belong to no request, and the map of events to event queues and vectors.
//!
//! [`Adapter::async_events`](crate::Adapter::async_events) returns the queue of asynchronous events. The
//! [event map](crate::Adapter::event_map) routes all events of an adapter (requirement I8).

use crate::adapter::Adapter;
use crate::shared::Shared;
use crate::wait::WaitError;
use ironwarp_engine::{AsyncEventQueue, EventFdWake};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

pub use ironwarp_engine::SetMapError;
pub use ironwarp_rnic::event::{AdminCommand, AsyncEvent, QueueState};
pub use ironwarp_rnic::event::{
    Code as EventCode, EventMap, Function as EventFunction, MapError, Route as EventRoute, Shape as MapShape,
    Vector as EventVector,
};

/// The queue of asynchronous events of an adapter. Clones are handles to the same queue, and each event is delivered to
/// only one of them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::event::AsyncEvent;
/// # use ironwarp::queue::WorkRequest;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # let adapter = server.adapter.clone();
/// let events = adapter.async_events()?;
/// assert_eq!(events.try_next(), None);
///
/// // The completion queue has room for one completion, and two requests complete.
/// server.cq.resize(1)?;
/// # server.qp.post_receive(1, &[])?;
/// # server.qp.post_receive(2, &[])?;
/// client.qp.post_send(WorkRequest::send_inline(1, b""))?;
/// client.qp.post_send(WorkRequest::send_inline(2, b""))?;
///
/// let event = events.wait(Duration::from_secs(5))?;
/// assert_eq!(event, AsyncEvent::CqError(server.cq.id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    /// Keeps the adapter alive.
    shared: Arc<Shared>,
    inner: Arc<AsyncEventQueue>,
}

impl AsyncEvents {
    /// Returns the number of the event queue, for the [event map](Adapter::event_map). `None` for those of
    /// [`Adapter::async_events`], which are 0 and 1.
    pub fn number(&self) -> Option<u16> {
        self.inner.number()
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.inner.try_next()
    }

    /// Waits for an event and takes it. A timeout of `None` waits forever.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::event::AsyncEvent;
    /// # use ironwarp::queue::State;
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// let events = client.adapter.async_events()?;
    /// client.qp.set_state(State::Drained)?;
    /// let event = events.wait(std::time::Duration::from_secs(5))?;
    /// assert_eq!(event, AsyncEvent::SqDrained(client.qp.id()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if `timeout` expires, and [`WaitError::Stopped`] if the adapter was
    /// [shut down](Adapter::shutdown) and no event is left.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<AsyncEvent, WaitError> {
        self.inner.wait(timeout.into()).ok_or_else(|| WaitError::no_event(&self.shared.engine))
    }

    /// Takes the oldest event, if there is one, whether the descriptor is readable or not. From then on, events make the
    /// descriptor readable again only after [`arm`](Self::arm) (requirement I10). [`wait`](Self::wait) arms the queue
    /// itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::event::AsyncEvent;
    /// # use ironwarp::queue::State;
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// let events = client.adapter.async_events()?;
    /// client.qp.set_state(State::Drained)?;
    /// let event = loop {
    ///     // Do other work, and look for an event from time to time.
    ///     if let Some(event) = events.poll_one() {
    ///         break event;
    ///     }
    /// };
    /// assert_eq!(event, AsyncEvent::SqDrained(client.qp.id()));
    /// events.arm(); // the next event makes the descriptor readable
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_one(&self) -> Option<AsyncEvent> {
        self.inner.poll_one()
    }

    /// Makes events wake the program again after [`poll_one`](Self::poll_one). If there are events, the descriptor is
    /// readable at once.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let events = adapter.async_events()?;
    /// assert_eq!(events.poll_one(), None);
    /// events.arm();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn arm(&self) {
        self.inner.arm();
    }

    /// Moderates wakeups: the descriptor becomes readable when `count` events have arrived, or when `period` has passed
    /// since the first of them (requirement I10). A count of one disables moderation; a period of zero sets no time
    /// limit. Events of the adapter and its ports are counted apart from those of other objects. The event that the
    /// adapter has stopped is not delayed. Moderation does not affect [polling](Self::poll_one).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::queue::State;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let events = client.adapter.async_events()?;
    /// events.moderate(16, Duration::from_millis(1))?;
    /// client.qp.set_state(State::Drained)?;
    /// events.wait(Duration::from_secs(5))?; // a millisecond after the event
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter's threads cannot be started.
    pub fn moderate(&self, count: usize, period: Duration) -> io::Result<()> {
        self.shared.engine.moderate_events(&self.inner, count, period)
    }
}

impl AsFd for AsyncEvents {
    /// Returns a descriptor that is readable while [`try_next`](Self::try_next) has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Adapter {
    /// Returns the adapter's queue of asynchronous events: events of queue pairs, completion queues, shared receive
    /// queues, ports and the adapter itself that do not belong to a request. The first call finds the events that came
    /// before it, the latest of each kind for each object. Events of ports are reported from the first call on.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.async_events()?.try_next(), None);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the process has no file descriptors left.
    pub fn async_events(&self) -> io::Result<AsyncEvents> {
        Ok(AsyncEvents { shared: Arc::clone(&self.shared), inner: self.shared.engine.async_events()? })
    }

    /// Returns the adapter's queue of channel events, which report what the connection manager does (requirement I6):
    /// requests of peers, and changes to the connections of queue pairs. Events are written while the returned queue or
    /// a clone of it exists.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::connection::ConnectOptions;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// use ironwarp::event::AsyncEvent;
    ///
    /// # let adapter = Adapter::new()?;
    /// let events = adapter.channel_events()?;
    /// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let peer = Adapter::new()?;
    /// # let qp = peer.protection_domain().queue_pair(&peer.completion_queue(4)?).create()?;
    /// # qp.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    /// // A peer connects.
    /// let event = events.wait(Duration::from_secs(5))?;
    /// assert_eq!(event, AsyncEvent::ConnectionRequest(listener.local_addr()?.port().into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the process has no file descriptors left.
    pub fn channel_events(&self) -> io::Result<AsyncEvents> {
        Ok(AsyncEvents { shared: Arc::clone(&self.shared), inner: self.shared.engine.channel_events()? })
    }

    /// Creates an event queue (requirement I6). The [event map](Self::set_event_map) can send asynchronous events of
    /// RDMA objects, and channel events, to it: of all lanes, or of one, so that each processor has its own queue. When
    /// the queue and all its clones are dropped, those events go to their default queues again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::event::{AdminCommand, AsyncEvent, EventCode, EventRoute};
    /// # use ironwarp::queue::State;
    /// # use std::time::Duration;
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// # let adapter = client.adapter.clone();
    /// let mut map = adapter.event_map();
    /// let mut queues = Vec::new();
    /// for lane in 0..map.lanes() {
    ///     let queue = adapter.event_queue()?;
    ///     let number = queue.number().expect("it has one");
    ///     map.assign(EventCode::SqDrained, lane, EventRoute { queue: number, ..map.route(EventCode::SqDrained, lane) })?;
    ///     queues.push(queue);
    /// }
    /// adapter.set_event_map(map)?;
    /// // The change is an event itself. It has no lane, so that it belongs to lane 0.
    /// assert_eq!(queues[0].try_next(), Some(AsyncEvent::AdminCommand(AdminCommand::SetEventMap)));
    ///
    /// client.qp.set_state(State::Drained)?;
    /// let lane = client.qp.lane().expect("the queue pair is connected");
    /// let event = queues[lane].wait(Duration::from_secs(5))?;
    /// assert_eq!(event, AsyncEvent::SqDrained(client.qp.id()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if there are too many event queues, or if the process has no file descriptors left.
    pub fn event_queue(&self) -> io::Result<AsyncEvents> {
        Ok(AsyncEvents { shared: Arc::clone(&self.shared), inner: self.shared.engine.create_event_queue()? })
    }

    /// Returns the event map: the event queue and the vector of each event, by event code and lane (requirement I8).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::event::EventCode;
    ///
    /// assert_eq!(adapter.event_map().route(EventCode::DeviceFatal, 0).queue, 0);
    /// assert_eq!(adapter.event_map().route(EventCode::QpFatal, 0).queue, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn event_map(&self) -> EventMap {
        self.shared.engine.event_queues().map()
    }

    /// Replaces the event map. This is safe while events arrive: none is lost or delivered twice.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::event::{EventMap, MapShape};
    ///
    /// // One vector for all events.
    /// let map = EventMap::new(MapShape::ByQueue, adapter.steering().lanes(), 1);
    /// adapter.set_event_map(map.clone()).expect("the map covers all lanes");
    /// assert_eq!(adapter.event_map(), map);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the map is for another number of lanes, or names a completion handler or an event queue that does not
    /// exist. The previous map then stays in force.
    pub fn set_event_map(&self, map: EventMap) -> Result<(), SetMapError> {
        self.shared.engine.event_queues().set_map(map)
    }

    /// Returns a descriptor that becomes readable for each event that the [event map](Self::event_map) assigns to
    /// `vector` by its code and its lane, and stays readable until the events of that queue are taken. Take them from
    /// completion handlers, completion queues and [`async_events`](Self::async_events) as usual.
    ///
    /// A queue wakes once for all events that arrive before they are taken: events of several vectors that arrive
    /// together in one queue wake the vector of the first.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::event::EventVector;
    ///
    /// let vector = adapter.vector(EventVector::Message(0))?; // pass it to poll(2) or epoll
    /// # let _ = vector;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the process has no file descriptors left.
    pub fn vector(&self, vector: EventVector) -> io::Result<VectorDescriptor> {
        Ok(VectorDescriptor(self.shared.engine.event_queues().vector(vector)?))
    }
}

/// A descriptor of an event vector, returned by [`Adapter::vector`].
#[derive(Clone, Debug)]
pub struct VectorDescriptor(EventFdWake);

impl AsFd for VectorDescriptor {
    /// Returns a descriptor that is readable while an event queue that has woken the vector has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
