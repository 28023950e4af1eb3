//! The connection of a send queue to the shared send queue that feeds it (requirement X7).

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
    /// The transmission numbers of requests that were sent and are not complete. Requests are sent and completed
    /// in order.
    pub(super) numbers: VecDeque<u64>,
    /// Completions are suppressed.
    pub(super) suppressed: bool,
}

impl Feed {
    pub(super) fn finish(&mut self, entry: &Entry, completion: Option<Completion>) {
        let number = if entry.sent { self.numbers.pop_front() } else { None };
        let wanted = completion.filter(|_| !self.suppressed);
        self.queue.finish(number.unwrap_or(0), wanted.map(|completion| (completion, Weak::clone(&self.qp))));
    }
}
