//! A segment in three steps: [`begin`](Rx::begin) judges its header, [`place`](Rx::place) (in `place.rs`) moves its payload,
//! [`end`](Rx::end) takes note that it was whole, and delivers the message that it ends. Step 6 of the path.
//!
//! Checks come in the order of the layers: sequence of the stream first (RFC 5041 §7), then the memory (requirement M9).

use super::{Message, Opens, Rx, Segment};
use crate::error::{Fault, Protocol};
use crate::memory::{Denied, Rights, Touch};
use crate::qp::{Completes, Qp};
use crate::queue::{Completion, Opcode, Status};
use crate::stream::{Answer, Opening, Question, advance, atomic};
use crate::sync::lock;
use ironwarp_wire::mpa::{Fpdu, RtrSet};
use ironwarp_wire::private::{SendImmediate, Signal, Unreadable};
use ironwarp_wire::{
    AtomicRequest, Cause, Dialect, Header, Immediate, Operation, Place, Send, SendWord, Tagged, Violation,
};
use std::sync::atomic::Ordering;

/// Where the payload of a segment goes.
#[derive(Debug)]
pub(super) enum Target {
    /// There is none, or nobody wants it.
    Nowhere,
    /// To the memory that the header names.
    Memory,
    /// It waits for a receive.
    Park(Vec<u8>),
}

/// Why the stream cannot go on.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// What the peer is told.
    pub(super) cause: Option<Cause>,
    /// What becomes of the receive in use.
    pub(super) receive: Option<Status>,
}

impl Failure {
    pub(super) fn violation(violation: Violation) -> Self {
        Self { cause: Some(violation.cause()), fault: Fault::Violation(violation), receive: None }
    }

    pub(super) fn remote(denied: Denied, cause: Cause) -> Self {
        Self { fault: Fault::Remote(denied), cause: Some(cause), receive: None }
    }

    fn other_release(why: Unreadable) -> Self {
        let cause = Some(Cause::Operation(Operation::StreamCatastrophic));
        Self { fault: Fault::OtherRelease(why), cause, receive: None }
    }

    /// This end's own buffer is not what it should be.
    pub(super) fn local(fault: Fault) -> Self {
        Self { fault, cause: Some(Cause::LocalCatastrophic), receive: Some(Status::LocalProtection) }
    }

    /// What becomes of the Read, if this was its answer.
    pub(super) const fn read_status(&self) -> Status {
        match self.fault {
            Fault::Local(_) | Fault::Unmapped { .. } => Status::LocalProtection,
            _ => Status::BadResponse,
        }
    }
}

impl From<Protocol> for Failure {
    fn from(rule: Protocol) -> Self {
        let receive = matches!(rule, Protocol::TooLong { .. }).then_some(Status::LocalLength);
        Self { fault: Fault::Protocol(rule), cause: Some(rule.cause()), receive }
    }
}

pub(super) type Judged<T = ()> = Result<T, Failure>;

impl Rx {
    // --- Begin ---

    /// Judges a header: what the segment is, whether it may come now, and whether its payload may go where it says.
    /// `whole`: the payload is there, and is placed next.
    pub(super) fn begin(&mut self, qp: &Qp, fpdu: &Fpdu, whole: bool) -> Judged<Target> {
        let len = usize::from(fpdu.payload_len);
        if self.begins_stream(qp, fpdu) {
            return Ok(Target::Nowhere);
        }
        if is_request(qp, &fpdu.header, len) && (!self.park.is_empty() || !self.supply(qp, &fpdu.header)?) {
            if qp.device().config().strict_receive {
                return Err(Protocol::NoReceive.into());
            }
            return Ok(Target::Park(Vec::with_capacity(len)));
        }
        self.judge(qp, fpdu, whole)
    }

