//! Completion queues of a completion channel whose descriptor contains the sockets (`notify/sockets.rs`). When the
//! program arms such a queue, the sockets stay with the program: they wake the thread that waits for the descriptor, and
//! that thread serves them when it takes the event.

use super::{ChannelState, CompletionQueue};
use crate::notify::blocking::EventSource;
use crate::notify::sockets::ChannelSockets;
use crate::reactor::poll_set::PollSet;
use ironwarp_rnic::queue::Arm;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ChannelState {
    /// Returns the channel, if the program serves its sockets.
    #[inline]
    fn in_use(&self) -> Option<&Arc<ChannelSockets>> {
        let in_use = |channel: &&Arc<ChannelSockets>| channel.wakes_program();
        self.sockets.get().filter(in_use).filter(|_| !self.has_left.load(Ordering::Relaxed))
    }
}

impl CompletionQueue {
    /// Sets the channel whose descriptor the sockets make readable. The handler of the queue must be that of the channel.
    /// Can be called once.
    pub fn join_channel(self: &Arc<Self>, channel: &Arc<ChannelSockets>) {
        if self.channel.sockets.set(Arc::clone(channel)).is_ok() {
            let queue: Arc<dyn EventSource> = Arc::<Self>::clone(self);
            channel.add_queue(Arc::downgrade(&queue));
        }
    }

    /// Removes the sockets from the descriptor of the channel, because the queue is about to be destroyed.
    pub fn leave_channel(&self) {
        self.channel.has_left.store(true, Ordering::Relaxed);
        if let Some(channel) = self.channel.sockets.get() {
            channel.remove_queue(self);
            self.sets().iter().for_each(|set| channel.leave(set));
        }
    }

    /// Returns whether the program waits for events of the queue without blocking.
    pub(crate) fn is_in_event_loop(&self) -> bool {
        self.channel.was_armed.load(Ordering::Relaxed)
            && self
                .channel
                .sockets
                .get()
                .is_some_and(|channel| channel.wakes_program() || channel.is_nonblocking())
    }

    /// Returns whether the queue was last armed so that the sockets wake the program.
    #[inline]
    pub(super) fn is_armed_in_channel(&self) -> bool {
        self.channel.is_armed.load(Ordering::Relaxed) && self.channel.in_use().is_some()
    }

    /// Records that the program has posted a request to a queue pair that receives here. `is_blocked` tells that the
    /// socket has not taken all of it.
    #[inline]
    pub(crate) fn record_post(&self, is_blocked: impl FnOnce() -> bool) {
        if self.channel.in_use().is_some() {
            self.channel.posted.store(true, Ordering::Relaxed);
        }
        if is_blocked() {
            self.leave_to_lanes();
        }
    }

    /// Has lanes serve the sockets. One of them waits for room in a socket, for which neither a completion channel nor a
    /// thread that sleeps on the socket is woken.
    #[cold]
    fn leave_to_lanes(&self) {
        for set in self.sets().iter() {
            set.leave_blocked_to_lane();
            set.leave_to_lane_if_slept_on();
        }
    }

    /// Arms the queue, as [`arm`](Self::arm) does. The sockets wake the program through the channel. Returns `None`, and
    /// does nothing, if lanes must serve them.
    pub(super) fn arm_in_channel(&self, arm: Arm) -> Option<bool> {
        if self.channel.sockets.get().is_some() && !self.channel.was_armed.load(Ordering::Relaxed) {
            self.channel.was_armed.store(true, Ordering::Relaxed);
        }
        let channel = self.channel.in_use()?;
        self.channel.is_armed.store(false, Ordering::Relaxed);
        let sets = self.sets();
        for set in sets.iter() {
            if set.has_carriers() || set.has_blocked() || !(set.is_in_channel() || channel.join(set)) {
                return None;
            }
        }
        self.channel.is_armed.store(true, Ordering::Relaxed);
        self.channel.empty_polls.store(0, Ordering::Relaxed);
        let replied = self.channel.posted.swap(false, Ordering::Relaxed);
        for set in sets.iter() {
            set.record_turn(replied);
            set.record_poll();
        }
        Some(self.cq.arm(arm))
    }

    /// Polls the armed queue, which is empty. The program usually goes to sleep after the first such poll: then there is
    /// nothing to do, because the sockets wake the program. If it polls again, it serves the sockets.
    pub(super) fn poll_armed(&self) {
        let is_first = self.channel.empty_polls.fetch_add(1, Ordering::Relaxed) == 0;
        if !self.sets().iter().all(|set| set.is_in_channel()) {
            self.serve(PollSet::give_to_lane); // a set was added, or has left the channel
        } else if is_first {
            self.sets().iter().for_each(|set| set.acknowledge_unless_reply_follows());
        } else {
            self.progress();
        }
    }
}
