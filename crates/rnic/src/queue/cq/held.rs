//! Completions that the adversary holds back, and what it draws for a completion queue.

use super::super::{Completion, Status};
use crate::adversary::{Adversary, Sequence};
use crate::event::Timer;
use crate::fault::Rng;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The completions that are held back, and what the adversary draws.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) adversary: Arc<Adversary>,
    /// What is drawn for each completion.
    rng: Rng,
    /// What is drawn when the timer expires: apart, because the number of times depends on time.
    pub(super) timer_rng: Rng,
    /// Maximum number of completions, held back or not.
    pub(super) capacity: usize,
    /// The completions, the oldest first.
    pub(super) completions: VecDeque<Completion>,
    /// Adds some of the completions when it expires.
    timer: Arc<dyn Timer>,
    pub(super) timer_runs: bool,
    /// An event for completions in the queue is held back.
    pub(super) event: bool,
}

/// What is to be done with the next completion of a queue with an adversary.
pub(super) enum Draw {
    /// Add it.
    Add,
    /// Hold it back for this time, or until the timer expires that runs already.
    Hold {
        delay: Duration,
        /// Raise an event without a completion, if a consumer waits.
        early_event: bool,
    },
}

impl Held {
    /// Creates the state for a queue with this number, which has none yet.
    pub(super) fn new(adversary: &Arc<Adversary>, cq: u32, capacity: usize, timer: Arc<dyn Timer>) -> Self {
        let mut rng = adversary.sequence(Sequence::Completions, cq.into());
        Self {
            timer_rng: Rng::stream(rng.next(), 0),
            rng,
            adversary: Arc::clone(adversary),
            capacity,
            completions: VecDeque::new(),
            timer,
            timer_runs: false,
            event: false,
        }
    }

    /// Draws what happens to a completion. Completions are held back behind others, too. A failure is not held back,
    /// and neither are those before it: the adapter may be about to stop, with its timers.
    pub(super) fn draw(&mut self, completion: &Completion) -> Draw {
        let (delay, early_event) = (self.adversary.draw_delay(&mut self.rng), self.rng.below(4) == 0);
        match delay {
            _ if completion.status != Status::Success => Draw::Add,
            None if self.completions.is_empty() => Draw::Add,
            _ => Draw::Hold { delay: delay.unwrap_or_default(), early_event },
        }
    }

    /// Starts the timer, unless it runs.
    pub(super) fn start_timer(&mut self, after: Duration) {
        if !std::mem::replace(&mut self.timer_runs, true) {
            self.timer.start(after);
        }
    }

    /// Takes one of the completions: the oldest one of a queue pair that is drawn.
    pub(super) fn take_any(&mut self) -> Option<Completion> {
        let drawn = usize::try_from(self.timer_rng.below(self.completions.len() as u64)).unwrap_or(0);
        let qp = self.completions.get(drawn)?.qp;
        let oldest = self.completions.iter().position(|completion| completion.qp == qp)?;
        self.completions.remove(oldest)
    }
}
