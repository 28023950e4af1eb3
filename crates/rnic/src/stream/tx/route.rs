//! Adds the signals about routes to a batch: offers of shared memory, and the switch to another route.

use super::Tx;
use super::stop::Stop;
use crate::blocked::set_blocked;
use crate::context::QpContext;
use crate::outbound::{FrameKind, InProgress, TxBatch};
use crate::stream::framing_on;
use ironwarp_wire::mpa::FpduWriter;
use ironwarp_wire::private::{OFFER_PARTS, Signal};

impl Tx {
    /// Blocks the link, or puts the real one back.
    pub(crate) fn set_link_blocked(&mut self, blocked: bool) {
        set_blocked(&mut self.link, blocked);
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

    /// Adds the parts of an offer that are due, between messages. Returns whether any was added.
    pub(super) fn add_offer(&mut self, qp: &QpContext, batch: &mut TxBatch) -> bool {
        let Some(last) = batch.obligations.offers.checked_sub(1) else { return false };
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

    /// Drops the offer once all of its parts were sent, because an idle queue pair has to be small.
    pub(super) fn settle_offer(&self, qp: &QpContext) {
        let mut obligations = qp.obligations.lock();
        if self.cursor.offer_parts == obligations.offers * OFFER_PARTS {
            obligations.offer = None;
        }
    }
}
