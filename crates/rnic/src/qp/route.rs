//! Offers shared memory to the peer, requests another route for the bytes that this end sends, and leaves shared memory.

use super::Qp;
use crate::half::Left;
use crate::link::{Link, Route};
use crate::outbound::{Leaving, MAX_OFFERS};
use ironwarp_wire::private::OFFER_LEN;
use std::sync::Arc;

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
        if !obligations.may_share_memory() || obligations.offers == MAX_OFFERS {
            return;
        }
        obligations.set_offer(offer);
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
        if obligations.route == route || (route == Route::SharedMemory && !obligations.may_share_memory()) {
            return;
        }
        obligations.route = route;
        drop(obligations);
        self.drive_tx();
    }

    /// Leaves shared memory for the rest of the connection (requirement X2): this end sends by TCP from the next FPDU
    /// boundary on, and asks the peer to do the same. [`has_left_shared_memory`](Self::has_left_shared_memory) tells when
    /// both have done so; the driver is called then as well. The stream goes on meanwhile, and nothing is lost.
    ///
    /// Returns false, and does nothing, if the peer has not announced that it knows the request.
    pub fn leave_shared_memory(&self) -> bool {
        let mut obligations = self.obligations.lock();
        let can_leave = obligations.peer_leaves_memory();
        if can_leave {
            obligations.begin_leaving();
        }
        drop(obligations);
        if can_leave {
            self.drive_tx();
        }
        can_leave
    }

    /// Whether the peer knows the request to leave shared memory.
    pub fn can_leave_shared_memory(&self) -> bool {
        self.obligations.lock().peer_leaves_memory()
    }

    /// Whether the stream has left shared memory for good: both directions are on TCP, and each end has received everything
    /// that the other has sent by shared memory.
    pub fn has_left_shared_memory(&self) -> bool {
        self.obligations.lock().leaving.contains(Leaving::DONE)
    }

    /// Whether neither direction uses shared memory now. Unless the stream [has left](Self::has_left_shared_memory) it,
    /// the peer may be about to use it.
    pub fn is_on_tcp(&self) -> bool {
        self.send_route() == Route::Tcp && self.recv_route() == Route::Tcp
    }

    /// Puts another link in place of the one that both halves use. It must continue the same stream: nothing is lost or
    /// repeated. Links that are in between, for injected faults for example, stay.
    ///
    /// Waits for threads that drive the halves.
    pub fn replace_link(&self, link: &Arc<dyn Link>) {
        let ((), tx_left) = self.tx.with(|half| half.iter_mut().for_each(|tx| tx.replace_link(link)));
        let ((), rx_left) = self.rx.with(|half| half.iter_mut().for_each(|rx| rx.replace_link(link)));
        self.finish_turn(if tx_left == Left::Work { tx_left } else { rx_left });
    }
}
