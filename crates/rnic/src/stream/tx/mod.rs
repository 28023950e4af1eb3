//! Stream, tx: work requests → FPDUs → link. Steps 3 and 4 of the path; before it `queue/send.rs`, after it the `rx` of the
//! peer, which mirrors it.
//!
//! One round [builds](build) a [`Train`] of as many FPDUs as leave in one call, sends it, and takes note of what left. Where
//! the link takes only a part, the FPDU that is cut keeps its tail in bytes of the stream's own ([`Tx::rest`]), and those
//! behind it are taken back. So no memory of the program is needed after the call, and revocation is final.

mod answer;
mod build;
mod payload;
mod short;

use super::train::Frame;
use super::{Guards, Train};
use crate::broken;
use crate::error::Fault;
use crate::half::Left;
use crate::link::{Link, LinkError, Piece};
use crate::memory::Touch;
use crate::qp::Qp;
use crate::queue::SendQueue;
use crate::sync::lock;
use ironwarp_wire::mpa::{FpduWriter, Framing, max_ulpdu};
use smallvec::SmallVec;
use std::sync::Arc;

pub(crate) use short::Short;

/// So many trains are a turn.
const TRAINS: usize = 2;

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct Tx {
    link: Arc<dyn Link>,
    cursor: Cursor,
    /// How many Reads may be outstanding.
    ord: usize,
    /// The tail of the FPDU that the link took in part. A stream that is not stuck has none.
    rest: Option<Box<Rest>>,
    /// The longest segment that the path carries.
    mulpdu: usize,
    /// A registration was refused, and no request has its turn until the consumer has moved the queue pair back.
    refused: bool,
    /// The last byte is out: nothing may follow.
    finished: bool,
}

/// What the link did not take of an FPDU.
#[derive(Debug)]
struct Rest {
    bytes: Vec<u8>,
    /// How much of that is gone.
    sent: usize,
    /// What the FPDU was.
    did: Did,
}

/// Where a stream stands between two FPDUs. Plain data, so that it can be set back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    writer: FpduWriter,
    doing: Doing,
    /// The work request in progress, or the next.
    seq: u64,
    /// How much of the message in progress is in FPDUs.
    offset: u32,
    /// How many messages of the request class are.
    requests: u64,
    /// The next message sequence numbers on queues 0 and 1 (RFC 5041 §5.2: from 1).
    send_msn: u32,
    read_msn: u32,
    /// The same on queue 3, and on that of Read V2 Responses.
    atomic_msn: u32,
    read_v2_msn: u32,
    /// How many of the answers that are owed are in FPDUs.
    answered: u32,
    /// Requests and answers take turns.
    answer_next: bool,
    /// How many messages the peer was told of.
    acknowledged: u64,
    /// The last message of which it was told that it waits, counted from one. Zero: none.
    not_ready: u64,
    read_rtr: bool,
    opening: bool,
    terminate: bool,
}

/// The message that is half in FPDUs. It is finished before another begins (RFC 5041 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Request,
    /// The Write of a Write with Immediate is, the Immediate Data is not.
    Immediate,
    Answer,
}

/// What a frame was: decides what follows when the link took it, or did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    /// The end of a work request's message.
    Request(u64),
    /// A Read or Atomic Request, of a work request or of the adapter's own.
    Read(Option<u64>),
    /// The end of an answer to the peer's Read or Atomic Request.
    Answer,
    /// The last message.
    Terminate,
    /// Anything of which nobody waits to hear.
    Other,
}

impl Cursor {
    fn is_between_requests(&self) -> bool {
        matches!(self.doing, Doing::Nothing | Doing::Answer)
    }
}

