//! Threads of the program that sleep until their completion queue has a completion.
//!
//! One of them, the direct waiter, sleeps on the sockets themselves, so that it receives a message without waking a
//! lane first. The others sleep on an alarm, an eventfd that is signalled for every completion while any thread sleeps.
//! No lock is held while a thread sleeps.
//!
//! A thread may vanish while it sleeps, because the program cancels it (`pthread_cancel`): Rust destructors may not run
//! then. So each sleeping thread is registered. The next thread that goes to sleep checks that the registered threads
//! still exist, and so does the lane whose sockets the direct waiter sleeps on.

use crate::sys::poller::EventFd;
use crate::sys::thread::Thread;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::queue::Cq;
use ironwarp_rnic::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// The threads that sleep on a completion queue.
#[derive(Debug)]
pub(crate) struct Waiters {
    cq: Arc<Cq>,
    alarm: Arc<Alarm>,
    list: Mutex<Vec<Waiter>>,
}

/// A thread that sleeps, or is about to.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    thread: Thread,
    /// Whether it sleeps on the sockets, not only on the alarm. At most one waiter does.
    direct: bool,
    /// Whether it sleeps on the alarm. A thread that waits for an event of the queue's handler does not.
    alarmed: bool,
}

impl Waiters {
    /// Creates the list for a completion queue, without threads, and sets the queue's alarm.
    pub(crate) fn new(cq: &Arc<Cq>) -> io::Result<Arc<Self>> {
        let alarm = Arc::new(Alarm(EventFd::counter()?));
        cq.set_alarm(Arc::<Alarm>::clone(&alarm));
        Ok(Arc::new(Self { cq: Arc::clone(cq), alarm, list: Mutex::default() }))
    }

    /// Registers the calling thread, which is about to sleep, until the guard is dropped. The caller must then check
    /// for completions once more: from now on the alarm is signalled for new ones.
    pub(crate) fn register(self: &Arc<Self>) -> WaiterGuard<'_> {
        // Consumes earlier signals, even if another waiter has not seen them yet. The caller makes up for that: it
        // checks for completions next, and wakes the others if there is one. And if the direct waiter has left, the
        // caller becomes the direct one, below.
        self.alarm.0.take();
        let mut list = lock(&self.list);
        self.reap(&mut list);
        let has_direct = list.iter().any(|other| other.direct);
        let me = Waiter { thread: Thread::current(), direct: !has_direct, alarmed: true };
        list.push(me);
        self.cq.begin_sleep();
        WaiterGuard { waiters: self, me }
    }

    /// Unregisters threads that vanished while they slept.
    pub(crate) fn reap_dead(&self) {
        self.reap(&mut lock(&self.list));
    }

    /// The part of [`reap_dead`](Self::reap_dead) with the list locked. Also removes the calling thread.
    fn reap(&self, list: &mut Vec<Waiter>) {
        let me = Thread::current();
        list.retain(|waiter| {
            // The calling thread does not sleep either, if it is listed because it left an earlier wait by `longjmp`.
            let sleeps = waiter.thread != me && waiter.thread.exists();
            if !sleeps && waiter.alarmed {
                self.cq.end_sleep();
            }
            sleeps
        });
    }

    /// Registers the calling thread, which is about to sleep on the sockets until an event of the queue's handler. Returns
    /// false if another thread sleeps on them.
    pub(crate) fn register_for_event(&self) -> bool {
        let mut list = lock(&self.list);
        self.reap(&mut list);
        let is_free = list.iter().all(|other| !other.direct);
        if is_free {
            list.push(Waiter { thread: Thread::current(), direct: true, alarmed: false });
        }
        is_free
    }

    /// Unregisters the calling thread. Returns whether it was [registered](Self::register_for_event).
    pub(crate) fn unregister_for_event(&self) -> bool {
        let me = Thread::current();
        let mut list = lock(&self.list);
        let before = list.len();
        list.retain(|waiter| waiter.thread != me || waiter.alarmed);
        let was_registered = list.len() < before;
        if was_registered && !list.is_empty() {
            self.alarm.signal(); // one of the others becomes the direct waiter
        }
        was_registered
    }

    /// Returns the number of waiters, and how many of them sleep on the sockets.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let list = lock(&self.list);
        (list.len(), list.iter().filter(|waiter| waiter.direct).count())
    }
}

/// The registration of a sleeping thread. Dropping it unregisters the thread.
#[derive(Debug)]
pub(crate) struct WaiterGuard<'w> {
    waiters: &'w Arc<Waiters>,
    me: Waiter,
}

impl WaiterGuard<'_> {
    pub(crate) fn waiters(&self) -> &Arc<Waiters> {
        self.waiters
    }

    pub(crate) fn thread(&self) -> Thread {
        self.me.thread
    }

    /// Returns whether this thread is the one that sleeps on the sockets.
    pub(crate) fn is_direct(&self) -> bool {
        self.me.direct
    }

    /// Returns the descriptor of the alarm.
    pub(crate) fn alarm(&self) -> BorrowedFd<'_> {
        self.waiters.alarm.0.as_fd()
    }

    /// Wakes all other waiters, so that they check for completions and register again. Called if there is a completion,
    /// or if this thread no longer sleeps on the sockets, so that another one must.
    pub(crate) fn wake_others(&self) {
        if lock(&self.waiters.list).iter().any(|other| other.thread != self.me.thread) {
            self.waiters.alarm.signal();
        }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.waiters.cq.end_sleep();
        lock(&self.waiters.list).retain(|waiter| waiter.thread != self.me.thread);
        if self.me.direct {
            self.wake_others(); // one of them becomes the direct waiter
        }
    }
}

/// An eventfd that the completion queue signals for every completion while a thread sleeps.
#[derive(Debug)]
struct Alarm(EventFd);

impl Wake for Alarm {
    fn signal(&self) {
        self.0.signal();
    }

    fn consume(&self) {
        self.0.take();
    }
}
