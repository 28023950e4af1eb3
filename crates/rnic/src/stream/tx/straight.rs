//! The straight path: sends the one short request that was just posted, if nothing else is to be sent. Its FPDU is built
//! on the stack and passed to the link, without a batch. A request that needs no completion does not even enter the send
//! queue. Everything that the path cannot do is left to [`drive`](Tx::drive), which starts from the same state.

use super::{Quiet, Tx, Unsent};
use crate::context::QpContext;
use crate::error::PostError;
use crate::half::Left;
use crate::link::{LinkError, Piece};
use crate::memory::{Rights, Translation};
use crate::outbound::{FrameKind, InProgress, Payload, ShortRequest};
use crate::queue::{InlineData, SendQueue, WorkRequest};
use crate::recording::{Kind, low, record};
use crate::state::State;
use crate::sync::{MutexGuard, lock};
use ironwarp_wire::ddp::UNTAGGED_LEN;
use ironwarp_wire::mpa::{MAX_HEAD, MAX_TAIL};
use std::borrow::Borrow;

/// Maximum number of payload bytes. Longer messages spend their time elsewhere.
const MAX_PAYLOAD: usize = 128;
/// Maximum length of the FPDU.
const MAX_FRAME: usize = MAX_HEAD + MAX_PAYLOAD + MAX_TAIL;

/// What became of a request that was passed to the link.
#[derive(Clone, Copy)]
enum Sent {
    /// The link has taken all of it.
    All,
    /// The link has taken its front, and [`Tx::unsent`] is the rest.
    Part,
    /// The link has taken nothing.
    Nothing(LinkError),
    /// It was not passed to the link, because its memory must not or cannot be read. [`Tx::drive`] finds out why.
    Unreadable,
}

impl Tx {
    /// Posts `request`, which needs no completion and completes when it is sent, and takes it. If it is short, and nothing
    /// else is to be sent, the link gets it at once, and the send queue never does. Otherwise adds it to the queue, and
    /// sends as far as possible. If that fails, sets `posted`, and does not take the request.
    pub(crate) fn post_directly(
        &mut self,
        qp: &QpContext,
        request: &mut Option<WorkRequest>,
        posted: &mut Result<(), PostError>,
    ) -> Left {
        // In a second round, the request was taken or has failed.
        let Some(new) = request.as_ref().filter(|_| posted.is_ok()) else { return self.drive(qp) };
        let numbers = (self.cursor.requests + 1, self.cursor.send_msn);
        let sent = self.send_unqueued(qp, new);
        if let Some(Sent::All) = sent {
            record(Kind::Sent, qp.id(), low(new.id));
            *request = None;
            return Left::Nothing;
        }
        self.enqueue(qp, request, numbers, sent).unwrap_or_else(|error| {
            *posted = Err(error);
            self.drive(qp) // other threads rely on the one that holds the half
        })
    }

    /// Passes a request to the link that is not in the send queue. Returns `None`, and changes nothing, if the request is
    /// not short, or something else is to be sent.
    #[inline]
    fn send_unqueued(&mut self, qp: &QpContext, request: &WorkRequest) -> Option<Sent> {
        self.quiet(qp)?;
        let short = ShortRequest::of(request, self.room())?;
        Some(self.send_short(qp, &short))
    }

    /// Adds a request to the send queue that the link did not take, or not all of, and sends as far as possible. If it was
    /// passed to the link, `sent` is the result, and its message has these `numbers`.
    #[cold]
    fn enqueue(
        &mut self,
        qp: &QpContext,
        request: &mut Option<WorkRequest>,
        numbers: (u64, u32),
        sent: Option<Sent>,
    ) -> Result<Left, PostError> {
        if let Some(request) = request {
            record(Kind::Posted, qp.id(), low(request.id));
        }
        match sent {
            Some(Sent::Part) => {
                qp.enqueue_started(request, self.cursor.seq, numbers);
                self.cursor.seq += 1;
                Ok(self.drive(qp))
            }
            Some(Sent::Nothing(error)) => {
                let posted = qp.enqueue(lock(&qp.sq), |sq| sq.post_one(request)).map(drop);
                self.handle_send_error(qp, error);
                posted.map(|()| Left::Nothing)
            }
            _ => {
                qp.enqueue(lock(&qp.sq), |sq| sq.post_one(request)).map(drop)?;
                Ok(self.drive(qp))
            }
        }
    }

