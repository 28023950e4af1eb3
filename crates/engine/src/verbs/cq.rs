//! A completion queue whose poll also serves the sockets of its queue pairs. `wait.rs` has the sleeping wait.

use crate::notify::handler::{CompletionHandler, LaneTimer, ServiceFollower};
use crate::notify::sockets::ChannelSockets;
use crate::reactor::class::{Class, ServicePolicy};
use crate::reactor::lane::Lane;
use crate::reactor::member::{Member, Placement};
use crate::reactor::poll_set::PollSet;
use crate::reactor::waiters::Waiters;
use crate::steering::Steering;
use crate::sys::fork::Creator;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{AsyncEvent, AsyncEvents};
use ironwarp_rnic::queue::{Arm, Completion, Cq, HeldTimer, Moderation, Overrun};
use ironwarp_rnic::quota::{Place, Resource};
use ironwarp_rnic::sync::{self, lock};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, Weak};

mod channel;
#[cfg(test)]
mod channel_tests;
mod event_sleep;
#[cfg(test)]
mod event_sleep_tests;
mod idle;
#[cfg(test)]
mod tests;
mod wait;

pub use wait::WaitError;

use event_sleep::EventSleeps;

/// Number of consecutive polls without a completion after which each poll reads the socket [`REPEATED_READS`] times:
/// the thread waits for the socket anyway, and the rest of a poll takes as long as one read.
const POLLS_BEFORE_REPEATED_READS: u32 = 4;
/// Number of reads of the socket in such a poll, while nothing arrives.
const REPEATED_READS: usize = 4;

/// A completion queue, and the poll sets that contain the sockets of its queue pairs.
#[derive(Debug)]
pub struct CompletionQueue {
    /// The device's completion queue, which holds the completions.
    cq: Arc<Cq>,
    /// The poll sets whose queue pairs complete here. A set was created by this queue, or by the receive completion
    /// queue of a queue pair that uses this queue for sends. There may be several per lane. A new queue pair that
    /// receives here joins the first one on its lane, whichever queue created that.
    sets: RwLock<Vec<Arc<PollSet>>>,
    /// The first of `sets`, to read without the lock. None is ever removed.
    first_set: OnceLock<Arc<PollSet>>,
    /// Number of `sets`. Written with `sets` locked.
    set_count: AtomicUsize,
    /// Threads that sleep in [`wait`](Self::wait).
    waiters: Arc<Waiters>,
    /// The asynchronous events of its function, for overruns.
    async_events: Arc<AsyncEvents>,
    /// The class and the processors of the handler, or the default ones. Shared with the handler, which may have been
    /// dropped.
    service: Mutex<Arc<ServicePolicy>>,
    /// The handlers, without duplicates: one, one for each lane, or none.
    handlers: Mutex<Vec<Weak<CompletionHandler>>>,
    steering: Arc<Steering>,
    /// The completion vector: the lane that the program asked for; `None` if it named none.
    vector: Option<usize>,
    channel: ChannelState,
    event_sleeps: EventSleeps,
    creator: Creator,
    /// What adds completions that the adversary held back. Not set without an adversary.
    held_timer: OnceLock<Arc<HeldTimer>>,
    /// Its place in the quota of its function.
    _place: Place,
}

/// The completion channel of a completion queue, if there is one.
#[derive(Debug, Default)]
struct ChannelState {
    /// The channel. Set once.
    sockets: OnceLock<Arc<ChannelSockets>>,
    /// Whether the queue has left the channel.
    has_left: AtomicBool,
    /// Whether the queue was ever armed, with a channel.
    was_armed: AtomicBool,
    /// Whether the queue was last armed so that the sockets wake the program. If not, lanes serve them.
    is_armed: AtomicBool,
    /// Number of polls that found nothing since the queue was armed.
    empty_polls: AtomicU32,
    /// Whether the program has posted a request since the queue was armed.
    posted: AtomicBool,
}

