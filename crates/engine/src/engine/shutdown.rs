//! Shutdown of an adapter that is in use (requirement N11).

use super::Engine;
use ironwarp_rnic::sync::lock;
use std::time::{Duration, Instant};

/// Upper bound on the time of a drain, which the clock can represent.
const MAX_DRAIN: Duration = Duration::from_secs(1 << 30);

/// How an adapter is shut down: what happens to requests that were posted and have not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// They complete: all of them are sent, and the connections are closed in order. What has not completed after this
    /// time is flushed.
    Drain(Duration),
    /// They are flushed at once, and the connections are reset.
    Flush,
}

impl Engine {
    /// Ends the adapter while it is in use. When this has returned, every posted request has completed or was flushed, no
    /// completion or event comes any more, and posting is refused. Waiting threads have been woken.
    ///
    /// A second call waits until the first has ended the adapter, but [`Flush`](Shutdown::Flush) ends a drain in
    /// progress. An [`EventSink`](crate::EventSink) must not call this: it runs on a lane, which could not end.
    pub fn shut_down(&self, how: Shutdown) {
        self.device().begin_shut_down(); // before anything is flushed: what is posted later is refused
        let within = match how {
            Shutdown::Drain(within) => within.min(MAX_DRAIN),
            Shutdown::Flush => Duration::ZERO,
        };
        let deadline = Instant::now() + within;
        if how == Shutdown::Flush {
            self.steering().abort_connections();
        }
        let mut is_done = lock(&self.shut_down);
        if *is_done {
            return;
        }
        self.steering().stop(within);
        self.objects.shut_down(deadline);
        self.device().shut_down();
        self.end.end();
        *is_done = true;
    }

    /// Returns whether the adapter was [shut down](Self::shut_down).
    pub fn is_shut_down(&self) -> bool {
        self.end.has_ended()
    }
}
