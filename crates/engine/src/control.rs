//! A control queue (requirement X6): operations of the adapter that may take long, done in order by a thread of its own while
//! the program and the lanes go on. Before this: the program posts one; after: a completion.
//!
//! It has no stream and no peer. What an operation does is its caller's: here it waits for its turn, and its end is told.

use crate::cq::CompletionQueue;
use crate::qpn::Number;
use crate::set::lock;
use ironwarp_rnic::error::{Fault, PostError};
use ironwarp_rnic::queue::{Completion, Opcode, Status};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A control queue. Dropped, it does what was posted, and then ends.
#[derive(Debug)]
pub struct ControlQueue {
    posted: Arc<Posted>,
    thread: Option<JoinHandle<()>>,
}

/// Why an operation failed, if more is to be said than that it did.
pub type Failed = Option<Arc<Fault>>;

/// What was posted, where program and thread meet.
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
    /// One of them is being done, and still takes its place.
    busy: bool,
    /// The thread waits to be woken; who posts while it is busy need not call it.
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

    /// Its number, as completions name it.
    pub fn id(&self) -> u32 {
        self.posted.number.value()
    }

    /// How many operations it holds.
    pub fn depth(&self) -> usize {
        self.posted.depth
    }

    /// Posts an operation; `prepare` makes it, if there is room for it. Every operation completes.
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
            lock(&self.queue).busy = false; // who sees the completion finds room
            let completion = match done {
                Ok(()) => Completion::succeeded(id, opcode, number, 0),
                Err(cause) => Completion::failed(id, opcode, number, Status::LocalQpOperation, cause),
            };
            if self.cq.cq().push(completion).is_err() {
                tracing::warn!(control_queue = number, id, "a completion found its queue full");
            }
        }
    }

    /// The operation that has its turn; `None` at the end.
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
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ControlQueue {
    fn drop(&mut self) {
        lock(&self.posted.queue).ended = true;
        self.posted.changed.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a control queue panicked");
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
