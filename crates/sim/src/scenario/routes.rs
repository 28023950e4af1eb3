//! Random requests of both programs to send by another route or to leave shared memory, and offers of shared memory.

use super::random::pick;
use crate::trace::Trace;
use crate::world::OFFER_STEP;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::Qp;
use std::array;
use std::collections::BTreeSet;

/// Maximum number of requests of a run. Each causes events, so that a run with too many would never end.
const MAX_REQUESTS: u32 = 200;

/// The requests of a run. Their random numbers are independent of all others: without requests, a run is the same as if
/// there were one route only.
#[derive(Debug)]
pub(super) struct RouteRequests {
    rng: Rng,
    /// Which ends announce that they can share memory.
    pub(super) announces: [bool; 2],
    /// Average number of turns between two requests. Zero if there are no requests.
    odds: u64,
    /// Number of requests that may still be made.
    left: u32,
    /// The random numbers of requests to leave shared memory, which are independent of all others.
    leave_rng: Rng,
    /// Average number of turns between two requests to leave. Zero if there are none.
    leave_odds: u64,
    /// The connections that have begun to leave.
    leaving: BTreeSet<usize>,
}

impl RouteRequests {
    /// Chooses the frequency of requests at random.
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 2);
        let odds = pick(&mut rng, &[0, 4, 32, 256]);
        let only_one = rng.below(8) == 0;
        let announces = [odds > 0, odds > 0 && !only_one];
        let mut leave_rng = Rng::stream(seed, 5);
        let leave_odds = if odds > 0 { pick(&mut leave_rng, &[0, 0, 64, 512]) } else { 0 };
        let leaving = BTreeSet::new();
        Self { rng, announces, odds, left: MAX_REQUESTS, leave_rng, leave_odds, leaving }
    }

    /// Returns a random connection of this number of connections, and which of its ends leaves shared memory now, if one
    /// does.
    pub(super) fn next_to_leave(&mut self, connections: usize) -> Option<(usize, usize)> {
        if self.leave_odds == 0 || self.leave_rng.below(self.leave_odds) > 0 {
            return None;
        }
        let connection = usize::try_from(self.leave_rng.below(connections as u64)).ok()?;
        Some((connection, usize::from(self.leave_rng.below(2) == 0)))
    }

    /// Has an end of a connection leave shared memory.
    pub(super) fn leave(&mut self, connection: usize, who: usize, qp: &Qp, trace: &Trace) {
        if qp.leave_shared_memory() {
            trace.note(who, format_args!("{} leaves shared memory", qp.id()));
            self.leaving.insert(connection);
        }
    }

    /// Returns the connections that have begun to leave since the last call.
    pub(super) fn take_leaving(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.leaving)
    }

    /// Returns a random connection of this number of connections, if a request of one of its ends is due.
    pub(super) fn next(&mut self, connections: usize) -> Option<usize> {
        if self.odds == 0 || self.left == 0 || self.rng.below(self.odds) > 0 {
            return None;
        }
        self.left -= 1;
        usize::try_from(self.rng.below(connections as u64)).ok()
    }

    /// Has one of the ends of a connection send by a random route, or make an offer.
    pub(super) fn act(&mut self, qps: [&Qp; 2], trace: &Trace) {
        let who = usize::from(self.rng.below(2) == 0);
        if self.rng.below(16) == 0 {
            let mut byte = self.rng.next().to_be_bytes()[0];
            return qps[who].offer(array::from_fn(|_| {
                byte = byte.wrapping_add(OFFER_STEP);
                byte
            }));
        }
        // Sometimes the last of several requests counts.
        for _ in 0..=self.rng.below(2) {
            let route = pick(&mut self.rng, &[Route::Tcp, Route::SharedMemory]);
            trace.note(who, format_args!("{} is to send by {route}", qps[who].id()));
            qps[who].switch_route(route);
        }
    }
}
