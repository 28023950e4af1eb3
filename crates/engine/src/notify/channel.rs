//! Event channels, from which a program takes events, and event sinks, which receive them by a call.

use crate::sys::poller::EventFd;
use crate::sys::thread::wait_readable;
use ironwarp_rnic::event::{Channel, Wake};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A [`Wake`] with a file descriptor that is readable while events are pending.
#[derive(Clone, Debug)]
pub struct EventFdWake(Arc<EventFd>);

impl EventFdWake {
    /// Creates a wake whose descriptor is not readable.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(EventFd::semaphore()?)))
    }
}

impl Wake for EventFdWake {
    fn signal(&self) {
        self.0.signal();
    }

    fn consume(&self) {
        self.0.take();
    }
}

impl AsFd for EventFdWake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A receiver of events, called by the engine when an event occurs.
#[doc(hidden)]
pub trait EventSink<E>: Send + Sync + fmt::Debug {
    /// Receives an event. Called on the thread that raises it, usually a lane's: an implementation must not block. It
    /// may call the engine.
    fn send(&self, event: E);

    /// Drops events that were received but not taken by the program, and for which `is_gone` returns true: their object
    /// does not exist any more. The default does nothing, for sinks that keep no events.
    fn revoke(&self, _is_gone: &dyn Fn(&E) -> bool) {}

    /// Both directions of the queue pair's connection are closed: by now, all of its requests have completed or were
    /// flushed. May be called more than once, on the thread that closes the connection. The default does nothing.
    fn on_closed(&self) {}
}

/// A queue of events with a descriptor that is readable while an event is pending.
#[derive(Debug)]
pub struct EventChannel<E> {
    channel: Channel<E>,
    wake: EventFdWake,
}

impl<E> EventChannel<E> {
    /// Creates an empty channel.
    ///
    /// ```
    /// # use ironwarp_engine::{ConnectionEvent, EventChannel};
    /// let events = EventChannel::<ConnectionEvent>::new()?;
    /// assert!(events.try_next().is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        Ok(Arc::new(Self { channel: Channel::new(Box::new(wake.clone())), wake }))
    }

    /// Takes the oldest event, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<E> {
        self.channel.try_next()
    }

    /// Waits for an event. Returns `None` if the timeout expires first; without a timeout, waits forever.
    ///
    /// ```
    /// # use ironwarp_engine::{ConnectionEvent, EventChannel};
    /// # use std::time::Duration;
    /// let events = EventChannel::<ConnectionEvent>::new()?;
    /// assert!(events.wait(Duration::from_millis(1)).is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Option<E> {
        wait_for(&self.wake, timeout.into(), || self.try_next())
    }
}

#[doc(hidden)]
impl<E: Send + fmt::Debug> EventSink<E> for EventChannel<E> {
    fn send(&self, event: E) {
        self.channel.push(event);
    }

    fn revoke(&self, is_gone: &dyn Fn(&E) -> bool) {
        self.channel.revoke(is_gone);
    }
}

/// Waits until `next` returns an event, and returns it. Returns `None` if the timeout expires first, or the program has
/// closed the descriptor of `wake`, which is readable while `next` has an event.
pub(crate) fn wait_for<E>(
    wake: &EventFdWake,
    timeout: Option<Duration>,
    next: impl Fn() -> Option<E>,
) -> Option<E> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(event) = next() {
            return Some(event);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        // The closure never ends the wait early. An error means that the program has closed the descriptor.
        wait_readable(&[wake.as_fd()], left, || false).ok()?;
    }
}

impl<E> AsFd for EventChannel<E> {
    /// Returns a descriptor that is readable while an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<E> AsRawFd for EventChannel<E> {
    /// Returns the descriptor for tokio's `AsyncFd` or mio's `SourceFd`. It does not change, and stays open as long as
    /// the channel exists.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