    /// Judges a header whose turn has come.
    pub(super) fn judge(&mut self, qp: &Qp, fpdu: &Fpdu, whole: bool) -> Judged<Target> {
        let len = usize::from(fpdu.payload_len);
        match &fpdu.header {
            Header::Write(tagged) => self.begin_write(qp, tagged, len, whole)?,
            Header::Send(send) => self.begin_send(send, len)?,
            Header::ReadRequest(read) => self.begin_read(qp, read.msn, read.source, read.len)?,
            Header::ReadV2Request(read) => self.begin_read(qp, read.msn, read.source, read.len)?,
            Header::ReadResponse(tagged) => self.begin_response(qp, tagged, len)?,
            Header::Terminate(_) => {}
            Header::Immediate(immediate) => self.begin_immediate(immediate)?,
            Header::AtomicRequest(request) => self.begin_atomic(qp, request)?,
            Header::AtomicResponse(response) => self.begin_atomic_response(qp, response)?,
            Header::SendImmediate(message) => self.begin_send(&plain(message), len)?,
            Header::ReadV2Response(response) => self.begin_v2_response(qp, response, len)?,
        }
        let wanted = match fpdu.header {
            Header::ReadResponse(_) => lock(&qp.sq).read().is_some_and(|read| read.len > 0),
            _ => true,
        };
        Ok(if len > 0 && wanted { Target::Memory } else { Target::Nowhere })
    }

    /// The first FPDU lets a responder send (RFC 5044 §7.1.2), once it is whole. If it is the RTR that was agreed, it means no
    /// more than that.
    fn begins_stream(&mut self, qp: &Qp, fpdu: &Fpdu) -> bool {
        if std::mem::take(&mut self.first) {
            lock(&qp.owed).heard = true;
            self.opens = if self.is_rtr(fpdu) { Opens::Rtr } else { Opens::Yes };
        }
        if self.opens == Opens::Rtr {
            return true;
        }
        self.hears(qp, fpdu);
        false
    }

    /// One of our kind gives its signal before its first message: who speaks without it is a stranger. Behind a Read that opens
    /// the stream, it may not have seen that this end is one; it has when it answers a later question.
    fn hears(&mut self, qp: &Qp, fpdu: &Fpdu) {
        if self.dialect == Dialect::Ironwarp || self.stranger {
            return;
        }
        let answers = matches!(fpdu.header, Header::ReadResponse(_) | Header::AtomicResponse(_));
        if self.read_rtr && !(answers && lock(&qp.sq).read().is_some_and(|read| read.number > 0)) {
            return;
        }
        if !matches!(&fpdu.header, Header::Write(write) if signal_of(qp, write, fpdu.payload_len.into()).is_some())
        {
            self.stranger = true;
            lock(&qp.owed).stranger = true;
            self.owes = true; // a Send with Immediate may have waited to know
        }
    }

    fn is_rtr(&self, fpdu: &Fpdu) -> bool {
        match &fpdu.header {
            Header::Write(write)
                if fpdu.payload_len == 0 && write.last && self.rtr.contains(RtrSet::WRITE) =>
            {
                // A signal serves as an RTR, and is a signal still.
                Signal::parse(write.place).is_none()
            }
            Header::ReadRequest(read) => read.len == 0 && read.msn == 1 && self.rtr.contains(RtrSet::READ),
            _ => false,
        }
    }

    /// From now on this end may send. Not before the first FPDU was whole, and not before it is known what it says: one of our
    /// kind is answered by a signal before anything else.
    pub(super) fn open(&mut self, qp: &Qp) {
        let mut owed = lock(&qp.owed);
        if !owed.open {
            owed.open = true;
            self.owes = true;
            drop(owed);
            qp.opened();
        }
    }

    /// Gets the receive that a message needs which begins. False: none is posted, and it has to wait.
    pub(super) fn supply(&mut self, qp: &Qp, header: &Header) -> Judged<bool> {
        let word = match header {
            Header::Send(send) if send.offset == 0 => send.word,
            Header::SendImmediate(message) if message.send.offset == 0 => message.send.word,
            Header::Immediate(immediate) => SendWord::Srq(immediate.srq),
            _ => return Ok(true),
        };
        if !matches!(self.message, Message::None) {
            return Ok(true); // out of turn, as will be found
        }
        let srq = if let SendWord::Srq(srq) = word { srq } else { 0 };
        let receive = qp.take_receive(srq)?;
        let supplied = receive.is_some();
        if let Some(receive) = receive {
            self.message = Message::Send { receive, received: 0, immediate: None };
        }
        Ok(supplied)
    }

    fn begin_write(&mut self, qp: &Qp, tagged: &Tagged, len: usize, whole: bool) -> Judged {
        if signal_of(qp, tagged, len).is_some() {
            return Ok(()); // it overtakes what waits for a receive, so a message may be open
        }
        match self.message {
            Message::None => {}
            Message::Write(due) if due == tagged.place => {}
            _ => return Err(Protocol::Interleaved.into()),
        }
        self.touch.segment(tagged.last);
        // All of it is checked before a byte is placed: where all is placed at once, then.
        if len > 0 && !whole {
            qp.with_remote(&mut None, tagged.place, len, Rights::REMOTE_WRITE, &mut self.touch, |_, _| ())
                .map_err(|denied| Failure::remote(denied, denied.write_cause()))?;
        }
        Ok(())
    }

