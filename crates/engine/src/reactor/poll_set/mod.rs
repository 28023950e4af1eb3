//! A poll set: the sockets that one completion queue has on one lane. It is an epoll set, which is itself one entry of
//! the lane's epoll.
//!
//! Either the lane serves the set, or the program does by polling the completion queue. While the lane serves it, the
//! set's entry in the lane's epoll is armed. A program that polls disarms the entry; it is armed again once the program
//! stops polling, or is about to sleep (`owner.rs`). Arming takes one system call, however many sockets the set has.

mod acks;
mod carriers;
mod channel;
mod members;
mod only;
mod owner;
mod pace;
mod sleep;

pub(crate) use members::OnlyMember;
pub(crate) use only::BorrowedMember;

use super::carrier::Carrier;
use super::handle::LaneHandle;
use super::member::{Member, ServedBy};
use super::waiters::Waiters;
use crate::sys::poller::{Event, Events, Interest, ProgramEpoll};
use crate::sys::thread::{Thread, pause};
use acks::PendingAcks;
use carriers::ServedBell;
use channel::SetChannel;
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::qp::{Qp, Ready};
use ironwarp_rnic::queue::Cq;
use ironwarp_rnic::sync::lock;
use members::Members;
use only::OnlySlot;
use owner::Owner;
use pace::Timing;
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Maximum number of events taken from the kernel with one system call.
const MAX_EVENTS: usize = 64;
/// Number of times that the lane serves the carriers of a set before it does something else.
const CARRIER_ROUNDS: usize = 256;
/// How long the lane looks for more large payload before it sleeps.
const BULK_LINGER: Duration = Duration::from_micros(20);

thread_local! {
    /// Buffer for events, for threads of the program that poll.
    static EVENTS: RefCell<Events> = RefCell::new(Events::new(MAX_EVENTS));
}

/// Summary of what was received when the sockets of a set were served.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// Whether anything was received.
    received: bool,
    /// Whether large payload was received.
    bulk: bool,
    /// Whether a socket that was served is full.
    blocked: bool,
}

/// What the lane must do for a poll set after it has served the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lane must act on it: nothing else serves or acknowledges for the set"]
pub(crate) enum FollowUp {
    /// Nothing.
    Done,
    /// Check whether the program polls the set soon. The value is the set's poll count before. The program was woken
    /// just now, and its answer to the peer can carry the acknowledgement; if it does not poll,
    /// [`PollSet::check_polling`] acknowledges.
    CheckPolling(u64),
    /// Call [`PollSet::resume`] after a short pause. Messages stream in, each sent by a system call of its own: waking
    /// up for every one costs both ends more than receiving several at once.
    Pause,
}

/// Result of the lane's check whether the program still polls a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollCheck {
    /// The program has polled since the last check, or this was the first one. The value is the set's poll count, for
    /// the next check.
    Polled(u64),
    /// A thread of the program sleeps on the set. The lane must check from time to time whether that thread still
    /// exists, with [`PollSet::check_sleepers`].
    Asleep,
    /// No further check is needed: the lane serves the set again, or checks of its sleeping threads are scheduled
    /// already.
    Over,
}

/// The sockets of a completion queue on a lane.
#[derive(Debug)]
pub(crate) struct PollSet {
    owner: Owner,
    members: Members,
    /// The only member, to be borrowed by polls.
    only: OnlySlot,
    /// Queue pairs that owe an acknowledgement. An only member that the program reads directly is not listed.
    acks: PendingAcks,
    /// The completion queues that poll the set.
    cqs: Mutex<Vec<Weak<Cq>>>,
    /// Threads of the program that sleep on the set, each with the waiters of its completion queue. While there are
    /// any, the lane does not serve the set.
    sleepers: Mutex<Vec<(Thread, Weak<Waiters>)>>,
    /// Whether the lane checks from time to time that the sleeping threads still exist.
    checks_sleepers: AtomicBool,
    /// The completion channel whose descriptor contains the sockets.
    channel: SetChannel,
    /// Whether the lane has taken the set while the program waited for an event, and no thread slept on the set.
    was_left_armed: AtomicBool,
    /// Whether the lane was given the set because a socket was full. Not cleared at once when it has room again.
    has_blocked: AtomicBool,
    /// Number of connections that were or will be reported to the program, and are about to join the set.
    arriving: AtomicUsize,
}

