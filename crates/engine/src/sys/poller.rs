//! Waiting for many descriptors at once ([`Epoll`]), waking threads that wait ([`EventFd`]), and timers ([`Alarm`]).
//!
//! An epoll set can be a member of another: there it is readable while it has an event that was not taken. The tests
//! show how the kernel reports edges of nested sets, because poll sets depend on it.

use super::denied::Denied;
use super::fork::Fd;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use std::fmt;
use std::io;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll {
    fd: Fd,
}

/// When a member of a set is reported. Errors and hang-ups count as both readable and writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Edge-triggered: each time the member becomes readable or writable, or more bytes arrive. For sockets of streams.
    Edges,
    /// Edge-triggered: each time the member becomes readable, or another of its events occurs. For sets within a lane's
    /// set, for doorbells, and for sockets in the descriptor of a completion channel.
    ReadableEdges,
    /// Level-triggered: for as long as the member is readable. For listeners and eventfds.
    Readable,
    /// Never, until [`Epoll::modify`] sets another interest. Only for sets, which have no errors: an error of a socket
    /// would be reported nevertheless.
    Disarmed,
}

/// An event of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The value given to [`Epoll::add`].
    pub data: u64,
    /// A read would not block: there are bytes to read, the end of the stream, or an error.
    pub readable: bool,
    /// A write would not block: there is room, or an error.
    pub writable: bool,
    /// No more bytes will arrive: the end of the stream or an error is pending, possibly behind bytes that are still to
    /// be read.
    pub ended: bool,
}

/// A buffer for the events that one [`Epoll::wait`] takes. It can be used again.
pub struct Events {
    list: Vec<epoll::Event>,
}

/// A counter that a thread can wait for (eventfd(2)).
#[derive(Debug)]
pub struct EventFd {
    fd: Fd,
}

