//! A control queue (requirement X6): operations of the adapter that may take long, done in order by a thread of its own while
//! the program and the lanes go on. Each operation ends with a completion.

use super::cq::CompletionQueue;
use super::qpn::Number;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::queue::{Completion, Opcode, Status};
use ironwarp_rnic::sync::{self, lock};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// A control queue. Dropping it waits until everything that was posted is done.
#[derive(Debug)]
pub struct ControlQueue {
    posted: Arc<Posted>,
    thread: Option<JoinHandle<()>>,
}

/// Why an operation failed, if there is a cause to report.
pub type Failed = Option<Arc<QpError>>;

/// What was posted: shared by the program and the thread.
#[derive(Debug)]
struct Posted {
    number: Number,
    depth: usize,
    cq: Arc<CompletionQueue>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    operations: VecDeque<Operation>,
    /// An operation is being done, and still counts.
    busy: bool,
    /// The thread waits to be woken. A program that posts while it is busy makes no system call.
    asleep: bool,
    ended: bool,
}

struct Operation {
    id: u64,
    opcode: Opcode,
    act: Box<dyn FnOnce() -> Result<(), Failed> + Send>,
}

impl ControlQueue {
    pub(crate) fn start(number: Number, depth: usize, cq: &Arc<CompletionQueue>) -> io::Result<Self> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let posted = Arc::new(Posted { number, depth, cq: Arc::clone(cq), queue, changed });
        let work = Arc::clone(&posted);
        let thread = std::thread::Builder::new().name("ironwarp-control".into()).spawn(move || work.run())?;
        Ok(Self { posted, thread: Some(thread) })
    }

    /// Returns its number, which completions contain.
    pub fn id(&self) -> u32 {
        self.posted.number.value()
    }

    /// Returns the maximum number of operations it holds.
    pub fn depth(&self) -> usize {
        self.posted.depth
    }

    /// Posts the operation that `prepare` returns, if there is room for it. Every operation completes.
    pub fn post<T, E: From<PostError>>(
        &self,
        (id, opcode): (u64, Opcode),
        prepare: impl FnOnce() -> Result<(T, Box<dyn FnOnce() -> Result<(), Failed> + Send>), E>,
    ) -> Result<T, E> {
        let mut queue = lock(&self.posted.queue);
        if queue.operations.len() + usize::from(queue.busy) >= self.posted.depth {
            return Err(PostError::Full { capacity: self.posted.depth }.into());
        }
        let (returned, act) = prepare()?;
        queue.operations.push_back(Operation { id, opcode, act });
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.posted.changed.notify_one();
        }
        Ok(returned)
    }
}

impl Posted {
    fn run(&self) {
        while let Some(Operation { id, opcode, act }) = self.next() {
            let (number, done) = (self.number.value(), act());
            lock(&self.queue).busy = false; // a program that sees the completion finds room
            let completion = match done {
                Ok(()) => Completion::succeeded(id, opcode, number, 0),
                Err(cause) => Completion::failed(id, opcode, number, Status::LocalQpOperation, cause),
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

    /// Waits for the next operation; `None` at the end.
    fn next(&self) -> Option<Operation> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(operation) = queue.operations.pop_front() {
                queue.busy = true;
                return Some(operation);
            }
            if queue.ended {
                return None;
            }
            queue.asleep = true;
            queue = sync::wait(&self.changed, queue);
        }
    }
}

impl Drop for ControlQueue {
    fn drop(&mut self) {
        lock(&self.posted.queue).ended = true;
        self.posted.changed.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a control queue panicked");
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("id", &self.id)
            .field("opcode", &self.opcode)
            .finish_non_exhaustive()
    }
}
