//! What events need from outside: something that makes a sleeping program look, and something that tells the time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What makes a waiting program look (the interrupt of requirement N7): a semaphore with a file descriptor that is readable
/// while it is not zero. The engine has an eventfd in semaphore mode; tests have a counter.
pub trait Wake: Send + Sync + fmt::Debug {
    /// Adds one.
    fn signal(&self);

    /// Takes one away. There is one: each call answers an earlier `signal`.
    fn consume(&self);
}

impl<W: Wake + ?Sized> Wake for Arc<W> {
    fn signal(&self) {
        (**self).signal();
    }

    fn consume(&self) {
        (**self).consume();
    }
}

/// The clock of moderation, which the device does not have.
pub trait Timer: Send + Sync + fmt::Debug {
    /// Calls [`Moderated::expired`] once after so much time, unless the timer is dropped before: then other rules are in force,
    /// and what it was started for is done.
    fn start(&self, after: Duration);
}

/// What raises fewer events than it could, and is told when a time is over.
pub trait Moderated: Send + Sync + fmt::Debug {
    /// The time that was [started](Timer::start) is over.
    fn expired(&self);
}
