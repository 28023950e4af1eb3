//! The trait by which shared queues call the queue pairs that use them.

use std::fmt;

/// A queue pair that a shared queue calls back.
pub(crate) trait QueueOwner: Send + Sync + fmt::Debug {
    /// Called when the shared receive queue `srq` has removed the queue pair from its list of waiting queue pairs. The
    /// queue is locked.
    fn on_unlisted(&self, srq: u32);

    /// Called after a receive was posted for which a message of the queue pair may have waited.
    fn on_receive_posted(&self);

    /// Called when a completion of the queue pair, delivered by its shared send queue, did not fit into the completion
    /// queue (requirement I5).
    fn on_completion_lost(&self);

    /// Returns the lane that the queue pair is steered to.
    fn lane(&self) -> u16;
}
