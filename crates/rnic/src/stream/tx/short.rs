//! The fast path for requests of one segment: takes several of them from the send queue under one lock and adds them
//! to the batch directly. All other requests, and all requests while responses are due, go through `request.rs`.

use super::Tx;
use super::payload::Source;
use super::stop::Stop;
use crate::context::QpContext;
use crate::memory::Guards;
use crate::outbound::{FrameKind, InProgress, Payload, ShortRequest, TxBatch};
use crate::stream::MIN_DIRECT;
use crate::sync::lock;
use ironwarp_wire::ddp::UNTAGGED_LEN;

/// Maximum number of requests taken at once. Beyond that, the cost of the lock no longer matters.
const MAX_AT_ONCE: usize = 16;

impl Tx {
    /// Adds the short requests that are next in the send queue. Returns false if no request may start, the next one
    /// is not short, or responses are due. Returns [`Stop::Idle`] if the requests were added and nothing else is to
    /// be sent.
    pub(super) fn add_short_requests<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
    ) -> Result<bool, Stop> {
        if batch.obligations.responses > self.cursor.responded as usize || !self.may_begin(qp) {
            return Ok(false);
        }
        let mut shorts = batch.take_shorts();
        let room = self.max_payload(batch, UNTAGGED_LEN).min(MIN_DIRECT - 1);
        let (mut number, mut msn) = (self.cursor.requests, self.cursor.send_msn);
        let mut sq = lock(&qp.sq);
        let last = sq.begin_several(self.cursor.seq, MAX_AT_ONCE, |request| {
            let short = ShortRequest::of(request, room)?.into_owned();
            let own = msn;
            number += 1;
            msn = msn.wrapping_add(short.msns());
            shorts.push(short);
            Some((number, own))
        });
        let idle = last && !sq.needs_probe(number);
        drop(sq);
        let any = !shorts.is_empty();
        if any {
            // Acknowledge before the requests, for the reason given in `add_request`.
            self.acknowledge(qp, batch);
        }
        let mut added = Ok(any);
        for short in shorts.drain(..) {
            if batch.is_full() {
                added = Err(Stop::Full);
            } else if added.is_ok()
                && let Err(stop) = self.add_short(qp, batch, guards, &short)
            {
                added = Err(stop);
            }
        }
        batch.put_shorts(shorts);
        if added.is_err() {
            // Requests that were not added must lose their numbers: other messages get the same ones, and their
            // acknowledgement would complete requests that were not sent.
            lock(&qp.sq).roll_back_numbers(self.cursor.seq);
        }
        if idle && any && added.is_ok() { Err(Stop::Idle) } else { added }
    }

    /// Adds one short request, and advances the cursor.
    fn add_short<'q>(
        &mut self,
        qp: &'q QpContext,
        batch: &mut TxBatch,
        guards: &mut Guards<'q>,
        short: &ShortRequest,
    ) -> Result<(), Stop> {
        let seq = self.cursor.seq;
        let (source, len) = match &short.data {
            Payload::Nothing => (Source::Inline(&[]), 0),
            Payload::Memory(sge) => (Source::Sge(*sge), sge.len as usize),
            Payload::Inline(bytes) => (Source::Inline(bytes), bytes.len()),
        };
        let header = short.header(self.cursor.send_msn);
        self.add_payload(qp, batch, guards, &header, &source, len)
            .map_err(|fault| Stop::denied_locally(fault, seq))?;
        self.cursor.send_msn = self.cursor.send_msn.wrapping_add(short.msns());
        self.cursor.requests += 1;
        self.cursor.seq += 1;
        self.cursor.response_next = true;
        self.cursor.in_progress = InProgress::Nothing;
        batch.finish_frame(self.cursor, FrameKind::Request(seq));
        Ok(())
    }
}
