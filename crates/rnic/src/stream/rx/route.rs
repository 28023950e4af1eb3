//! Handles the signals about routes: collects the parts of an offer of shared memory, follows a switch to another route,
//! and leaves shared memory when the peer asks for it.

use super::Rx;
use super::failure::{Checked, RxFailure};
use super::offer::{Added, OfferParts};
use crate::blocked::set_blocked;
use crate::broken;
use crate::context::QpContext;
use crate::error::Protocol;
use crate::link::{Link, Route, replace_link};
use crate::outbound::{Leaving, MAX_OFFERS, RouteSignals};
use crate::stream::framing_on;
use ironwarp_wire::mpa::FpduReader;
use ironwarp_wire::private::Signal;
use ironwarp_wire::{Dialect, MAX_HEADER};
use std::sync::Arc;

impl Rx {
    /// Blocks the link, or puts the real one back. Returns false if nothing had to be done.
    pub(crate) fn set_link_blocked(&mut self, blocked: bool) -> bool {
        set_blocked(&mut self.link, blocked)
    }

    /// Puts another link in place of the present one.
    pub(crate) fn replace_link(&mut self, link: &Arc<dyn Link>) {
        replace_link(&mut self.link, link);
    }

    /// Handles a part of an offer. Passes the offer to the driver once all parts have arrived, in order. A part out of
    /// order drops the parts before it, and part 0 begins another offer. Fails if the peer makes too many offers.
    pub(super) fn handle_offer(&mut self, qp: &QpContext, part: u8, data: &[u8]) -> Checked {
        if !qp.obligations.lock().may_share_memory() {
            return Ok(()); // this end did not ask for offers, or leaves: ignore them, as other unknown signals
        }
        if part == 0 {
            **self.offer.get_or_insert_default() = OfferParts::default();
        }
        let Some(parts) = &mut self.offer else { return Ok(()) };
        let added = parts.add(part, data);
        if added == Added::More {
            return Ok(());
        }
        self.offer = None;
        let Added::Whole(offer) = added else { return Ok(()) };
        let mut obligations = qp.obligations.lock();
        obligations.peer_offers += 1;
        let too_many = obligations.peer_offers > MAX_OFFERS;
        drop(obligations);
        if too_many {
            return Err(Protocol::TooManyOffers { limit: MAX_OFFERS }.into());
        }
        qp.report_offer(offer);
        Ok(())
    }

    /// Handles a switch signal: [`parse`](Self::parse) stops behind it and calls [`follow_switch`](Self::follow_switch).
    /// Fails unless both ends have announced that they share memory, or if the route is in use already.
    pub(super) fn handle_switch(&mut self, qp: &QpContext, route: Route) -> Checked {
        if self.dialect != Dialect::Ironwarp {
            return Ok(()); // may be an ordinary empty Write, as other signals that must be understood
        }
        let obligations = qp.obligations.lock();
        let has_left = obligations.leaving.contains(Leaving::PEER_LEAVES); // it stays with TCP, which it uses
        if !obligations.peer_shares_memory() || has_left || route == qp.recv_route() {
            return Err(Protocol::UnexpectedSwitch(route).into());
        }
        self.switch_to = Some(route);
        Ok(())
    }

    /// Handles the request of the peer to leave shared memory: this end leaves it as well, and answers. Only the first one
    /// counts, and only by TCP, to which its sender promises to stay.
    #[cold]
    pub(super) fn handle_leave(&mut self, qp: &QpContext) {
        let mut obligations = qp.obligations.lock();
        if !obligations.peer_leaves_memory()
            || obligations.leaving.contains(Leaving::PEER_LEAVES)
            || qp.recv_route() != Route::Tcp
        {
            return; // not agreed: ignore it, as other unknown signals
        }
        obligations.begin_leaving();
        obligations.leaving |= Leaving::PEER_LEAVES;
        obligations.route_signals |= RouteSignals::LEFT;
        let done = obligations.leaving.contains(Leaving::DONE);
        drop(obligations);
        self.tx_has_work = true;
        qp.report_leaving(done);
    }

    /// Handles the answer of the peer: it has received everything that this end has sent by shared memory. An answer that
    /// comes too early harms only the peer, whose bytes may get lost.
    #[cold]
    pub(super) fn handle_left(qp: &QpContext) {
        let mut obligations = qp.obligations.lock();
        if !obligations.leaving.contains(Leaving::BEGUN) || obligations.leaving.contains(Leaving::PEER_LEFT) {
            return;
        }
        obligations.leaving |= Leaving::PEER_LEFT;
        let done = obligations.leaving.contains(Leaving::DONE);
        drop(obligations);
        qp.report_leaving(done);
    }

    /// Continues on another route, after the switch signal was parsed. `unread` holds the bytes behind it, which belong
    /// to a later time on the former route.
    #[cold]
    pub(super) fn follow_switch(&mut self, qp: &QpContext, route: Route, unread: &[u8]) {
        self.switch_to = None;
        let unread = if broken::is("unread") { &[] } else { unread };
        if !self.link.switch_recv(route, unread) {
            let mut bytes = [0; MAX_HEADER];
            let n = Signal::Switch(route).to_header().emit(0, &mut bytes).unwrap_or(0);
            let failure = RxFailure::from(Protocol::UnexpectedSwitch(route));
            return self.fail_with(qp, failure, None, &bytes[..n]);
        }
        self.reader = FpduReader::new(framing_on(route, qp.obligations.lock().peer_sends_crcs));
        self.gap = 0;
        // Whatever the former route has reported says nothing about this one.
        self.until_empty = true;
        qp.set_recv_route(route);
    }
}
