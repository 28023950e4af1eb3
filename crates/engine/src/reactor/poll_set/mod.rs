//! The sockets that one completion queue has on one lane: an epoll set, which is itself one entry of the lane's epoll.
//!
//! Either the lane serves the set, or the program does by polling the completion queue. The entry is armed or not, which is one
//! system call however many sockets there are. A program that polls disarms it; once it stops polling, or is about to sleep, the
//! entry is armed again (`owner.rs`).

mod acks;
mod members;
mod owner;
mod pace;

pub(crate) use members::OnlyMember;

use super::handle::LaneHandle;
use super::member::{Member, ServedBy};
use super::waiters::{WaiterGuard, Waiters};
use crate::sys::poller::{Epoll, Event, Events, Interest};
use crate::sys::thread::Thread;
use acks::PendingAcks;
use ironwarp_rnic::qp::{Qp, Ready};
use ironwarp_rnic::queue::Cq;
use ironwarp_rnic::sync::lock;
use members::Members;
use owner::Owner;
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Number of events taken from the kernel at once.
const BATCH: usize = 64;

thread_local! {
    /// Room for events, for threads of the program that poll.
    static EVENTS: RefCell<Events> = RefCell::new(Events::new(BATCH));
}

/// What the sockets had.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// Something was received.
    received: bool,
    /// Large payload was among it.
    bulk: bool,
}

/// What the lane is to do after the entry of a set fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the set is served and acknowledged by the lane only"]
pub(crate) enum FollowUp {
    /// Nothing.
    Done,
    /// Check whether the program, which had polled this many times, polls now: it was just woken, and its answer may carry the
    /// acknowledgement.
    CheckPolling(u64),
    /// Call [`PollSet::resume`] in a moment. Messages stream in, each sent by a call of its own: waking for every one costs both
    /// ends more than taking several at once.
    Pause,
}

/// What the lane found when it checked whether the program still polls a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollCheck {
    /// It does, and has polled this many times.
    Polled(u64),
    /// A thread sleeps on the set, and will say so when it wakes. Check from time to time whether it still exists.
    Asleep,
    /// There is no need to check again: the lane has the set back, or a check is pending already.
    Over,
}

/// The sockets of a completion queue on a lane.
#[derive(Debug)]
pub(crate) struct PollSet {
    owner: Owner,
    members: Members,
    acks: PendingAcks,
    /// The completion queues that poll it.
    cqs: Mutex<Vec<Weak<Cq>>>,
    /// Threads of the program that sleep on it, and their completion queues' waiters. While there are any, the lane does not serve it.
    sleepers: Mutex<Vec<(Thread, Weak<Waiters>)>>,
    /// The lane checks from time to time whether the sleeping threads still exist.
    guarded: AtomicBool,
}

impl PollSet {
    /// A set without sockets, in a lane's epoll. `register` makes it known to the lane before its first event.
    pub(crate) fn new(lane: &Arc<LaneHandle>, register: impl FnOnce(&Arc<Self>)) -> io::Result<Arc<Self>> {
        let set = Arc::new(Self {
            owner: Owner::new(lane)?,
            members: Members::default(),
            acks: PendingAcks::default(),
            cqs: Mutex::default(),
            sleepers: Mutex::default(),
            guarded: AtomicBool::new(false),
        });
        register(&set);
        lane.epoll().add(&set.owner.epoll, set.token(), Interest::ReadableEdges)?;
        Ok(set)
    }

    pub(crate) fn lane(&self) -> &Arc<LaneHandle> {
        &self.owner.lane
    }

    /// Its token in the lane's epoll.
    pub(crate) fn token(&self) -> u64 {
        self.owner.token
    }

    pub(crate) fn epoll(&self) -> &Epoll {
        &self.owner.epoll
    }

    // --- Completion queues ---

    /// A completion queue polls it from now on.
    pub(crate) fn add_cq(&self, cq: &Arc<Cq>) {
        let mut cqs = lock(&self.cqs);
        cqs.retain(|known| known.strong_count() > 0);
        cqs.push(Arc::downgrade(cq));
    }

