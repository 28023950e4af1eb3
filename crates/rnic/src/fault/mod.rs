//! Faults, made on purpose: the seam at which a simulator, or the user of a real adapter, lets things go wrong.
//!
//! They are outside of all protocol code. A [`FaultyLink`] stands between a stream and the link that carries it; the device
//! puts two questions, [`Asks::withhold_receive`] and [`Faults::fail_registration`]. A [`FaultPlan`] says what may
//! happen and how often, a seed says when: the same seed and the same sequence of calls meet the same faults. Every link
//! and every asker has a sequence of its own, so that what one thread does changes nothing for another.

mod link;
mod plan;
mod rng;
#[cfg(test)]
mod tests;

pub use link::FaultyLink;
pub use plan::{BadPlan, Chance, FaultPlan};
pub use rng::Rng;

use crate::link::Link;
use crate::sync::{Mutex, lock};
use plan::Time;
use std::collections::VecDeque;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

/// How many faults are listed; older ones are only counted.
const LISTED: usize = 256;

/// How long a receive is withheld before it is looked for again.
const WITHHELD_FOR: Duration = Duration::from_millis(1);

/// Which of the sequences of a seed and a number is whose.
#[derive(Clone, Copy, Debug)]
enum Sequence {
    Send,
    Recv,
    Receives,
    Registrations,
}

/// The driver of a stream, as its faults need it: a lane of the engine, or the simulator.
pub trait Pacer: Send + Sync + fmt::Debug {
    /// The time, from any beginning.
    fn now(&self) -> Duration;

    /// Sees to it that both halves of the stream are driven once more when so much time has passed, by [`now`](Self::now),
    /// and not before. It does not drive them itself: whoever calls this holds one of them.
    fn call_again(&self, after: Duration);
}

/// A plan, its seed, and what came of it.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    seed: u64,
    registrations: Mutex<Rng>,
    log: Mutex<Log>,
}

/// The question that the receiving half of one stream asks.
#[derive(Debug)]
pub struct Asks {
    faults: Arc<Faults>,
    stream: u64,
    pacer: Arc<dyn Pacer>,
    receives: Mutex<Rng>,
}

/// A fault that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// Only some first bytes were passed.
    Split,
    /// One direction waited.
    Delay(Duration),
    /// Both directions waited.
    Stall(Duration),
    /// The connection was reset.
    Cut,
    /// A receive that was posted was not found.
    WithheldReceive,
    /// Memory was not registered.
    FailedRegistration,
}

/// How often each fault was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Injected::Split`]
    pub splits: u64,
    /// [`Injected::Delay`]
    pub delays: u64,
    /// [`Injected::Stall`]
    pub stalls: u64,
    /// [`Injected::Cut`]
    pub cuts: u64,
    /// [`Injected::WithheldReceive`]
    pub withheld_receives: u64,
    /// [`Injected::FailedRegistration`]
    pub failed_registrations: u64,
}

/// What [`Faults`] did. Prints as a few lines, first the plan and the seed that would do it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What might have gone wrong.
    pub plan: FaultPlan,
    /// What chose.
    pub seed: u64,
    /// What did, in numbers.
    pub counts: Counts,
    /// The last of them, and the streams they happened to; splits, which would push out all others, are not among them.
    pub recent: Vec<(Option<u64>, Injected)>,
}

#[derive(Debug, Default)]
struct Log {
    counts: Counts,
    recent: VecDeque<(Option<u64>, Injected)>,
}

impl Faults {
    /// Faults by this plan. A seed that someone saw a failure with is worth noting down.
    pub fn new(plan: FaultPlan, seed: u64) -> Arc<Self> {
        let registrations = Mutex::new(sequence(seed, 0, Sequence::Registrations));
        Arc::new(Self { plan, seed, registrations, log: Mutex::default() })
    }

