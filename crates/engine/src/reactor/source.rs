//! The traits by which a lane serves connections, descriptors and handshakes. Higher layers implement them.

use super::class::Class;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A connection that can have pending work. Submitted to a lane with
/// [`Command::Drive`](super::command::Command::Drive), it waits in the lane's backlog for its turn. All methods are
/// called on the lane's thread.
pub(crate) trait Drive: Send + Sync + fmt::Debug {
    /// Returns the class whose share decides how soon the connection has its turn. Called when the connection enters
    /// the backlog.
    fn class(&self) -> Class;

    /// Records whether the connection is in a backlog. Called with true when it enters, and with false just before it
    /// is driven. While it is queued, an implementation must not submit it again, and may ignore events of its socket.
    fn set_queued(&self, queued: bool);

    /// Sends and receives as much as one turn allows. An implementation must not block, must catch its own panics, and
    /// submits the connection again if work is left.
    fn drive(&self);
}

/// A single descriptor in a lane's epoll. Added with [`Command::AddSource`](super::command::Command::AddSource), it
/// stays until `on_readable` fails or the lane ends.
pub(crate) trait EventSource: AsFd + Send + Sync + fmt::Debug {
    /// Handles that the descriptor is readable, and returns when the lane waits for it again. Called on the lane's
    /// thread: an implementation must not block. It need not read everything, because the descriptor is
    /// level-triggered. After an error or a panic, the lane removes the source.
    fn on_readable(&self) -> io::Result<Rearm>;
}

/// When a lane waits again for a descriptor that was readable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rearm {
    /// At once.
    Now,
    /// After this time, during which events of the descriptor are ignored.
    After(Duration),
    /// Never: the lane removes the source.
    Never,
}

/// Work of a higher layer on a lane's thread, with many descriptors in the lane's epoll and deadlines of its own: the
/// handshakes of the connection manager. Added with [`Command::AddService`](super::command::Command::AddService), it
/// stays until the lane ends. All methods are called on the lane's thread and must not block.
pub(crate) trait Service: Send + Sync + fmt::Debug {
    /// Serves the descriptor with this token. Returns false if the service has no such descriptor: the lane then tries
    /// others.
    fn on_ready(&self, token: u64) -> bool;

    /// Returns the time until [`expire`](Self::expire) has something to do; `None` if it has nothing. The lane does not
    /// sleep longer.
    fn time_to_deadline(&self, now: Instant) -> Option<Duration>;

    /// Handles all deadlines up to `now`. Called after each wakeup of the lane, also if no deadline has passed.
    fn expire(&self, now: Instant);

    /// Returns the number of pending timers, for statistics.
    fn timer_count(&self) -> usize;

    /// Fails everything in progress, and reports it to those who wait. Called once, when the lane has failed and cannot
    /// wait for descriptors any more. [`expire`](Self::expire) and [`end`](Self::end) are called after it.
    fn fail(&self);

    /// Drops everything in progress. Called last, when the lane's thread ends.
    fn end(&self);
}

/// A function to call once, on a lane's thread.
pub(crate) struct Callback(Box<dyn FnOnce() + Send>);

impl Callback {
    /// Wraps a function.
    pub(crate) fn new(call: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Calls the function.
    pub(crate) fn call(self) {
        (self.0)();
    }
}

// Not derived: a closure cannot be printed.
impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").finish_non_exhaustive()
    }
}
