//! Chooses queue pairs to move from a lane with much load to one with little (requirement I9).
//!
//! The only thing measured on the data path is how often each connection was served. The rest is read when a busy lane checks: at
//! most every tenth of a second, and never while all lanes are idle.

use crate::reactor::lane::Lane;
use crate::reactor::member::Movable;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval between two comparisons of the lanes' loads.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time after which an earlier measurement says nothing about the load now.
const STALE: Duration = Duration::from_secs(1);

/// What was measured when the lanes were last compared.
#[derive(Debug)]
pub(super) struct Rebalancer {
    /// Load above which a lane gives queue pairs away, in thousandths of a processor.
    hot: u64,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    /// The processor time of each lane.
    busy: Vec<Duration>,
    /// The lane whose load was above the limit then. Its connections have been counted since.
    hot: Option<usize>,
}

impl Rebalancer {
    /// `None` if there is only one lane, or rebalancing is off.
    pub(super) fn new(percent: u16, lanes: usize) -> Option<Self> {
        let seen = Seen { at: Instant::now(), busy: vec![Duration::ZERO; lanes], hot: None };
        (percent > 0 && lanes > 1).then(|| Self { hot: u64::from(percent) * 10, seen: Mutex::new(seen) })
    }

    /// Chooses a connection to move, and the lane to move it to. `movable` returns the connections that a lane may give away.
    pub(super) fn choose(
        &self,
        lanes: &[Arc<Lane>],
        movable: impl FnOnce(usize) -> Vec<Arc<dyn Movable>>,
    ) -> Option<(Arc<dyn Movable>, usize)> {
        let mut seen = self.seen.try_lock().ok()?; // or another lane compares
        let now = Instant::now();
        let elapsed = now - seen.at;
        if elapsed < INTERVAL || lanes.is_empty() {
            return None; // a lane may run before all have started
        }
        let busy: Vec<_> = lanes.iter().map(|lane| lane.load().busy).collect();
        let used = busy.iter().zip(&seen.busy).map(|(now, before)| now.saturating_sub(*before));
        let loads: Vec<_> = used.map(|used| share(used, elapsed)).collect();
        let counted = seen.hot.take();
        (seen.at, seen.busy) = (now, busy);
        let (from, to) = unequal(&loads, self.hot).filter(|_| elapsed < STALE)?;
        seen.hot = Some(from);
        let mut connections = movable(from);
        let counts: Vec<_> = connections.iter().map(|connection| connection.take_serve_count()).collect();
        // One measurement may be chance, and the counts are of the time between two.
        let which = choose(&counts, loads[from], loads[to]).filter(|_| counted == Some(from))?;
        Some((connections.swap_remove(which), to))
    }
}

/// Thousandths of the time passed that were used.
fn share(used: Duration, passed: Duration) -> u64 {
    u64::try_from(used.as_micros() * 1000 / passed.as_micros().max(1)).unwrap_or(u64::MAX)
}

/// The lane with the highest load, if that is above the limit, and the one with the lowest, if that is less than half as high.
fn unequal(loads: &[u64], hot: u64) -> Option<(usize, usize)> {
    let (most, least) = (0..loads.len()).fold((0, 0), |(most, least), lane| {
        (
            if loads[lane] > loads[most] { lane } else { most },
            if loads[lane] < loads[least] { lane } else { least },
        )
    });
    (loads[most] >= hot && loads[least] < loads[most] / 2).then_some((most, least))
}

/// The connection to move, given how often each was served: the one with the largest part of the load that does not give the other
/// lane the higher load. So nothing is moved back and forth, and a connection that is all the load stays.
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

    /// The lane that was given a connection never has a higher load than the one that gave it.
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