impl CompletionQueue {
    /// Creates a completion queue of this device for `capacity` completions, without poll sets.
    pub(crate) fn new(
        id: u32,
        capacity: usize,
        device: &Device,
        steering: &Arc<Steering>,
        vector: Option<usize>,
    ) -> io::Result<Arc<Self>> {
        let place = device.account().take(Resource::CompletionQueues)?;
        let cq = Arc::new(Cq::new(id, capacity));
        let async_events = device.events();
        cq.set_reports(async_events);
        let waiters = Waiters::new(&cq)?;
        Ok(Arc::new(Self {
            cq,
            sets: RwLock::default(),
            first_set: OnceLock::new(),
            set_count: AtomicUsize::new(0),
            waiters,
            async_events: Arc::clone(async_events),
            service: Mutex::new(default_service()),
            handlers: Mutex::default(),
            steering: Arc::clone(steering),
            vector,
            channel: ChannelState::default(),
            event_sleeps: EventSleeps::default(),
            creator: Creator::this(),
            held_timer: OnceLock::new(),
            _place: place,
        }))
    }

    /// Has the adversary of the device hold completions back, if it has one. Called before the queue is used.
    pub(crate) fn add_adversary(&self, device: &Device) -> io::Result<()> {
        let Some(adversary) = device.adversary() else { return Ok(()) };
        let lane = self.steering.default_lane()?;
        let timer = self.held_timer.get_or_init(|| self.cq.held_timer());
        self.cq.set_adversary(adversary, LaneTimer::new(lane.handle(), timer));
        Ok(())
    }

    /// Returns the device's completion queue.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Returns the completion vector: the lane that the program asked for; `None` if it named none.
    pub fn vector(&self) -> Option<usize> {
        self.vector
    }

    /// Sets the moderation of events (requirement I10). `None` ends moderation.
    pub(crate) fn moderate(&self, moderation: Option<Moderation>) {
        self.event_sleeps.set_moderated(moderation.is_some());
        self.cq.moderate(moderation);
    }

    /// Returns the steering of the adapter.
    pub(crate) fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    /// Removes up to `max` completions and passes them to `each`. If there are none, serves the sockets and tries
    /// again. Returns the number of completions. Finds none in a forked child, which has no connections: a thread of the
    /// parent may have locked the queue, or a queue pair, at the fork.
    pub fn poll(&self, max: usize, mut each: impl FnMut(Completion)) -> Result<usize, Overrun> {
        if self.creator.is_parent() {
            return Ok(0);
        }
        let found = self.cq.poll(max, &mut each)?;
        if found > 0 {
            self.record_found(found);
            return Ok(found);
        }
        if !self.cq.is_armed() {
            self.progress();
        } else if self.is_armed_in_channel() {
            self.poll_armed();
        } else {
            // A program that has armed the queue polls once more and then sleeps until the event. Sockets that the lane
            // serves stay with it: otherwise nothing would serve them until the lane notices that the program does not
            // poll any more.
            self.serve(self.assign_armed());
        }
        let found = self.cq.poll(max, &mut each)?;
        self.record_found(found);
        Ok(found)
    }

    /// Counts a poll of this thread that found `found` completions, and yields or sleeps after many that found none.
    #[inline]
    fn record_found(&self, found: usize) {
        if idle::record(found) {
            // While the queue is armed, lanes may serve the sockets, and keep them if this thread does not sleep on them.
            idle::rest(self.cq.id(), |time| !self.cq.is_armed() && self.nap(time));
        }
    }

    /// Arms the queue: requests one event for the next completion, through the [handler](Self::set_handler). Returns
    /// whether the queue already holds such a completion, which raises no event: the caller must poll again. Has no effect
    /// in a forked child.
    pub fn arm(&self, arm: Arm) -> bool {
        if self.creator.is_parent() {
            return false;
        }
        if let Some(has_completion) = self.arm_in_channel(arm) {
            return has_completion;
        }
        let has_completion = self.cq.arm(arm);
        if !has_completion {
            // The program is about to sleep.
            let sets = self.sets();
            let mut missed = false;
            for set in sets.iter() {
                missed |= set.take_left_armed();
            }
            self.event_sleeps.record_arm(missed);
            let assign = self.assign_armed();
            for set in sets.iter() {
                set.acknowledge();
                assign(set);
            }
        }
        has_completion
    }

    /// Serves the sockets of the queue pairs, without waiting. From now on the program serves them, and the lanes do
    /// not. Has no effect in a forked child.
    pub fn progress(&self) {
        if self.creator.is_parent() {
            return;
        }
        self.serve(PollSet::record_poll);
    }

