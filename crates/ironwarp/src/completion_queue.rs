//! Completion queues: how a program learns that its requests are done. Before this: a queue pair that works for it.

use crate::adapter::Shared;
use crate::completion_handler::CompletionHandler;
use ironwarp_engine::{CompletionQueue as Inner, SetMapError, WaitError};
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::queue::{Arm, Completion, Overrun, TooSmall};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion queue. Clones are handles to the same queue.
///
/// Polling makes progress: the thread that polls receives and completes what its queue pairs' sockets have.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{Status, WorkRequest};
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// server.qp.post_receive(7, &[server.region.slice(0, 16)?])?;
/// client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
///
/// let completion = server.cq.wait(Duration::from_secs(5))?.expect("a message came");
/// assert_eq!((completion.wr_id, completion.status, completion.byte_len), (7, Status::Success, 5));
/// assert!(server.cq.poll_one()?.is_none());
/// # Ok(())
/// # }
/// ```
///
/// In an async program the runtime waits for its file descriptor, here tokio's:
/// ```
/// use ironwarp::{Arm, Completion, CompletionQueue};
/// use tokio::io::unix::AsyncFd;
///
/// async fn next(cq: &AsyncFd<CompletionQueue>) -> Result<Completion, Box<dyn std::error::Error>> {
///     loop {
///         if let Some(completion) = cq.get_ref().poll_one()? {
///             return Ok(completion);
///         }
///         // Only if nothing arrived between the poll and this is there something to wait for.
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
/// # client.qp.post_send(ironwarp::WorkRequest::send(1, &[]))?;
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
    /// The handler that it was created with, for nobody else.
    own: CompletionHandler,
}

impl CompletionQueue {
    pub(crate) fn new(shared: &Arc<Shared>, capacity: usize, lane: Option<usize>) -> io::Result<Self> {
        let own = CompletionHandler::new(shared, shared.engine.create_private_handler()?);
        let inner = match lane {
            Some(lane) => shared.engine.create_cq_on(capacity, lane)?,
            None => shared.engine.create_cq(capacity)?,
        };
        let queue = Self { shared: Arc::clone(shared), inner, own };
        queue.modify(queue.own_handler());
        Ok(queue)
    }

    /// Its number, as [`Fault::Overrun`](crate::Fault::Overrun) names it.
    pub fn id(&self) -> u32 {
        self.inner.cq().id()
    }

