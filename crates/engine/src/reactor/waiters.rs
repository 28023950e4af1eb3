//! Threads of the program that sleep until their completion queue has something.
//!
//! One of them sleeps on the sockets themselves, so that no lane is between a message and the thread that waits for it. The
//! others sleep on an alarm, which rings for every completion while a thread sleeps. No lock is held meanwhile.
//!
//! A thread may vanish while it sleeps: what the C library does to a cancelled thread is not Rust's unwinding. So each thread is
//! registered, and checked for existence by the next thread that goes to sleep, and by the lane whose sockets it sleeps on.

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

#[derive(Clone, Copy, Debug)]
struct Waiter {
    thread: Thread,
    /// It sleeps on the sockets.
    direct: bool,
}

impl Waiters {
    pub(crate) fn new(cq: &Arc<Cq>) -> io::Result<Arc<Self>> {
        let alarm = Arc::new(Alarm(EventFd::counter()?));
        cq.set_alarm(Arc::<Alarm>::clone(&alarm));
        Ok(Arc::new(Self { cq: Arc::clone(cq), alarm, list: Mutex::default() }))
    }

    /// Registers the calling thread, which is about to sleep.
    pub(crate) fn register(self: &Arc<Self>) -> WaiterGuard<'_> {
        // A ring from before is answered by the caller's next check; if that finds something, the alarm rings again for the others.
        self.alarm.0.take();
        let mut list = lock(&self.list);
        self.reap(&mut list);
        let me = Waiter { thread: Thread::current(), direct: list.iter().all(|other| !other.direct) };
        list.push(me);
        self.cq.begin_sleep();
        WaiterGuard { waiters: self, me }
    }

    /// Forgets threads that vanished while they slept.
    pub(crate) fn reap_dead(&self) {
        self.reap(&mut lock(&self.list));
    }

    fn reap(&self, list: &mut Vec<Waiter>) {
        let me = Thread::current();
        list.retain(|waiter| {
            // A thread that is here again, after a jump out of the call, does not sleep either.
            let sleeps = waiter.thread != me && waiter.thread.exists();
            if !sleeps {
                self.cq.end_sleep();
            }
            sleeps
        });
    }

    /// Number of waiters, and how many of them sleep on the sockets.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let list = lock(&self.list);
        (list.len(), list.iter().filter(|waiter| waiter.direct).count())
    }
}

/// The registration of a thread that sleeps.
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

    /// Whether this thread is the one that sleeps on the sockets.
    pub(crate) fn is_direct(&self) -> bool {
        self.me.direct
    }

    /// The descriptor of the alarm.
    pub(crate) fn alarm(&self) -> BorrowedFd<'_> {
        self.waiters.alarm.0.as_fd()
    }

    /// There is a completion, or no thread on the sockets any more: lets the other threads look.
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
            self.wake_others();
        }
    }
}

/// Rings for every completion while a thread sleeps.
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
