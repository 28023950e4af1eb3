//! The completion channel whose descriptor contains the sockets of a poll set, so that they wake the thread that waits
//! for the descriptor (`notify/sockets.rs`).

use crate::reactor::member::Member;
use crate::sys::poller::{Interest, ProgramEpoll};
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::sync::lock;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Number of checks without a poll after which the lane waits for the sockets again, although they wake the program.
const IDLE_CHECKS: u32 = 32;
/// Number of checks without a poll after which the lane looks whether the descriptor has events. A program with many
/// connections, or on a busy processor, needs a while until it comes to the last one.
const PATIENT_CHECKS: u32 = 4;

/// The completion channel of a poll set, if there is one.
#[derive(Debug, Default)]
pub(super) struct SetChannel {
    joined: Mutex<Option<Joined>>,
    /// Whether there is a channel, to read without the lock.
    is_joined: AtomicBool,
    /// Number of consecutive checks that found no poll of the program.
    idle_checks: AtomicU32,
}

#[derive(Debug)]
struct Joined {
    /// The descriptor of the channel.
    epoll: Arc<ProgramEpoll>,
    /// The handler of all completion queues that poll the set.
    handler: HandlerId,
    /// Identifies the set among those of the channel.
    token: u64,
}

impl SetChannel {
    #[inline]
    pub(super) fn is_joined(&self) -> bool {
        self.is_joined.load(Ordering::Acquire)
    }

    /// Adds the sockets that `members` returns to the descriptor of a channel. Replaces an earlier channel.
    pub(super) fn join(
        &self,
        epoll: &Arc<ProgramEpoll>,
        handler: HandlerId,
        token: u64,
        members: impl Fn() -> Vec<Arc<dyn Member>>,
    ) -> io::Result<()> {
        let mut joined = lock(&self.joined);
        self.clear(&mut joined, &members);
        let new = joined.insert(Joined { epoll: Arc::clone(epoll), handler, token });
        // A member that another thread adds to the set meanwhile is either in the list, or added by `add_member` later.
        for member in members() {
            if let Err(error) = new.epoll.add(&*member, token, Interest::ReadableEdges) {
                self.clear(&mut joined, &members);
                return Err(error);
            }
        }
        self.is_joined.store(true, Ordering::Release);
        Ok(())
    }

    /// Removes the sockets from the descriptor of the channel.
    pub(super) fn leave(&self, members: impl Fn() -> Vec<Arc<dyn Member>>) {
        self.clear(&mut lock(&self.joined), &members);
    }

    fn clear(&self, joined: &mut Option<Joined>, members: &impl Fn() -> Vec<Arc<dyn Member>>) {
        self.is_joined.store(false, Ordering::Release);
        if let Some(joined) = joined.take() {
            members().iter().for_each(|member| joined.epoll.delete(&**member));
        }
    }

    /// Adds a new socket of the set to the channel. Returns false if it cannot be added: the set must leave the channel.
    pub(super) fn add_member(&self, member: &dyn Member) -> bool {
        let joined = lock(&self.joined);
        joined.as_ref().is_none_or(|it| it.epoll.add(member, it.token, Interest::ReadableEdges).is_ok())
    }

    /// Removes a socket of the set from the channel.
    pub(super) fn remove_member(&self, member: &dyn Member) {
        if let Some(joined) = &*lock(&self.joined) {
            joined.epoll.delete(member);
        }
    }

    /// Returns whether a completion queue with this handler may poll the set. It may not if the set has a channel of
    /// another handler: a thread that waits there would wait for the threads of this one.
    pub(super) fn allows(&self, handler: Option<HandlerId>) -> bool {
        lock(&self.joined)
            .as_ref()
            .is_none_or(|joined| handler.is_none_or(|handler| handler == joined.handler))
    }

    /// Records that the program has polled since the last check.
    pub(super) fn record_poll(&self) {
        self.idle_checks.store(0, Ordering::Relaxed);
    }

    /// Returns whether the lane can leave the sockets to the program, although it has not polled since the last check.
    /// If the sockets wake the program, it has nothing to do while they have no events. The lane takes the set when they
    /// have one and the program does not come, and after a while anyway: the checks must end.
    pub(super) fn program_may_come(&self) -> bool {
        if !self.is_joined() {
            return false;
        }
        let idle = self.idle_checks.fetch_add(1, Ordering::Relaxed) + 1;
        let has_events = || lock(&self.joined).as_ref().is_some_and(|joined| joined.epoll.has_events());
        idle < IDLE_CHECKS && !(idle.is_multiple_of(PATIENT_CHECKS) && has_events())
    }
}
