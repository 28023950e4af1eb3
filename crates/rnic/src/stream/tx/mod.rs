//! The sending half of a stream: turns work requests and responses into FPDUs and passes them to the link. The
//! receiving half is `rx`.
//!
//! One round [builds](build) a [`TxBatch`] of as many FPDUs as fit in one call, sends it, and accounts for the FPDUs
//! that were sent. If the link takes only a part of the batch, the unsent tail of the FPDU that was cut is copied into
//! the stream ([`Tx::unsent`]), and the FPDUs after it are rolled back: they will be built again. After the call, the
//! stream therefore refers to no memory of the program, and memory that is revoked then is never read again.

mod build;
mod frozen;
mod local;
mod payload;
mod request;
mod response;
mod route;
mod short;
mod stop;
mod straight;

use crate::blocked::NoLink;
use crate::broken;
use crate::context::QpContext;
use crate::error::QpError;
use crate::half::Left;
use crate::link::{Link, LinkError, Piece};
use crate::memory::Guards;
use crate::memory::Touch;
use crate::outbound::{Cursor, Frame, FrameKind, InProgress, TxBatch};
use crate::queue::SendQueue;
use crate::recording::{Kind, low, record};
use crate::sync::lock;
use ironwarp_wire::mpa::{Framing, max_ulpdu};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// Maximum number of batches sent before other streams get a turn.
const BATCHES_PER_TURN: usize = 2;

/// The errno of a connection that was inherited over a fork: EBADF on Linux.
const EBADF: i32 = 9;

/// The sending half of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tx {
    #[serde(skip, default = "NoLink::shared")]
    link: Arc<dyn Link>,
    /// The position after the last FPDU that was built.
    cursor: Cursor,
    /// CRCs were agreed for TCP.
    crc: bool,
    /// Maximum number of outstanding Reads and atomic operations.
    ord: u16,
    /// The unsent tail of an FPDU that the link took in part. `None` unless the link is blocked.
    unsent: Option<Box<Unsent>>,
    /// Maximum length of a segment (MULPDU) for peers that do not accept large FPDUs, in bytes.
    mulpdu: u16,
    /// A registration was refused: no request is started until the consumer has moved the queue pair back to
    /// ready-to-send.
    registration_refused: bool,
    /// Sending has ended: the last byte was sent, or the link was aborted.
    finished: bool,
    /// The driver was told that a request was sent.
    reported_traffic: bool,
    /// Set while nothing is to be sent but requests.
    #[serde(skip)]
    quiet: Option<Quiet>,
}

/// What the tx half knows of its obligations while it has none: nothing is to be sent but requests.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    /// The number of changes of the obligations when this was found. It holds until there are more.
    changes: u32,
    /// The peer wants to know how many messages were delivered.
    wants_acks: bool,
    /// The peer acknowledges the messages that it delivered.
    sends_acks: bool,
}

/// The part of an FPDU that the link did not take.
#[derive(Debug, Serialize, Deserialize)]
struct Unsent {
    bytes: Vec<u8>,
    /// Number of `bytes` that the link has taken since.
    sent: usize,
    /// The kind of the FPDU, for accounting once it is sent.
    kind: FrameKind,
}

impl Tx {
    /// Creates the sending half of a stream that has sent nothing.
    pub(crate) fn new(link: Arc<dyn Link>, framing: Framing, ord: u16) -> Self {
        Self {
            mulpdu: mulpdu_of(&*link, framing),
            link,
            cursor: Cursor::new(framing),
            crc: framing.crc,
            ord,
            unsent: None,
            registration_refused: false,
            finished: false,
            reported_traffic: false,
            quiet: None,
        }
    }

    /// Sends until nothing is left to send, the link takes no more, or the turn is over. Returns [`Left::Work`] only if
    /// the turn is over.
    pub(crate) fn drive(&mut self, qp: &QpContext) -> Left {
        qp.set_blocked(false);
        self.quiet = None; // it depends on the cursor
        if qp.device().host().is_inherited() {
            self.abort(qp, QpError::Lost(EBADF));
            return Left::Nothing;
        }
        let mut batch = qp.device().take_batch();
        let mut left = Left::Work;
        for _ in 0..BATCHES_PER_TURN {
            if !self.send_batch(qp, &mut batch) {
                left = Left::Nothing;
                break;
            }
        }
        if batch.current.is_some() {
            batch.current = None; // the next user of this batch may be another stream
        }
        qp.device().put_batch(batch);
        if !self.reported_traffic && self.cursor.requests > 0 {
            self.reported_traffic = true;
            qp.report_traffic();
        }
        if qp.is_draining() && self.unsent.is_none() && self.cursor.is_between_requests() {
            qp.report_drained(self.cursor.seq);
        }
        left
    }