impl Tx {
    pub(crate) fn new(link: Arc<dyn Link>, framing: Framing, ord: u16) -> Self {
        let cursor = Cursor {
            writer: FpduWriter::new(framing),
            doing: Doing::Nothing,
            seq: 0,
            offset: 0,
            requests: 0,
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            read_v2_msn: 1,
            answered: 0,
            answer_next: false,
            acknowledged: 0,
            not_ready: 0,
            read_rtr: false,
            opening: false,
            terminate: false,
        };
        Self {
            mulpdu: max_ulpdu(link.segment_size(), framing.markers),
            link,
            cursor,
            ord: ord.into(),
            rest: None,
            refused: false,
            finished: false,
        }
    }

    /// Sends until there is nothing to send, or the link takes no more.
    pub(crate) fn drive(&mut self, qp: &Qp) -> Left {
        qp.set_blocked(false);
        let mut train = qp.device().take_train();
        let mut left = Left::Work;
        for _ in 0..TRAINS {
            if !self.round(qp, &mut train) {
                left = Left::Nothing;
                break;
            }
        }
        if train.current.is_some() {
            train.current = None; // what follows in this train may be another stream
        }
        qp.device().put_train(train);
        if qp.is_draining() && self.rest.is_none() && self.cursor.is_between_requests() {
            qp.drained_to(self.cursor.seq);
        }
        left
    }

    /// One call of the link. False: there is nothing to send, or the link takes no more.
    fn round(&mut self, qp: &Qp, train: &mut Train) -> bool {
        if self.finished || !self.send_rest(qp) {
            return false;
        }
        if self.refused && qp.may_begin() {
            self.refused = false;
            self.cursor.seq = lock(&qp.sq).resumes_at();
        }
        let mut guards = Guards::default();
        train.begin(self.cursor);
        let more = self.build(qp, train, &mut guards);
        if train.is_empty() {
            self.finish(qp, train);
            return false;
        }
        let sent = train.send(&*self.link);
        self.account(qp, train, sent.unwrap_or(0));
        drop(guards);
        self.settle_answers(qp);
        match sent {
            // A link that took only a part is asked until it says that it takes no more: only then will it tell when it does.
            Ok(n) if more || n < train.len() || train.owed.finish => !self.finished,
            Ok(_) => false,
            Err(error) => self.not_sent(qp, error),
        }
    }

    /// Sends the tail of an FPDU that was cut. False: the link does not take it yet.
    fn send_rest(&mut self, qp: &Qp) -> bool {
        let Some(mut rest) = self.rest.take() else { return true };
        lock(&qp.sq).begin_sending();
        let stuck = loop {
            match self.link.send(&[Piece::Own(&rest.bytes[rest.sent..])]) {
                Ok(n) => rest.sent += n,
                Err(error) => break Some(error),
            }
            if rest.sent == rest.bytes.len() {
                break None;
            }
        };
        match stuck {
            Some(_) => {
                self.rest = Some(rest);
                qp.end_sending(|_| ());
            }
            None => self.left(qp, [rest.did]),
        }
        match stuck {
            Some(error) => self.not_sent(qp, error),
            None => !self.finished,
        }
    }

    fn not_sent(&mut self, qp: &Qp, error: LinkError) -> bool {
        match error {
            LinkError::WouldBlock => qp.set_blocked(true),
            LinkError::Lost(errno) => self.give_up(qp, Fault::Lost(errno)),
            LinkError::Unmapped | LinkError::Ended => self.give_up(qp, Fault::HalfSent),
        }
        false
    }

    /// No message can follow, not even the reason.
    fn give_up(&mut self, qp: &Qp, fault: Fault) {
        self.finished = true;
        self.link.abort();
        qp.fail(fault, None, None);
        qp.link_finished();
    }

