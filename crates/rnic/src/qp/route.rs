//! Offers shared memory to the peer, and requests another route for the bytes that this end sends.

use super::Qp;
use crate::link::Route;
use crate::outbound::MAX_OFFERS;
use ironwarp_wire::private::OFFER_LEN;

impl Qp {
    /// Sends an offer of shared memory to the peer, between two messages. Does nothing unless both ends have announced the
    /// capability `SHARED_MEMORY`. An offer replaces one before it that was not sent in full. The peer accepts at most 16
    /// offers, so further ones are not sent.
    pub fn offer(&self, offer: [u8; OFFER_LEN]) {
        let mut obligations = self.obligations.lock();
        if !obligations.peer_shares_memory() || obligations.offers == MAX_OFFERS {
            return;
        }
        obligations.offers += 1;
        obligations.offer = Some(Box::new(offer));
        drop(obligations);
        self.drive_tx();
    }

    /// Requests that this end sends by `route` from the next FPDU boundary on. The last request counts. The peer
    /// chooses the route of the other direction.
    ///
    /// A request for shared memory is ignored unless both ends have announced the capability `SHARED_MEMORY`. They do not
    /// announce it if markers were agreed in either direction, because the positions of markers count the bytes of TCP.
    pub fn switch_route(&self, route: Route) {
        let mut obligations = self.obligations.lock();
        if obligations.route == route || (route == Route::SharedMemory && !obligations.peer_shares_memory()) {
            return;
        }
        obligations.route = route;
        drop(obligations);
        self.drive_tx();
    }
}
