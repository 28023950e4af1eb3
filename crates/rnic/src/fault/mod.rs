//! Fault injection, by the simulator or by the user of a real adapter.
//!
//! Protocol code does not know about fault injection. A [`FaultyLink`] is put between a stream and its link; the
//! device calls [`ReceiveFaults::should_withhold_receive`] and [`Faults::should_fail_registration`]. A [`FaultPlan`]
//! determines which faults happen and how often, and a seed determines when: the same seed and the same sequence of
//! calls cause the same faults. Each direction of a stream, its receives, and the registrations of the device have
//! their own random sequences, so that threads do not influence each other.

mod link;
mod plan;
mod rng;
#[cfg(test)]
mod tests;

pub use link::FaultyLink;
pub use plan::{BadPlan, Chance, FaultPlan};
pub use rng::Rng;

use crate::recording::{Kind, record};
use crate::sync::{Mutex, lock};
use plan::Time;
use std::collections::VecDeque;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of faults in [`Report::recent`]. Older faults are only counted.
const MAX_RECENT: usize = 256;

/// Time between withholding a receive and trying to take it again.
const WITHHOLD_TIME: Duration = Duration::from_millis(1);

/// The random sequences that are derived from a seed and a stream number.
#[derive(Clone, Copy, Debug)]
enum Sequence {
    Send,
    Recv,
    Receives,
    Registrations,
}

/// The clock and timer of a stream, implemented by its driver: the engine or the simulator.
pub trait Pacer: Send + Sync + fmt::Debug {
    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;

    /// Makes another thread drive both halves of the stream when this much time has passed on the clock of
    /// [`now`](Self::now), and not earlier. Must not drive the halves itself, because the caller holds one of them.
    fn schedule(&self, after: Duration);
}

/// The fault injection of a device: a plan, a seed, and a log of the faults injected so far.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    seed: u64,
    /// Draws the registrations that fail.
    registrations: Mutex<Rng>,
    log: Mutex<Log>,
}

/// Withholds posted receives from one stream.
#[derive(Debug)]
pub struct ReceiveFaults {
    faults: Arc<Faults>,
    stream: Stream,
    pacer: Arc<dyn Pacer>,
    /// Draws the receives that are withheld.
    receives: Mutex<Rng>,
}

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// A call passed on only the first bytes that it was offered.
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

/// The stream into which faults are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The number, which with the seed determines the faults.
    pub number: u64,
    /// The number of its queue pair, for the flight recorder. Zero if it has none.
    pub qp: u32,
}

impl From<u64> for Stream {
    fn from(number: u64) -> Self {
        Self { number, qp: 0 }
    }
}

/// The names of injected faults, in the order of their kinds.
pub(crate) const NAMES: [&str; 6] =
    ["split", "delay", "stall", "cut connection", "withheld receive", "failed registration"];

impl Injected {
    /// Returns the index of the fault in [`NAMES`].
    const fn number(self) -> u32 {
        match self {
            Self::Split => 0,
            Self::Delay(_) => 1,
            Self::Stall(_) => 2,
            Self::Cut => 3,
            Self::WithheldReceive => 4,
            Self::FailedRegistration => 5,
        }
    }
}

/// The number of faults injected, by kind.
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

/// A report of the faults injected. Prints as several lines, of which the first has the plan and the seed that
/// reproduce the faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The plan.
    pub plan: FaultPlan,
    /// The seed.
    pub seed: u64,
    /// The number of faults by kind.
    pub counts: Counts,
    /// The most recent faults, each with the number of its stream (`None` for the device), oldest first. Splits are
    /// left out, because they would displace all others.
    pub recent: Vec<(Option<u64>, Injected)>,
}

/// The faults injected so far, as in [`Report`].
#[derive(Debug, Default)]
struct Log {
    counts: Counts,
    recent: VecDeque<(Option<u64>, Injected)>,
}

impl Faults {
    /// Creates the fault injection of a device. The seed reproduces the faults of an earlier run.
    pub fn new(plan: FaultPlan, seed: u64) -> Arc<Self> {
        let registrations = Mutex::new(rng_for(seed, 0, Sequence::Registrations));
        Arc::new(Self { plan, seed, registrations, log: Mutex::default() })
    }

    /// Creates the faults that withhold receives from the stream with this number.
    pub fn receive_faults(
        self: &Arc<Self>,
        stream: impl Into<Stream>,
        pacer: Arc<dyn Pacer>,
    ) -> ReceiveFaults {
        let stream = stream.into();
        let receives = Mutex::new(rng_for(self.seed, stream.number, Sequence::Receives));
        ReceiveFaults { faults: Arc::clone(self), stream, pacer, receives }
    }

    /// Draws whether a registration is to fail, as if the table were full. Called for every registration.
    pub fn should_fail_registration(&self) -> bool {
        let fails = lock(&self.registrations).hits(self.plan.no_register);
        if fails {
            self.record(None, Injected::FailedRegistration, format_args!("a registration"));
        }
        fails
    }

    /// Returns a report of the faults injected so far.
    pub fn report(&self) -> Report {
        let log = lock(&self.log);
        let recent = log.recent.iter().copied().collect();
        Report { plan: self.plan, seed: self.seed, counts: log.counts, recent }
    }

    /// Logs, records and counts a fault of a stream, or of the device if `None`. `at` says where it was injected.
    fn record(&self, stream: Option<Stream>, fault: Injected, at: fmt::Arguments<'_>) {
        record(Kind::Fault, stream.map_or(0, |stream| stream.qp), fault.number());
        let stream = stream.map(|stream| stream.number);
        tracing::debug!(stream, %at, %fault, "injected fault");
        let mut log = lock(&self.log);
        *log.counts.count_mut(fault) += 1;
        if fault == Injected::Split {
            return;
        }
        if log.recent.len() == MAX_RECENT {
            log.recent.pop_front();
        }
        log.recent.push_back((stream, fault));
    }
}

impl ReceiveFaults {
    /// Draws whether to treat a posted receive as missing. Called when a message needs a receive. If true, the stream
    /// is driven again soon, and this is called again for the same message.
    pub fn should_withhold_receive(&self) -> bool {
        let withheld = lock(&self.receives).hits(self.faults.plan.no_receive);
        if withheld {
            self.faults.record(Some(self.stream), Injected::WithheldReceive, format_args!("a message"));
            self.pacer.schedule(WITHHOLD_TIME);
        }
        withheld
    }
}

/// Returns the generator of a random sequence.
fn rng_for(seed: u64, stream: u64, which: Sequence) -> Rng {
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
    /// Returns the counter for this kind of fault.
    const fn count_mut(&mut self, fault: Injected) -> &mut u64 {
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
