//! What a lane knows of the things it serves: traits that higher layers implement.

use super::class::Class;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A connection that was left with work. Its lane drives it when its turn comes.
pub(crate) trait Drive: Send + Sync + fmt::Debug {
    /// The class by whose share it has turns.
    fn class(&self) -> Class;

    /// Notes whether it waits for its turn.
    fn set_queued(&self, queued: bool);

    /// Does all there is to do.
    fn drive(&self);
}

/// A descriptor that a lane waits for.
pub(crate) trait EventSource: AsFd + Send + Sync + fmt::Debug {
    /// The descriptor is readable. This must not block. After an error the lane does not wait for it any more.
    fn on_readable(&self) -> io::Result<Rearm>;
}

/// When a lane waits for a descriptor again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rearm {
    Now,
    After(Duration),
}

/// Work of a higher layer on a lane's thread, with descriptors in the lane's epoll and deadlines of its own. All methods are
/// called on that thread.
pub(crate) trait Service: Send + Sync + fmt::Debug {
    /// The descriptor with this token is ready. Returns false if it belongs to something else.
    fn on_ready(&self, token: u64) -> bool;

    /// Time until [`expire`](Self::expire) has something to do.
    fn time_to_deadline(&self, now: Instant) -> Option<Duration>;

    /// Does what is due. Called in each round of the lane.
    fn expire(&self, now: Instant);

    /// Number of pending timers.
    fn timer_count(&self) -> usize;

    /// The lane cannot wait for descriptors any more: fails what is in progress.
    fn fail(&self);

    /// The lane ends: drops what is in progress.
    fn end(&self);
}

/// A function to call on a lane's thread.
pub(crate) struct Callback(Box<dyn FnOnce() + Send>);

impl Callback {
    pub(crate) fn new(call: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    pub(crate) fn call(self) {
        (self.0)();
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").finish_non_exhaustive()
    }
}
