//! Freezes a completion queue (requirement X2): takes its completions out, so that nobody can poll them, and restores them
//! in another queue.

use super::{Arm, Cq};
use crate::queue::Completion;
use crate::sync::lock;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Maximum number of completions of a queue that is restored: as many as programs can ask for through verbs. A queue
/// allocates room for all of them at once.
pub(super) const MAX_CAPACITY: usize = 1 << 22;

/// A completion queue cannot move, because it is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "completion queue {cq} with room for {capacity} completions cannot move: resize it to {MAX_CAPACITY} at most"
)]
pub struct CqTooLarge {
    /// The number of the queue.
    pub cq: u32,
    /// Maximum number of completions.
    pub capacity: usize,
}

/// The state of a completion queue that is frozen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FrozenCq {
    /// The number of the queue.
    pub id: u32,
    /// Maximum number of completions.
    pub capacity: usize,
    completions: VecDeque<Completion>,
    armed: Option<Arm>,
    overrun: bool,
    /// An event was raised that the consumer has not taken.
    event: bool,
}

impl Cq {
    /// Returns whether the queue can be restored after it was [frozen](Self::freeze).
    pub fn check_movable(&self) -> Result<(), CqTooLarge> {
        match self.capacity() {
            0..=MAX_CAPACITY => Ok(()),
            capacity => Err(CqTooLarge { cq: self.id, capacity }),
        }
    }

    /// Takes all completions and the arming out of the queue. The caller has frozen all queue pairs that use it.
    pub fn freeze(&self) -> FrozenCq {
        let event = lock(&self.target).take_untaken();
        let mut ring = lock(&self.ring);
        ring.add_held();
        let completions = ring.completions.drain(..).collect(); // the queue keeps its memory
        ring.waking = 0;
        let frozen = FrozenCq {
            id: self.id,
            capacity: ring.max_len(),
            completions,
            armed: ring.armed.take(),
            overrun: ring.overrun,
            event,
        };
        self.armed.store(false, Ordering::Relaxed);
        self.ready.store(ring.ready(), Ordering::Relaxed);
        frozen
    }

    /// Puts the state of a frozen queue into this one: the same, or one that was created for it. If the queue was armed,
    /// and has completions that the consumer may not know of, raises the event.
    pub fn thaw(&self, frozen: FrozenCq) {
        let FrozenCq { completions, armed, overrun, event, .. } = frozen;
        if armed.is_some() || event {
            lock(&self.target).prepare();
        }
        let mut ring = lock(&self.ring);
        // Before those that were added meanwhile, in the memory of this queue.
        completions.into_iter().rev().for_each(|completion| ring.completions.push_front(completion));
        ring.waking = ring.completions.iter().filter(|one| one.raises_solicited_event()).count();
        ring.overrun |= overrun;
        ring.armed = ring.armed.max(armed);
        let due = match ring.armed {
            None => false,
            Some(Arm::Next) => ring.overrun || !ring.completions.is_empty(),
            Some(Arm::Solicited) => ring.overrun || ring.waking > 0,
        };
        if due {
            ring.armed = None;
        }
        self.armed.store(ring.armed.is_some(), Ordering::Relaxed);
        self.ready.store(ring.ready(), Ordering::Relaxed);
        drop(ring); // before the event is raised (requirement N9)
        if due || event {
            lock(&self.target).raise(self.id, 0);
        }
        self.wake_sleepers();
    }
}

impl FrozenCq {
    /// Returns whether the state is one that a queue can have.
    pub(crate) fn is_consistent(&self) -> bool {
        self.completions.len() <= self.capacity && self.capacity <= MAX_CAPACITY
    }

    /// Forgets the completions, for a build that must be found to lose them.
    pub(crate) fn forget_completions(&mut self) {
        self.completions.clear();
    }

    /// Forgets that the queue is armed, for a build that must be found to lose events.
    pub(crate) fn forget_arming(&mut self) {
        self.armed = None;
    }
}
