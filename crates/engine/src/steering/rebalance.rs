//! Chooses connections to move from a lane with a high load to one with a low load (requirement I9).
//!
//! The data path only counts how often each connection was served. Everything else is measured when a busy lane
//! compares the lanes: at most every tenth of a second, and never while all lanes are idle.

use crate::reactor::lane::Lane;
use crate::reactor::member::Movable;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Minimum interval between two comparisons of the lanes' loads.
const INTERVAL: Duration = Duration::from_millis(100);
/// Age from which the last measurement is not compared with: the load has changed since.
const STALE: Duration = Duration::from_secs(1);

/// Compares the loads of the lanes.
#[derive(Debug)]
pub(super) struct Rebalancer {
    /// Load from which a lane gives connections away, in thousandths of a processor.
    limit: u64,
    last: Mutex<Measurement>,
}

/// The last measurement.
#[derive(Debug)]
struct Measurement {
    at: Instant,
    /// Processor time that each lane had used since it started.
    busy: Vec<Duration>,
    /// The lane whose load was above the limit. The serve counts of its connections were reset then. `None` if no
    /// lane's load was.
    hot: Option<usize>,
}

impl Rebalancer {
    /// Creates a rebalancer for this many lanes. `percent` is the load from which a lane gives connections away.
    /// Returns `None` if it is zero, or there is only one lane.
    pub(super) fn new(percent: u16, lanes: usize) -> Option<Self> {
        let last = Measurement { at: Instant::now(), busy: vec![Duration::ZERO; lanes], hot: None };
        (percent > 0 && lanes > 1).then(|| Self { limit: u64::from(percent) * 10, last: Mutex::new(last) })
    }

    /// Measures the loads of the lanes, and chooses a connection to move and the lane to move it to: the one with the
    /// lowest load that gets any. `movable` returns the connections that a lane may give away, and `fits` returns
    /// whether a connection may move to a lane.
    ///
    /// The same lane must be too busy in two measurements in a row: one may be chance, and the first only resets the
    /// serve counts of the connections, which the second compares.
    pub(super) fn choose(
        &self,
        lanes: &[Arc<Lane>],
        movable: impl FnOnce(usize) -> Vec<Arc<dyn Movable>>,
        fits: impl Fn(&dyn Movable, usize) -> bool,
    ) -> Option<(Arc<dyn Movable>, usize)> {
        let mut last = self.last.try_lock().ok()?; // fails if another lane is here
        let now = Instant::now();
        let elapsed = now - last.at;
        // A lane may run before the list of all lanes is complete.
        if elapsed < INTERVAL || lanes.is_empty() {
            return None;
        }
        let busy: Vec<_> = lanes.iter().map(|lane| lane.load().busy).collect();
        let used = busy.iter().zip(&last.busy).map(|(now, before)| now.saturating_sub(*before));
        let loads: Vec<_> = used.map(|used| per_mille(used, elapsed)).collect();
        let was_hot = last.hot.take();
        (last.at, last.busy) = (now, busy);
        let (from, others) = find_imbalance(&loads, self.limit).filter(|_| elapsed < STALE)?;
        last.hot = Some(from);
        let mut connections = movable(from);
        let counts: Vec<_> = connections.iter().map(|connection| connection.take_serve_count()).collect();
        if was_hot != Some(from) {
            return None;
        }
        let (chosen, to) = others.into_iter().find_map(|to| {
            let may_move = |index: usize| fits(&*connections[index], to);
            Some((choose_connection(&counts, loads[from], loads[to], may_move)?, to))
        })?;
        Some((connections.swap_remove(chosen), to))
    }
}

/// Returns `used` in thousandths of `elapsed`.
fn per_mille(used: Duration, elapsed: Duration) -> u64 {
    u64::try_from(used.as_micros() * 1000 / elapsed.as_micros().max(1)).unwrap_or(u64::MAX)
}