    fn check_send_msn(&self, found: u32) -> Judged {
        let expected = self.send_msn;
        if found == expected { Ok(()) } else { Err(Protocol::Sequence { queue: 0, expected, found }.into()) }
    }

    /// Immediate Data have nothing to place, but they use up a receive.
    fn begin_immediate(&self, immediate: &Immediate) -> Judged {
        self.check_send_msn(immediate.msn)?;
        match self.message {
            Message::Send { received: 0, .. } => Ok(()),
            _ => Err(Protocol::Interleaved.into()),
        }
    }

    fn begin_send(&self, send: &Send, len: usize) -> Judged {
        self.check_send_msn(send.msn)?;
        if matches!(self.message, Message::None) {
            return Err(Protocol::Offset { expected: 0, found: send.offset }.into());
        }
        let Message::Send { receive, received, .. } = &self.message else {
            return Err(Protocol::Interleaved.into());
        };
        if u64::from(send.offset) != *received {
            let expected = u32::try_from(*received).unwrap_or(u32::MAX);
            return Err(Protocol::Offset { expected, found: send.offset }.into());
        }
        let found = received + len as u64;
        if found > receive.room {
            return Err(Protocol::TooLong { room: receive.room, found }.into());
        }
        Ok(())
    }

    /// A Read or Atomic Request: the next of queue 1, and no more than was agreed (requirement M11).
    fn begin_question(&self, qp: &Qp, found: u32) -> Judged {
        if !matches!(self.message, Message::None) {
            return Err(Protocol::Interleaved.into());
        }
        if found != self.read_msn {
            return Err(Protocol::Sequence { queue: 1, expected: self.read_msn, found }.into());
        }
        if lock(&qp.owed).held >= usize::from(self.ird) {
            return Err(Protocol::ReadsExceeded { ird: self.ird }.into());
        }
        Ok(())
    }

    fn begin_read(&mut self, qp: &Qp, msn: u32, source: Place, len: u32) -> Judged {
        self.begin_question(qp, msn)?;
        self.touch = Touch::of_request();
        if len > 0 {
            // Checked again when it is served: the program may revoke it in between.
            let (len, need) = (len as usize, Rights::REMOTE_READ);
            qp.with_remote(&mut None, source, len, need, &mut self.touch, |_, _| ())
                .map_err(|denied| Failure::remote(denied, denied.read_cause()))?;
        }
        Ok(())
    }

    fn begin_atomic(&mut self, qp: &Qp, request: &AtomicRequest) -> Judged {
        self.begin_question(qp, request.msn)?;
        self.touch = Touch::of_request();
        // Checked again when it is served, as a Read is.
        let found = atomic::find(qp, request.target, &mut self.touch).map(drop);
        found.map_err(|fault| Failure { cause: Some(atomic::cause(&fault)), fault, receive: None })
    }

    // --- End ---

    /// The segment was whole, and its CRC right.
    pub(super) fn end(&mut self, qp: &Qp) -> Judged {
        self.segment.take().map_or(Ok(()), |segment| self.end_of(qp, *segment))
    }

    /// The same, of a segment that is at hand.
    pub(super) fn end_of(&mut self, qp: &Qp, segment: Segment) -> Judged {
        let Segment { fpdu, target, .. } = segment;
        match std::mem::take(&mut self.opens) {
            Opens::No => self.deliver(qp, fpdu, target),
            Opens::Yes => {
                let delivered = self.deliver(qp, fpdu, target);
                self.open(qp);
                delivered
            }
            Opens::Rtr => {
                if let Header::ReadRequest(read) = fpdu.header {
                    self.read_msn = 2;
                    self.owe(qp, Question::Read(read));
                }
                self.open(qp);
                Ok(())
            }
        }
    }