    /// Builds and sends one batch. Returns whether to send another one: false if nothing is left to send or the link
    /// takes no more.
    fn send_batch(&mut self, qp: &QpContext, batch: &mut TxBatch) -> bool {
        if self.finished || !self.send_unsent(qp) {
            return false;
        }
        if self.registration_refused && qp.may_begin() {
            self.registration_refused = false;
            self.cursor.seq = lock(&qp.sq).first_unrefused();
        }
        let mut guards = Guards::default();
        batch.restart(self.cursor);
        let more = self.build(qp, batch, &mut guards);
        if batch.is_empty() {
            self.close_if_due(qp, batch);
            return false;
        }
        let sent = batch.send(&*self.link);
        if let Ok(n) = sent {
            record(Kind::SegmentsSent, qp.id(), low(n as u64));
        }
        self.account_sent(qp, batch, sent.unwrap_or(0));
        drop(guards);
        self.settle_responses(qp);
        if !batch.obligations.route_signals.is_empty() {
            self.settle_route_signals(qp);
        }
        match sent {
            // A link that took only a part is called until it would block: only then does it report when it is
            // writable again. After `finish` was set, another round closes the link.
            Ok(n) if more || n < batch.len() || batch.obligations.finish => !self.finished,
            Ok(_) => false,
            Err(error) => self.handle_send_error(qp, error),
        }
    }

    /// Sends the tail of an FPDU that was cut, if there is one. Returns whether other FPDUs may be sent: false if the
    /// link did not take the whole tail, or if sending has ended.
    fn send_unsent(&mut self, qp: &QpContext) -> bool {
        let Some(mut rest) = self.unsent.take() else { return true };
        // Until `end_sending`, a failure of the stream completes no requests, because some may have been sent.
        lock(&qp.sq).begin_sending();
        let failure = loop {
            match self.link.send(&[Piece::Own(&rest.bytes[rest.sent..])]) {
                Ok(n) => rest.sent += n,
                Err(error) => break Some(error),
            }
            if rest.sent == rest.bytes.len() {
                break None;
            }
        };
        match failure {
            Some(_) => {
                self.unsent = Some(rest);
                qp.end_sending(|_| ());
            }
            None => self.account_all(qp, [rest.kind]),
        }
        match failure {
            // The peer has failed and may read no more by this route, so that the tail would block the close.
            Some(LinkError::WouldBlock) if qp.is_terminated() => {
                self.unsent = None;
                self.close(qp);
                false
            }
            // After `end_sending`, so that an error that fails the stream completes the requests now.
            Some(error) => self.handle_send_error(qp, error),
            None => !self.finished, // `account_all` sets it if the tail was that of the Terminate
        }
    }

    /// Handles the failure of a call to the link: marks the stream as blocked, or aborts the link. Returns false, so
    /// that the caller sends no more.
    fn handle_send_error(&mut self, qp: &QpContext, error: LinkError) -> bool {
        match error {
            LinkError::WouldBlock => {
                record(Kind::Blocked, qp.id(), 0);
                qp.set_blocked(true);
            }
            // The rx half handles the close when it finds the end of the link.
            LinkError::Lost(errno) if qp.outlives_peer(errno) => self.close(qp),
            LinkError::Lost(errno) => self.abort(qp, QpError::Lost(errno)),
            LinkError::Unmapped | LinkError::Ended => self.abort(qp, QpError::HalfSent),
        }
        false
    }

    /// Aborts the link and fails the stream, without a Terminate. Called when the connection is lost, or when an FPDU
    /// cannot be sent in full because the memory of its payload is no longer mapped.
    fn abort(&mut self, qp: &QpContext, error: QpError) {
        self.finished = true;
        self.link.abort();
        qp.fail(error, None, None);
        qp.close_send();
    }

    /// Accounts for the first `n` bytes of the batch, which were sent, keeps the tail of the FPDU that was cut, and
    /// rolls the FPDUs after it back.
    fn account_sent(&mut self, qp: &QpContext, batch: &TxBatch, n: usize) {
        let frames = batch.frames();
        if n == batch.len() {
            return self.account_all(qp, frames.iter().map(|frame| frame.kind));
        }
        // The number of FPDUs that are not rolled back: those sent in full, and then also the one that was cut.
        let mut kept = frames.partition_point(|frame| frame.end <= n);
        // The result is not needed: a Terminate or a switch is the last frame of a batch, and the batch was not sent in
        // full.
        account_frames(qp, &mut lock(&qp.sq), frames[..kept].iter().map(|frame| frame.kind));
        let whole = kept.checked_sub(1).map_or(0, |last| frames[last].end); // number of bytes of the FPDUs sent in full
        if n > whole {
            // The link has the front of this FPDU, so it must get the tail even if the memory is revoked
            // meanwhile.
            let frame = &frames[kept];
            let host = qp.device().host();
            match batch.copy_range(n, frame.end, |span, to| host.gather(&[span], to)) {
                Ok(bytes) => self.unsent = Some(Box::new(Unsent { bytes, sent: 0, kind: frame.kind })),
                Err(_) => self.abort(qp, QpError::HalfSent),
            }
            kept += 1;
        }
        if kept < frames.len() && !broken::is("batch") {
            self.cursor = kept.checked_sub(1).map_or(batch.start(), |last| frames[last].after);
            self.roll_back(qp, &frames[kept..]);
        }
        qp.end_sending(|_| ());
    }

