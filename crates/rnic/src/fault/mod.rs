//! Fault injection, by the simulator or by the user of a real adapter.
//!
//! Protocol code knows nothing of it. A [`FaultyLink`] sits between a stream and its link; the device calls
//! [`ReceiveFaults::should_withhold_receive`] and [`Faults::should_fail_registration`]. A [`FaultPlan`] says what may happen
//! and how often, and a seed says when: the same seed and the same sequence of calls cause the same faults. Every
//! link and every stream has a random sequence of its own, so that threads do not influence each other.

mod link;
mod plan;
mod rng;
#[cfg(test)]
mod tests;

pub use link::FaultyLink;
pub use plan::{BadPlan, Chance, FaultPlan};
pub use rng::Rng;

use crate::sync::{Mutex, lock};
use plan::Time;
use std::collections::VecDeque;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of faults listed; older ones are only counted.
const LISTED: usize = 256;

/// How long a receive is withheld before it is looked for again.
const WITHHELD_FOR: Duration = Duration::from_millis(1);

/// The random sequences derived from a seed and a stream number.
#[derive(Clone, Copy, Debug)]
enum Sequence {
    Send,
    Recv,
    Receives,
    Registrations,
}

/// The driver of a stream, as fault injection sees it: a lane of the engine, or the simulator.
pub trait Pacer: Send + Sync + fmt::Debug {
    /// The time since an arbitrary start.
    fn now(&self) -> Duration;

    /// Has both halves of the stream driven again when this much time has passed, by [`now`](Self::now), and not
    /// earlier. Must not drive them itself, because the caller holds one of them.
    fn schedule(&self, after: Duration);
}

/// A plan, its seed, and the faults injected so far.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    seed: u64,
    registrations: Mutex<Rng>,
    log: Mutex<Log>,
}

/// Faults that withhold receives from one stream.
#[derive(Debug)]
pub struct ReceiveFaults {
    faults: Arc<Faults>,
    stream: u64,
    pacer: Arc<dyn Pacer>,
    receives: Mutex<Rng>,
}

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// Only the first bytes were passed on.
    Split,
    /// One direction was delayed.
    Delay(Duration),
    /// Both directions were delayed.
    Stall(Duration),
    /// The connection was reset.
    Cut,
    /// A posted receive was withheld.
    WithheldReceive,
    /// A registration failed.
    FailedRegistration,
}

/// Number of faults injected, by kind.
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

/// A report of the faults injected. Prints as a few lines, beginning with the plan and the seed that reproduce
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The plan.
    pub plan: FaultPlan,
    /// The seed.
    pub seed: u64,
    /// The number of faults by kind.
    pub counts: Counts,
    /// The most recent faults and their streams. Splits are left out, because they would displace all others.
    pub recent: Vec<(Option<u64>, Injected)>,
}

#[derive(Debug, Default)]
struct Log {
    counts: Counts,
    recent: VecDeque<(Option<u64>, Injected)>,
}

impl Faults {
    /// Creates faults for this plan. Note the seed of a failure, to reproduce it.
    pub fn new(plan: FaultPlan, seed: u64) -> Arc<Self> {
        let registrations = Mutex::new(sequence(seed, 0, Sequence::Registrations));
        Arc::new(Self { plan, seed, registrations, log: Mutex::default() })
    }

    /// The faults that withhold receives from a stream.
    pub fn receive_faults(self: &Arc<Self>, stream: u64, pacer: Arc<dyn Pacer>) -> ReceiveFaults {
        let receives = Mutex::new(sequence(self.seed, stream, Sequence::Receives));
        ReceiveFaults { faults: Arc::clone(self), stream, pacer, receives }
    }

    /// Whether a registration is to fail, as if the device had no room for it. Called at every registration.
    pub fn should_fail_registration(&self) -> bool {
        let fails = lock(&self.registrations).hits(self.plan.no_register);
        if fails {
            self.note(None, Injected::FailedRegistration, format_args!("a registration"));
        }
        fails
    }

    /// The faults injected so far.
    pub fn report(&self) -> Report {
        let log = lock(&self.log);
        let recent = log.recent.iter().copied().collect();
        Report { plan: self.plan, seed: self.seed, counts: log.counts, recent }
    }

    fn note(&self, stream: Option<u64>, fault: Injected, at: fmt::Arguments<'_>) {
        tracing::debug!(stream, %at, %fault, "injected fault");
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

impl ReceiveFaults {
    /// Whether to treat a posted receive as missing. Called when a message needs a receive. If so, the halves of
    /// the stream are driven again soon, and this is called again.
    pub fn should_withhold_receive(&self) -> bool {
        let withheld = lock(&self.receives).hits(self.faults.plan.no_receive);
        if withheld {
            self.faults.note(Some(self.stream), Injected::WithheldReceive, format_args!("a message"));
            self.pacer.schedule(WITHHELD_FOR);
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
