//! Moves queue pairs from a lane with much to do to one with little (requirement I9). Before this: a lane that has woken many times;
//! after: [`Steering::transfer`].
//!
//! Nothing is measured while messages are moved but how often each connection was served. The rest is read when a busy lane looks: a
//! tenth of a second apart at least, and never while all are idle.

use super::Steering;
use crate::class::Class;
use crate::connection::Connection;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// So far apart the lanes' loads are compared.
const INTERVAL: Duration = Duration::from_millis(100);
/// After so much time without a look, what was used in it says nothing of now.
const STALE: Duration = Duration::from_secs(1);

/// What was seen when the lanes were last compared.
#[derive(Debug)]
pub(super) struct Rebalancer {
    /// A lane with more than so many thousandths of a processor has much to do.
    hot: u64,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    /// The processor time of each lane.
    busy: Vec<Duration>,
    /// The lane that had much to do then. Its connections are counted since.
    hot: Option<usize>,
}

impl Rebalancer {
    /// One for so many lanes, if there is something to choose from and to do.
    pub(super) fn new(percent: u16, lanes: usize) -> Option<Self> {
        let seen = Seen { at: Instant::now(), busy: vec![Duration::ZERO; lanes], hot: None };
        (percent > 0 && lanes > 1).then(|| Self { hot: u64::from(percent) * 10, seen: Mutex::new(seen) })
    }
}

impl Steering {
    /// Compares the lanes, and moves one queue pair if that helps. Called by lanes that are busy.
    pub(crate) fn rebalance(&self) {
        let Some((connection, to)) = self.compare() else { return };
        // It may have become urgent since.
        let still = || connection.pair().receive_cq().class() != Class::LowLatency;
        match self.transfer_if(&connection, &self.running()[to], still) {
            Ok(()) => tracing::debug!(qp = connection.qp().id(), to, "moved to a lane with less to do"),
            Err(error) => tracing::debug!(qp = connection.qp().id(), %error, "not moved"),
        }
    }

    /// What to move to which lane.
    fn compare(&self) -> Option<(Arc<Connection>, usize)> {
        let rebalancer = self.rebalancer.as_ref()?;
        let mut seen = rebalancer.seen.try_lock().ok()?; // or another lane looks
        let now = Instant::now();
        let elapsed = now - seen.at;
        if elapsed < INTERVAL {
            return None;
        }
        let lanes = self.running();
        if lanes.is_empty() {
            return None; // the first of them was faster than who starts them
        }
        let busy: Vec<_> = lanes.iter().map(|lane| lane.load().busy).collect();
        let used = busy.iter().zip(&seen.busy).map(|(now, before)| now.saturating_sub(*before));
        let loads: Vec<_> = used.map(|used| share(used, elapsed)).collect();
        let counted = seen.hot.take();
        (seen.at, seen.busy) = (now, busy);
        let (from, to) = unequal(&loads, rebalancer.hot).filter(|_| elapsed < STALE)?;
        seen.hot = Some(from);
        let mut connections = self.movable(from);
        let counts: Vec<_> = connections.iter().map(|connection| connection.take_count()).collect();
        // One look is chance, and the counts are of the time between two.
        let which = choose(&counts, loads[from], loads[to]).filter(|_| counted == Some(from))?;
        Some((connections.swap_remove(which), to))
    }

    /// The connections that are on this lane because they were steered there, and that it serves: those that programs poll cost it nothing.
    fn movable(&self, lane: usize) -> Vec<Arc<Connection>> {
        let sets = self.running()[lane].all_sets();
        let served = sets.iter().flat_map(|set| set.served_by_lane());
        served.filter(|connection| self.named_by(connection.pair().receive_cq()).is_none()).collect()
    }
}

/// How many thousandths of the time that has passed were used.
fn share(used: Duration, passed: Duration) -> u64 {
    u64::try_from(used.as_micros() * 1000 / passed.as_micros().max(1)).unwrap_or(u64::MAX)
}

/// The lane with the most to do, if that is much, and the one with the least, if that is less than half as much.
fn unequal(loads: &[u64], hot: u64) -> Option<(usize, usize)> {
    let (most, least) = (0..loads.len()).fold((0, 0), |(most, least), lane| {
        (
            if loads[lane] > loads[most] { lane } else { most },
            if loads[lane] < loads[least] { lane } else { least },
        )
    });
    (loads[most] >= hot && loads[least] < loads[most] / 2).then_some((most, least))
}

/// The connection to move, given how often each was served: the one with the largest part of the load that does not make the other
/// lane the one with more to do. So what was moved is not moved back, and one connection that is all the load stays.
fn choose(counts: &[u64], from: u64, to: u64) -> Option<usize> {
    let total: u64 = counts.iter().sum();
    let load = |which: usize| from * counts[which] / total.max(1);
    (0..counts.len())
        .filter(|which| load(*which) > 0 && 2 * load(*which) <= from - to)
        .max_by_key(|which| load(*which))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_unequal_if_one_has_much_and_another_less_than_half_of_it() {
        assert_eq!(unequal(&[900, 300, 100], 500), Some((0, 2)));
        assert_eq!(unequal(&[100, 499], 500), None, "that is not much");
        assert_eq!(unequal(&[900, 450], 500), None, "that is half");
        assert_eq!(unequal(&[0, 0], 500), None);
        assert_eq!(unequal(&[700], 500), None, "there is no other");
    }

    #[test]
    fn the_largest_that_leaves_both_better_off_is_chosen() {
        assert_eq!(choose(&[10, 50, 40], 1000, 0), Some(1));
        assert_eq!(choose(&[10, 50, 40], 1000, 150), Some(2), "half of what they differ in");
        assert_eq!(choose(&[100], 1000, 0), None, "it would only be elsewhere");
        assert_eq!(choose(&[99, 1, 0], 1000, 0), Some(1));
        assert_eq!(choose(&[0, 0], 1000, 0), None, "they are not what the lane does");
        assert_eq!(choose(&[], 1000, 0), None);
    }

    /// Whatever the loads are, who was given something does not have more to do than who gave it.
    #[test]
    fn nothing_goes_back_and_forth() {
        let (mut lanes, mut moves) = ([vec![7, 7, 30, 100, 3], vec![20]], 0);
        let sum = |lane: &Vec<u64>| lane.iter().sum::<u64>();
        while let Some((from, to)) = unequal(&[sum(&lanes[0]), sum(&lanes[1])], 10)
            && let Some(which) = choose(&lanes[from], sum(&lanes[from]), sum(&lanes[to]))
        {
            let load = lanes[from].remove(which);
            lanes[to].push(load);
            assert!(sum(&lanes[to]) <= sum(&lanes[from]));
            moves += 1;
            assert!(moves < 10, "{lanes:?}");
        }
        assert!(moves > 0);
    }
}