    /// Sends what was just posted to the locked send queue, and everything else that is to be sent, as
    /// [`drive`](Self::drive) does.
    pub(crate) fn drive_posted(&mut self, qp: &QpContext, sq: MutexGuard<'_, SendQueue>) -> Left {
        if self.send_straight(qp, sq) { Left::Nothing } else { self.drive(qp) }
    }

    /// Sends the request that was posted last, if it is short and nothing else is to be sent. Returns whether that is
    /// done, or the link took nothing. If it returns false, [`drive`](Self::drive) has to be called.
    fn send_straight(&mut self, qp: &QpContext, mut sq: MutexGuard<'_, SendQueue>) -> bool {
        let Some(quiet) = self.quiet(qp) else { return false };
        let (seq, room) = (self.cursor.seq, self.room());
        let numbers = (self.cursor.requests + 1, self.cursor.send_msn);
        let short = |request: &_| ShortRequest::of(request, room).map(ShortRequest::into_owned);
        let begun = sq.begin_last(seq, numbers, quiet.sends_acks, short);
        let Some((short, begun)) = begun else { return false };
        drop(sq);
        match self.send_short(qp, &short) {
            Sent::All => {
                record(Kind::SentLast, qp.id(), 0);
                self.cursor.seq += 1;
                qp.end_sending_request(seq, begun);
                true
            }
            Sent::Part => {
                self.cursor.seq += 1;
                qp.end_sending(|_| ());
                false
            }
            Sent::Nothing(error) => {
                qp.cancel_request(seq);
                self.handle_send_error(qp, error);
                true
            }
            Sent::Unreadable => {
                qp.cancel_request(seq);
                false
            }
        }
    }

    /// Maximum number of payload bytes of a request that this path sends.
    fn room(&self) -> usize {
        (usize::from(self.mulpdu).saturating_sub(UNTAGGED_LEN) & !7).min(MAX_PAYLOAD)
    }

    /// Passes a request to the link, and moves the cursor behind its message, but not behind the request.
    #[inline]
    fn send_short<I: Borrow<InlineData>>(&mut self, qp: &QpContext, short: &ShortRequest<I>) -> Sent {
        let mut frame = [0; MAX_FRAME];
        let Some(len) = self.write_frame(qp, short, &mut frame) else { return Sent::Unreadable };
        let number = self.cursor.requests + 1;
        qp.set_blocked(false);
        qp.set_acknowledgeable(number);
        match self.link.send(&[Piece::Own(&frame[..len])]) {
            Ok(sent) => {
                self.cursor.send_msn = self.cursor.send_msn.wrapping_add(short.msns());
                self.cursor.requests = number;
                self.cursor.response_next = true;
                if sent == len {
                    return Sent::All;
                }
                self.keep_unsent(&frame[sent..len]);
                Sent::Part
            }
            Err(error) => {
                qp.set_acknowledgeable(self.cursor.requests);
                Sent::Nothing(error)
            }
        }
    }

    /// Keeps the bytes that are left of the current request.
    #[cold]
    fn keep_unsent(&mut self, bytes: &[u8]) {
        let kind = FrameKind::Request(self.cursor.seq);
        self.unsent = Some(Box::new(Unsent { bytes: bytes.to_vec(), sent: 0, kind }));
    }

    /// Returns what is known of the obligations, if nothing is to be sent but requests, and these can be started.
    #[inline]
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
            && snapshot.route_signals.is_empty()
            && obligations.terminate.is_none();
        // Read with the obligations locked, so that there is no change in between.
        self.quiet = idle.then(|| Quiet { changes: qp.obligations.changes(), wants_acks, sends_acks });
        self.quiet
    }

    /// Writes the FPDU of a request. Returns its length, or `None` if its memory must not or cannot be read.
    fn write_frame<I: Borrow<InlineData>>(
        &self,
        qp: &QpContext,
        short: &ShortRequest<I>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let writer = &self.cursor.writer;
        let header = short.header(self.cursor.send_msn);
        let payload = writer.begin_whole(&header, short.data.len(), frame).ok()?;
        let to = &mut frame[payload.clone()];
        match &short.data {
            Payload::Nothing => {}
            Payload::Inline(bytes) => to.copy_from_slice(bytes.borrow()),
            Payload::Memory(sge) => {
                let (device, len, right) = (qp.device(), to.len(), Rights::LOCAL_READ);
                let read = |memory: &Translation, at| memory.read(at, device.host(), to);
                let addr = (sge.tag, sge.addr);
                device.table().with_local_once(qp.stream().domain, addr, len, right, read)?.ok()?;
            }
        }
        Some(writer.end_whole(payload, frame))
    }
}