/// Returns the lane with the highest load, if that reaches the limit, and the lanes with less than half of it, the lowest
/// load first. Returns `None` if there are no such lanes.
fn find_imbalance(loads: &[u64], limit: u64) -> Option<(usize, Vec<usize>)> {
    // The first of several with the same load.
    let most = (0..loads.len()).rev().max_by_key(|lane| loads[*lane])?;
    let mut others: Vec<_> = (0..loads.len()).filter(|lane| loads[*lane] < loads[most] / 2).collect();
    others.sort_by_key(|lane| loads[*lane]);
    (loads[most] >= limit && !others.is_empty()).then_some((most, others))
}

/// Chooses the connection to move, by index, from how often each connection of a lane was served. `from` is the load of
/// that lane, `to` the load of the other one; `may_move` returns whether a connection may move there.
///
/// A connection causes the part of `from` that its count is of all counts. The connection with the highest load is
/// chosen among those whose move does not make the other lane the busier one. So no connection moves back and forth,
/// and one that causes all the load stays.
fn choose_connection(counts: &[u64], from: u64, to: u64, may_move: impl Fn(usize) -> bool) -> Option<usize> {
    let total: u64 = counts.iter().sum();
    let load = |index: usize| from * counts[index] / total.max(1);
    // After the move, the loads are `from - load` and `to + load`.
    (0..counts.len())
        .filter(|index| load(*index) > 0 && 2 * load(*index) <= from - to && may_move(*index))
        .max_by_key(|index| load(*index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_unequal_if_one_has_much_and_another_less_than_half_of_it() {
        assert_eq!(find_imbalance(&[900, 300, 100], 500), Some((0, vec![2, 1])));
        assert_eq!(find_imbalance(&[100, 499], 500), None, "below the limit");
        assert_eq!(find_imbalance(&[900, 450], 500), None, "the lower load is half of the higher");
        assert_eq!(find_imbalance(&[0, 0], 500), None);
        assert_eq!(find_imbalance(&[700], 500), None, "there is no other lane");
    }

    /// Every connection may move.
    fn any(_: usize) -> bool {
        true
    }

    #[test]
    fn the_largest_that_leaves_both_better_off_is_chosen() {
        assert_eq!(choose_connection(&[10, 50, 40], 1000, 0, any), Some(1));
        assert_eq!(
            choose_connection(&[10, 50, 40], 1000, 150, any),
            Some(2),
            "the half of 1000 would make the other lane the busier one"
        );
        assert_eq!(choose_connection(&[100], 1000, 0, any), None, "it causes all the load");
        assert_eq!(choose_connection(&[99, 1, 0], 1000, 0, any), Some(1));
        assert_eq!(choose_connection(&[0, 0], 1000, 0, any), None, "they cause no load");
        assert_eq!(choose_connection(&[], 1000, 0, any), None);
        assert_eq!(
            choose_connection(&[10, 50, 40], 1000, 0, |index| index == 0),
            Some(0),
            "the others must stay"
        );
    }

    /// After a move, the lane that received the connection never has a higher load than the lane that gave it away. So
    /// moves end.
    #[test]
    fn nothing_goes_back_and_forth() {
        let (mut lanes, mut moves) = ([vec![7, 7, 30, 100, 3], vec![20]], 0);
        let sum = |lane: &Vec<u64>| lane.iter().sum::<u64>();
        while let Some((from, others)) = find_imbalance(&[sum(&lanes[0]), sum(&lanes[1])], 10)
            && let [to] = others[..]
            && let Some(index) = choose_connection(&lanes[from], sum(&lanes[from]), sum(&lanes[to]), any)
        {
            let load = lanes[from].remove(index);
            lanes[to].push(load);
            assert!(sum(&lanes[to]) <= sum(&lanes[from]));
            moves += 1;
            assert!(moves < 10, "{lanes:?}");
        }
        assert!(moves > 0);
    }
}