    /// Accounts for frames that were sent, when nothing is left unsent: completes the requests that were only waiting
    /// for that, closes the link after a Terminate, and switches it to another route after the signal for that.
    fn account_all(&mut self, qp: &QpContext, frames: impl IntoIterator<Item = FrameKind>) {
        match qp.end_sending(|sq| account_frames(qp, sq, frames)) {
            FrameKind::Terminate => self.close(qp),
            FrameKind::Switch(route) => {
                self.link.switch_send(route);
                qp.set_send_route(route);
            }
            _ => {}
        }
    }

    /// Undoes the accounting for frames of which not a single byte was sent.
    fn roll_back(&self, qp: &QpContext, frames: &[Frame]) {
        let count = |is: fn(&FrameKind) -> bool| frames.iter().filter(|frame| is(&frame.kind)).count();
        let mut sq = lock(&qp.sq);
        sq.roll_back_reads(count(|kind| matches!(kind, FrameKind::Read(_))));
        // A request of which a segment was sent keeps its number.
        sq.roll_back_numbers(self.cursor.seq + u64::from(!self.cursor.is_between_requests()));
        drop(sq);
        qp.set_acknowledgeable(self.cursor.requests);
        let mut obligations = qp.obligations.lock();
        obligations.inbound_reads += count(|kind| *kind == FrameKind::Response);
        obligations.ack_now = true; // an acknowledgement may have been among them
    }

    /// Drops the responses that were sent, and invalidates the one-touch memory that they were read from (requirement
    /// M10). The invalidation waits for guards, so the caller must hold none.
    fn settle_responses(&mut self, qp: &QpContext) {
        if self.cursor.responded == 0 {
            return;
        }
        let mut obligations = qp.obligations.lock();
        let settled =
            obligations.responses.drain(..self.cursor.responded as usize).map(|response| response.touch);
        let ended: SmallVec<[Touch; 1]> = settled.filter(Touch::is_complete).collect();
        drop(obligations);
        self.cursor.responded = 0;
        for touch in ended {
            qp.device().table().end_touch(touch);
        }
    }

    /// Closes this direction of the link if this end is closing. Called when nothing is left to send.
    fn close_if_due(&mut self, qp: &QpContext, batch: &TxBatch) {
        let obligations = qp.obligations.lock();
        // The stream may have failed since the batch was built, in which case its Terminate is still to be
        // sent.
        let no_terminate_due = obligations.terminate.is_none() || self.cursor.terminate || !obligations.open;
        // Decide by the snapshot: only a batch that was built after `finish` was set includes the final
        // acknowledgement. The thread that sets `finish` later starts another round.
        let is_closing = batch.obligations.finish && no_terminate_due;
        drop(obligations);
        // A stream that has failed abandons the message in progress; any other stream finishes it.
        if is_closing
            && (qp.is_ended()
                || qp.peer_has_closed()
                || (self.cursor.in_progress == InProgress::Nothing && lock(&qp.sq).is_idle()))
        {
            self.close(qp);
        }
    }

    /// Whether new requests may be started.
    fn may_begin(&self, qp: &QpContext) -> bool {
        !self.registration_refused && qp.may_begin()
    }

    /// Closes this direction of the link: nothing more is sent. Called when the last byte has been handed to the link:
    /// after a Terminate, or when this end is closing and nothing is left to send.
    fn close(&mut self, qp: &QpContext) {
        self.finished = true;
        self.link.finish();
        qp.close_send();
    }
}

/// Returns the maximum length of a segment (MULPDU) on this link, for peers that do not accept large FPDUs.
fn mulpdu_of(link: &dyn Link, framing: Framing) -> u16 {
    let max = max_ulpdu(link.segment_size(), framing.markers);
    u16::try_from(max).unwrap_or(u16::MAX)
}

/// Accounts for frames that were sent: marks their requests as sent, and completes those that need not wait for an
/// acknowledgement or a response. Returns the last frame if it changes the link, because it is a Terminate or a switch,
/// and [`FrameKind::Other`] if not.
fn account_frames(
    qp: &QpContext,
    sq: &mut SendQueue,
    frames: impl IntoIterator<Item = FrameKind>,
) -> FrameKind {
    let mut last = FrameKind::Other;
    for kind in frames {
        match kind {
            FrameKind::Request(seq) | FrameKind::Read(Some(seq)) => sq.mark_sent(seq),
            FrameKind::Read(None) | FrameKind::Response | FrameKind::Other => {}
            FrameKind::Terminate | FrameKind::Switch(_) => last = kind,
        }
    }
    qp.retire_from(sq);
    last
}
