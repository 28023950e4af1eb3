//! The administrative state of a port: whether it was taken down, and who is to know.

use crate::sys::socket::TcpLink;
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Number of ports of this process that are down.
static DOWN: AtomicUsize = AtomicUsize::new(0);

/// Number of times that a port of this process went down or up.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// The administrative state of a port.
#[derive(Debug, Default)]
pub(super) struct AdminState {
    down: AtomicBool,
}

/// Learns that a port of a device was taken down, or up again.
pub(crate) trait PortObserver: Send + Sync + fmt::Debug {
    /// Applies the states that the ports have now. Called by the thread that changed one, or by a lane. Must not block.
    fn on_port_state(self: Arc<Self>);
}

/// The observers of a device.
#[derive(Debug, Default)]
pub(super) struct Observers {
    list: Mutex<Vec<Weak<dyn PortObserver>>>,
    /// Locked while a change is applied.
    applying: Mutex<()>,
    /// Sockets of connections that were given up while their port was down.
    kept: Mutex<Vec<Arc<TcpLink>>>,
}

/// A step of a plan: when, which port, and whether it goes up.
pub(super) type Step = (Duration, u8, bool);

/// The progress of the plan of a device.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The time at which the device was first opened, and the steps in the order of their times. `None` before that.
    steps: Option<(Instant, Vec<Step>)>,
    /// Number of steps that were taken.
    taken: usize,
}

impl Plan {
    /// Begins the plan now, unless it has begun. Returns the times of the steps that were not taken.
    pub(super) fn begin(&mut self, steps: impl FnOnce() -> Vec<Step>) -> Vec<Instant> {
        let (began, steps) = self.steps.get_or_insert_with(|| {
            let mut steps = steps();
            steps.sort_by_key(|(at, ..)| *at);
            (Instant::now(), steps)
        });
        steps[self.taken..].iter().map(|(at, ..)| *began + *at).collect()
    }

    /// Takes the next step, if it is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(u8, bool)> {
        let (began, steps) = self.steps.as_ref()?;
        let (at, port, up) = *steps.get(self.taken)?;
        if *began + at > now {
            return None;
        }
        self.taken += 1;
        Some((port, up))
    }
}

/// A port was named that the device does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no port {port}: device {device} has {ports}")]
#[non_exhaustive]
pub struct NoSuchPort {
    /// The number given.
    pub port: u8,
    /// The name of the device.
    pub device: String,
    /// Number of ports of the device.
    pub ports: usize,
}

impl From<NoSuchPort> for io::Error {
    fn from(error: NoSuchPort) -> Self {
        Self::new(io::ErrorKind::NotFound, error)
    }
}

impl AdminState {
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    /// Takes the port down, or up. Returns whether that is a change.
    pub(super) fn set_down(&self, down: bool) -> bool {
        let changed = self.down.swap(down, Ordering::SeqCst) != down;
        match (changed, down) {
            (true, true) => DOWN.fetch_add(1, Ordering::SeqCst),
            (true, false) => DOWN.fetch_sub(1, Ordering::SeqCst),
            (false, _) => 0,
        };
        CHANGES.fetch_add(changed.into(), Ordering::SeqCst);
        changed
    }
}

/// Returns whether a port of this process is down.
pub(crate) fn any_is_down() -> bool {
    DOWN.load(Ordering::SeqCst) > 0
}

/// Returns the number of times that a port of this process went down or up.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::SeqCst)
}

impl Observers {
    /// Adds an observer.
    pub(super) fn add(&self, observer: Weak<dyn PortObserver>) {
        let mut list = lock(&self.list);
        list.retain(|observer| observer.strong_count() > 0);
        list.push(observer);
    }

    /// Removes an observer.
    pub(super) fn remove(&self, observer: &Weak<dyn PortObserver>) {
        let is_other = |other: &Weak<dyn PortObserver>| !std::ptr::addr_eq(other.as_ptr(), observer.as_ptr());
        lock(&self.list).retain(is_other);
    }

    /// Keeps a socket open until the next change.
    pub(super) fn keep(&self, link: Arc<TcpLink>) {
        lock(&self.kept).push(link);
    }

    /// Returns the sockets that were kept. Dropping them closes those that nothing else uses.
    pub(super) fn take_kept(&self) -> Vec<Arc<TcpLink>> {
        std::mem::take(&mut lock(&self.kept))
    }

    /// Calls all observers.
    pub(super) fn notify(&self) {
        let list: Vec<_> = lock(&self.list).iter().filter_map(Weak::upgrade).collect();
        list.into_iter().for_each(PortObserver::on_port_state);
    }

    /// Calls a function that changes or applies the state of a port, one at a time.
    pub(super) fn while_stable<R>(&self, act: impl FnOnce() -> R) -> R {
        let _applying = lock(&self.applying);
        act()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_a_plan_is_taken_once_and_in_order() {
        let seconds = Duration::from_secs;
        let mut plan = Plan::default();
        assert_eq!(plan.take_due(Instant::now()), None);
        let times =
            plan.begin(|| vec![(seconds(20), 1, false), (seconds(30), 1, true), (seconds(10), 2, false)]);
        assert_eq!((times[1] - times[0], times[2] - times[0]), (seconds(10), seconds(20)));
        assert_eq!(plan.take_due(times[0] - seconds(1)), None);
        assert_eq!(plan.take_due(times[0]), Some((2, false)));
        assert_eq!(plan.take_due(times[0]), None);
        assert_eq!(plan.begin(Vec::new), times[1..], "it has begun");
        assert_eq!(plan.take_due(times[2]), Some((1, false)));
        assert_eq!(plan.take_due(times[2]), Some((1, true)));
        assert_eq!(plan.take_due(times[2]), None);
    }
}
