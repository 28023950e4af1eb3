//! The control queue (requirement X6): a queue of slow operations, such as registrations, which a thread of the queue
//! executes in order, so that neither the program nor a lane waits for them. Each operation ends with a completion.

use super::cq::CompletionQueue;
use super::qpn::Number;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::queue::{Completion, Opcode, Status};
use ironwarp_rnic::quota::Place;
use ironwarp_rnic::sync::{self, lock};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// A control queue. Dropping it waits until all posted operations are done.
#[derive(Debug)]
pub struct ControlQueue {
    shared: Arc<Shared>,
}

/// The work of an operation, which the thread of the control queue runs. Determines the status of the completion.
pub struct ControlAction(Box<dyn FnOnce() -> Result<(), FailureCause> + Send>);

/// Why an operation failed. The completion contains it; `None` if the program learns the cause in another way.
pub type FailureCause = Option<Arc<QpError>>;

/// An operation that can be posted.
#[derive(Debug)]
pub struct Prepared<T> {
    /// Returned to the caller of [`ControlQueue::post`].
    pub returned: T,
    /// The work of the operation.
    pub action: ControlAction,
}

/// The state that the program and the thread of the queue share.
#[derive(Debug)]
pub(super) struct Shared {
    number: Number,
    /// Maximum number of operations, including the one in progress.
    depth: usize,
    /// Receives the completions.
    cq: Arc<CompletionQueue>,
    queue: Mutex<Queue>,
    /// Wakes the thread: an operation was posted, or the queue is closed.
    wake: Condvar,
    /// The thread, until the queue is closed. Locked until the thread has ended.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Its place in the quota of its function.
    _place: Place,
}

#[derive(Debug, Default)]
struct Queue {
    /// Operations that have not begun, oldest first.
    operations: VecDeque<Operation>,
    /// The thread executes an operation, which still counts against the depth.
    busy: bool,
    /// The thread waits for `wake`. A program that posts while the thread is busy makes no system call.
    asleep: bool,
    /// The control queue is being dropped, or the adapter shut down: the thread ends once `operations` is empty.
    closed: bool,
    /// Time from which on operations are flushed that have not begun. `None` until the adapter is shut down.
    flush_from: Option<Instant>,
}

#[derive(Debug)]
struct Operation {
    /// Chosen by the program, for the completion.
    id: u64,
    opcode: Opcode,
    action: ControlAction,
}

impl ControlQueue {
    /// Creates a control queue for `depth` operations, which complete on `cq`, and starts its thread.
    pub(crate) fn start(
        number: Number,
        depth: usize,
        cq: &Arc<CompletionQueue>,
        place: Place,
    ) -> io::Result<Self> {
        let (queue, wake, thread) = (Mutex::default(), Condvar::new(), Mutex::default());
        let cq = Arc::clone(cq);
        let shared = Arc::new(Shared { number, depth, cq, queue, wake, thread, _place: place });
        let worker = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("ironwarp-control".into()).spawn(move || worker.run())?;
        *lock(&shared.thread) = Some(thread);
        Ok(Self { shared })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the number of the queue, which completions contain as the queue pair number.
    pub fn id(&self) -> u32 {
        self.shared.number.value()
    }

    /// Returns the maximum number of operations that the queue holds, including the one in progress.
    pub fn depth(&self) -> usize {
        self.shared.depth
    }

    /// Posts the operation that `prepare` returns. Calls `prepare` only if the queue has room, and returns its errors.
    /// Every posted operation completes, with this `id` and `opcode`.
    pub fn post<T, E: From<PostError>>(
        &self,
        id: u64,
        opcode: Opcode,
        prepare: impl FnOnce() -> Result<Prepared<T>, E>,
    ) -> Result<T, E> {
        let mut queue = lock(&self.shared.queue);
        if queue.closed {
            return Err(PostError::ShutDown.into());
        }
        if queue.operations.len() + usize::from(queue.busy) >= self.shared.depth {
            return Err(PostError::Full { capacity: self.shared.depth }.into());
        }
        let Prepared { returned, action } = prepare()?;
        queue.operations.push_back(Operation { id, opcode, action });
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.shared.wake.notify_one();
        }
        Ok(returned)
    }
}

impl Shared {
    /// Executes operations until the control queue is dropped. The main function of the thread.
    fn run(&self) {
        while let Some((Operation { id, opcode, action }, is_flushed)) = self.next() {
            let number = self.number.value();
            let result = if is_flushed { None } else { Some((action.0)()) };
            // Before the completion is pushed: a program that polls it may post another operation at once.
            lock(&self.queue).busy = false;
            let completion = match result {
                Some(Ok(())) => Completion::succeeded(id, opcode, number, 0),
                Some(Err(cause)) => Completion::failed(id, opcode, number, Status::LocalQpOperation, cause),
                None => {
                    let cause = Some(Arc::new(QpError::Stopped));
                    Completion::failed(id, opcode, number, Status::Flushed, cause)
                }
            };
            if self.cq.cq().push(completion).is_err() {
                tracing::warn!(
                    control_queue = number,
                    id,
                    "completion of a control operation lost: the completion queue is full"
                );
            }
        }
    }

    /// Refuses further operations, and flushes those that have not begun at `deadline`. Waits until all have completed.
    pub(super) fn shut_down(&self, deadline: Instant) {
        lock(&self.queue).flush_from = Some(deadline);
        self.close();
    }

    /// Refuses further operations, and waits until all have completed.
    fn close(&self) {
        lock(&self.queue).closed = true;
        self.wake.notify_one();
        let mut thread = lock(&self.thread);
        if thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a control queue panicked");
        }
    }

    /// Waits for the next operation, removes it from the queue and marks the thread as busy. Returns the operation, and
    /// whether it is to be flushed; `None` once the queue is closed and empty.
    fn next(&self) -> Option<(Operation, bool)> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(operation) = queue.operations.pop_front() {
                queue.busy = true;
                let is_flushed = queue.flush_from.is_some_and(|from| Instant::now() >= from);
                return Some((operation, is_flushed));
            }
            if queue.closed {
                return None;
            }
            queue.asleep = true;
            queue = sync::wait(&self.wake, queue);
        }
    }
}

impl Drop for ControlQueue {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl ControlAction {
    /// Wraps a function that does the work of an operation.
    pub fn new(action: impl FnOnce() -> Result<(), FailureCause> + Send + 'static) -> Self {
        Self(Box::new(action))
    }
}

// Not derived: a closure cannot be printed.
impl fmt::Debug for ControlAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlAction").finish_non_exhaustive()
    }
}