    fn deliver(&mut self, qp: &Qp, fpdu: Fpdu, target: Target) -> Judged {
        let len = fpdu.payload_len;
        if let Target::Park(payload) = target {
            if self.park.is_empty() {
                qp.wait_for_receive(&fpdu.header);
                lock(&qp.owed).not_ready = Some(self.delivered);
                self.owes = true;
            }
            self.park.push(fpdu, payload);
            self.vouch(qp);
            return Ok(());
        }
        let ended = match &fpdu.header {
            Header::Write(write) => self.end_write(qp, write, len),
            Header::Send(send) => self.end_send(qp, send, len),
            Header::SendImmediate(message) => {
                let SendImmediate { send, immediate } = message;
                if let (Some(data), Message::Send { immediate, .. }) = (immediate, &mut self.message) {
                    *immediate = Some(data.value());
                }
                self.end_send(qp, send, len)
            }
            Header::Immediate(immediate) => {
                self.end_immediate(qp, immediate);
                Ok(())
            }
            Header::ReadRequest(read) => {
                self.end_question(qp, Question::Read(*read));
                Ok(())
            }
            Header::ReadV2Request(read) => {
                self.end_question(qp, Question::ReadV2(*read));
                Ok(())
            }
            Header::AtomicRequest(request) => {
                self.end_question(qp, Question::Atomic(*request));
                Ok(())
            }
            Header::AtomicResponse(response) => self.end_atomic_response(qp, response),
            Header::ReadResponse(response) => {
                self.end_response(qp, response.last, len);
                Ok(())
            }
            Header::ReadV2Response(response) => {
                self.end_v2_response(qp, response, len);
                Ok(())
            }
            Header::Terminate(terminate) => Err(Failure {
                fault: Fault::Terminated(*terminate),
                cause: None, // a Terminate is not answered
                receive: None,
            }),
        };
        // What failed at its end is reported with its header.
        ended.inspect_err(|_| {
            self.segment = Some(Box::new(Segment { fpdu, target: Target::Nowhere, done: 0 }));
        })
    }

    fn end_write(&mut self, qp: &Qp, write: &Tagged, len: u16) -> Judged {
        if let Some(signal) = signal_of(qp, write, len.into()) {
            return self.signal(qp, signal);
        }
        let before = if matches!(self.message, Message::Write(_)) { self.written } else { 0 };
        self.written = before + u64::from(len);
        if self.touch.ends() {
            // Requirement M10: placed, and then invalid before anything behind it is delivered.
            qp.device().table().end_touch(std::mem::take(&mut self.touch));
        }
        if write.last {
            self.message = Message::None;
            self.delivered += 1;
        } else {
            self.message = Message::Write(advance(write.place, len.into()));
        }
        Ok(())
    }

    fn signal(&mut self, qp: &Qp, signal: Result<Signal, Unreadable>) -> Judged {
        let signal = match signal {
            Ok(signal) => signal,
            // Not from a peer that never said it was Ironwarp.
            Err(Unreadable::Extension(_)) if self.dialect != Dialect::Ironwarp => return Ok(()),
            Err(why) => return Err(Failure::other_release(why)),
        };
        match signal {
            Signal::Capabilities(capabilities) => {
                let mut owed = lock(&qp.owed);
                if owed.peer.is_none() {
                    owed.peer = Some(capabilities);
                    self.dialect = Dialect::Ironwarp;
                    owed.opening = owed.opening.or(Some(Opening::Signal(qp.capabilities())));
                    let acknowledges = owed.is_acknowledged();
                    drop(owed);
                    if acknowledges && qp.completes() == Completes::WhenAcknowledged {
                        lock(&qp.sq).set_completes(Completes::WhenAcknowledged);
                    }
                    self.owes = true;
                }
                Ok(())
            }
            Signal::NotReady(found) => {
                // The one that waits may be half sent, and is not counted then.
                self.acknowledged(qp, found)?;
                qp.peer_not_ready(found)?;
                self.vouch(qp);
                Ok(())
            }
            Signal::Acknowledged(found) => self.acknowledged(qp, found),
            Signal::Unknown(_) => Ok(()),
        }
    }

    /// The peer delivered so many messages.
    fn acknowledged(&mut self, qp: &Qp, found: u64) -> Judged {
        let mut sq = lock(&qp.sq);
        let sent = sq.promised();
        if found > sent {
            return Err(Protocol::Acknowledged { sent, found }.into());
        }
        sq.acknowledge(found);
        drop(sq);
        qp.retire();
        // A disconnect waits until all is acknowledged, and so does who drains the queue.
        self.owes |= lock(&qp.owed).finish || qp.is_draining();
        Ok(())
    }