/// A connection that is about to join a poll set.
#[derive(Debug)]
#[must_use = "it does not count any more once this is dropped"]
pub(crate) struct Arriving(Arc<PollSet>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PollSet {
    /// Creates a set without sockets, and adds it to a lane's epoll. Calls `register` before that, to make the set
    /// known to the lane before its first event.
    pub(crate) fn new(lane: &Arc<LaneHandle>, register: impl FnOnce(&Arc<Self>)) -> io::Result<Arc<Self>> {
        let set = Arc::new(Self {
            owner: Owner::new(lane)?,
            members: Members::default(),
            only: OnlySlot::default(),
            acks: PendingAcks::default(),
            cqs: Mutex::default(),
            sleepers: Mutex::default(),
            checks_sleepers: AtomicBool::new(false),
            channel: SetChannel::default(),
            was_left_armed: AtomicBool::new(false),
            has_blocked: AtomicBool::new(false),
            arriving: AtomicUsize::new(0),
        });
        register(&set);
        lane.epoll().add(&set.owner.epoll, set.token(), Interest::ReadableEdges)?;
        Ok(set)
    }

    pub(crate) fn lane(&self) -> &Arc<LaneHandle> {
        &self.owner.lane
    }

    /// Returns its token in the lane's epoll.
    pub(crate) fn token(&self) -> u64 {
        self.owner.token
    }

    // --- Completion queues ---

    /// Adds a completion queue that polls the set.
    pub(crate) fn add_cq(&self, cq: &Arc<Cq>) {
        let mut cqs = lock(&self.cqs);
        cqs.retain(|known| known.strong_count() > 0);
        cqs.push(Arc::downgrade(cq));
        drop(cqs);
        if !self.channel.allows(cq.handler()) {
            self.give_to_lane();
        }
    }

    /// Returns the completion queues that poll the set.
    pub(crate) fn completion_queues(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns how many of its completion queues are armed: the program waits for an event there.
    fn armed_cqs(&self) -> usize {
        lock(&self.cqs).iter().filter_map(Weak::upgrade).filter(|cq| cq.is_armed()).count()
    }

    // --- Sockets ---

    /// Adds a socket. Does not send or receive, because the caller may hold locks. The caller must read the [only
    /// member](Self::only_member) before this call. If there was one, the caller must pass it to
    /// [`queue_ack_of_former_only_member`](Self::queue_ack_of_former_only_member) once it holds no locks, or have a
    /// lane call [`Qp::acknowledge`].
    pub(crate) fn insert(&self, token: u64, member: &Arc<dyn Member>) -> io::Result<()> {
        self.members.insert(token, member);
        self.update_only();
        self.owner.epoll.add(&**member, token, Interest::Edges)?;
        if !self.channel.add_member(&**member) {
            self.give_to_lane();
        } else if self.len() > 1 {
            self.leave_to_lane_if_slept_on(); // that thread may wait for another member only
        }
        Ok(())
    }

    /// Lists the acknowledgement that the former only member owes, if there was one. Called after another member was
    /// added, without locks, because the acknowledgement may be sent at once. A program reads an only member directly,
    /// without listing its acknowledgement (`CompletionQueue::serve`); that of one of several members has to be listed.
    ///
    /// A thread of the program may read the former only member at the same time. Either that thread finds that the
    /// members have changed, and acknowledges, or the result of its read is visible here.
    pub(crate) fn queue_ack_of_former_only_member(&self, former: Option<OnlyMember>) {
        if let Some(former) = former {
            self.queue_owed_ack(&former.qp);
        }
    }

    /// Removes the socket with this token. Returns whether the set had it.
    pub(crate) fn remove(&self, token: u64) -> bool {
        let removed = self.members.remove(token);
        if let Some(member) = &removed {
            self.update_only();
            // Fails if the socket is closed, which has removed it from the epoll set.
            let _ = self.owner.epoll.delete(&**member);
            self.channel.remove_member(&**member);
            self.leave_to_lane_if_slept_on(); // that thread may wait for this member only
        }
        removed.is_some()
    }

    /// Returns the sockets in the set.
    pub(crate) fn members(&self) -> Vec<Arc<dyn Member>> {
        self.members.all()
    }

    /// Returns the number of sockets in the set.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Counts a connection that is about to join the set, until the returned value is dropped.
    pub(crate) fn announce(self: &Arc<Self>) -> Arriving {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        Arriving(Arc::clone(self))
    }

    /// Returns whether no socket is in the set, or about to join it.
    pub(crate) fn has_no_connections(&self) -> bool {
        // In this order: a socket joins before its announcement ends.
        self.arriving.load(Ordering::SeqCst) == 0 && self.len() == 0
    }

    /// Returns the only member, if there is exactly one and it is a connection.
    pub(crate) fn only_member(&self) -> Option<OnlyMember> {
        self.members.only_member()
    }

    /// Borrows the only member, if there is exactly one and it is a connection. May return `None` while members or
    /// carriers are added or removed.
    #[inline]
    pub(crate) fn borrow_only_member(&self) -> Option<BorrowedMember<'_>> {
        self.only.borrow(&self.members, &self.owner.carriers)
    }

    /// Records that a carrier was added or removed.
    fn record_carrier_change(&self) {
        self.members.begin_generation();
        self.update_only();
        self.leave_to_lane_if_slept_on();
    }

    /// Updates what polls borrow, after members or carriers have changed.
    fn update_only(&self) {
        self.only.update(&self.members, &self.owner.carriers);
    }

    /// Serves the only member, which uses a carrier, on a thread of the program. Does not wait.
    pub(crate) fn poll_carriers_of(&self, only: &BorrowedMember<'_>) {
        only.poll_carriers();
        if self.owner.carriers.count_poll() {
            self.poll_sockets();
        }
    }

    /// Returns whether no member or carrier was added or removed since `only` was returned. If one was, the set may not
    /// know that `only` owes an acknowledgement, and the caller must send it.
    #[inline]
    pub(crate) fn is_still_only(&self, only: &OnlyMember) -> bool {
        self.members.is_unchanged_since(only)
    }

    /// Adds shared memory with another process, unless the set has it.
    pub(crate) fn add_carrier(&self, carrier: &Arc<dyn Carrier>) -> io::Result<()> {
        let token = self.lane().new_token();
        let will_ring = self.owner.carriers.add(&self.owner.epoll, token, carrier)?;
        self.record_carrier_change();
        if !will_ring {
            self.owner.serve_later();
        }
        if self.is_in_channel() {
            self.give_to_lane(); // it waits for the bell
        }
        Ok(())
    }

    /// Returns whether the set has shared memory with other processes.
    #[inline]
    pub(crate) fn has_carriers(&self) -> bool {
        !self.owner.carriers.is_empty()
    }

    /// Disconnects all members, because the adapter is being closed.
    pub(crate) fn disconnect(&self) {
        for token in self.members.tokens() {
            if self.members.get(token).is_some_and(|member| !member.disconnect()) {
                self.remove(token);
            }
        }
    }

    /// Ends all members at once, because the adapter has stopped.
    pub(crate) fn abort(&self) {
        self.members().iter().for_each(|member| member.abort());
    }

    // --- The program's side ---

    /// Returns whether the program serves the set.
    pub(crate) fn is_polled(&self) -> bool {
        self.owner.is_polled()
    }

    /// Counts a poll of the program, which serves the set from now on. The first poll disarms the entry in the lane's
    /// epoll.
    #[inline]
    pub(crate) fn record_poll(&self) {
        self.owner.record_poll();
    }

    /// Gives the set to the lane, and removes its sockets from the descriptor of a completion channel: sockets that the
    /// lane serves would wake the program, which would find no event while the lane receives.
    pub(crate) fn give_to_lane(&self) {
        self.remove_from_channel();
        self.owner.give_to_lane();
    }

    /// Removes the sockets from the descriptor of a completion channel.
    fn remove_from_channel(&self) {
        if self.is_in_channel() {
            self.channel.leave(|| self.members());
        }
    }

    /// Serves what is ready, on a thread of the program. Does not wait.
    pub(crate) fn poll(&self) {
        let _ = self.owner.carriers.serve();
        if self.owner.carriers.count_poll() {
            self.poll_sockets();
        }
    }

    /// Serves the sockets that are ready, on a thread of the program. Does not wait.
    pub(crate) fn poll_sockets(&self) -> Served {
        // A thread that is ending, in an exit handler for example, may poll after its thread-local buffer was dropped.
        let served = EVENTS.try_with(|events| self.serve(&mut events.borrow_mut(), ServedBy::Program));
        served.unwrap_or_else(|_| self.serve(&mut Events::new(MAX_EVENTS), ServedBy::Program))
    }

    // --- Completion channels ---

    /// Returns whether the sockets are in the descriptor of a completion channel.
    #[inline]
    pub(crate) fn is_in_channel(&self) -> bool {
        self.channel.is_joined()
    }

    /// Adds the sockets to the descriptor of a completion channel. Their events there will have the value `token`. Returns
    /// false if that fails, if a completion queue with another handler than this one polls the set, or if the set has
    /// carriers: the lane serves those.
    pub(crate) fn join_channel(&self, epoll: &Arc<ProgramEpoll>, handler: HandlerId, token: u64) -> bool {
        let is_own = |cq: &Arc<Cq>| cq.handler().is_none_or(|its| its == handler);
        // The list is locked, so that no queue with another handler is added meanwhile.
        let cqs = lock(&self.cqs);
        let joined = cqs.iter().filter_map(Weak::upgrade).all(|cq| is_own(&cq))
            && self.channel.join(epoll, handler, token, || self.members()).is_ok();
        drop(cqs);
        // Checked last: a thread that adds a carrier meanwhile finds the set in the channel.
        if joined && self.has_carriers() {
            self.give_to_lane();
        }
        joined && !self.has_carriers()
    }

    /// Serves the sockets for a thread that a completion channel may have woken. Does not look whether they are ready if
    /// there is only one. Returns whether anything was received.
    pub(crate) fn serve_for_channel(&self) -> bool {
        let Some(member) = self.members.only() else { return self.serve_ready_for_channel() };
        let Some(qp) = member.qp().filter(|qp| !qp.is_blocked()) else {
            return self.serve_ready_for_channel();
        };
        self.record_poll();
        member.take_received();
        qp.poll(1);
        self.queue_owed_ack(qp);
        if qp.is_blocked() {
            self.leave_blocked_to_lane();
        }
        member.take_received()
    }

    /// Serves the sockets that are ready, for a thread that a completion channel may have woken. Returns whether anything
    /// was received.
    pub(crate) fn serve_ready_for_channel(&self) -> bool {
        self.record_poll();
        let Served { received, blocked, .. } = self.poll_sockets();
        if blocked {
            self.leave_blocked_to_lane();
        }
        received
    }

    /// Gives the set to the lane because a socket is full, if its sockets are in the descriptor of a completion channel:
    /// that wakes no thread when the socket has room again.
    #[cold]
    pub(crate) fn leave_blocked_to_lane(&self) {
        if self.is_in_channel() {
            self.has_blocked.store(true, Ordering::Relaxed);
            self.give_to_lane();
        }
    }

    /// Returns whether a socket is full for which the lane was given the set.
    pub(crate) fn has_blocked(&self) -> bool {
        self.has_blocked.load(Ordering::Relaxed) && {
            let has_blocked = self.has_full_socket();
            self.has_blocked.store(has_blocked, Ordering::Relaxed);
            has_blocked
        }
    }

    /// Returns whether a socket is full.
    fn has_full_socket(&self) -> bool {
        self.members().iter().any(|member| member.qp().is_some_and(|qp| qp.is_blocked()))
    }

    /// Returns whether sockets of connectionless queue pairs are in the set.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.members().iter().any(|member| member.qp().is_none())
    }

    /// Raises the events of the completion queues that are armed.
    pub(crate) fn raise_early_events(&self) {
        self.completion_queues().iter().for_each(|cq| cq.raise_early(self.lane().event_lane()));
    }

    /// Records whether the program has posted a request since the last event of its completion queue.
    pub(crate) fn record_turn(&self, replied: bool) {
        self.acks.record_turn(replied);
    }

    /// Sends acknowledgements, unless a reply of the program is likely to carry them. If none does, the lane sends them
    /// at its second check.
    pub(crate) fn acknowledge_unless_reply_follows(&self) {
        if !(self.acks.expects_reply() && self.is_polled()) {
            self.acknowledge();
        }
    }

    // --- The lane's side ---

    /// Serves the set after an event of its entry in the lane's epoll, unless the program serves it. `events` is a
    /// buffer.
    pub(crate) fn serve_event(&self, events: &mut Events) -> FollowUp {
        match self.owner.begin_serving() {
            Some(timing) => self.serve_for_lane(events, timing),
            None => FollowUp::Done,
        }
    }

    /// Serves the set at the end of a pause, unless the program serves it. `events` is a buffer.
    pub(crate) fn resume(&self, events: &mut Events) -> FollowUp {
        // With the default timing, no second pause follows at once.
        let timing = Timing::default();
        if self.owner.resume_serving() { self.serve_for_lane(events, timing) } else { FollowUp::Done }
    }

    /// Serves the sockets that are ready on the lane's thread, and sends acknowledgements unless the program is likely
    /// to do so.
    fn serve_for_lane(&self, events: &mut Events, timing: Timing) -> FollowUp {
        let (armed, polls) = (self.armed_cqs(), self.owner.polls());
        let Served { received, bulk, .. } = self.serve(events, ServedBy::Lane);
        let drained = self.drain_carriers();
        // The program goes on now if an event has woken it, or if it polled until its own request was done and then
        // watches memory that the peer writes to (a late message). Its answer should carry the acknowledgement: an
        // acknowledgement alone would have the peer stop polling before the answer comes.
        let woken = (timing.late && received) || self.armed_cqs() < armed;
        if !drained {
            self.owner.serve_later();
        } else if timing.streaming && !woken && !bulk && self.owner.pause() {
            return FollowUp::Pause;
        }
        if !woken {
            self.acknowledge();
        }
        self.owner.end_serving(events.is_full());
        if woken {
            return if self.owner.begin_watch() { FollowUp::CheckPolling(polls) } else { FollowUp::Done };
        }
        // A thread of the program may have polled before `end_serving`, and left its acknowledgements to the lane.
        self.acknowledge();
        FollowUp::Done
    }

    /// Serves the carriers until nothing is left in them and their bells ring again, or a thread polls them. Returns false
    /// if the turn ends before that. While large payload arrives, looks for more for a moment before it sleeps: a bell
    /// costs both ends more.
    fn drain_carriers(&self) -> bool {
        let carriers = &self.owner.carriers;
        if carriers.is_empty() {
            return true;
        }
        let mut idle_since = None;
        for _ in 0..CARRIER_ROUNDS {
            if carriers.has_news() {
                idle_since = carriers.serve().then(Instant::now);
            } else if idle_since.is_some_and(|since| since.elapsed() < BULK_LINGER) && !self.is_polled() {
                pause();
            } else if carriers.sleep() {
                return true;
            }
        }
        carriers.sleep()
    }

    /// Checks whether the program has polled since the last check, when its poll count was `before` (`None` at the
    /// first check, which only reads the count). If it has not, and no thread sleeps on the set, the lane serves the
    /// set again.
    pub(crate) fn check_polling(&self, before: Option<u64>) -> PollCheck {
        let polls = self.owner.polls();
        self.acks.send_late();
        if before != Some(polls) {
            self.channel.record_poll();
            return PollCheck::Polled(polls);
        }
        if self.is_polled() && self.channel.program_may_come() {
            return PollCheck::Polled(polls);
        }
        self.remove_from_channel();
        let is_slept_on = self.owner.take_from_program(|| !lock(&self.sleepers).is_empty());
        if !is_slept_on && self.armed_cqs() > 0 {
            self.was_left_armed.store(true, Ordering::Relaxed);
        }
        // A program acknowledges when a poll finds nothing. If its last poll found a completion, something is still
        // owed.
        self.acknowledge();
        // The caller schedules checks of the sleeping threads, unless an earlier call had it do so.
        let must_schedule = is_slept_on && !self.checks_sleepers.swap(true, Ordering::AcqRel);
        if must_schedule { PollCheck::Asleep } else { PollCheck::Over }
    }

    // --- Both sides ---

    /// Takes the pending events of the sockets, and serves the sockets.
    fn serve(&self, events: &mut Events, by: ServedBy) -> Served {
        let mut served = Served::default();
        if let Err(error) = self.owner.epoll.wait(events, Some(Duration::ZERO)) {
            self.lane().fail(&format_args!("failed to poll a set of sockets: {error}"));
            return served;
        }
        let mut heard_bell = false;
        for Event { data, readable, writable, ended } in events.iter() {
            let Some(member) = self.members.get(data) else {
                heard_bell |= self.serve_bell(data, ended);
                continue;
            };
            if let Some(qp) = member.serve(Ready { readable, writable, ended }, by) {
                if readable {
                    self.queue_owed_ack(qp);
                }
                served.received |= readable;
                served.bulk |= qp.receives_bulk();
                served.blocked |= qp.is_blocked();
            }
        }
        served.received |= heard_bell;
        // A bell that has rung does not ring again before its carrier sleeps again. The lane puts carriers to sleep after
        // it has served them. A thread of the program has to do that here: it may poll although the lane owns the set
        // (it has armed the queue), or while another thread sleeps on the set, and the event is now gone for that one.
        if heard_bell && by == ServedBy::Program && !self.drain_carriers() {
            self.owner.serve_later();
        }
        served
    }

    /// Serves the carrier whose bell has this token. Returns false if there is none.
    fn serve_bell(&self, token: u64, ended: bool) -> bool {
        match self.owner.carriers.serve_bell(&self.owner.epoll, token, ended) {
            ServedBell::Unknown => false,
            ServedBell::Open => true,
            ServedBell::Removed => {
                self.record_carrier_change();
                true
            }
        }
    }

    /// Lists a queue pair that has received something, if it owes an acknowledgement and is not listed yet.
    pub(crate) fn queue_owed_ack(&self, qp: &Arc<Qp>) {
        if !qp.take_owed_acknowledgement() {
            return;
        }
        self.acks.push(qp);
        // If the lane has taken the set back since the caller polled, it has sent the acknowledgements listed then, and
        // not this one.
        if self.owner.is_armed() {
            self.acknowledge();
        }
    }

    /// Sends the acknowledgement that the only member owes, if the lane has taken the set back. Called by a thread of
    /// the program after it has read the only member directly.
    ///
    /// When the lane takes the set back, it sends the acknowledgements owed at that time. None is forgotten: this
    /// thread delivers before it checks the owner, and the lane changes the owner before it checks what was delivered.
    /// So one of the two sees the other's step.
    #[inline]
    pub(crate) fn acknowledge_unless_polled(&self) {
        if !self.is_polled() {
            self.acknowledge();
        }
    }

    /// Sends all acknowledgements that members owe. Called when the thread that serves the set is about to become idle:
    /// until then, other messages may carry them.
    #[inline]
    pub(crate) fn acknowledge(&self) {
        if self.len() == 1 {
            return self.acknowledge_with(self.only_member().as_ref());
        }
        self.acks.flush();
    }

    /// Sends the acknowledgement that `only` owes, and those of listed queue pairs.
    pub(crate) fn acknowledge_with(&self, only: Option<&OnlyMember>) {
        if let Some(OnlyMember { qp, .. }) = only
            && qp.take_owed_acknowledgement()
        {
            qp.acknowledge();
        }
        self.acks.flush();
    }
}
