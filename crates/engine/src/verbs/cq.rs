//! A completion queue that makes progress when it is polled, and that a thread can sleep on (`wait.rs`).

use crate::notify::handler::{ClassFollower, CompletionHandler};
use crate::reactor::class::{Class, SharedClass};
use crate::reactor::lane::Lane;
use crate::reactor::member::{Member, Placement};
use crate::reactor::poll_set::PollSet;
use crate::reactor::waiters::Waiters;
use crate::steering::Steering;
use ironwarp_rnic::event::{AsyncEvent, AsyncEvents};
use ironwarp_rnic::queue::{Arm, Completion, Cq, Overrun};
use ironwarp_rnic::sync::{self, lock};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};

#[cfg(test)]
mod tests;
mod wait;

pub use wait::WaitError;

/// Number of polls in a row without a completion after which a thread yields the processor between polls.
const PATIENT: u32 = 64;

/// Number of polls in a row without a completion after which each poll reads the socket several times: the thread waits for the
/// socket, and everything around a read takes as long as the read itself.
const EAGER: u32 = 4;
/// Number of reads of the socket in such a poll.
const READS: usize = 4;

thread_local! {
    /// Number of polls of this thread since it last found a completion.
    static EMPTY_POLLS: Cell<u32> = const { Cell::new(0) };
}

/// A poll of this thread found this many completions. After a while without any, other threads have the processor between two polls:
/// the one that is waited for may be among them. A thread that has a processor to itself loses a fraction of a microsecond, at a time
/// when it has waited for many.
#[inline]
fn polled(found: usize) {
    if found > 0 {
        EMPTY_POLLS.set(0);
    } else if EMPTY_POLLS.get() < PATIENT {
        EMPTY_POLLS.set(EMPTY_POLLS.get() + 1);
    } else {
        std::thread::yield_now();
    }
}

/// A completion queue and the poll sets behind it.
#[derive(Debug)]
pub struct CompletionQueue {
    cq: Arc<Cq>,
    /// The sets whose queue pairs complete here: at most one for each lane, and those of the completion queues that share
    /// a queue pair with this one.
    sets: RwLock<Vec<Arc<PollSet>>>,
    /// Threads that sleep in [`wait`](Self::wait).
    waiters: Arc<Waiters>,
    /// Where an overrun is reported.
    reports: Arc<AsyncEvents>,
    /// Shared with the handler, which may be gone.
    class: Mutex<Arc<SharedClass>>,
    handler: Mutex<Weak<CompletionHandler>>,
    steering: Arc<Steering>,
    vector: Option<usize>,
}

impl CompletionQueue {
    pub(crate) fn new(
        id: u32,
        capacity: usize,
        steering: &Arc<Steering>,
        vector: Option<usize>,
    ) -> io::Result<Arc<Self>> {
        let cq = Arc::new(Cq::new(id, capacity));
        let reports = steering.device().events();
        cq.set_reports(reports);
        let waiters = Waiters::new(&cq)?;
        Ok(Arc::new(Self {
            cq,
            sets: RwLock::default(),
            waiters,
            reports: Arc::clone(reports),
            class: Mutex::new(usual_class()),
            handler: Mutex::default(),
            steering: Arc::clone(steering),
            vector,
        }))
    }

    /// Returns the device's completion queue.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Returns the completion vector: the lane that the program asked for.
    pub fn vector(&self) -> Option<usize> {
        self.vector
    }

    pub(crate) fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    /// Takes up to `most` completions. If there are none, polls the sockets and tries again.
    pub fn poll(&self, most: usize, mut each: impl FnMut(Completion)) -> Result<usize, Overrun> {
        let found = self.cq.poll(most, &mut each)?;
        if found > 0 {
            polled(found);
            return Ok(found);
        }
        if self.cq.is_armed() {
            // A program that has asked for an event polls once more before it sleeps. It will not poll again until it is woken: the
            // sockets stay with the lane, or nothing would serve them until the lane finds that out.
            self.serve(PollSet::hand_over);
        } else {
            self.progress();
        }
        let found = self.cq.poll(most, &mut each)?;
        polled(found);
        Ok(found)
    }

    /// Requests one event for the next completion, through the [handler](Self::set_handler). Returns whether a completion is there
    /// already.
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

    /// Moves what the sockets have. From now on the program serves them.
    pub fn progress(&self) {
        self.serve(PollSet::record_poll);
    }

    /// Moves what the sockets have, after `settle` decided who serves them from now on. If nothing completes, the caller is about to go
    /// idle.
    fn serve(&self, settle: impl Fn(&PollSet)) {
        let sets = self.sets();
        // A single socket is read directly: one system call instead of two. Unless it is full: epoll reports when it is worth while
        // to send again, which is not as soon as there is room for a byte.
        if let Some(set) = lone(&sets)
            && set.len() == 1
            && let Some(only) = set.only_member()
            && !only.qp.is_blocked()
        {
            settle(set);
            only.qp.poll(if EMPTY_POLLS.get() < EAGER { 1 } else { READS });
            if self.cq.is_empty() {
                set.acknowledge_with(Some(&only));
            } else if set.is_still_only(&only) {
                set.acknowledge_unless_polled();
            } else {
                only.qp.acknowledge(); // another member came, or it was moved, and no other thread knows what came of this
            }
            return;
        }
        for set in sets.iter() {
            settle(set);
            set.poll();
        }
        if self.cq.is_empty() {
            sets.iter().for_each(|set| set.acknowledge());
        }
    }