    /// Appends up to `most` completions to `into`, the oldest first, and returns how many. Does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[server.region.slice(0, 8)?])?;
    /// # client.qp.post_send(ironwarp::WorkRequest::send_inline(1, b"hello"))?;
    /// let mut completions = Vec::new();
    /// while completions.is_empty() {
    ///     client.cq.poll(&mut completions, 16)?;
    /// }
    /// assert_eq!(completions[0].wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll(&self, into: &mut Vec<Completion>, most: usize) -> Result<usize, Overrun> {
        self.inner.poll(most, |completion| into.push(completion))
    }

    /// Takes the oldest completion, if there is one. Does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(ironwarp::WorkRequest::send(7, &[]))?;
    /// let completion = loop {
    ///     // A program that has nothing else to do calls `wait` instead.
    ///     if let Some(completion) = client.cq.poll_one()? {
    ///         break completion;
    ///     }
    /// };
    /// assert_eq!(completion.wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_one(&self) -> Result<Option<Completion>, Overrun> {
        let mut one = None;
        self.inner.poll(1, |completion| one = Some(completion))?;
        Ok(one)
    }

    /// Waits for a completion and takes it: polls for a moment, then sleeps. `None` if `timeout` is over first; a timeout
    /// of `None` waits as long as it takes. [`WaitError::Stopped`] if the adapter has stopped and nothing will complete any more.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::WorkRequest;
    /// use std::time::Duration;
    ///
    /// assert!(client.cq.wait(Duration::ZERO)?.is_none());
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(WorkRequest::send(7, &[]))?;
    /// assert_eq!(client.cq.wait(None)?.expect("it waits for ever").wr_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<Completion>, WaitError> {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !self.inner.wait(left)? {
                return Ok(None);
            }
            // Another thread may have been faster.
            if let Some(completion) = self.poll_one()? {
                return Ok(Some(completion));
            }
        }
    }

    /// Asks for one event at the next completion, or at the next that is solicited or an error (requirement N8): then the
    /// file descriptor becomes readable, and [`take_event`](Self::take_event) takes the event. A queue that was
    /// [given another handler](Self::modify) has its event there.
    ///
    /// Returns whether such a completion is there already. No event may come for that one, so poll again before you wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::Arm;
    ///
    /// # client.qp.post_receive(1, &[client.region.slice(0, 8)?])?;
    /// if !client.cq.arm(Arm::Next) {
    ///     // Wait here until the file descriptor is readable: with poll(2), epoll, or an async runtime.
    ///     # server.qp.post_send(ironwarp::WorkRequest::send_inline(1, b"hello"))?;
    ///     # while !client.cq.take_event() {}
    /// }
    /// let completion = client.cq.poll_one()?.expect("a completion raised the event");
    /// # assert_eq!(completion.wr_id, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a completion that came before the queue was armed raises no event"]
    pub fn arm(&self, arm: Arm) -> bool {
        self.inner.arm(arm)
    }

    /// Takes the event that [`arm`](Self::arm) asked for; false if it did not come yet.
    pub fn take_event(&self) -> bool {
        self.own.next().is_some()
    }

    /// Moves the queue to another completion handler, or to none: from now on that one gets its events (requirement N4).
    ///
    /// No event is lost or doubled, though completions come meanwhile. What the old handler got before is still there.
    /// While there is no handler, an event that is due waits for the next.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # let adapter = server.adapter.clone();
    /// use ironwarp::Arm;
    ///
    /// let handler = adapter.completion_handler()?;
    /// server.cq.modify(&handler);
    /// # server.qp.post_receive(1, &[server.region.slice(0, 8)?])?;
    /// assert!(!server.cq.arm(Arm::Next));
    /// client.qp.post_send(ironwarp::WorkRequest::send_inline(1, b"hello"))?;
    ///
    /// let event = handler.wait(Duration::from_secs(5)).expect("a message came");
    /// assert_eq!(event.cq, server.cq.id());
    /// assert!(server.cq.poll_one()?.is_some());
    ///
    /// server.cq.modify(None);
    /// assert_eq!(server.cq.handler(), None);
    /// server.cq.modify(server.cq.own_handler());
    /// # Ok(())
    /// # }
    /// ```
    pub fn modify<'h>(&self, handler: impl Into<Option<&'h CompletionHandler>>) {
        self.shared.engine.leave_map(&self.inner, handler.into().map(|handler| &handler.inner));
    }

    /// From now on its events go where the adapter's [map](crate::Adapter::event_map) leads for this lane, also when the map is changed;
    /// until it is [given a handler](Self::modify) again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// cq.follow_map(0)?;
    /// assert_eq!(cq.handler(), Some(adapter.lane_handler(0)?.id()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn follow_map(&self, lane: usize) -> Result<(), SetMapError> {
        self.shared.engine.follow_map(&self.inner, lane)
    }

    /// Which completion handler it has now.
    pub fn handler(&self) -> Option<HandlerId> {
        self.inner.cq().handler()
    }

    /// The handler that it was created with, whose descriptor is the queue's.
    pub fn own_handler(&self) -> &CompletionHandler {
        &self.own
    }

    /// From now on the event that was [asked for](Self::arm) waits until `count` completions have come for it, or until `period` has
    /// passed since the first of them (requirement I10): fewer wakes, with more to do at each. Errors do not wait, nor does what is
    /// polled or [waited](Self::wait) for. A count of one: for nothing; a period of zero: as long as it takes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Arm, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # server.qp.post_receive(1, &[])?;
    /// # server.qp.post_receive(2, &[])?;
    /// server.cq.moderate(2, Duration::ZERO)?;
    /// assert!(!server.cq.arm(Arm::Next));
    /// client.qp.post_send(WorkRequest::send_inline(1, b""))?;
    /// client.qp.post_send(WorkRequest::send_inline(2, b""))?;
    /// let handler = server.cq.own_handler();
    /// handler.wait(Duration::from_secs(5)).expect("one event for both");
    /// assert!(server.cq.poll_one()?.is_some() && server.cq.poll_one()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn moderate(&self, count: usize, period: Duration) -> io::Result<()> {
        self.own.engine().moderate_cq(&self.inner, count, period)
    }

    /// How many completions it has room for.
    pub fn capacity(&self) -> usize {
        self.inner.cq().capacity()
    }

    /// Makes room for more completions, or for fewer. Those that wait stay, and so does what was armed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let completions = ironwarp::Adapter::new()?.completion_queue(16)?;
    /// completions.resize(64)?;
    /// assert_eq!(completions.capacity(), 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn resize(&self, capacity: usize) -> Result<(), TooSmall> {
        self.inner.cq().resize(capacity)
    }
}

impl AsFd for CompletionQueue {
    /// Readable exactly while [`take_event`](Self::take_event) has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

impl AsRawFd for CompletionQueue {
    /// The same, for what takes it in this form: tokio's `AsyncFd`, mio's `SourceFd`. It does not change, and is open as long
    /// as this lives.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("id", &self.id()).finish_non_exhaustive()
    }
}