    /// Puts faults between a stream and its link. The number of the stream, together with the seed, decides which.
    pub fn link(
        self: &Arc<Self>,
        stream: u64,
        inner: Arc<dyn Link>,
        pacer: Arc<dyn Pacer>,
    ) -> Arc<FaultyLink> {
        Arc::new(FaultyLink::new(self, stream, inner, pacer))
    }

    /// The question for the receiving half of a stream.
    pub fn asks(self: &Arc<Self>, stream: u64, pacer: Arc<dyn Pacer>) -> Asks {
        let receives = Mutex::new(sequence(self.seed, stream, Sequence::Receives));
        Asks { faults: Arc::clone(self), stream, pacer, receives }
    }

    /// Asked at a registration of memory: whether it fails, as if the device had no room for it.
    pub fn fail_registration(&self) -> bool {
        let fails = lock(&self.registrations).hits(self.plan.no_register);
        if fails {
            self.note(None, Injected::FailedRegistration, format_args!("a registration"));
        }
        fails
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        let log = lock(&self.log);
        let recent = log.recent.iter().copied().collect();
        Report { plan: self.plan, seed: self.seed, counts: log.counts, recent }
    }

    fn note(&self, stream: Option<u64>, fault: Injected, at: fmt::Arguments<'_>) {
        tracing::debug!(stream, %at, %fault, "a fault was made");
        let mut log = lock(&self.log);
        *log.counts.of(fault) += 1;
        if fault == Injected::Split {
            return;
        }
        if log.recent.len() == LISTED {
            log.recent.pop_front();
        }
        log.recent.push_back((stream, fault));
    }
}

impl Asks {
    /// Asked when a message needs a receive and one is posted: whether to go on as if none were. If so, the halves of the
    /// stream will be driven again in a moment, and the question is asked anew.
    pub fn withhold_receive(&self) -> bool {
        let withheld = lock(&self.receives).hits(self.faults.plan.no_receive);
        if withheld {
            self.faults.note(Some(self.stream), Injected::WithheldReceive, format_args!("a message"));
            self.pacer.call_again(WITHHELD_FOR);
        }
        withheld
    }
}

fn sequence(seed: u64, stream: u64, which: Sequence) -> Rng {
    let mut of_stream = Rng::stream(seed, stream);
    Rng::stream(of_stream.next(), which as u64)
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.splits += more.splits;
        self.delays += more.delays;
        self.stalls += more.stalls;
        self.cuts += more.cuts;
        self.withheld_receives += more.withheld_receives;
        self.failed_registrations += more.failed_registrations;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { splits, delays, stalls, cuts, withheld_receives, failed_registrations } = self;
        write!(f, "{splits} splits, {delays} delays, {stalls} stalls, {cuts} cuts, ")?;
        write!(f, "{withheld_receives} withheld receives, {failed_registrations} failed registrations")
    }
}

impl Counts {
    const fn of(&mut self, fault: Injected) -> &mut u64 {
        match fault {
            Injected::Split => &mut self.splits,
            Injected::Delay(_) => &mut self.delays,
            Injected::Stall(_) => &mut self.stalls,
            Injected::Cut => &mut self.cuts,
            Injected::WithheldReceive => &mut self.withheld_receives,
            Injected::FailedRegistration => &mut self.failed_registrations,
        }
    }
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Split => f.write_str("split"),
            Self::Delay(time) => write!(f, "delay of {}", Time(*time)),
            Self::Stall(time) => write!(f, "stall of {}", Time(*time)),
            Self::Cut => f.write_str("cut"),
            Self::WithheldReceive => f.write_str("withheld receive"),
            Self::FailedRegistration => f.write_str("failed registration"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faults {}, seed {}\n{}", self.plan, self.seed, self.counts)?;
        for (stream, fault) in &self.recent {
            match stream {
                Some(stream) => write!(f, "\nstream {stream}: {fault}")?,
                None => write!(f, "\ndevice: {fault}")?,
            }
        }
        Ok(())
    }
}