    /// The completion queues that poll it.
    pub(crate) fn completion_queues(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).iter().filter_map(Weak::upgrade).collect()
    }

    /// Number of its completion queues at which the program waits for an event.
    fn armed_cqs(&self) -> usize {
        lock(&self.cqs).iter().filter_map(Weak::upgrade).filter(|cq| cq.is_armed()).count()
    }

    // --- Sockets ---

    /// Adds a socket. Nothing is driven, because locks may be held: call [`queue_owed_ack_of`](Self::no_longer_only) with the member that was
    /// the only one before.
    pub(crate) fn insert(&self, token: u64, member: &Arc<dyn Member>) -> io::Result<()> {
        self.members.insert(token, member);
        self.owner.epoll.add(&**member, token, Interest::Edges)
    }

    /// The only member was not listed among those that owe acknowledgements. With another member, it has to be. A thread that polled it
    /// meanwhile sees the other member, or what came of that poll is seen here.
    pub(crate) fn queue_owed_ack_of(&self, only: Option<OnlyMember>) {
        if let Some(only) = only {
            self.queue_owed_ack(&only.qp);
        }
    }

    /// Returns whether it was there.
    pub(crate) fn remove(&self, token: u64) -> bool {
        let removed = self.members.remove(token);
        if let Some(member) = &removed {
            // Gone already, if the socket was closed.
            let _ = self.owner.epoll.delete(&**member);
        }
        removed.is_some()
    }

    /// The sockets in it.
    pub(crate) fn members(&self) -> Vec<Arc<dyn Member>> {
        self.members.all()
    }

    /// Number of sockets in it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The only member, if it is a connection.
    #[inline]
    pub(crate) fn only(&self) -> Option<OnlyMember> {
        self.members.only()
    }

    /// Whether a member is still the only one. If not, the set does not acknowledge for it.
    #[inline]
    pub(crate) fn is_still_only(&self, only: &OnlyMember) -> bool {
        self.members.is_still(only)
    }

    /// The adapter is closing: disconnects all.
    pub(crate) fn disconnect(&self) {
        for token in self.members.tokens() {
            if self.members.get(token).is_some_and(|member| !member.disconnect()) {
                self.remove(token);
            }
        }
    }

    /// The adapter has stopped: cuts all connections.
    pub(crate) fn abort(&self) {
        self.members().iter().for_each(|member| member.abort());
    }

    // --- The program's side ---

    /// Whether the program serves it.
    pub(crate) fn is_polled(&self) -> bool {
        self.owner.is_polled()
    }

    /// The program polls: from now on it serves the set.
    #[inline]
    pub(crate) fn record_poll(&self) {
        self.owner.record_poll();
    }

    /// The program waits for an event: the lane serves the set.
    pub(crate) fn hand_over(&self) {
        self.owner.hand_over();
    }

    /// Serves what has happened, without waiting.
    pub(crate) fn poll(&self) {
        // A thread that is ending has no thread-local room any more, and may still poll, in an exit handler for example.
        let served = EVENTS.try_with(|events| self.serve(&mut events.borrow_mut(), ServedBy::Program));
        if served.is_err() {
            let _ = self.serve(&mut Events::new(BATCH), ServedBy::Program);
        }
    }

    /// A thread of the program is about to sleep on the set.
    pub(crate) fn begin_sleep(&self, waiter: &WaiterGuard<'_>) {
        lock(&self.sleepers).push((waiter.thread(), Arc::downgrade(waiter.waiters())));
        self.record_poll();
    }

    /// It woke, and may poll again or not.
    pub(crate) fn end_sleep(&self, waiter: &WaiterGuard<'_>) {
        self.owner.watch();
        lock(&self.sleepers).retain(|(thread, _)| *thread != waiter.thread());
    }

    /// Whether a thread sleeps on it, and the lane does not serve it.
    #[cfg(test)]
    pub(crate) fn is_slept_on(&self) -> bool {
        self.is_polled() && !lock(&self.sleepers).is_empty()
    }

    // --- The lane's side ---

    /// The lane's entry fired.
    pub(crate) fn serve_event(&self, events: &mut Events) -> FollowUp {
        match self.owner.begin_serving() {
            Some((late, streaming)) => self.serve_for_lane(events, late, streaming),
            None => FollowUp::Done,
        }
    }

    /// The pause is over.
    pub(crate) fn resume(&self, events: &mut Events) -> FollowUp {
        if self.owner.resume_serving() { self.serve_for_lane(events, false, false) } else { FollowUp::Done }
    }

    fn serve_for_lane(&self, events: &mut Events, late: bool, pause: bool) -> FollowUp {
        let (armed, polls) = (self.armed_cqs(), self.owner.polls());
        let Served { received, bulk } = self.serve(events, ServedBy::Lane);
        // A program that polls until its own request is done, and then watches memory for what the peer writes, goes on now as if
        // it had been woken. Its answer should carry the acknowledgement: an acknowledgement alone would have the peer stop polling
        // before the answer comes.
        let woken = (late && received) || self.armed_cqs() < armed;
        if pause && !woken && !bulk && self.owner.pause() {
            return FollowUp::Pause;
        }
        if !woken {
            self.acknowledge();
        }
        self.owner.end_serving(events.is_full());
        if woken {
            return if self.owner.begin_watch() { FollowUp::CheckPolling(polls) } else { FollowUp::Done };
        }
        // What a thread of the program found meanwhile, and left to the lane.
        self.acknowledge();
        FollowUp::Done
    }

    /// Checks whether the program still polls, given how often it had polled at the last check.
    pub(crate) fn check_polling(&self, before: Option<u64>) -> PollCheck {
        let polls = self.owner.polls();
        if before != Some(polls) {
            return PollCheck::Polled(polls);
        }
        let asleep = self.owner.take_back(|| !lock(&self.sleepers).is_empty());
        // The program took its completion and went on to other things: no poll that finds nothing will follow.
        self.acknowledge();
        match asleep && !self.guarded.swap(true, Ordering::AcqRel) {
            true => PollCheck::Asleep,
            false => PollCheck::Over,
        }
    }

    /// Whether any of the threads that sleep on it still exist. If none does, the lane checks as if they had woken.
    pub(crate) fn check_sleepers(&self) -> bool {
        let dead: Vec<_> = {
            let mut sleepers = lock(&self.sleepers);
            let dead = sleepers.extract_if(.., |(thread, _)| !thread.exists());
            dead.filter_map(|(_, waiters)| waiters.upgrade()).collect()
        };
        dead.iter().for_each(|waiters| waiters.reap_dead());
        if !lock(&self.sleepers).is_empty() {
            return true;
        }
        self.guarded.store(false, Ordering::Release);
        self.owner.watch();
        false
    }

    // --- Both ---

    /// Takes the sockets' events, and moves what they have.
    fn serve(&self, events: &mut Events, by: ServedBy) -> Served {
        let mut served = Served::default();
        if let Err(error) = self.owner.epoll.wait(events, Some(Duration::ZERO)) {
            self.lane().fail(&format_args!("failed to poll a set of sockets: {error}"));
            return served;
        }
        for Event { data, readable, writable, ended } in events.iter() {
            let Some(member) = self.members.get(data) else { continue };
            if let Some(qp) = member.serve(Ready { readable, writable, ended }, by) {
                if readable {
                    self.queue_owed_ack(qp);
                }
                served.received |= readable;
                served.bulk |= qp.receives_bulk();
            }
        }
        served
    }

    /// A queue pair received something, and may owe an acknowledgement.
    fn queue_owed_ack(&self, qp: &Arc<Qp>) {
        if !qp.take_owed_acknowledgement() {
            return;
        }
        self.acks.push(qp);
        // The lane may have taken the set back since the caller polled. It acknowledged then, and will not again.
        if self.owner.is_armed() {
            self.acknowledge();
        }
    }

    /// The lane took the set back while the program polled its only socket. It has acknowledged what it saw then, and may not see
    /// what was delivered since: the delivery comes before this check, its taking back before its own.
    #[inline]
    pub(crate) fn acknowledge_unless_polled(&self) {
        if !self.is_polled() {
            self.acknowledge();
        }
    }

    /// The thread that serves the set is about to go idle: acknowledgements wait for other messages no longer.
    #[inline]
    pub(crate) fn acknowledge(&self) {
        if self.len() == 1 {
            return self.acknowledge_with(self.only().as_ref());
        }
        self.acks.flush();
    }

    /// Acknowledges, given the only member.
    pub(crate) fn acknowledge_with(&self, only: Option<&OnlyMember>) {
        if let Some(OnlyMember { qp, .. }) = only
            && qp.take_owed_acknowledgement()
        {
            qp.acknowledge();
        }
        self.acks.flush();
    }
}
