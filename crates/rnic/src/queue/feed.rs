//! Connects a send queue to the shared send queue that feeds it (requirement X7).

use super::entry::Entry;
use super::{Completion, QueueOwner, SharedSendQueue};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The link between a send queue and the shared send queue that feeds it.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) queue: Arc<SharedSendQueue>,
    /// The queue pair of the send queue.
    pub(super) qp: Weak<dyn QueueOwner>,
    /// The numbers that the shared queue assigned to requests that were sent and are not complete, in order. Requests
    /// complete in the order in which they are sent.
    pub(super) numbers: VecDeque<u64>,
    /// No completions are wanted, because the program destroys the queue pair.
    pub(super) suppressed: bool,
}

impl Feed {
    /// Passes a request that is done to the shared queue, with its completion if it needs one.
    pub(super) fn finish(&mut self, entry: &Entry, completion: Option<Completion>) {
        let number = if entry.sent { self.numbers.pop_front() } else { None };
        let completion = completion.filter(|_| !self.suppressed);
        let due = completion.map(|completion| (completion, Weak::clone(&self.qp)));
        self.queue.finish(number.unwrap_or(0), due); // zero: not transmitted
    }
}