    /// Takes note of what left: the first `n` bytes.
    fn account(&mut self, qp: &Qp, train: &Train, n: usize) {
        let frames = train.frames();
        if n == train.len() {
            return self.left(qp, frames.iter().map(|frame| frame.did));
        }
        let mut kept = frames.partition_point(|frame| frame.end <= n);
        note(qp, &mut lock(&qp.sq), frames[..kept].iter().map(|frame| frame.did));
        let whole = kept.checked_sub(1).map_or(0, |last| frames[last].end);
        if n > whole {
            // The link has the front of this one, so it must get the tail, whatever happens to the memory.
            let frame = &frames[kept];
            let host = qp.device().host();
            match train.copy(n, frame.end, |span, to| host.gather(&[span], to)) {
                Ok(bytes) => self.rest = Some(Box::new(Rest { bytes, sent: 0, did: frame.did })),
                Err(_) => self.give_up(qp, Fault::HalfSent),
            }
            kept += 1;
        }
        if kept < frames.len() && !broken::is("train") {
            self.cursor = kept.checked_sub(1).map_or(train.start(), |last| frames[last].after);
            self.take_back(qp, &frames[kept..]);
        }
        qp.end_sending(|_| ());
    }

    /// All that was handed to the link is out: what was only waiting for that completes.
    fn left(&mut self, qp: &Qp, frames: impl IntoIterator<Item = Did>) {
        if qp.end_sending(|sq| note(qp, sq, frames)) {
            self.end(qp);
        }
    }

    /// These frames did not leave, not even in part: what was promised for them is taken back.
    fn take_back(&self, qp: &Qp, frames: &[Frame]) {
        let count = |is: fn(&Did) -> bool| frames.iter().filter(|frame| is(&frame.did)).count();
        let mut sq = lock(&qp.sq);
        sq.take_back_reads(count(|did| matches!(did, Did::Read(_))));
        sq.take_back_numbers(self.cursor.seq + u64::from(!self.cursor.is_between_requests()));
        sq.promise(self.cursor.requests);
        drop(sq);
        let mut owed = lock(&qp.owed);
        owed.held += count(|did| *did == Did::Answer);
        owed.flush = true; // an acknowledgement may have been among them
    }

    /// Answers that are out are not owed any more, and need no memory: one-touch memory that they came from is invalid
    /// (requirement M10). That waits for guards, so this end must hold none.
    fn settle_answers(&mut self, qp: &Qp) {
        if self.cursor.answered == 0 {
            return;
        }
        let mut owed = lock(&qp.owed);
        let settled = owed.answers.drain(..self.cursor.answered as usize).map(|answer| answer.touch);
        let ended: SmallVec<[Touch; 1]> = settled.filter(Touch::ends).collect();
        drop(owed);
        self.cursor.answered = 0;
        for touch in ended {
            qp.device().table().end_touch(touch);
        }
    }

    /// Nothing is left to send: says so, if this end wants to close.
    fn finish(&mut self, qp: &Qp, train: &Train) {
        let owed = lock(&qp.owed);
        // The stream may have failed since the train was built: its last word is still to come.
        let speechless = owed.terminate.is_none() || self.cursor.terminate || !owed.open;
        // As the train was built, which then had the last acknowledgement: whoever wants it since has another round made.
        let wanted = train.owed.finish && speechless;
        drop(owed);
        // A stream that is over leaves its message where it is; one that is not sends all of it.
        if wanted
            && (qp.is_ended()
                || qp.is_gone()
                || (self.cursor.doing == Doing::Nothing && lock(&qp.sq).is_idle()))
        {
            self.end(qp);
        }
    }

    /// Whether requests may be begun.
    fn may_begin(&self, qp: &Qp) -> bool {
        !self.refused && qp.may_begin()
    }

    fn end(&mut self, qp: &Qp) {
        self.finished = true;
        self.link.finish();
        qp.link_finished();
    }
}

/// These frames are out: what was only waiting for that completes. Returns whether nothing can follow, because the last of them
/// was the last word.
fn note(qp: &Qp, sq: &mut SendQueue, frames: impl IntoIterator<Item = Did>) -> bool {
    let mut last = false;
    for did in frames {
        match did {
            Did::Request(seq) | Did::Read(Some(seq)) => sq.sent(seq),
            Did::Read(None) | Did::Answer | Did::Other => {}
            Did::Terminate => last = true,
        }
    }
    qp.retire_from(sq);
    last
}
