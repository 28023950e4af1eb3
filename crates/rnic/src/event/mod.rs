//! Events: how a consumer that sleeps learns that something happened (step 8 of the path). Before this: `queue/cq.rs`,
//! which decides that an event is due. After it: the consumer, which waits on a [`Channel`].

mod asynchronous;
mod channel;

pub use asynchronous::AsyncEvent;
pub use channel::{Channel, CqEvent, Wake};

use std::fmt;

/// Where a completion queue raises its events: a completion handler (requirement N2).
pub trait Notify: Send + Sync + fmt::Debug {
    /// The completion queue of this number has what it was armed for.
    ///
    /// Like an interrupt, it notes the event and wakes someone. It does not wait, runs none of the program's code, and
    /// calls back into no completion queue: it is called with the handler of the queue locked.
    fn notify(&self, cq: u32);
}
