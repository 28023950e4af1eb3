//! Creation of completion queues.

use super::handler::CompletionHandler;
use super::queue::CompletionQueue;
use crate::adapter::Adapter;
use crate::shared::Shared;
use std::io;
use std::sync::Arc;

/// Builds a completion queue. [`Adapter::completion_queue_builder`] returns a builder.
///
/// ```
/// # fn main() -> ironwarp::Result<()> {
/// # let adapter = ironwarp::Adapter::new()?;
/// // One handler, where a thread waits for the events of two queues.
/// let handler = adapter.completion_handler()?;
/// let sends = adapter.completion_queue_builder(64).handler(&handler).create()?;
/// let receives = adapter.completion_queue_builder(256).handler(&handler).create()?;
/// assert_eq!((sends.handler(), receives.handler()), (Some(handler.id()), Some(handler.id())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "no completion queue is created until `create` is called"]
pub struct CompletionQueueBuilder {
    shared: Arc<Shared>,
    capacity: usize,
    lane: Option<usize>,
    /// The handler to assign the queue to, or none; the outer `None` means the private handler of the queue.
    handler: Option<Option<CompletionHandler>>,
}

impl CompletionQueueBuilder {
    /// Assigns the queue to a completion handler, or with `None` to no handler (requirement N3). Defaults to a
    /// [private handler](CompletionQueue::own_handler) of the queue. A handler can serve many queues; a queue has at most
    /// one handler, which [`CompletionQueue::set_handler`] changes.
    pub fn handler<'h>(mut self, handler: impl Into<Option<&'h CompletionHandler>>) -> Self {
        self.handler = Some(handler.into().cloned());
        self
    }

    /// Selects the lane that serves the queue pairs of this queue, like [`Adapter::completion_queue_on`]. Defaults to
    /// a lane that the adapter chooses for each queue pair.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let lanes = adapter.steering().lanes();
    /// assert!(adapter.completion_queue_builder(64).lane(lanes - 1).create().is_ok());
    /// assert!(adapter.completion_queue_builder(64).lane(lanes).create().is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn lane(mut self, lane: usize) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Creates the completion queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::Adapter;
    /// use std::io::ErrorKind;
    ///
    /// let (one, another) = (Adapter::new()?, Adapter::new()?);
    /// let foreign = another.completion_handler()?;
    /// let refused = one.completion_queue_builder(64).handler(&foreign).create();
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidInput`] if the handler belongs to another adapter. Fails, too, if the adapter has no
    /// lane with this number, or if the process has no file descriptors left.
    pub fn create(self) -> io::Result<CompletionQueue> {
        let Self { shared, capacity, lane, handler } = self;
        if handler.as_ref().and_then(Option::as_ref).is_some_and(|handler| !handler.belongs_to(&shared)) {
            let reason = "the completion handler belongs to another adapter than the queue";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let queue = CompletionQueue::new(&shared, capacity, lane)?;
        if let Some(handler) = &handler {
            queue.set_handler(handler);
        }
        Ok(queue)
    }
}

impl Adapter {
    /// Creates a completion queue with room for `capacity` completions.
    ///
    /// The queue must have room for all completions that can occur between two polls. When a completion finds no room,
    /// the queue overflows: it takes no more completions, and the queue pairs that use it fail (requirement I5).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// assert!(cq.poll_one()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the process has no file descriptors left.
    pub fn completion_queue(&self, capacity: usize) -> io::Result<CompletionQueue> {
        CompletionQueue::new(&self.shared, capacity, None)
    }

    /// Creates a completion queue like [`completion_queue`](Self::completion_queue). The lane with the number `lane`
    /// serves its queue pairs, which are not moved to other lanes (requirement N5). To keep all work on one processor,
    /// [pin the lane](crate::steering::Steering::set_processors) to the processor of the thread that waits for the
    /// completions.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let last = adapter.steering().lanes() - 1;
    /// let cq = adapter.completion_queue_on(64, last)?;
    /// assert!(adapter.completion_queue_on(64, last + 1).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter has no lane with this number, or if the process has no file descriptors left.
    pub fn completion_queue_on(&self, capacity: usize, lane: usize) -> io::Result<CompletionQueue> {
        CompletionQueue::new(&self.shared, capacity, Some(lane))
    }

    /// Returns a builder for a completion queue with room for `capacity` completions. It can assign the queue to a handler
    /// and to a lane when it creates it: *Create CQ* (requirement N3).
    ///
    /// ```
    /// # fn main() -> ironwarp::Result<()> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let handler = adapter.completion_handler()?;
    /// let cq = adapter.completion_queue_builder(64).handler(&handler).lane(0).create()?;
    /// assert_eq!(cq.handler(), Some(handler.id()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn completion_queue_builder(&self, capacity: usize) -> CompletionQueueBuilder {
        CompletionQueueBuilder { shared: Arc::clone(&self.shared), capacity, lane: None, handler: None }
    }
}
