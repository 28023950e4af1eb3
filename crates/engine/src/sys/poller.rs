//! Waiting for many descriptors at once ([`Epoll`]), and waking threads that wait ([`EventFd`]).
//!
//! Sets nest: a set is ready in another while it has an event that was not taken. The tests state what the kernel does then, because
//! poll sets depend on it.

use super::denied::Denied;
use super::fork::Fd;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd};
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
    /// Edge-triggered: it became readable or writable, or more so. For sockets of streams.
    Edges,
    /// Edge-triggered: it became readable, or more so. For sets within a lane's set.
    ReadableEdges,
    /// Level-triggered: it is readable. For listeners and eventfds.
    Readable,
    /// Not reported until `modify` arms it. For sets, which have no errors: an error of a socket would be reported once.
    Disarmed,
}

/// An event of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The value given to [`Epoll::add`].
    pub data: u64,
    /// A read would not block: there are bytes, an end or an error.
    pub readable: bool,
    /// A write would not block: there is room or an error.
    pub writable: bool,
    /// No more bytes will come: an end or an error is there, or follows the bytes that are.
    pub ended: bool,
}

/// Room for the events of one wait. It can be used again.
pub struct Events {
    list: Vec<epoll::Event>,
}

/// A counter that can be waited for.
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

    /// Adds a member, to be reported with `data`.
    pub fn add(&self, member: impl AsFd, data: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, member, epoll::EventData::new_u64(data), interest.flags())?)
    }

    /// Changes what is waited for. If it is the case already, it is reported at once.
    pub fn modify(&self, member: impl AsFd, data: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, member, epoll::EventData::new_u64(data), interest.flags())?)
    }

    /// Removes a member. Closing a member removes it, too, if there is no duplicate of it.
    pub fn delete(&self, member: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, member)?)
    }

    /// Waits until there are events, the timeout expires (rounded up to milliseconds), or a signal was caught; takes the
    /// events, which may be none. Without a timeout it waits forever.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        // A timeout too long for the kernel is as good as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        events.list.clear();
        match epoll::wait(&self.fd, spare_capacity(&mut events.list), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => {
                self.fd.lose(); // the program has closed it: there is no other reason
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

/// A timer with a resolution of a microsecond, which an epoll reports. Timeouts of epoll itself are in milliseconds on older kernels.
#[derive(Debug)]
pub struct Alarm {
    fd: Fd,
}

impl Alarm {
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = Fd::open(|| rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags));
        Ok(Self { fd: Denied::check("timerfd_create", fd)? })
    }

    /// Expires after this time. Replaces an earlier time.
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
    fn flags(self) -> epoll::EventFlags {
        use epoll::EventFlags as F;
        match self {
            Self::Edges => F::IN | F::OUT | F::RDHUP | F::ET,
            Self::ReadableEdges => F::IN | F::ET,
            Self::Readable => F::IN,
            Self::Disarmed => F::ONESHOT,
        }
    }
}

impl Events {
    /// Room for `most` events, at least one. Events that do not fit are reported by the next wait.
    pub fn new(most: usize) -> Self {
        Self { list: Vec::with_capacity(most.max(1)) }
    }

    /// Returns the events of the last wait.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.list.iter().map(|event| Event::of(*event))
    }

    /// Returns the number of events of the last wait.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the last wait took no event.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether the last wait took as many events as fit: there may be more.
    pub fn is_full(&self) -> bool {
        self.list.len() == self.list.capacity()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Event {
    fn of(event: epoll::Event) -> Self {
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
    /// [`take`](Self::take) takes everything that was signalled.
    pub fn counter() -> io::Result<Self> {
        Self::new(EventfdFlags::empty())
    }

    /// [`take`](Self::take) takes one, so it stays readable until each was taken.
    pub fn semaphore() -> io::Result<Self> {
        Self::new(EventfdFlags::SEMAPHORE)
    }

    fn new(mode: EventfdFlags) -> io::Result<Self> {
        let flags = mode | EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: Denied::check("eventfd2", Fd::open(|| rustix::event::eventfd(0, flags)))? })
    }

    /// Adds one and wakes a waiting thread. Does nothing if the program has closed it.
    pub fn signal(&self) {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, &1_u64.to_ne_bytes())) {
            // Full: 2^64 - 2 were signalled and none taken, so it is readable, which is what counts.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(_) => self.fd.lose(),
        }
    }

    /// Returns whether the program has closed it, as far as was noticed.
    pub fn is_lost(&self) -> bool {
        self.fd.is_lost()
    }

    /// Takes what was signalled: all of it, or one. Returns zero if there is nothing, or the program has closed it.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut count)) {
            Ok(8) => u64::from_ne_bytes(count),
            Err(Errno::AGAIN) => 0,
            Ok(_) | Err(_) => {
                self.fd.lose();
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
