//! A completion queue that makes progress when it is polled, and that a thread can sleep on. Steps 7 and 8 of the path.

use crate::class::{Class, SharedClass};
use crate::handler::CompletionHandler;
use crate::lane::Lane;
use crate::set::{Set, lock};
use crate::sleep::Sleepers;
use crate::steering::Steering;
use ironwarp_rnic::event::{AsyncEvent, AsyncEvents};
use ironwarp_rnic::queue::{Arm, Completion, Cq, Overrun};
use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

/// So long a thread polls before it sleeps: most answers come sooner than a sleeping thread wakes.
const SPIN: Duration = Duration::from_micros(50);

/// So many polls of a thread that find nothing, one after the other, are a wait.
const PATIENT: u32 = 64;

/// After so many, each looks at a socket several times: it is the socket that is waited for, and all around it takes as long as the
/// look itself.
const EAGER: u32 = 4;
const LOOKS: usize = 4;

/// Interval at which a thread that cannot sleep looks whether the lanes of an adapter that has stopped have flushed all requests.
const FLUSHED: Duration = Duration::from_millis(1);

/// Why a wait for completions ended without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue takes no more completions.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// Nothing will complete any more.
    #[error("the adapter has stopped, for a reason that its log tells: open another one")]
    Stopped,
}

thread_local! {
    /// How often this thread has polled since it last found something.
    static VAIN: Cell<u32> = const { Cell::new(0) };
}

/// A poll of this thread found something, or nothing. After a while of nothing, others have the processor between two polls: the
/// one that is waited for may be among them. A thread that has a processor to itself loses a fraction of a microsecond, at a time
/// when it has waited for many.
#[inline]
fn polled(found: usize) {
    if found > 0 {
        VAIN.set(0);
    } else if VAIN.get() < PATIENT {
        VAIN.set(VAIN.get() + 1);
    } else {
        std::thread::yield_now();
    }
}

/// A completion queue and the sets of sockets behind it.
#[derive(Debug)]
pub struct CompletionQueue {
    cq: Arc<Cq>,
    /// The sets whose queue pairs complete here: at most one for each lane, and those of the completion queues that share
    /// a queue pair with this one.
    sets: RwLock<Vec<Arc<Set>>>,
    /// Threads that sleep in [`wait`](Self::wait).
    sleepers: Arc<Sleepers>,
    /// Where an overrun is reported.
    reports: Arc<AsyncEvents>,
    /// The handler's, which may be gone.
    class: SharedClass,
    handler: Mutex<Weak<CompletionHandler>>,
    steering: Arc<Steering>,
    /// The lane that the program named for it.
    vector: Option<usize>,
}

impl CompletionQueue {
    pub(crate) fn new(
        id: u32,
        capacity: usize,
        reports: &Arc<AsyncEvents>,
        steering: &Arc<Steering>,
        vector: Option<usize>,
    ) -> io::Result<Arc<Self>> {
        let cq = Arc::new(Cq::new(id, capacity));
        cq.set_reports(reports);
        let sleepers = Sleepers::new(&cq)?;
        Ok(Arc::new(Self {
            cq,
            sets: RwLock::default(),
            sleepers,
            reports: Arc::clone(reports),
            class: SharedClass::new(Class::USUAL),
            handler: Mutex::default(),
            steering: Arc::clone(steering),
            vector,
        }))
    }

    /// The queue itself.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// The lane that the program named for it.
    pub fn vector(&self) -> Option<usize> {
        self.vector
    }

    /// Takes up to `most` completions. If none is there, looks what the sockets have, and tries again.
    pub fn poll(&self, most: usize, mut each: impl FnMut(Completion)) -> Result<usize, Overrun> {
        let found = self.cq.poll(most, &mut each)?;
        if found > 0 {
            polled(found);
            return Ok(found);
        }
        if self.cq.is_armed() {
            // Who has asked for an event looks once more before it sleeps. It will not poll the sockets again until it is
            // woken: they stay with the lane, or nobody would look at them until the lane finds that out.
            self.serve(Set::hand_over);
        } else {
            self.progress();
        }
        let found = self.cq.poll(most, &mut each)?;
        polled(found);
        Ok(found)
    }

    /// Asks for one event at the next completion; it comes through the [handler](Self::set_handler). Returns whether a
    /// completion is there already.
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

    /// Moves it to another completion handler, or to none (*Modify CQ*, requirement N4). Nothing is lost or doubled. Its queue pairs are
    /// served as the new handler's class has it (requirement N6).
    pub fn set_handler(self: &Arc<Self>, handler: Option<&Arc<CompletionHandler>>) {
        let next = handler.map_or_else(Weak::new, Arc::downgrade);
        let before = std::mem::replace(&mut *lock(&self.handler), next).upgrade();
        if let Some(before) = before {
            before.serves_no_more(self);
        }
        self.cq.set_handler(handler.map(|handler| Arc::clone(handler.inner())));
        let followed = match handler {
            Some(handler) => {
                handler.serves(self);
                self.follow(handler)
            }
            None => self.set_class(Class::USUAL),
        };
        if let Err(error) = followed {
            tracing::warn!(%error, cq = self.cq.id(), "its queue pairs stay on the lanes where they are");
        }
    }