impl Epoll {
    /// Creates an empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: Denied::check("epoll_create1", Fd::open(|| epoll::create(epoll::CreateFlags::CLOEXEC)))?,
        })
    }

    /// Adds a member. Its events will have the value `data`.
    pub fn add(&self, member: impl AsFd, data: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, member, epoll::EventData::new_u64(data), interest.flags())?)
    }

    /// Changes the value and the interest of a member. If the new condition is met already, an event is reported at
    /// once.
    pub fn modify(&self, member: impl AsFd, data: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, member, epoll::EventData::new_u64(data), interest.flags())?)
    }

    /// Removes a member. Closing the member's descriptor removes the member, too, unless a duplicate of the descriptor
    /// is open.
    pub fn delete(&self, member: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, member)?)
    }

    /// Waits until there are events, the timeout expires, or a signal was caught. Replaces the contents of `events` by
    /// the events, of which there may be none. The timeout is rounded up to milliseconds; `None` is no timeout.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        // A timeout that exceeds the range of the kernel is treated as no timeout.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        events.list.clear();
        match epoll::wait(&self.fd, spare_capacity(&mut events.list), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => {
                self.fd.mark_lost(); // the only possible reason is that the program has closed the descriptor
                Err(error.into())
            }
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An epoll set whose descriptor belongs to the program, which waits for it and may make it non-blocking. Forked
/// children keep the descriptor, which gives no access to its members.
#[derive(Debug)]
pub struct ProgramEpoll {
    fd: OwnedFd,
}

impl ProgramEpoll {
    /// Creates an empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: Denied::check("epoll_create1", epoll::create(epoll::CreateFlags::CLOEXEC))? })
    }

    /// Adds a member. Its events will have the value `data`. Does nothing if the set has the member.
    pub fn add(&self, member: impl AsFd, data: u64, interest: Interest) -> io::Result<()> {
        match epoll::add(&self.fd, member, epoll::EventData::new_u64(data), interest.flags()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a member. Does nothing if the set does not have it.
    pub fn delete(&self, member: impl AsFd) {
        let _ = epoll::delete(&self.fd, member);
    }

    /// Replaces the contents of `events` by the events that are pending. A failure leaves it empty.
    pub fn take_events(&self, events: &mut Events) {
        events.list.clear();
        let _ = epoll::wait(&self.fd, spare_capacity(&mut events.list), Some(&Timespec::default()));
    }

    /// Returns whether events are pending. Does not take them.
    pub fn has_events(&self) -> bool {
        let mut list = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::event::poll(&mut list, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether the program has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }
}

impl AsFd for ProgramEpoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A timer for an epoll set, precise to microseconds: it becomes readable when it expires (timerfd). The timeout of
/// [`Epoll::wait`] is precise to milliseconds only.
#[derive(Debug)]
pub struct Alarm {
    fd: Fd,
}

impl Alarm {
    /// Creates a timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = Fd::open(|| rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags));
        Ok(Self { fd: Denied::check("timerfd_create", fd)? })
    }

    /// Sets the timer to expire once, after `time`. Replaces an earlier time.
    pub fn set(&self, time: Duration) -> io::Result<()> {
        let it_value = Timespec::try_from(time).map_err(|_| Errno::INVAL)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Interest {
    /// Returns the flags for epoll_ctl(2).
    fn flags(self) -> epoll::EventFlags {
        use epoll::EventFlags as F;
        match self {
            Self::Edges => F::IN | F::OUT | F::RDHUP | F::ET,
            Self::ReadableEdges => F::IN | F::RDHUP | F::ET,
            Self::Readable => F::IN,
            Self::Disarmed => F::ONESHOT, // without IN and OUT: only an error would be reported
        }
    }
}

impl Events {
    /// Creates a buffer for `capacity` events, at least one. Events that do not fit are reported by the next wait.
    pub fn new(capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity.max(1)) }
    }

    /// Returns the events of the last wait.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.list.iter().map(|event| Event::from_epoll(*event))
    }

    /// Returns the number of events of the last wait.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the last wait took no event.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether the last wait took as many events as fit. If so, more may be pending.
    pub fn is_full(&self) -> bool {
        self.list.len() == self.list.capacity()
    }
}

// Not derived: prints the events in the form of this crate, not of the kernel.
impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Event {
    /// Converts an event of the kernel.
    fn from_epoll(event: epoll::Event) -> Self {
        use epoll::EventFlags as F;
        let flags = event.flags;
        Self {
            data: event.data.u64(),
            readable: flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR),
            writable: flags.intersects(F::OUT | F::HUP | F::ERR),
            ended: flags.intersects(F::RDHUP | F::HUP | F::ERR),
        }
    }
}

impl EventFd {
    /// Creates a counter from which [`take`](Self::take) takes all signals at once.
    pub fn counter() -> io::Result<Self> {
        Self::new(EventfdFlags::empty())
    }

    /// Creates a counter from which [`take`](Self::take) takes one signal at a time. It stays readable until all
    /// signals were taken.
    pub fn semaphore() -> io::Result<Self> {
        Self::new(EventfdFlags::SEMAPHORE)
    }

    /// Creates an eventfd with value zero.
    fn new(mode: EventfdFlags) -> io::Result<Self> {
        let flags = mode | EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: Denied::check("eventfd2", Fd::open(|| rustix::event::eventfd(0, flags)))? })
    }

    /// Adds one signal, which wakes waiting threads. Does nothing if the program has closed the descriptor.
    pub fn signal(&self) {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, &1_u64.to_ne_bytes())) {
            // EAGAIN: the counter is at its maximum of 2^64 - 2. It is readable, so waiting threads wake.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(_) => self.fd.mark_lost(),
        }
    }

    /// Returns whether a call has found that the program has closed the descriptor.
    pub fn is_lost(&self) -> bool {
        self.fd.is_lost()
    }

    /// Takes all signals, or one if this is a semaphore. Returns the number of signals taken: zero if there are none,
    /// or if the program has closed the descriptor.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut count)) {
            Ok(8) => u64::from_ne_bytes(count),
            Err(Errno::AGAIN) => 0,
            Ok(_) | Err(_) => {
                self.fd.mark_lost();
                0
            }
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
