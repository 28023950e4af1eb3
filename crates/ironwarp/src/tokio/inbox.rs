//! Messages that have arrived for a receive queue and were not taken yet.

use super::buffers::{Home, Message};
use super::error::Error;
use crate::memory::Chunk;
use ::tokio::sync::Notify;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::queue::{Completion, Opcode, RequestError, Status};
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::sync::{Mutex, Weak};

/// The messages of a receive queue. The driver adds them, in the order of the completions.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The receive queue, to which chunks return.
    home: Weak<dyn Home>,
    /// Several connections use the receives. The failure of one does not end the others.
    shared: bool,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Message>,
    /// Number of receives that are posted and have not completed.
    posted: usize,
    /// No more messages arrive, except through receives that are still posted.
    closed: bool,
    /// Why no more messages arrive, if that was not intended.
    failure: Failure,
}

#[derive(Debug, Default)]
enum Failure {
    #[default]
    None,
    Unreported(Error),
    Reported,
}

impl Inbox {
    pub(super) fn new(home: Weak<dyn Home>, shared: bool) -> Self {
        Self { home, shared, state: Mutex::default(), changed: Notify::new() }
    }

    /// Counts a receive that is about to be posted.
    pub(super) fn add_posted(&self) {
        lock(&self.state).posted += 1;
    }

    /// Takes that back: the receive was not posted, or will not complete.
    pub(super) fn remove_posted(&self) {
        lock(&self.state).posted -= 1;
        self.changed.notify_waiters();
    }

    /// Adds the message of a receive that has completed, or records why there is none.
    pub(super) fn deliver(&self, completion: Completion, mut chunk: Chunk) {
        if completion.status == Status::Success {
            // The data of a Write with Immediate is not in the chunk.
            let len = if completion.opcode == Opcode::Receive { completion.byte_len as usize } else { 0 };
            chunk.set_len(len).expect("a message is not longer than its receive");
            let message = Message::new(completion, chunk, Weak::clone(&self.home));
            let mut state = lock(&self.state);
            state.posted -= 1;
            state.messages.push_back(message);
            drop(state);
            self.changed.notify_one();
        } else if self.shared {
            // Only one of many connections has failed: its queue pair reports that.
            lock(&self.state).posted -= 1;
            if let Some(home) = self.home.upgrade() {
                home.take_back(chunk);
            }
        } else {
            let intended =
                matches!(completion.cause.as_deref(), None | Some(QpError::Closed | QpError::Disconnected));
            let mut state = lock(&self.state);
            state.posted -= 1;
            state.end((!intended).then(|| RequestError(completion).into()));
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Records that no more messages arrive, except through receives that are still posted, and why, if that was not
    /// intended.
    pub(super) fn end(&self, failure: Option<Error>) {
        lock(&self.state).end(failure);
        self.changed.notify_waiters();
    }

    /// Waits for the next message. Returns `None` if there will be none.
    pub(super) async fn recv(&self) -> Result<Option<Message>, Error> {
        loop {
            // Created before the check, so that no message in between is missed.
            let changed = self.changed.notified();
            if let Some(result) = self.try_recv() {
                return result;
            }
            changed.await;
        }
    }

    /// Returns what a receiver gets without waiting; `None` if it has to wait.
    pub(super) fn try_recv(&self) -> Option<Result<Option<Message>, Error>> {
        let mut state = lock(&self.state);
        if let Some(message) = state.messages.pop_front() {
            return Some(Ok(Some(message)));
        }
        if !state.closed || state.posted > 0 {
            return None;
        }
        Some(match std::mem::replace(&mut state.failure, Failure::Reported) {
            Failure::Unreported(error) => Err(error),
            Failure::None | Failure::Reported => Ok(None),
        })
    }
}

impl State {
    /// Records that no more messages arrive. Only the first failure counts: others are consequences.
    fn end(&mut self, failure: Option<Error>) {
        self.closed = true;
        if let (Failure::None, Some(failure)) = (&self.failure, failure) {
            self.failure = Failure::Unreported(failure);
        }
    }
}
