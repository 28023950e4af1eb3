//! Shutdown of an adapter, or of one of its functions, that is in use (requirement N11).

use super::Engine;
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
    /// Ends the adapter with all of its functions, or one function, while it is in use. When this has returned, every posted request has completed or was flushed, no
    /// completion or event comes any more, and posting is refused. Waiting threads have been woken.
    ///
    /// A second call waits until the first has ended the adapter, but [`Flush`](Shutdown::Flush) ends a drain in
    /// progress. An [`EventSink`](crate::EventSink) must not call this: it runs on a lane, which could not end.
    pub fn shut_down(&self, how: Shutdown) {
        let within = match how {
            Shutdown::Drain(within) => within.min(MAX_DRAIN),
            Shutdown::Flush => Duration::ZERO,
        };
        let deadline = Instant::now() + within;
        if self.function_number() == 0 {
            self.shut_adapter_down(how, within, deadline);
        } else {
            self.shut_function_down(how, deadline);
        }
    }

    /// Ends the adapter with all of its functions.
    fn shut_adapter_down(&self, how: Shutdown, within: Duration, deadline: Instant) {
        // Before anything is flushed: what is posted later is refused.
        let functions = || self.shared.functions.all();
        functions().iter().for_each(|function| function.device().begin_shut_down());
        if how == Shutdown::Flush {
            self.steering().abort_connections();
        }
        self.function.end_after(deadline, || {
            self.steering().stop(within);
            let others = functions().into_iter().filter(|function| function.number() != 0);
            others.for_each(|function| {
                function.device().begin_shut_down(); // it may have been created meanwhile
                function.end_after(deadline, || {});
            });
        });
    }

    /// Ends a function. The connections of others stay.
    fn shut_function_down(&self, how: Shutdown, deadline: Instant) {
        let function = &self.function;
        function.device().begin_shut_down(); // before anything is flushed: what is posted later is refused
        function.stop_listening();
        if how == Shutdown::Flush {
            function.objects().abort();
        }
        function.end_after(deadline, || function.objects().close(deadline));
    }

    /// Returns whether the adapter was [shut down](Self::shut_down).
    pub fn is_shut_down(&self) -> bool {
        self.function.end().has_ended()
    }
}
