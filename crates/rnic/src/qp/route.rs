//! Offers shared memory to the peer, and requests another route for the bytes that this end sends.

use super::Qp;
use crate::half::Left;
use crate::link::Route;
use crate::outbound::MAX_OFFERS;
use ironwarp_wire::private::OFFER_LEN;

impl Qp {
    /// Blocks the link of the stream, or lets it pass again: while it is blocked, nothing is sent or received. Returns
    /// whether that changed anything. The caller has to drive the queue pair when the link is not blocked any more.
    ///
    /// Waits for threads that drive the halves.
    pub fn set_link_blocked(&self, blocked: bool) -> bool {
        let ((), tx_left) = self.tx.with(|half| half.iter_mut().for_each(|tx| tx.set_link_blocked(blocked)));
        let (changed, rx_left) =
            self.rx.with(|half| half.as_mut().is_some_and(|rx| rx.set_link_blocked(blocked)));
        self.finish_turn(if tx_left == Left::Work { tx_left } else { rx_left });
        changed
    }

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
