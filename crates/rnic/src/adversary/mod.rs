//! The adversary: choices that the specifications leave to an adapter, made against the program.
//!
//! A program that relies on what is not promised works until an adapter, a driver or a network does something else that
//! is lawful. The adversary does these things, at random and reproducibly: `docs/adversary.md` lists them, with what
//! allows each of them. Like a [fault](crate::fault), a choice is made outside of the protocol code. Links and
//! completion queues have the adversary only if the device has one.

mod counts;
mod seed;
#[cfg(test)]
mod tests;

pub use counts::{Choice, Counts};
pub use seed::{AdversarySeed, InvalidSeed};

use crate::fault::Rng;
use counts::Counters;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bound on a delay.
const MAX_DELAY: Duration = Duration::from_millis(2);
/// Upper bound on the delay of an event of a connection, in microseconds. Longer than that of messages, so that messages can
/// overtake it.
const MAX_EVENT_DELAY: u64 = 20_000;
/// Lower bound on a delay. Timers of lanes count in milliseconds, so the real delays are longer.
const MIN_DELAY: Duration = Duration::from_micros(50);

/// The random sequences that are derived from a seed and the number of an object.
#[derive(Clone, Copy, Debug)]
pub enum Sequence {
    /// What is sent on a stream.
    Send,
    /// What arrives on a stream.
    Receive,
    /// The completions of a queue.
    Completions,
    /// The datagrams of a queue pair.
    Datagrams,
    /// The events of an event channel.
    Events,
}

/// The adversary of a device.
#[derive(Debug)]
pub struct Adversary {
    seed: u64,
    /// One of this many arrivals, sends and completions is delayed. Differs between seeds: some bugs need many delays,
    /// others a long time without any.
    one_in: u64,
    counters: Counters,
    /// The numbers of the next objects of each kind that are numbered by the adversary.
    next: [AtomicU64; 5],
}

impl Adversary {
    /// Creates the adversary of a seed.
    pub fn new(seed: u64) -> Arc<Self> {
        let one_in = 4 << Rng::new(seed).below(4);
        Arc::new(Self { seed, one_in, counters: Counters::default(), next: Default::default() })
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of choices made so far, by kind.
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Counts a choice.
    pub fn record(&self, choice: Choice) {
        self.counters.count(choice);
    }

    /// Returns the number of the next object with this kind of sequence.
    pub fn next_number(&self, sequence: Sequence) -> u64 {
        self.next[sequence as usize].fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the random sequence of the object with this number. Objects of one kind are numbered in the order in
    /// which the program creates them.
    pub fn sequence(&self, sequence: Sequence, number: u64) -> Rng {
        let mut of_object = Rng::stream(self.seed, number);
        Rng::stream(of_object.next(), 0x100 + sequence as u64)
    }

    /// Draws whether to delay an arrival, a send or a completion, and for how long.
    pub fn draw_delay(&self, rng: &mut Rng) -> Option<Duration> {
        // Two draws in either case, so that what follows does not depend on the outcome.
        let (hit, delay) = (rng.below(self.one_in) == 0, draw_time(rng));
        hit.then_some(delay)
    }

    /// Draws whether the event of a connection is late, and by how much.
    pub fn draw_event_delay(&self, rng: &mut Rng) -> Option<Duration> {
        let (hit, delay) = (rng.below(2) == 0, rng.below(MAX_EVENT_DELAY));
        hit.then_some(Duration::from_micros(delay))
    }

    /// Draws whether to lose a datagram.
    pub fn draws_loss(&self, rng: &mut Rng) -> bool {
        rng.below(64 * self.one_in) == 0
    }
}

/// Draws a time. Short times are more likely than long ones.
fn draw_time(rng: &mut Rng) -> Duration {
    let range = u64::try_from((MAX_DELAY - MIN_DELAY).as_micros()).unwrap_or(u64::MAX);
    let most = rng.below(range) + 1;
    MIN_DELAY + Duration::from_micros(rng.below(most))
}
