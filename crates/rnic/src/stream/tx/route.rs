//! Adds the signals about routes to a batch: offers of shared memory, the switch to another route, and those by which the
//! ends leave shared memory.

use super::Tx;
use super::stop::Stop;
use crate::blocked::set_blocked;
use crate::broken;
use crate::context::QpContext;
use crate::link::{Link, Route, replace_link};
use crate::outbound::{FrameKind, InProgress, RouteSignals, TxBatch};
use crate::stream::framing_on;
use ironwarp_wire::mpa::FpduWriter;
use ironwarp_wire::private::{OFFER_PARTS, Signal};
use std::sync::Arc;

impl Tx {
    /// Blocks the link, or puts the real one back.
    pub(crate) fn set_link_blocked(&mut self, blocked: bool) {
        set_blocked(&mut self.link, blocked);
    }

    /// Puts another link in place of the present one.
    pub(crate) fn replace_link(&mut self, link: &Arc<dyn Link>) {
        replace_link(&mut self.link, link);
        self.quiet = None;
    }

    /// Adds the switch signal if another route was requested, also in the middle of a message. The signal is the last
    /// frame of its batch ([`Stop::Full`]): what follows it goes by the other route, once the link has taken all of the
    /// signal. The capabilities of this end must have been sent before.
    pub(super) fn add_switch(&mut self, batch: &mut TxBatch) -> Result<(), Stop> {
        let route = batch.obligations.route;
        if route == self.cursor.route || !self.cursor.opening {
            return Ok(());
        }
        batch.push_empty(&mut self.cursor.writer, &Signal::Switch(route).to_header());
        // These are part of the cursor after the frame, so a rollback of the frame restores the former ones.
        self.cursor.route = route;
        self.cursor.writer = FpduWriter::new(framing_on(route, self.crc));
        batch.finish_frame(self.cursor, FrameKind::Switch(route));
        Err(Stop::Full)
    }

    /// Adds the signals about routes that are due, apart from the switch. Returns whether any was added.
    pub(super) fn add_route_signals(&mut self, qp: &QpContext, batch: &mut TxBatch) -> bool {
        if batch.obligations.route_signals.is_empty() {
            return false;
        }
        self.add_leaving(batch) || self.add_offer(qp, batch)
    }

    /// Adds the signals of a stream that leaves shared memory, also in the middle of a message: a message that waits for
    /// a receive of the peer must not hold them up. They tell the peer that this direction is on TCP for good, so
    /// [the switch](Self::add_switch) comes first. Returns whether any was added.
    #[cold]
    fn add_leaving(&mut self, batch: &mut TxBatch) -> bool {
        if self.cursor.route != Route::Tcp && !broken::is("leave") {
            return false;
        }
        let due = batch.obligations.route_signals.difference(self.cursor.leaving);
        for (one, signal) in [(RouteSignals::LEAVE, Signal::Leave), (RouteSignals::LEFT, Signal::Left)] {
            if due.contains(one) {
                self.cursor.leaving |= one;
                self.add_empty(batch, &signal.to_header(), FrameKind::Other);
            }
        }
        due.intersects(RouteSignals::LEAVE | RouteSignals::LEFT)
    }

    /// Adds the parts of an offer that are due, between messages. Returns whether any was added.
    fn add_offer(&mut self, qp: &QpContext, batch: &mut TxBatch) -> bool {
        let offers = batch.obligations.route_signals.intersection(RouteSignals::OFFERS).bits();
        let Some(last) = offers.checked_sub(1) else { return false };
        // The parts are counted over all offers. If the newest offer replaces one that was sent in part, continue with
        // the first part of the newest.
        let first = last * OFFER_PARTS;
        self.cursor.offer_parts = self.cursor.offer_parts.max(first);
        if self.cursor.offer_parts == first + OFFER_PARTS || self.cursor.in_progress != InProgress::Nothing {
            return false;
        }
        let Some(offer) = qp.obligations.lock().offer.as_deref().copied() else { return false };
        for (part, data) in (0..).zip(offer.as_chunks().0).skip((self.cursor.offer_parts - first).into()) {
            self.cursor.offer_parts += 1;
            self.add_empty(batch, &Signal::Offer { part, data: *data }.to_header(), FrameKind::Other);
        }
        true
    }

    /// Drops the signals about routes that were sent. An offer is dropped once all of its parts were sent, because an idle
    /// queue pair has to be small.
    #[cold]
    pub(super) fn settle_route_signals(&self, qp: &QpContext) {
        let mut obligations = qp.obligations.lock();
        obligations.route_signals.remove(self.cursor.leaving);
        if self.cursor.offer_parts == obligations.offers * OFFER_PARTS {
            obligations.drop_offer();
        }
    }
}
