//! Completion queues: where programs poll and wait for completions.

use super::handler::CompletionHandler;
use crate::shared::Shared;
use crate::wait::WaitError;
use ironwarp_engine::{CompletionQueue as Inner, SetMapError};
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::queue::{Arm, Completion, Overrun, TooSmall};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion queue. Clones are handles to the same queue.
///
/// Polling makes progress: the polling thread receives data from the sockets of the queue pairs that use this
/// completion queue, and completes their requests.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// server.qp.post_receive(7, &[server.region.slice(..16)?])?;
/// client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
///
/// let completion = server.cq.wait(Duration::from_secs(5))?;
/// assert_eq!((completion.wr_id, completion.status, completion.byte_len), (7, Status::Success, 5));
/// assert!(server.cq.poll_one()?.is_none());
/// # Ok(())
/// # }
/// ```
///
/// An async runtime can wait for the queue's file descriptor, here tokio's:
/// ```
/// use ironwarp::completion::Arm;
/// use ironwarp::prelude::*;
/// use tokio::io::unix::AsyncFd;
///
/// async fn next(cq: &AsyncFd<CompletionQueue>) -> Result<Completion, Box<dyn std::error::Error>> {
///     loop {
///         if let Some(completion) = cq.get_ref().poll_one()? {
///             return Ok(completion);
///         }
///         // Wait only if nothing arrived between the poll and arming.
///         if !cq.get_ref().arm(Arm::Next) {
///             let mut ready = cq.readable().await?;
///             cq.get_ref().take_event();
///             ready.clear_ready();
///         }
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # server.qp.post_receive(7, &[])?;
/// # client.qp.post_send(ironwarp::queue::WorkRequest::send(1, &[]))?;
/// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
/// #     assert_eq!(next(&AsyncFd::new(server.cq.clone())?).await?.wr_id, 7);
/// #     Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<Inner>,
    /// The private handler that the queue was created with.
    own: CompletionHandler,
}

impl CompletionQueue {
    /// Creates a completion queue whose handler is a private one, so that the queue can be used without creating a
    /// handler. If `lane` is given, that lane serves its queue pairs; otherwise the adapter chooses for each of them.
    pub(crate) fn new(shared: &Arc<Shared>, capacity: usize, lane: Option<usize>) -> io::Result<Self> {
        let own = CompletionHandler::new(shared, shared.engine.create_private_handler()?);
        let inner = match lane {
            Some(lane) => shared.engine.create_cq_on(capacity, lane)?,
            None => shared.engine.create_cq(capacity)?,
        };
        let queue = Self { shared: Arc::clone(shared), inner, own };
        queue.set_handler(queue.own_handler());
        Ok(queue)
    }

    /// Creates a handle to a queue that moved here from another process, with a private handler.
    pub(crate) fn restored(shared: &Arc<Shared>, inner: &Arc<Inner>) -> io::Result<Self> {
        let own = CompletionHandler::new(shared, shared.engine.create_private_handler()?);
        let queue = Self { shared: Arc::clone(shared), inner: Arc::clone(inner), own };
        queue.set_handler(queue.own_handler());
        Ok(queue)
    }

    /// Returns the number of the queue, as it appears in events and in
    /// [`QpError::Overrun`](crate::queue::QpError::Overrun).
    pub fn id(&self) -> u32 {
        self.inner.cq().id()
    }

    /// Takes up to `max` completions from the queue and appends them to `into`, oldest first. Returns their number.
    /// Does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[server.region.slice(..8)?])?;
    /// # client.qp.post_send(ironwarp::queue::WorkRequest::send_inline(1, b"hello"))?;
    /// let mut completions = Vec::new();
    /// while completions.is_empty() {
    ///     client.cq.poll(&mut completions, 16)?;
    /// }
    /// assert_eq!(completions[0].wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the completion queue has overflowed.
    pub fn poll(&self, into: &mut Vec<Completion>, max: usize) -> Result<usize, Overrun> {
        self.inner.poll(max, |completion| into.push(completion))
    }

    /// Takes up to `max` completions from the queue, oldest first. Does not wait. A thread that polls in a loop calls
    /// [`poll`](Self::poll), which allocates nothing.
    ///
    /// ```
    /// # fn main() -> ironwarp::Result<()> {
    /// # let (client, server) = ironwarp::example::pair().expect("two connected queue pairs");
    /// # server.qp.post_receive(1, &[])?;
    /// # client.qp.post_send(ironwarp::queue::WorkRequest::send(7, &[]))?;
    /// # let mut done = false;
    /// # while !done {
    /// for completion in client.cq.drain(16)? {
    ///     println!("request {} completed", completion.success()?.wr_id);
    ///     # done = true;
    /// }
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the completion queue has overflowed.
    pub fn drain(&self, max: usize) -> Result<Drain, Overrun> {
        let mut completions = Vec::new();
        self.poll(&mut completions, max)?;
        Ok(Drain(completions.into_iter()))
    }

