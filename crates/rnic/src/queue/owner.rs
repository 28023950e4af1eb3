//! The queue pair behind a queue, as the queue sees it.

use std::fmt;

/// A queue pair that a shared queue calls back.
pub(crate) trait QueueOwner: Send + Sync + fmt::Debug {
    /// A shared receive queue has taken the queue pair off its list. Called with the queue locked.
    fn on_unlisted(&self, srq: u32);

    /// A receive was posted that a message of the queue pair may have waited for.
    fn on_receive_posted(&self);

    /// A completion of a shared send queue found no room in its completion queue (requirement I5).
    fn on_completion_lost(&self);
}