    /// Both ends wait for a receive of the other's, and their programs may post none before their Sends are complete. So
    /// that nobody waits for ever, the Sends that wait here count as delivered: they have arrived, and this end keeps them.
    fn vouch(&mut self, qp: &Qp) {
        if qp.awaits_receive().is_some() && !self.park.is_empty() {
            self.vouched = self.delivered + self.park.whole_sends();
            lock(&qp.owed).flush = true;
            self.owes = true;
        }
    }

    fn end_send(&mut self, qp: &Qp, send: &Send, len: u16) -> Judged {
        let Message::Send { received, .. } = &mut self.message else { return Ok(()) };
        *received += u64::from(len);
        if !send.last {
            return Ok(());
        }
        let invalidated = match send.word {
            SendWord::Invalidate(tag) => Some(tag),
            SendWord::Srq(_) => None,
        };
        if let Some(tag) = invalidated {
            // Requirement M12, RFC 5040 §5.3: at delivery, and final when the completion is seen.
            qp.device().table().invalidate_remotely(qp.stream(), tag).map_err(|denied| Failure {
                fault: Fault::Remote(denied),
                cause: Some(Denied::invalidate_cause()),
                receive: Some(Status::LocalAccess),
            })?;
        }
        let Message::Send { receive, received, immediate } = self.used_up(qp) else { return Ok(()) };
        let byte_len = u32::try_from(received).unwrap_or(u32::MAX);
        let completion = Completion::succeeded(receive.request.id, Opcode::Receive, qp.id(), byte_len);
        let solicited = send.solicited;
        qp.complete_receive(&receive, Completion { solicited, invalidated, immediate, ..completion });
        Ok(())
    }

    /// RFC 7306 §6: completes after the Write before it was placed and delivered.
    fn end_immediate(&mut self, qp: &Qp, message: &Immediate) {
        let byte_len = u32::try_from(self.written).unwrap_or(u32::MAX);
        let Message::Send { receive, .. } = self.used_up(qp) else { return };
        let completion = Completion::succeeded(receive.request.id, Opcode::ReceiveWrite, qp.id(), byte_len);
        let (solicited, immediate) = (message.solicited, Some(message.data.value()));
        qp.complete_receive(&receive, Completion { solicited, immediate, ..completion });
    }

    /// The message that used up a receive is delivered. It counts before its completion is seen: see `Qp::delivered`.
    fn used_up(&mut self, qp: &Qp) -> Message {
        self.send_msn = self.send_msn.wrapping_add(1);
        self.delivered += 1;
        qp.delivered.store(self.delivered.max(self.vouched), Ordering::Relaxed);
        self.written = 0;
        std::mem::replace(&mut self.message, Message::None)
    }

    fn end_question(&mut self, qp: &Qp, question: Question) {
        self.read_msn = self.read_msn.wrapping_add(1);
        self.delivered += 1;
        self.written = 0;
        self.owe(qp, question);
    }

    fn owe(&mut self, qp: &Qp, to: Question) {
        let touch = std::mem::take(&mut self.touch);
        let mut owed = lock(&qp.owed);
        owed.held += 1;
        owed.answers.push_back(Answer { to, touch });
        self.owes = true;
    }
}

/// A segment of a Send with Immediate as one of a plain Send: the immediate data counts as its first bytes.
fn plain(message: &SendImmediate) -> Send {
    let offset = match message.send.offset {
        0 => 0,
        offset => offset.checked_sub(IMMEDIATE_LEN).unwrap_or(u32::MAX),
    };
    Send { offset, ..message.send }
}

const IMMEDIATE_LEN: u32 = 8;

/// The signal that a Write is, if it is one and this end looks for any: it is empty, and all of its message.
fn signal_of(qp: &Qp, write: &Tagged, len: usize) -> Option<Result<Signal, Unreadable>> {
    let may_be = len == 0 && write.last && qp.device().config().private;
    if may_be { Signal::parse(write.place) } else { None }
}

/// Whether a message asks something of this end, and so may have to wait. Signals do not.
fn is_request(qp: &Qp, header: &Header, len: usize) -> bool {
    match header {
        Header::Write(write) => signal_of(qp, write, len).is_none(),
        Header::Send(_)
        | Header::SendImmediate(_)
        | Header::Immediate(_)
        | Header::ReadRequest(_)
        | Header::ReadV2Request(_)
        | Header::AtomicRequest(_) => true,
        _ => false,
    }
}