    /// Takes the oldest completion from the queue. Returns `None` if the queue is empty. Does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(ironwarp::queue::WorkRequest::send(7, &[]))?;
    /// let completion = loop {
    ///     // A program with nothing else to do calls `wait` instead.
    ///     if let Some(completion) = client.cq.poll_one()? {
    ///         break completion;
    ///     }
    /// };
    /// assert_eq!(completion.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the completion queue has overflowed.
    pub fn poll_one(&self) -> Result<Option<Completion>, Overrun> {
        let mut oldest = None;
        self.inner.poll(1, |completion| oldest = Some(completion))?;
        Ok(oldest)
    }

    /// Waits for a completion and takes it: polls briefly, then sleeps. A timeout of `None` waits forever.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::queue::WorkRequest;
    /// use std::time::Duration;
    ///
    /// assert_eq!(client.cq.wait(Duration::ZERO).unwrap_err(), ironwarp::WaitError::TimedOut);
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(WorkRequest::send(7, &[]))?;
    /// assert_eq!(client.cq.wait(None)?.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if `timeout` expires, [`WaitError::Overrun`] if the completion queue has
    /// overflowed, and [`WaitError::Stopped`] if the adapter has stopped and nothing will complete any more.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<Completion, WaitError> {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !self.inner.wait(left).map_err(WaitError::from_engine)? {
                return Err(WaitError::TimedOut);
            }
            // Another thread may have taken the completion in between; then wait again.
            if let Some(completion) = self.poll_one()? {
                return Ok(completion);
            }
        }
    }

    /// Requests one event: for the next completion, or for the next completion that is solicited or an error
    /// (requirement N8). The event makes the queue's file descriptor readable until [`take_event`](Self::take_event)
    /// takes the event. If the queue has [another handler](Self::set_handler), the event goes to that handler instead.
    ///
    /// Returns whether such a completion is already in the queue. If so, there may be no event for it: poll again
    /// before waiting.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::completion::Arm;
    ///
    /// # client.qp.post_receive(1, &[client.region.slice(..8)?])?;
    /// if !client.cq.arm(Arm::Next) {
    ///     // Wait here until the file descriptor is readable: with poll(2), epoll, or an async runtime.
    ///     # server.qp.post_send(ironwarp::queue::WorkRequest::send_inline(1, b"hello"))?;
    ///     # while !client.cq.take_event() {}
    /// }
    /// let completion = client.cq.poll_one()?.expect("the completion that caused the event");
    /// # assert_eq!(completion.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a completion that arrived before the queue was armed causes no event"]
    pub fn arm(&self, arm: Arm) -> bool {
        self.inner.arm(arm)
    }

    /// Takes the event that [`arm`](Self::arm) requested, so that the queue's file descriptor is no longer readable.
    /// Returns false if there is no event yet, or if the event went to [another handler](Self::set_handler).
    pub fn take_event(&self) -> bool {
        self.own.try_next().is_some()
    }

    /// Assigns the queue to a completion handler, or with `None` to no handler (requirement N4).
    ///
    /// This is safe while completions arrive: no event is lost or reported twice. Events that the old handler already
    /// has stay there. While the queue has no handler, a due event is kept for the next one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # let adapter = server.adapter.clone();
    /// use ironwarp::completion::Arm;
    ///
    /// let handler = adapter.completion_handler()?;
    /// server.cq.set_handler(&handler);
    /// # server.qp.post_receive(1, &[server.region.slice(..8)?])?;
    /// assert!(!server.cq.arm(Arm::Next));
    /// client.qp.post_send(ironwarp::queue::WorkRequest::send_inline(1, b"hello"))?;
    ///
    /// let event = handler.wait(Duration::from_secs(5))?;
    /// assert_eq!(event.cq, server.cq.id());
    /// assert!(server.cq.poll_one()?.is_some());
    ///
    /// server.cq.set_handler(None);
    /// assert_eq!(server.cq.handler(), None);
    /// server.cq.set_handler(server.cq.own_handler());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the handler belongs to another adapter: its events would name queues of that one.
    pub fn set_handler<'h>(&self, handler: impl Into<Option<&'h CompletionHandler>>) {
        let handler = handler.into();
        let is_own = handler.is_none_or(|handler| handler.belongs_to(&self.shared));
        assert!(
            is_own,
            "the completion handler belongs to another adapter than completion queue {}",
            self.id()
        );
        self.shared.engine.event_queues().leave_map(&self.inner, handler.map(|handler| &handler.inner));
    }

    /// Has the queue's events follow the adapter's [event map](crate::Adapter::event_map), now and whenever the map
    /// changes, until [`set_handler`](Self::set_handler) is called (requirement I8). Each event goes to the
    /// [handler](crate::Adapter::lane_handler) of the lane that has served the message, or that its queue pair is steered
    /// to if a thread of the program has; and it wakes the vector of that lane.
    ///
    /// Class and processors of a handler apply to the queue only if the map has one handler for all lanes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::completion::Arm;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # let adapter = server.adapter.clone();
    /// server.cq.follow_map()?;
    /// # server.qp.post_receive(1, &[])?;
    /// assert!(!server.cq.arm(Arm::Next));
    /// client.qp.post_send(ironwarp::queue::WorkRequest::send(1, &[]))?;
    ///
    /// let lane = server.qp.lane().expect("the queue pair is connected");
    /// let event = adapter.lane_handler(lane)?.wait(Duration::from_secs(5))?;
    /// assert_eq!(event.cq, server.cq.id());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the map names a handler that does not exist any more, or if the process has no file descriptors left.
    pub fn follow_map(&self) -> Result<(), SetMapError> {
        self.shared.engine.event_queues().follow_map(&self.inner)
    }

    /// Returns the completion handler that the queue is assigned to, or `None` if there is none. If the queue
    /// [follows the map](Self::follow_map), this is the handler of lane 0.
    pub fn handler(&self) -> Option<HandlerId> {
        self.inner.cq().handler()
    }

    /// Returns the private handler that the queue was created with. The queue's file descriptor is that of this
    /// handler.
    pub fn own_handler(&self) -> &CompletionHandler {
        &self.own
    }

    /// Moderates events: an event that was [requested](Self::arm) waits until `count` completions have arrived, or
    /// until `period` has passed since the first of them (requirement I10). A count of one disables moderation; a
    /// period of zero sets no time limit. Failed requests cause their event at once. Moderation does not affect polling
    /// and [waiting](Self::wait).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::completion::Arm;
    /// # use ironwarp::queue::WorkRequest;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[])?;
    /// # server.qp.post_receive(2, &[])?;
    /// server.cq.moderate(2, Duration::ZERO)?;
    /// assert!(!server.cq.arm(Arm::Next));
    /// client.qp.post_send(WorkRequest::send_inline(1, b""))?;
    /// client.qp.post_send(WorkRequest::send_inline(2, b""))?;
    /// let handler = server.cq.own_handler();
    /// handler.wait(Duration::from_secs(5))?;
    /// assert!(server.cq.poll_one()?.is_some() && server.cq.poll_one()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter's threads cannot be started.
    pub fn moderate(&self, count: usize, period: Duration) -> io::Result<()> {
        self.own.engine().moderate_cq(&self.inner, count, period)
    }

    /// Returns the maximum number of completions that the queue holds.
    pub fn capacity(&self) -> usize {
        self.inner.cq().capacity()
    }

    /// Changes the capacity. Completions in the queue and a requested event stay.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let completions = ironwarp::Adapter::new()?.completion_queue(16)?;
    /// completions.resize(64)?;
    /// assert_eq!(completions.capacity(), 64);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue holds more completions than `capacity`, or if `capacity` is zero.
    pub fn resize(&self, capacity: usize) -> Result<(), TooSmall> {
        self.inner.cq().resize(capacity)
    }
}

/// Completions taken from a queue, returned by [`CompletionQueue::drain`].
#[derive(Debug)]
pub struct Drain(std::vec::IntoIter<Completion>);

impl Iterator for Drain {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Drain {}

impl AsFd for CompletionQueue {
    /// Returns a descriptor that is readable while [`take_event`](Self::take_event) has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

impl AsRawFd for CompletionQueue {
    /// Returns the descriptor of [`as_fd`](Self::as_fd) as a number, which tokio's `AsyncFd` and mio's `SourceFd`
    /// require. The descriptor stays open, and its number stays the same, as long as the queue lives.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("id", &self.id()).finish_non_exhaustive()
    }
}
