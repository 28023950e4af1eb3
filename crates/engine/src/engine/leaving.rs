//! Has an adapter leave shared memory (requirement X2).

use super::Engine;
use crate::steering::LeaveError;
use std::time::Instant;

impl Engine {
    /// Has all connections of the adapter leave shared memory for good, and waits until they have, at most until the
    /// deadline. New connections stay with TCP. Connections can be used meanwhile, and nothing is lost. Also waits until the
    /// memory is given back, which takes seconds if a peer's process is stopped.
    ///
    /// Fails with an error for each connection that has not left. Those that did not answer in time may leave later, and
    /// may be asked again.
    ///
    /// An [`EventSink`](crate::EventSink) must not call this: it runs on a lane, which drives the connections.
    pub fn leave_shared_memory(&self, deadline: Instant) -> Result<(), Vec<LeaveError>> {
        let errors = self.steering().leave_shared_memory(deadline);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}
