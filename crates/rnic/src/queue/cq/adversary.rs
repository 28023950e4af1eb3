//! A completion queue with an adversary, which holds completions and events back: they are added and raised later, some at
//! a time.

use super::super::Completion;
use super::held::{Draw, Held};
use super::{Cq, PushBatch};
use crate::adversary::{Adversary, Choice};
use crate::event::{Moderated, Timer};
use crate::sync::lock;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a timer calls to add completions that were held back.
#[derive(Debug)]
pub struct HeldTimer(Weak<Cq>);

impl Cq {
    /// Has the adversary hold completions back. `timer` calls the [`HeldTimer`] of this queue. Called before the queue is
    /// used.
    pub fn set_adversary(&self, adversary: &Arc<Adversary>, timer: Arc<dyn Timer>) {
        let mut ring = lock(&self.ring);
        let capacity = std::mem::take(&mut ring.capacity); // every completion finds the ring full
        ring.held = Some(Box::new(Held::new(adversary, self.id, capacity, timer)));
    }

    /// Adds all completions that the adversary holds back, and raises their event. The adapter ends, and with it the timers.
    pub fn release_held(&self) {
        let ring = lock(&self.ring);
        let lane = ring.held_lane;
        let mut batch = self.push_batch(|| lane);
        batch.ring = Some(ring);
        let Some(held) = batch.held() else { return };
        let completions = std::mem::take(&mut held.completions);
        if std::mem::take(&mut held.event) {
            batch.raise();
        }
        completions.into_iter().for_each(|completion| batch.append(completion));
    }

    /// Creates what the timer of [`set_adversary`](Self::set_adversary) calls.
    pub fn held_timer(self: &Arc<Self>) -> Arc<HeldTimer> {
        Arc::new(HeldTimer(Arc::downgrade(self)))
    }
}

impl<L: Fn() -> u16> PushBatch<'_, L> {
    /// Appends a completion to a queue with an adversary, or holds it back. Returns false if the queue is full, or has
    /// no adversary.
    pub(super) fn push_adversely(&mut self, completion: Completion) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        if ring.overrun || ring.total_len() >= ring.max_len() {
            return false;
        }
        let Some(held) = &mut ring.held else { return false };
        match held.draw(&completion) {
            Draw::Add => {
                let before = std::mem::take(&mut held.completions);
                before.into_iter().chain([completion]).for_each(|completion| self.append(completion));
            }
            Draw::Hold { delay, early_event } => {
                held.adversary.record(Choice::LateCompletion);
                held.completions.push_back(completion);
                held.start_timer(delay);
                ring.held_lane = (self.lane)();
                if early_event && ring.armed.is_some() && !self.due {
                    if let Some(held) = &ring.held {
                        held.adversary.record(Choice::EarlyEvent);
                    }
                    self.raise();
                }
            }
        }
        true
    }

    /// Appends a completion, and finds out whether an event is due. The adversary may hold the event back.
    fn append_held(&mut self, completion: Completion) {
        let Some(ring) = &mut self.ring else { return };
        let due = ring.is_due(completion.raises_solicited_event());
        let Some(held) = &mut ring.held else { return };
        let late = due && (held.event || held.timer_rng.below(4) == 0);
        if late {
            if !std::mem::replace(&mut held.event, true) {
                held.adversary.record(Choice::LateEvent);
            }
            let wakes = completion.raises_solicited_event();
            ring.append(completion, wakes);
        } else {
            self.append(completion);
        }
    }
}

impl Moderated for HeldTimer {
    /// Adds some of the completions that were held back, and raises the event that was.
    fn on_timer(&self) {
        let Some(cq) = self.0.upgrade() else { return };
        let ring = lock(&cq.ring);
        let lane = ring.held_lane;
        let mut batch = cq.push_batch(|| lane);
        batch.ring = Some(ring);
        let Some(held) = batch.held() else { return };
        held.timer_runs = false;
        let raise = std::mem::take(&mut held.event);
        let count = held.completions.len() as u64;
        // All in half of the cases, so that many completions do not take many times as long.
        let taken = if held.timer_rng.below(2) == 0 { count } else { count.min(1 + held.timer_rng.below(4)) };
        if raise {
            batch.raise();
        }
        for _ in 0..taken {
            let Some(completion) = batch.held().and_then(Held::take_any) else { break };
            batch.append_held(completion);
        }
        if let Some(held) = batch.held()
            && (held.event || !held.completions.is_empty())
        {
            let after = Duration::from_micros(held.timer_rng.below(2000));
            held.start_timer(after);
        }
    }
}

impl<L: Fn() -> u16> PushBatch<'_, L> {
    /// The completions that are held back.
    fn held(&mut self) -> Option<&mut Held> {
        self.ring.as_mut()?.held.as_deref_mut()
    }

    /// Raises the event of an armed queue when the queue is unlocked.
    fn raise(&mut self) {
        if let Some(ring) = &mut self.ring
            && ring.armed.take().is_some()
        {
            self.due = true;
            self.cq.armed.store(false, crate::sync::atomic::Ordering::Relaxed);
        }
    }
}
