//! Completion handlers and asynchronous events: where a program waits that does not poll. Before this: completion queues
//! that are armed, and objects of the adapter to which something happens.

use crate::adapter::Shared;
use ironwarp_engine::{AsyncEventQueue, Class, CompletionHandler as Inner, Engine};
use ironwarp_rnic::event::{AsyncEvent, CqEvent, HandlerId, Standing};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// A completion handler: tells of any number of completion queues that they have what they were armed for. Clones are
/// handles to the same handler.
///
/// Every completion queue has one of its own to begin with. One for many is for a thread that serves many queues.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{Arm, WorkRequest};
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # let adapter = server.adapter.clone();
/// # server.qp.post_receive(1, &[server.region.slice(0, 8)?])?;
/// # client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
/// let handler = adapter.completion_handler()?;
/// let queues = [&server.cq]; // and others
/// for cq in queues {
///     cq.modify(&handler);
/// }
/// // Arm, then poll what came before; sleep only when nothing did.
/// if !queues.iter().any(|cq| cq.arm(Arm::Next)) {
///     let event = handler.wait(Duration::from_secs(5)).expect("something completes");
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
    pub(crate) fn new(shared: &Arc<Shared>, inner: Arc<Inner>) -> Self {
        Self { shared: Arc::clone(shared), inner }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// What no other handler of the adapter has; those that belong to one completion queue have [`HandlerId::PRIVATE`].
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_ne!(adapter.completion_handler()?.id(), ironwarp::HandlerId::PRIVATE);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn id(&self) -> HandlerId {
        self.inner.id()
    }

    /// How urgent it is what it tells; [`Class::USUAL`] to begin with.
    pub fn class(&self) -> Class {
        self.inner.class()
    }

    /// Gives it another class, also while completions arrive (requirement N6). Queue pairs whose receives complete on its completion
    /// queues are served accordingly: urgent ones by a thread that does nothing else, others by shares of what the adapter's threads do.
    /// Nothing is lost or doubled by it. A thread that [waits](Self::wait) here for what is urgent has the lowest priority of real time
    /// until it waits at another handler, if the process may have that (root, or `ulimit -r 1`). Else it has short turns
    /// at the processor, and threads of the process that move bulk data give way to it again and again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::num::NonZero;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::Class;
    /// let (urgent, backups) = (adapter.completion_handler()?, adapter.completion_handler()?);
    /// urgent.set_class(Class::LowLatency)?;
    /// backups.set_class(Class::Bulk(NonZero::new(4).expect("not zero")))?; // a quarter of the usual share
    /// assert_eq!((urgent.class(), Class::USUAL.to_string()), (Class::LowLatency, "bulk, share 16".to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        self.inner.set_class(class)
    }

    /// How many events it was told, and how often it woke its consumer.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.completion_handler()?.standing().wakes, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn standing(&self) -> Standing {
        self.inner.standing()
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn next(&self) -> Option<CqEvent> {
        self.inner.next()
    }

    /// Waits for an event and takes it. `None` if `timeout` is over first; a timeout of `None` waits as long as it takes.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// assert!(handler.wait(std::time::Duration::from_millis(1)).is_none(), "no queue is armed");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Option<CqEvent> {
        self.inner.wait(timeout.into())
    }

    /// From now on the descriptor becomes readable at most once in each `interval`, for all that came meanwhile; zero: at
    /// once, whenever there is an event (requirement I10). For programs that would rather have more to do at a time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// handler.moderate(Duration::from_micros(200))?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn moderate(&self, interval: Duration) -> io::Result<()> {
        self.shared.engine.moderate(&self.inner, interval)
    }
}

impl AsFd for CompletionHandler {
    /// Readable exactly while [`next`](Self::next) has an event. It becomes so once for all events that are there: who watches
    /// for edges takes events until there are no more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// The asynchronous events of an adapter. Clones are handles to the same queue: each event is taken once.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{AsyncEvent, WorkRequest};
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # let adapter = server.adapter.clone();
/// let events = adapter.async_events()?;
/// assert_eq!(events.next(), None);
///
/// // A completion queue with room for one, and two that complete.
/// server.cq.resize(1)?;
/// # server.qp.post_receive(1, &[])?;
/// # server.qp.post_receive(2, &[])?;
/// client.qp.post_send(WorkRequest::send_inline(1, b""))?;
/// client.qp.post_send(WorkRequest::send_inline(2, b""))?;
///
/// let event = events.wait(Duration::from_secs(5));
/// assert_eq!(event, Some(AsyncEvent::CqError(server.cq.id())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    _shared: Arc<Shared>,
    inner: Arc<AsyncEventQueue>,
}

impl AsyncEvents {
    pub(crate) fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        Ok(Self { _shared: Arc::clone(shared), inner: shared.engine.async_events()? })
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn next(&self) -> Option<AsyncEvent> {
        self.inner.next()
    }

    /// Waits for an event and takes it. `None` if `timeout` is over first; a timeout of `None` waits as long as it takes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AsyncEvent, State};
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// let events = client.adapter.async_events()?;
    /// client.qp.modify(State::Drained)?;
    /// let event = events.wait(std::time::Duration::from_secs(5));
    /// assert_eq!(event, Some(AsyncEvent::SqDrained(client.qp.id())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Option<AsyncEvent> {
        self.inner.wait(timeout.into())
    }
}

impl AsFd for AsyncEvents {
    /// Readable exactly while [`next`](Self::next) has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
