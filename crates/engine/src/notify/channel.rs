//! Event channels, from which a program takes events, and event sinks, which receive them by a call.

use super::blocking::Descriptors;
use super::end::EndSignal;
use super::taking::HeldEvents;
use crate::sys::poller::EventFd;
use crate::sys::thread::{Awaited, wait_readable};
use ironwarp_rnic::event::{Channel, Wake};
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A [`Wake`] with a file descriptor that is readable while events are pending.
#[derive(Clone, Debug)]
pub struct EventFdWake(Arc<Semaphore>);

/// The descriptor, and the events that it does not count.
#[derive(Debug)]
struct Semaphore {
    fd: EventFd,
    held: Mutex<HeldEvents>,
}

impl EventFdWake {
    /// Creates a wake whose descriptor is not readable.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Semaphore { fd: EventFd::semaphore()?, held: Mutex::default() })))
    }

    /// Keeps events from making the descriptor readable until the guard is dropped, because this thread is about to take
    /// them. An event that the same thread raises and takes then needs no system call.
    pub(crate) fn begin_take(&self) -> Taking<'_> {
        lock(&self.0.held).begin_take();
        Taking(&self.0)
    }
}

/// Keeps events from making the descriptor readable while it exists, because this thread is about to take them. When
/// the last one is dropped, the descriptor becomes readable for those that are left.
#[derive(Debug)]
pub(crate) struct Taking<'w>(&'w Semaphore);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.0.held);
        (0..held.end_take()).for_each(|_| self.0.fd.signal());
    }
}

impl Wake for EventFdWake {
    fn signal(&self) {
        let mut held = lock(&self.0.held);
        if !held.hold() {
            self.0.fd.signal();
        }
    }

    fn consume(&self) {
        let mut held = lock(&self.0.held);
        if !held.take() {
            self.0.fd.take();
        }
    }
}

impl AsFd for EventFdWake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
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

    /// A message of the peer has begun to wait until the program posts a receive to the queue pair `qp`, or to its shared
    /// receive queue. Called on the thread that received the message. The default does nothing.
    fn on_receive_missing(&self, _qp: u32) {}
}

/// A queue of events with a descriptor that is readable while an event is pending.
#[derive(Debug)]
pub struct EventChannel<E> {
    channel: Channel<E>,
    wake: EventFdWake,
    /// The end of the adapter that the events are of; `None` if the channel can outlive adapters.
    end: Option<Arc<EndSignal>>,
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
        Self::open(None)
    }

    /// Creates an empty channel. Threads wait for its events until the adapter is shut down.
    pub(crate) fn of_adapter(end: &Arc<EndSignal>) -> io::Result<Arc<Self>> {
        Self::open(Some(Arc::clone(end)))
    }

    fn open(end: Option<Arc<EndSignal>>) -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        Ok(Arc::new(Self { channel: Channel::new(Box::new(wake.clone())), wake, end }))
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
        wait_for(&self.wake, self.end.as_deref(), timeout.into(), || self.try_next())
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

/// Waits until `next` returns an event, and returns it. Returns `None` if the timeout expires first, the adapter is at its
/// `end`, or the program has closed the descriptor of `wake`, which is readable while `next` has an event.
pub(crate) fn wait_for<E>(
    wake: &EventFdWake,
    end: Option<&EndSignal>,
    timeout: Option<Duration>,
    next: impl Fn() -> Option<E>,
) -> Option<E> {
    sleep_until(end, timeout, next, |left| {
        let at_end = end.and_then(EndSignal::descriptor);
        if end.is_some_and(EndSignal::has_ended) {
            return Ok(()); // before there was a descriptor
        }
        let mut awaited = Descriptors::from_iter([Awaited::readable(wake)]);
        awaited.extend(at_end.as_deref().map(Awaited::readable));
        wait_readable(&awaited, left, || false) // the closure never ends the wait early
    })
}

/// Calls `sleep` until `next` returns an event, and returns it. Returns `None` if the timeout expires first, the adapter is
/// at its `end`, or `sleep` fails: the program has closed a descriptor.
pub(crate) fn sleep_until<E>(
    end: Option<&EndSignal>,
    timeout: Option<Duration>,
    mut next: impl FnMut() -> Option<E>,
    mut sleep: impl FnMut(Option<Duration>) -> io::Result<()>,
) -> Option<E> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        // Before `next`, which finds the events from before the end.
        let has_ended = end.is_some_and(EndSignal::has_ended);
        if let Some(event) = next() {
            return Some(event);
        }
        if has_ended {
            return None;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        sleep(left).ok()?;
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
