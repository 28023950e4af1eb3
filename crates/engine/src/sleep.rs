//! Threads of the program that sleep until their completion queue has something. Before this: [`CompletionQueue::wait`],
//! which found nothing; after: the kernel.
//!
//! One of them sleeps on the sockets themselves, so that no lane is between a message and the thread that waits for it. The
//! others sleep on an alarm, which rings for every completion while anybody sleeps. No lock is held meanwhile.
//!
//! A thread may vanish in its sleep without a trace: what the C library does to a thread that is cancelled is not Rust's
//! unwinding. So each is written down, and whoever comes by looks whether it still exists: the next sleeper, or the lane
//! whose sockets it sleeps on, which then has them back.
//!
//! [`CompletionQueue::wait`]: crate::CompletionQueue::wait

use crate::set::{Set, lock};
use crate::sys::poller::EventFd;
use crate::sys::thread::{Thread, block};
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::queue::Cq;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The threads that sleep on a completion queue.
#[derive(Debug)]
pub(crate) struct Sleepers {
    cq: Arc<Cq>,
    alarm: Arc<Alarm>,
    list: Mutex<Vec<Sleeper>>,
}

#[derive(Clone, Copy, Debug)]
struct Sleeper {
    thread: Thread,
    /// It sleeps on the sockets.
    direct: bool,
}

impl Sleepers {
    pub(crate) fn new(cq: &Arc<Cq>) -> io::Result<Arc<Self>> {
        let alarm = Arc::new(Alarm(EventFd::counter()?));
        cq.set_alarm(Arc::<Alarm>::clone(&alarm));
        Ok(Arc::new(Self { cq: Arc::clone(cq), alarm, list: Mutex::default() }))
    }

    /// Sleeps until there may be a completion, the timeout expires, or `over` returns true. `sets` are the sockets, if it comes to them. An
    /// error: the program has closed a descriptor of the adapter.
    pub(crate) fn sleep(
        self: &Arc<Self>,
        sets: impl FnOnce() -> Vec<Arc<Set>>,
        timeout: Option<Duration>,
        over: impl Fn() -> bool,
    ) -> io::Result<()> {
        // What rang before is answered by the look below; if that finds something, it rings again for the others.
        self.alarm.0.take();
        let bed = self.lie_down();
        if self.cq.has_something() {
            bed.call_others();
            return Ok(());
        }
        // Not under the lock: a connection may be made meanwhile. Its lane serves it, and the alarm tells.
        let sets = if bed.me.direct { sets() } else { Vec::new() };
        let asleep: Vec<_> = sets.iter().map(|set| Asleep::new(set, &bed)).collect();
        // A socket that was asked itself has its event in the set still. It is taken here: the call below would return for it,
        // and this thread would not sleep but spin, and be treated as one that spins when it competes for a processor.
        sets.iter().for_each(|set| set.poll());
        let alarm = self.alarm.0.as_fd();
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(alarm).chain(asleep.iter().map(|asleep| asleep.set.epoll.as_fd())).collect();
        block(&fds, timeout, over)
    }

    fn lie_down(self: &Arc<Self>) -> Bed<'_> {
        let mut list = lock(&self.list);
        self.bury(&mut list);
        let me = Sleeper { thread: Thread::current(), direct: list.iter().all(|other| !other.direct) };
        list.push(me);
        self.cq.begin_sleep();
        Bed { sleepers: self, me }
    }

    /// Forgets threads that vanished in their sleep.
    pub(crate) fn forget_vanished(&self) {
        self.bury(&mut lock(&self.list));
    }

    fn bury(&self, list: &mut Vec<Sleeper>) {
        let me = Thread::current();
        list.retain(|sleeper| {
            // One that got here again, by a jump out of the call, does not sleep either.
            let sleeps = sleeper.thread != me && sleeper.thread.exists();
            if !sleeps {
                self.cq.end_sleep();
            }
            sleeps
        });
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let list = lock(&self.list);
        (list.len(), list.iter().filter(|sleeper| sleeper.direct).count())
    }
}

/// The place of a thread that sleeps.
struct Bed<'s> {
    sleepers: &'s Arc<Sleepers>,
    me: Sleeper,
}

impl Bed<'_> {
    /// There is something, or there is nobody on the sockets: let the others look.
    fn call_others(&self) {
        if lock(&self.sleepers.list).iter().any(|other| other.thread != self.me.thread) {
            self.sleepers.alarm.signal();
        }
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        self.sleepers.cq.end_sleep();
        lock(&self.sleepers.list).retain(|sleeper| sleeper.thread != self.me.thread);
        if self.me.direct {
            self.call_others();
        }
    }
}

/// A set that a thread sleeps on.
struct Asleep<'s> {
    set: &'s Set,
    thread: Thread,
}

impl<'s> Asleep<'s> {
    fn new(set: &'s Set, bed: &Bed<'_>) -> Self {
        set.sleep(bed.me.thread, bed.sleepers);
        Self { set, thread: bed.me.thread }
    }
}

impl Drop for Asleep<'_> {
    /// It leaves, whatever for: the lane gets the set back unless the thread polls.
    fn drop(&mut self) {
        self.set.wake(self.thread);
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