    // --- Poll sets ---

    /// The poll set for a connection between these addresses, whose send completions go to `send_cq`: that of this queue, on the lane
    /// that its class, its vector or the addresses lead to.
    pub(crate) fn set_for(
        &self,
        send_cq: &Self,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<Arc<PollSet>> {
        self.set_on(self.steering.lane_for(self.placement(), peer, local)?, send_cq)
    }

    /// The poll set for a connection on this lane whose send completions go to `send_cq`.
    pub(crate) fn set_on(&self, lane: &Lane, send_cq: &Self) -> io::Result<Arc<PollSet>> {
        let known = self.sets().iter().find(|set| Arc::ptr_eq(set.lane(), lane.handle())).cloned();
        let set = known.map_or_else(|| lane.new_set(), Ok)?;
        self.add_set(&set);
        send_cq.add_set(&set);
        Ok(set)
    }

    fn add_set(&self, set: &Arc<PollSet>) {
        let mut sets = sync::write(&self.sets);
        if sets.iter().all(|known| !Arc::ptr_eq(known, set)) {
            sets.push(Arc::clone(set));
            set.add_cq(&self.cq);
        }
    }

    fn sets(&self) -> RwLockReadGuard<'_, Vec<Arc<PollSet>>> {
        sync::read(&self.sets)
    }

    #[cfg(test)]
    pub(crate) fn poll_sets(&self) -> Vec<Arc<PollSet>> {
        self.sets().clone()
    }

    // --- The handler and its class ---

    /// Moves the queue to another completion handler, or to none (*Modify CQ*, requirement N4). No event is lost or doubled. Its queue
    /// pairs are served according to the new handler's class (requirement N6).
    pub fn set_handler(self: &Arc<Self>, handler: Option<&Arc<CompletionHandler>>) {
        let next = handler.map_or_else(Weak::new, Arc::downgrade);
        let before = std::mem::replace(&mut *lock(&self.handler), next).upgrade();
        if let Some(before) = before {
            before.remove_queue(&**self);
        }
        self.cq.set_handler(handler.map(|handler| Arc::clone(handler.inner())));
        let class = handler.map_or_else(usual_class, |handler| Arc::clone(handler.shared_class()));
        let before = std::mem::replace(&mut *lock(&self.class), Arc::clone(&class)).get();
        if let Some(handler) = handler {
            let this: Arc<dyn ClassFollower> = Arc::<Self>::clone(self);
            handler.add_queue(&this);
        }
        // Read after the handler knows the queue: it tells of every change since.
        let changed = (before == Class::LowLatency) != (class.get() == Class::LowLatency);
        if changed && let Err(error) = self.settle_connections() {
            tracing::warn!(%error, cq = self.cq.id(), "failed to move the queue pairs of a completion queue to another lane");
        }
    }

    /// The class of its handler.
    pub(crate) fn class(&self) -> Class {
        lock(&self.class).get()
    }

    pub(crate) fn placement(&self) -> Placement {
        Placement { class: self.class(), vector: self.vector }
    }

    /// Moves the connections whose receives complete here to the lane of its class.
    fn settle_connections(&self) -> io::Result<()> {
        let members: Vec<_> = self.sets().iter().flat_map(|set| set.members()).collect();
        let is_own = |qp: &ironwarp_rnic::qp::Qp| Arc::ptr_eq(&qp.attributes().receive_cq, &self.cq);
        let own = members.into_iter().filter(|member| member.qp().is_some_and(|qp| is_own(qp)));
        own.filter_map(Member::movable).try_for_each(|it| self.steering.steer(&it))
    }
}

impl ClassFollower for CompletionQueue {
    fn on_class_change(&self, class: &Arc<SharedClass>) -> io::Result<()> {
        let is_own = Arc::ptr_eq(&lock(&self.class), class);
        if is_own { self.settle_connections() } else { Ok(()) }
    }
}

fn usual_class() -> Arc<SharedClass> {
    Arc::new(SharedClass::new(Class::DEFAULT))
}

/// The only set with sockets in it. A set is empty when all of a lane's connections were moved.
#[inline]
fn lone(sets: &[Arc<PollSet>]) -> Option<&Arc<PollSet>> {
    if let [set] = sets {
        return Some(set);
    }
    let mut occupied = sets.iter().filter(|set| set.len() > 0);
    occupied.next().filter(|_| occupied.next().is_none())
}

impl Drop for CompletionQueue {
    /// No queue pair uses it, and its events are of no use any more.
    fn drop(&mut self) {
        self.cq.shut_down();
        self.reports.revoke(|event| event == AsyncEvent::CqError(self.cq.id()));
    }
}
