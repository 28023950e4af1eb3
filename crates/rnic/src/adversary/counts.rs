//! Counts the choices of the adversary.

use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of kinds of choices.
const KINDS: usize = 9;

/// A choice of the adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A segment that has arrived was processed later.
    LateArrival,
    /// Payload was placed before that of earlier segments, or before the rest of its own segment.
    EarlyPlacement,
    /// Other bytes were placed where payload was about to be.
    OtherBytes,
    /// Posted requests or acknowledgements were sent later.
    LateSend,
    /// A completion was made available later.
    LateCompletion,
    /// A completion event was raised without a completion.
    EarlyEvent,
    /// A completion event was raised later than its completion.
    LateEvent,
    /// An event of a connection was reported later.
    LateConnectionEvent,
    /// A datagram was lost.
    LostDatagram,
}

/// The number of choices of an adversary, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; KINDS]);

/// The counts of an adversary, which all threads change.
#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; KINDS]);

impl Counts {
    /// The number of choices of this kind.
    pub fn of(&self, choice: Choice) -> u64 {
        self.0[choice as usize]
    }
}

impl Counters {
    pub(super) fn count(&self, choice: Choice) {
        self.0[choice as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts(std::array::from_fn(|kind| self.0[kind].load(Ordering::Relaxed)))
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.0.iter_mut().zip(more.0).for_each(|(count, more)| *count += more);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [arrivals, early, other, sends, completions, spurious, events, connections, datagrams] = self.0;
        write!(
            f,
            "{arrivals} late arrivals, {early} early placements, {other} of other bytes, {sends} late sends, \
             {completions} late completions, {spurious} events without completion, {events} late events, \
             {connections} late connection events, {datagrams} lost datagrams"
        )
    }
}
