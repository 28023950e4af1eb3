//! Threads of the program that sleep on a poll set: on the socket of its only connection and on the bells of its
//! carriers, or else on its epoll set. They are registered, because a thread may vanish while it sleeps
//! (`reactor/waiters.rs`), and because the lane does not serve the set meanwhile.

use super::PollSet;
use crate::reactor::waiters::Waiters;
use crate::sys::thread::{Awaited, Thread};
use ironwarp_rnic::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl PollSet {
    /// Registers a thread of the program that is about to sleep on the set. The lane does not serve the set until
    /// [`end_sleep`](Self::end_sleep). Adds the descriptors that the thread sleeps on.
    pub(crate) fn begin_sleep(&self, thread: Thread, waiters: &Arc<Waiters>, fds: &mut impl Extend<Awaited>) {
        lock(&self.sleepers).push((thread, Arc::downgrade(waiters)));
        self.record_poll();
        // With `leave_to_lane_if_slept_on`: either that finds the sleeping thread, or this finds what has changed.
        if let Some(only) = self.members.only()
            && only.qp().is_some_and(|qp| !qp.is_blocked())
            && only.take_received()
        {
            // Waiting for a socket itself, or for a bell, takes fewer system calls than waiting for the epoll set, whose
            // events have to be taken before each sleep. But what is not received, the end of a connection for example,
            // would wake the thread again and again. So it waits for the epoll set if nothing was received since its last
            // sleep.
            fds.extend([Awaited::socket(&*only)]);
            fds.extend(self.owner.carriers.list().iter().map(Awaited::socket));
        } else {
            // Takes the events of sockets that were read directly, without epoll. Otherwise the wait would return at once
            // for them, and the thread would spin instead of sleeping.
            self.poll_sockets();
            fds.extend([Awaited::readable(&self.owner.epoll)]);
        }
    }

    /// Gives the set to the lane, if a thread sleeps on it. That thread may wait for messages of one connection only:
    /// called if a socket is full, or if members or carriers have changed.
    #[cold]
    pub(crate) fn leave_to_lane_if_slept_on(&self) {
        if !lock(&self.sleepers).is_empty() {
            self.give_to_lane();
        }
    }

    /// Has the bells of its carriers ring, for a registered thread that is about to sleep. Returns false if something has
    /// arrived in a carrier: the thread must not sleep.
    pub(crate) fn await_bells(&self) -> bool {
        self.owner.begin_sleep()
    }

    /// Unregisters a thread that has woken up. The lane checks from now on whether that thread polls.
    pub(crate) fn end_sleep(&self, thread: Thread) {
        self.owner.end_sleep();
        if !self.owner.carriers.hear() {
            self.poll_sockets(); // removes a carrier that is closed
        }
        self.owner.watch();
        lock(&self.sleepers).retain(|(sleeper, _)| *sleeper != thread);
    }

    /// Returns whether, since the last call, the lane has taken the set from a program that waited for an event without
    /// sleeping on the set.
    pub(crate) fn take_left_armed(&self) -> bool {
        self.was_left_armed.load(Ordering::Relaxed) && self.was_left_armed.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a thread sleeps on the set, and the lane does not serve it.
    #[cfg(test)]
    pub(crate) fn is_slept_on(&self) -> bool {
        self.is_polled() && !lock(&self.sleepers).is_empty()
    }

    /// Unregisters sleeping threads that do not exist any more. Returns whether threads are left that sleep on the set.
    /// If none is left, the lane checks whether the program polls, as after [`end_sleep`](Self::end_sleep).
    pub(crate) fn check_sleepers(&self) -> bool {
        let dead: Vec<_> = {
            let mut sleepers = lock(&self.sleepers);
            let dead = sleepers.extract_if(.., |(thread, _)| !thread.exists());
            dead.filter_map(|(_, waiters)| waiters.upgrade()).collect()
        };
        dead.iter().for_each(|waiters| waiters.reap_dead());
        if !lock(&self.sleepers).is_empty() {
            if self.has_full_socket() {
                self.leave_to_lane_if_slept_on();
            }
            return true;
        }
        self.checks_sleepers.store(false, Ordering::Release);
        self.owner.watch();
        false
    }
}