    /// Serves the sockets of all poll sets, without waiting, and sends the acknowledgements that are owed if nothing
    /// completed. Before it serves a set, calls `assign`, which decides whether the program or the lane serves the set
    /// from now on.
    fn serve(&self, assign: impl Fn(&PollSet)) {
        // A queue with one set, as most have, does not lock the list.
        if let Some(set) = self.only_set() {
            if !self.serve_only_member(set, &assign) {
                self.serve_all(std::slice::from_ref(set), &assign);
            }
            return;
        }
        let sets = self.sets();
        let served = only_occupied(&sets).is_some_and(|set| self.serve_only_member(set, &assign));
        if !served {
            self.serve_all(&sets, &assign);
        }
    }

    /// Serves the only socket of `set`, as [`serve`](Self::serve) does. Returns false if it has more, or if that socket
    /// has to be served by epoll.
    #[inline]
    fn serve_only_member(&self, set: &PollSet, assign: impl Fn(&PollSet)) -> bool {
        // A single socket is read directly: one system call instead of two. A socket whose send buffer is full is not:
        // epoll reports when enough of the buffer is free for a send to be worth while.
        if set.len() == 1
            && let Some(only) = set.borrow_only_member()
            && (!only.qp.is_blocked() || set.has_carriers())
        {
            assign(set);
            if set.has_carriers() {
                set.poll_carriers_of(&only);
            } else {
                let repeated = idle::empty_polls() >= POLLS_BEFORE_REPEATED_READS;
                only.qp.poll(if repeated { REPEATED_READS } else { 1 });
            }
            if self.cq.is_empty() {
                set.acknowledge_with(Some(&only));
            } else if set.is_still_only(&only) {
                set.acknowledge_unless_polled();
            } else {
                // A member was added, or this one was moved, during the poll: no other thread knows
                // which acknowledgements this one owes.
                only.qp.acknowledge();
            }
            return true;
        }
        false
    }

    /// Serves all sockets of the sets, as [`serve`](Self::serve) does.
    fn serve_all(&self, sets: &[Arc<PollSet>], assign: impl Fn(&PollSet)) {
        for set in sets {
            assign(set);
            set.poll();
        }
        if self.cq.is_empty() {
            sets.iter().for_each(|set| set.acknowledge());
        }
    }

    // --- Poll sets ---

    /// Returns the poll set for a queue pair with these addresses that receives on this queue and sends on `send_cq`.
    /// Class and processors of the handler and the vector of this queue, or else the addresses, select the lane. Creates the set if this queue
    /// has none there. Called when a connection is established, and for a new connectionless queue pair.
    pub(crate) fn find_or_create_set(
        &self,
        send_cq: &Self,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<Arc<PollSet>> {
        self.find_or_create_set_on(self.steering.lane_for(&self.placement(), peer, local)?, send_cq)
    }

    /// Returns the poll set for a queue pair on this lane that receives on this queue and sends on `send_cq`. Creates
    /// the set if this queue has none on the lane. Adds the set to both queues: a poll of either one serves the socket.
    pub(crate) fn find_or_create_set_on(&self, lane: &Lane, send_cq: &Self) -> io::Result<Arc<PollSet>> {
        let known = self.sets().iter().find(|set| Arc::ptr_eq(set.lane(), lane.handle())).cloned();
        let set = known.map_or_else(|| lane.new_set(), Ok)?;
        self.add_set(&set);
        send_cq.add_set(&set);
        Ok(set)
    }

    /// Adds a poll set, unless the queue has it.
    fn add_set(&self, set: &Arc<PollSet>) {
        let mut sets = sync::write(&self.sets);
        if sets.iter().all(|known| !Arc::ptr_eq(known, set)) {
            sets.push(Arc::clone(set));
            self.first_set.get_or_init(|| Arc::clone(set));
            self.set_count.store(sets.len(), Ordering::Release);
            set.add_cq(&self.cq);
        }
    }

    /// Returns the only poll set, if there is exactly one.
    #[inline]
    fn only_set(&self) -> Option<&Arc<PollSet>> {
        if self.set_count.load(Ordering::Acquire) == 1 { self.first_set.get() } else { None }
    }

    /// Locks the poll sets for reading.
    fn sets(&self) -> RwLockReadGuard<'_, Vec<Arc<PollSet>>> {
        sync::read(&self.sets)
    }

    /// Returns the poll sets, for tests of other modules.
    #[cfg(test)]
    pub(crate) fn poll_sets(&self) -> Vec<Arc<PollSet>> {
        self.sets().clone()
    }

    // --- The handler and its class ---

