//! Handles the signals about routes: collects the parts of an offer of shared memory, and follows a switch to another
//! route.

use super::Rx;
use super::failure::{Checked, RxFailure};
use super::offer::{Added, OfferParts};
use crate::blocked::set_blocked;
use crate::broken;
use crate::context::QpContext;
use crate::error::Protocol;
use crate::link::Route;
use crate::outbound::MAX_OFFERS;
use crate::stream::framing_on;
use ironwarp_wire::mpa::FpduReader;
use ironwarp_wire::private::Signal;
use ironwarp_wire::{Dialect, MAX_HEADER};

impl Rx {
    /// Blocks the link, or puts the real one back. Returns false if nothing had to be done.
    pub(crate) fn set_link_blocked(&mut self, blocked: bool) -> bool {
        set_blocked(&mut self.link, blocked)
    }

    /// Handles a part of an offer. Passes the offer to the driver once all parts have arrived, in order. A part out of
    /// order drops the parts before it, and part 0 begins another offer. Fails if the peer makes too many offers.
    pub(super) fn handle_offer(&mut self, qp: &QpContext, part: u8, data: &[u8]) -> Checked {
        if !qp.obligations.lock().peer_shares_memory() {
            return Ok(()); // this end did not ask for offers: ignore them, as other unknown signals
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
        if !qp.obligations.lock().peer_shares_memory() || route == qp.recv_route() {
            return Err(Protocol::UnexpectedSwitch(route).into());
        }
        self.switch_to = Some(route);
        Ok(())
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