    /// Takes over the class of a handler, if it still is its own.
    pub(crate) fn follow(&self, handler: &CompletionHandler) -> io::Result<()> {
        match std::ptr::eq(lock(&self.handler).as_ptr(), handler) {
            true => self.set_class(handler.class()),
            false => Ok(()),
        }
    }

    /// How urgent it is what completes here.
    pub(crate) fn class(&self) -> Class {
        self.class.get()
    }

    fn set_class(&self, class: Class) -> io::Result<()> {
        let before = self.class();
        self.class.set(class);
        if (before == Class::LowLatency) == (class == Class::LowLatency) {
            return Ok(()); // they stay on their lanes
        }
        let connections: Vec<_> = self.sets().iter().flat_map(|set| set.connections()).collect();
        let own = connections.iter().filter(|it| std::ptr::eq(&raw const **it.pair().receive_cq(), self));
        own.into_iter().try_for_each(|connection| self.steering.settle(connection))
    }

    /// Waits until a completion is there, or `timeout` is over; true if one is.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, WaitError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let spin = Instant::now() + SPIN;
        loop {
            self.progress();
            if self.cq.overrun() || !self.cq.is_empty() {
                return if self.cq.is_empty() { Err(Overrun { cq: self.cq.id() }.into()) } else { Ok(true) };
            }
            if self.has_stopped() {
                return Err(WaitError::Stopped);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            if now >= spin {
                let left = deadline.map(|deadline| deadline - now);
                let slept = self.sleepers.sleep(|| self.sets().clone(), left, || self.has_stopped());
                if let Err(error) = slept {
                    self.reports.fail(&format_args!("a thread cannot wait for completions: {error}"));
                    std::thread::sleep(FLUSHED); // nothing can wake it for what the lanes flush now
                }
            }
        }
    }

    /// Whether nothing completes any more: the adapter has stopped, and its lanes have let go of all connections.
    fn has_stopped(&self) -> bool {
        self.reports.is_stopped() && self.cq.is_empty() && self.sets().iter().all(|set| set.len() == 0)
    }

    /// Moves what the sockets have. From now on that is for the program to do.
    pub fn progress(&self) {
        self.serve(Set::polled);
    }

    /// Moves what the sockets have, once it is settled who does so after this. If nothing completes, the caller is about to go idle.
    fn serve(&self, settle: impl Fn(&Set)) {
        let sets = self.sets();
        // One socket is asked itself: one call instead of two. Unless it is full: the kernel tells when it is worth while
        // to send again, which is not as soon as there is room for a byte.
        if let Some(set) = lone(&sets)
            && set.len() == 1
            && let Some(connection) = set.only()
            && !connection.qp().is_blocked()
        {
            settle(set);
            connection.qp().poll(if VAIN.get() < EAGER { 1 } else { LOOKS });
            if self.cq.is_empty() {
                set.acknowledge_with(Some(&connection));
            } else if connection.is_alone_in(set) {
                set.acknowledge_if_left();
            } else {
                connection.qp().acknowledge(); // it got company, or was moved, and nobody else knows what came of this
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

    /// The set of its sockets on a lane.
    pub(crate) fn set_on(&self, lane: &Arc<Lane>) -> io::Result<Arc<Set>> {
        let known = self.sets().iter().find(|set| Arc::ptr_eq(set.lane(), lane)).cloned();
        let set = known.map_or_else(|| Set::new(lane), Ok)?;
        self.add_set(&set);
        Ok(set)
    }

    pub(crate) fn add_set(&self, set: &Arc<Set>) {
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        if sets.iter().all(|known| !Arc::ptr_eq(known, set)) {
            sets.push(Arc::clone(set));
            set.looked_at_by(&self.cq);
        }
    }

    pub(crate) fn sets(&self) -> RwLockReadGuard<'_, Vec<Arc<Set>>> {
        self.sets.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The only set with sockets in it. When all of a lane's connections were moved, theirs is empty.
#[inline]
fn lone(sets: &[Arc<Set>]) -> Option<&Arc<Set>> {
    if let [set] = sets {
        return Some(set);
    }
    let mut occupied = sets.iter().filter(|set| set.len() > 0);
    occupied.next().filter(|_| occupied.next().is_none())
}

impl Drop for CompletionQueue {
    /// Nobody will ask for its events, and no queue pair uses it.
    fn drop(&mut self) {
        self.cq.shut_down();
        self.reports.revoke(|event| event == AsyncEvent::CqError(self.cq.id()));
    }
}

#[cfg(test)]
mod tests;
