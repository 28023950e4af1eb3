//! Random requests of both programs to send by another route, and offers of shared memory.

use super::random::pick;
use crate::trace::Trace;
use crate::world::OFFER_STEP;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::Qp;
use std::array;

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
}

impl RouteRequests {
    /// Chooses the frequency of requests at random.
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 2);
        let odds = pick(&mut rng, &[0, 4, 32, 256]);
        let only_one = rng.below(8) == 0;
        let announces = [odds > 0, odds > 0 && !only_one];
        Self { rng, announces, odds, left: MAX_REQUESTS }
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
