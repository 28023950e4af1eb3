//! Traits through which the device wakes a waiting program and starts timers. The engine implements them.

use super::code::Cause;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Wakes a waiting program (the interrupt of requirement N7): a semaphore with a file descriptor that is
/// readable while the count is not zero. The engine uses an eventfd in semaphore mode; tests use a counter.
pub trait Wake: Send + Sync + fmt::Debug {
    /// Increments the semaphore.
    fn signal(&self);

    /// Increments the semaphore, because of an event with this cause. The default ignores the cause.
    fn signal_for(&self, _cause: Cause) {
        self.signal();
    }

    /// Decrements the semaphore. Never blocks, because there is a `signal` for each call.
    fn consume(&self);
}

impl<W: Wake + ?Sized> Wake for Arc<W> {
    fn signal(&self) {
        (**self).signal();
    }

    fn signal_for(&self, cause: Cause) {
        (**self).signal_for(cause);
    }

    fn consume(&self) {
        (**self).consume();
    }
}

/// A timer for moderation. The device itself has no clock.
pub trait Timer: Send + Sync + fmt::Debug {
    /// Calls [`Moderated::on_timer`] once after this time, unless the timer is dropped before, which happens when the
    /// moderation is changed.
    fn start(&self, after: Duration);
}

/// An object whose events are moderated: it holds events back while a [`Timer`] runs.
pub trait Moderated: Send + Sync + fmt::Debug {
    /// Raises the events that were held back. Called when the time that was [started](Timer::start) is over.
    fn on_timer(&self);
}

/// Moderation by number and time (requirement I10): an event of a completion queue, or a wakeup of an event queue, is
/// held back until enough has arrived, or until some time after the first arrival.
#[derive(Clone, Debug)]
pub struct Moderation {
    /// Number of completions that raise an event, or of unread events that are worth a wakeup.
    pub count: usize,
    /// Time after the first of them that ends the wait. Zero means no limit.
    pub period: Duration,
    /// Calls [`Moderated::on_timer`] after that time.
    pub timer: Arc<dyn Timer>,
}