    /// Sets or removes the completion handler (*Modify CQ*, requirement N4). No event is lost or doubled. From now on
    /// the queue pairs are served according to the class (requirement N6) and on the processors (requirement N5) of the
    /// new handler.
    pub fn set_handler(self: &Arc<Self>, handler: Option<&Arc<CompletionHandler>>) {
        self.change_handlers(handler.map_or(&[], std::slice::from_ref), || {
            self.cq.set_handler(handler.map(|handler| Arc::clone(handler.inner())));
        });
    }

    /// Sets a handler for the events of each lane, in the order of the lanes (requirement I8). If it is the same for all,
    /// its class and its processors apply, as with [`set_handler`](Self::set_handler). If not, the queue pairs are of
    /// the default class and may be served anywhere: their handlers are those of their lanes.
    pub(crate) fn set_lane_handlers(self: &Arc<Self>, handlers: &[Arc<CompletionHandler>]) {
        let mut different = handlers.to_vec();
        different.sort_by_key(|handler| handler.id());
        different.dedup_by_key(|handler| handler.id());
        self.change_handlers(&different, || {
            let inner: Vec<_> = handlers.iter().map(|handler| Arc::clone(handler.inner())).collect();
            self.cq.set_lane_handlers(&inner);
        });
    }

    /// Replaces the handlers, which `set` sets in the device's completion queue, and moves queue pairs accordingly.
    fn change_handlers(self: &Arc<Self>, handlers: &[Arc<CompletionHandler>], set: impl FnOnce()) {
        let next = handlers.iter().map(Arc::downgrade).collect();
        let before = std::mem::replace(&mut *lock(&self.handlers), next);
        for before in before.iter().filter_map(Weak::upgrade) {
            before.remove_queue(&**self);
        }
        set();
        *lock(&self.service) = match handlers {
            [only] => Arc::clone(only.service()),
            _ => default_service(),
        };
        for handler in handlers {
            let this: Arc<dyn ServiceFollower> = Arc::<Self>::clone(self);
            handler.add_queue(&this);
        }
        // After `add_queue`: from then on the handler reports every change.
        if let Err(error) = self.steer_queue_pairs() {
            tracing::warn!(%error, cq = self.cq.id(), "failed to move the queue pairs of a completion queue to another lane");
        }
    }

    /// Returns the class of the handler, or the default class.
    pub(crate) fn class(&self) -> Class {
        lock(&self.service).class()
    }

    /// Returns what selects the lane of a queue pair, besides its addresses.
    pub(crate) fn placement(&self) -> Placement {
        let service = Arc::clone(&lock(&self.service));
        Placement { class: service.class(), vector: self.vector, processors: service.processors() }
    }

    /// Moves the queue pairs whose receives complete here, and whose lane does not fit class and processors of the
    /// handler, to the lane that steering selects for them.
    fn steer_queue_pairs(&self) -> io::Result<()> {
        let members: Vec<_> = self.sets().iter().flat_map(|set| set.members()).collect();
        let movable = members.into_iter().filter_map(Member::movable);
        let mut own = movable.filter(|member| member.receives_on(&self.cq));
        own.try_for_each(|member| self.steering.steer(&member))
    }
}

impl ServiceFollower for CompletionQueue {
    fn on_service_change(&self, service: &Arc<ServicePolicy>) -> io::Result<()> {
        let is_own = Arc::ptr_eq(&lock(&self.service), service);
        if is_own { self.steer_queue_pairs() } else { Ok(()) }
    }
}

/// Returns the class and the processors of a queue without a handler.
fn default_service() -> Arc<ServicePolicy> {
    Arc::new(ServicePolicy::new(Class::DEFAULT))
}

/// Returns the only set, or the only one that has sockets: sets stay empty after their connections were moved.
#[inline]
fn only_occupied(sets: &[Arc<PollSet>]) -> Option<&Arc<PollSet>> {
    if let [set] = sets {
        return Some(set);
    }
    let mut occupied = sets.iter().filter(|set| set.len() > 0);
    occupied.next().filter(|_| occupied.next().is_none())
}

impl Drop for CompletionQueue {
    /// Removes events of the queue that the program has not taken. No queue pair uses the queue any more.
    fn drop(&mut self) {
        self.cq.shut_down();
        self.async_events.revoke(&[AsyncEvent::CqError(self.cq.id())]);
    }
}
