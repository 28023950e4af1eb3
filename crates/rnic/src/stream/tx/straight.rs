//! The straight path: sends the one short request that was just posted, if nothing else is to be sent. Its FPDU is built
//! on the stack and passed to the link, without a batch. Everything that the path cannot do is left to
//! [`drive`](Tx::drive), which starts from the same state.

use super::payload::fetch_sge;
use super::{Quiet, Tx, Unsent};
use crate::context::QpContext;
use crate::half::Left;
use crate::link::Piece;
use crate::outbound::{FrameKind, InProgress, Payload, ShortRequest};
use crate::queue::SendQueue;
use crate::state::State;
use crate::sync::MutexGuard;
use ironwarp_wire::ddp::UNTAGGED_LEN;
use ironwarp_wire::mpa::{MAX_HEAD, MAX_TAIL};

/// Maximum number of payload bytes. Longer messages spend their time elsewhere.
const MAX_PAYLOAD: usize = 128;
/// Maximum length of the FPDU.
const MAX_FRAME: usize = MAX_HEAD + MAX_PAYLOAD + MAX_TAIL;

impl Tx {
    /// Sends what was just posted to the locked send queue, and everything else that is to be sent, as
    /// [`drive`](Self::drive) does.
    pub(crate) fn drive_posted(&mut self, qp: &QpContext, sq: MutexGuard<'_, SendQueue>) -> Left {
        if self.send_straight(qp, sq) { Left::Nothing } else { self.drive(qp) }
    }

    /// Sends the request that was posted last, if it is short and nothing else is to be sent. Returns whether that is
    /// done, or the link took nothing. If it returns false, [`drive`](Self::drive) has to be called.
    fn send_straight(&mut self, qp: &QpContext, mut sq: MutexGuard<'_, SendQueue>) -> bool {
        let Some(quiet) = self.quiet(qp) else { return false };
        let (seq, msn) = (self.cursor.seq, self.cursor.send_msn);
        let number = self.cursor.requests + 1;
        let room = (usize::from(self.mulpdu).saturating_sub(UNTAGGED_LEN) & !7).min(MAX_PAYLOAD);
        let short = |request: &_| ShortRequest::of(request, room);
        let begun = sq.begin_last(seq, (number, msn), quiet.sends_acks, short);
        let Some((short, begun)) = begun else { return false };
        drop(sq);
        let mut frame = [0; MAX_FRAME];
        let Some(len) = self.write_frame(qp, &short, &mut frame) else {
            qp.cancel_request(seq, begun); // `drive` finds the failure again
            return false;
        };
        qp.set_blocked(false);
        qp.set_acknowledgeable(number);
        match self.link.send(&[Piece::Own(&frame[..len])]) {
            Ok(sent) => {
                self.cursor.send_msn = msn.wrapping_add(short.msns());
                self.cursor.requests = number;
                self.cursor.seq += 1;
                self.cursor.response_next = true;
                if sent == len {
                    qp.end_sending_request(seq, begun);
                    return true;
                }
                let (bytes, kind) = (frame[sent..len].to_vec(), FrameKind::Request(seq));
                self.unsent = Some(Box::new(Unsent { bytes, sent: 0, kind }));
                qp.suspend_request(begun);
                false
            }
            Err(error) => {
                qp.set_acknowledgeable(self.cursor.requests);
                qp.cancel_request(seq, begun);
                self.handle_send_error(qp, error);
                true
            }
        }
    }

    /// Returns what is known of the obligations, if nothing is to be sent but requests, and these can be started.
    fn quiet(&mut self, qp: &QpContext) -> Option<Quiet> {
        let may_start = !self.finished
            && self.unsent.is_none()
            && !self.registration_refused
            && self.reported_traffic
            && self.cursor.in_progress == InProgress::Nothing
            && self.cursor.responded == 0
            && !self.cursor.writer.framing().markers
            && qp.state() == State::ReadyToSend
            && !qp.peer_has_closed()
            && !qp.is_draining();
        if !may_start {
            return None;
        }
        let quiet = match self.quiet {
            Some(quiet) if quiet.changes == qp.obligations.changes() => quiet,
            _ => self.find_quiet(qp)?,
        };
        // An acknowledgement that is due goes before the request, see `add_request`.
        let ack_due = quiet.wants_acks && qp.delivered() > self.cursor.acknowledged;
        (!ack_due).then_some(quiet)
    }

    /// Looks whether there are obligations. Ignores `ack_now`, which a rollback leaves set although nothing is to be
    /// acknowledged: `quiet` checks whether something is.
    #[cold]
    fn find_quiet(&mut self, qp: &QpContext) -> Option<Quiet> {
        let obligations = qp.obligations.lock();
        let (wants_acks, sends_acks) = (obligations.peer_wants_acks(), obligations.peer_sends_acks());
        let snapshot = obligations.snapshot(0);
        let idle = snapshot.open
            && (!snapshot.read_rtr || self.cursor.read_rtr)
            && (!snapshot.opening || self.cursor.opening)
            && !snapshot.nudge
            && snapshot.responses == 0
            && snapshot.not_ready.is_none_or(|number| self.cursor.not_ready == number + 1)
            && !snapshot.finish
            && snapshot.route == self.cursor.route
            && snapshot.offers == 0
            && obligations.terminate.is_none();
        // Read with the obligations locked, so that there is no change in between.
        self.quiet = idle.then(|| Quiet { changes: qp.obligations.changes(), wants_acks, sends_acks });
        self.quiet
    }

    /// Writes the FPDU of a request. Returns its length, or `None` if its memory must not or cannot be read.
    fn write_frame(&self, qp: &QpContext, short: &ShortRequest, frame: &mut [u8]) -> Option<usize> {
        let writer = &self.cursor.writer;
        let header = short.header(self.cursor.send_msn);
        let payload = writer.begin_whole(&header, short.data.len(), frame).ok()?;
        let to = &mut frame[payload.clone()];
        match &short.data {
            Payload::Nothing => {}
            Payload::Inline(bytes) => to.copy_from_slice(bytes),
            Payload::Memory(sge) => fetch_sge(qp, &mut None, *sge, to).ok()?,
        }
        Some(writer.end_whole(payload, frame))
    }
}
