//! A completion queue that makes progress when it is polled, and that a thread can sleep on. Steps 7 and 8 of the path.

use crate::event::EventFdWake;
use crate::set::{Set, lock};
use crate::sys::poller::EventFd;
use ironwarp_rnic::event::{Channel, CqEvent, Notify};
use ironwarp_rnic::queue::{Arm, Completion, Cq, Overrun};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// So long a thread polls before it sleeps: most answers come sooner than a sleeping thread wakes.
const SPIN: Duration = Duration::from_micros(50);

/// A completion queue and the sets of sockets behind it.
#[derive(Debug)]
pub struct CompletionQueue {
    cq: Arc<Cq>,
    /// The sets whose queue pairs complete here: at most one for each lane, and those of the completion queues that share
    /// a queue pair with this one.
    sets: RwLock<Vec<Arc<Set>>>,
    /// What a sleeping thread waits on.
    channel: Arc<Channel<CqEvent>>,
    wake: EventFdWake,
    /// What wakes threads that sleep in [`wait`](Self::wait).
    alarm: Arc<Alarm>,
    /// They take turns in doing so.
    sleeping: Mutex<()>,
}

impl CompletionQueue {
    pub(crate) fn new(id: u32, capacity: usize) -> io::Result<Arc<Self>> {
        let wake = EventFdWake::new()?;
        let channel = Arc::new(Channel::new(Box::new(wake.clone())));
        let cq = Arc::new(Cq::new(id, capacity));
        let handler: Arc<Channel<CqEvent>> = Arc::clone(&channel);
        cq.set_handler(Some(handler));
        let alarm = Arc::new(Alarm(EventFd::counter()?));
        let raised: Arc<Alarm> = Arc::clone(&alarm);
        cq.set_alarm(raised);
        Ok(Arc::new(Self { cq, sets: RwLock::default(), channel, wake, alarm, sleeping: Mutex::default() }))
    }

    /// The queue itself.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Takes up to `most` completions. If none is there, looks what the sockets have, and tries again.
    pub fn poll(&self, most: usize, mut each: impl FnMut(Completion)) -> Result<usize, Overrun> {
        let polled = self.cq.poll(most, &mut each)?;
        if polled > 0 {
            return Ok(polled);
        }
        self.progress();
        let polled = self.cq.poll(most, &mut each)?;
        if polled == 0 {
            self.acknowledge();
        }
        Ok(polled)
    }

    /// Asks for one event at the next completion; it comes through [`as_fd`](AsFd::as_fd) and [`take_event`](Self::take_event).
    /// Returns whether a completion is there already.
    pub fn arm(&self, arm: Arm) -> bool {
        let there = self.cq.arm(arm);
        if !there {
            for set in self.sets().iter() {
                set.acknowledge();
                set.hand_over();
            }
        }
        there
    }

    /// Takes the event that made the file descriptor readable.
    pub fn take_event(&self) -> Option<CqEvent> {
        self.channel.next()
    }

    /// Waits until a completion is there, or `timeout` is over; true if one is.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Overrun> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let spin = Instant::now() + SPIN;
        loop {
            self.progress();
            if self.cq.overrun() || !self.cq.is_empty() {
                return if self.cq.is_empty() { Err(Overrun { cq: self.cq.id() }) } else { Ok(true) };
            }
            self.acknowledge();
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            if now >= spin {
                self.sleep(deadline.map(|deadline| deadline - now));
            }
        }
    }

    /// Sleeps on the sockets themselves, and on the event that tells of completions which others found.
    fn sleep(&self, timeout: Option<Duration>) {
        let _turn = lock(&self.sleeping);
        self.alarm.0.take();
        let sleeping = Sleeping(&self.cq);
        if self.cq.begin_sleep() {
            return;
        }
        // Not under the lock: a connection may be made meanwhile. Its lane serves it, and the event tells.
        let sets = self.sets().clone();
        let asleep: Vec<_> = sets.iter().map(Asleep::new).collect();
        // A socket that was asked itself has its event in the set still. It is taken here: the call below would return for it,
        // and this thread would not sleep but spin, and be treated as one that spins when it competes for a processor.
        sets.iter().for_each(|set| set.poll());
        let mut fds = vec![PollFd::new(&self.alarm.0, PollFlags::IN)];
        fds.extend(asleep.iter().map(|asleep| PollFd::new(&asleep.0.epoll, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal that was caught wakes it like anything else: the caller looks again.
        let _ = poll(&mut fds, timeout.as_ref());
        drop(sleeping);
    }

    /// Moves what the sockets have.
    pub fn progress(&self) {
        let sets = self.sets();
        // One socket is asked itself: one call instead of two. Unless it is full: the kernel tells when it is worth while
        // to send again, which is not as soon as there is room for a byte.
        if let [set] = &sets[..]
            && set.len() == 1
            && let Some(connection) = set.only()
            && !connection.qp().is_blocked()
        {
            set.polled();
            connection.qp().poll();
            set.acknowledge_if_left();
            return;
        }
        for set in sets.iter() {
            set.polled();
            set.poll();
        }
    }

    fn acknowledge(&self) {
        for set in self.sets().iter() {
            set.acknowledge();
        }
    }

    pub(crate) fn add_set(&self, set: &Arc<Set>) {
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        if sets.iter().all(|known| !Arc::ptr_eq(known, set)) {
            sets.push(Arc::clone(set));
        }
    }

    pub(crate) fn sets(&self) -> RwLockReadGuard<'_, Vec<Arc<Set>>> {
        self.sets.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CompletionQueue {
    /// Readable exactly while [`take_event`](Self::take_event) has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Raised for every completion while a thread sleeps.
#[derive(Debug)]
struct Alarm(EventFd);

impl Notify for Alarm {
    fn notify(&self, _: u32) {
        self.0.signal();
    }
}

/// A queue that a thread sleeps on.
struct Sleeping<'q>(&'q Cq);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.end_sleep();
    }
}

/// A set that a thread sleeps on.
struct Asleep<'s>(&'s Set);

impl<'s> Asleep<'s> {
    fn new(set: &'s Arc<Set>) -> Self {
        set.sleep();
        Self(set)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}
