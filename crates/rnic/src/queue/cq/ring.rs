//! The completions of a completion queue and its arming, which one lock protects.

use super::super::Completion;
use super::super::moderation::{EventDecision, ModerationState};
use super::held::Held;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Which completion raises the event of an armed queue (requirement N8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Arm {
    /// The next completion that is solicited or reports an error.
    Solicited,
    /// The next completion.
    Next,
}

/// The completions of a queue, and the arming.
#[derive(Debug)]
pub(super) struct Ring {
    /// Maximum number of completions. Zero if the adversary holds completions back, which has the real number.
    pub(super) capacity: usize,
    /// The completions to be polled, the oldest first.
    pub(super) completions: VecDeque<Completion>,
    /// Number of `completions` that raise the event of a queue armed with [`Arm::Solicited`].
    pub(super) waking: usize,
    /// The completion that raises an event. `None` if the queue is not armed.
    pub(super) armed: Option<Arm>,
    /// Whether the queue was armed once, so that its handler is [ready](super::EventTarget::prepare) for events.
    pub(super) may_raise: bool,
    /// A completion was lost.
    pub(super) overrun: bool,
    /// The clock for the times of completions. `None` if they need none.
    pub(super) clock: Option<fn() -> u64>,
    /// The events that moderation holds back. `None` without moderation.
    pub(super) moderation: Option<ModerationState>,
    /// The lane that an event belongs to which is held back.
    pub(super) held_lane: u16,
    /// The completions that the adversary holds back. `None` without an adversary.
    pub(super) held: Option<Box<Held>>,
}

/// The bit of [`Cq::ready`](super::Cq::ready) that is set after a completion was lost.
pub(super) const OVERRUN: usize = 1 << (usize::BITS - 1);

impl Ring {
    /// Creates an empty ring for `capacity` completions.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            completions: VecDeque::with_capacity(capacity),
            waking: 0,
            armed: None,
            may_raise: false,
            overrun: false,
            clock: None,
            moderation: None,
            held_lane: 0,
            held: None,
        }
    }

    /// Adds all completions that are held back, without events.
    pub(super) fn add_held(&mut self) {
        let Some(held) = &mut self.held else { return };
        let completions = std::mem::take(&mut held.completions);
        for completion in completions {
            let wakes = completion.raises_solicited_event();
            self.append(completion, wakes);
        }
    }

    /// Maximum number of completions, also if the adversary holds some back.
    pub(super) fn max_len(&self) -> usize {
        self.held.as_ref().map_or(self.capacity, |held| held.capacity)
    }

    /// Number of completions to be polled, or held back by the adversary.
    pub(super) fn total_len(&self) -> usize {
        self.completions.len() + self.held.as_ref().map_or(0, |held| held.completions.len())
    }

    /// Whether a completion can be added.
    pub(super) fn has_room(&self) -> bool {
        !self.overrun && self.completions.len() < self.capacity
    }

    /// Appends a completion, for which there must be [room](Self::has_room).
    #[inline]
    pub(super) fn append(&mut self, mut completion: Completion, wakes: bool) {
        if let Some(clock) = self.clock {
            completion.time = clock();
        }
        self.completions.push_back(completion);
        self.waking += usize::from(wakes);
    }

    /// Computes the value of [`Cq::ready`](super::Cq::ready).
    pub(super) fn ready(&self) -> usize {
        self.completions.len() | if self.overrun { OVERRUN } else { 0 }
    }

    /// Whether the queue is armed for a completion. `wakes` tells whether that is solicited or reports an error.
    pub(super) fn is_due(&self, wakes: bool) -> bool {
        self.armed.is_some_and(|arm| arm == Arm::Next || wakes)
    }

    /// Decides whether the event that is due is raised now or held back, and disarms the queue if it is raised: there
    /// is one event for each arming (requirement I2). Moderation does not hold the event of a failure back.
    pub(super) fn decide_event(&mut self, failed: bool) -> EventDecision {
        let decision = match &mut self.moderation {
            None => EventDecision::Raise,
            Some(moderation) if failed => {
                moderation.reset_count();
                EventDecision::Raise
            }
            Some(moderation) => moderation.count_completion(),
        };
        if let EventDecision::Raise = decision {
            self.armed = None;
        }
        decision
    }
}
