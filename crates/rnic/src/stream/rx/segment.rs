//! The first step of receiving a segment: [`begin`](Rx::begin) checks its header. The second step,
//! [`place`](Rx::place) in `place.rs`, places its payload. The third step, [`end`](Rx::end) in `deliver.rs`, delivers
//! the message if this was its last segment.
//!
//! Checks follow the order of the layers: first the sequence of the stream (RFC 5041 §7), then the memory
//! (requirement M9).

use super::failure::{Checked, RxFailure, Target};
use super::{Message, Opens, Rx};
use crate::context::QpContext;
use crate::error::Protocol;
use crate::memory::{Rights, Touch};
use crate::stream::atomic;
use crate::sync::lock;
use ironwarp_wire::mpa::{Fpdu, RtrSet};
use ironwarp_wire::private::{SendImmediate, Signal, Unreadable};
use ironwarp_wire::{AtomicRequest, Dialect, Header, Immediate, RemoteAddr, Send, SendWord, Tagged};

impl Rx {
    /// Begins a segment: takes the receive that a new message needs, and checks the header. Returns where the payload
    /// goes. If a message needs a receive and none is posted, or others wait for one already, the segment is parked.
    /// `whole` tells whether all payload has arrived and is placed next.
    pub(super) fn begin(&mut self, qp: &QpContext, fpdu: &Fpdu, whole: bool) -> Checked<Target> {
        let len = usize::from(fpdu.payload_len);
        if self.handle_opening(qp, fpdu) {
            return Ok(Target::Discard);
        }
        if is_request(qp, &fpdu.header, len)
            && (!self.park.is_empty() || !self.take_receive_for(qp, &fpdu.header)?)
        {
            if qp.device().config().strict_receive {
                return Err(Protocol::NoReceive.into());
            }
            return Ok(Target::Park(Vec::with_capacity(len)));
        }
        self.check_header(qp, fpdu, whole)
    }

    /// Checks the header of a segment that is not parked. Returns where the payload goes.
    pub(super) fn check_header(&mut self, qp: &QpContext, fpdu: &Fpdu, whole: bool) -> Checked<Target> {
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
            Header::SendImmediate(message) => self.begin_send(&as_plain_send(message), len)?,
            Header::ReadV2Response(response) => self.begin_v2_response(qp, response, len)?,
        }
        // The payload of a response to an empty Read is discarded: see `begin_response`.
        let has_target = match fpdu.header {
            Header::ReadResponse(_) => lock(&qp.sq).oldest_read().is_some_and(|read| read.len > 0),
            _ => true,
        };
        Ok(if len > 0 && has_target { Target::Memory } else { Target::Discard })
    }

    /// Handles the first FPDU, which lets a responder send once it is complete (RFC 5044 §7.1.2), and looks for signs
    /// of a standard peer in all FPDUs. Returns true if the FPDU is an agreed RTR, which has no other meaning.
    fn handle_opening(&mut self, qp: &QpContext, fpdu: &Fpdu) -> bool {
        if std::mem::take(&mut self.awaiting_first) {
            qp.obligations.lock().received_any = true;
            self.opens = if self.is_rtr(fpdu) { Opens::Rtr } else { Opens::Yes };
        }
        if self.opens == Opens::Rtr {
            return true;
        }
        self.detect_standard_peer(qp, fpdu);
        false
    }

    /// Detects a peer that does not implement the private protocol: it sends a message before any signal. If this end
    /// opened the stream with a Read, an Ironwarp peer may send messages before it has seen this end's signal. It has
    /// seen the signal when it answers a request that was sent after the signal.
    fn detect_standard_peer(&mut self, qp: &QpContext, fpdu: &Fpdu) {
        if self.dialect == Dialect::Ironwarp || self.standard_peer {
            return;
        }
        // The RTR itself has number zero: its response shows nothing.
        let is_response = matches!(fpdu.header, Header::ReadResponse(_) | Header::AtomicResponse(_));
        if self.read_rtr && !(is_response && lock(&qp.sq).oldest_read().is_some_and(|read| read.number > 0)) {
            return;
        }
        if !matches!(&fpdu.header, Header::Write(write) if signal_of(qp, write, fpdu.payload_len.into()).is_some())
        {
            self.standard_peer = true;
            qp.obligations.lock().standard_peer = true;
            self.tx_has_work = true; // a Send with Immediate may be waiting for this
        }
    }

    /// Returns whether the first FPDU is one of the agreed kinds of RTR, and no signal.
    fn is_rtr(&self, fpdu: &Fpdu) -> bool {
        match &fpdu.header {
            Header::Write(write)
                if fpdu.payload_len == 0 && write.last && self.rtr.contains(RtrSet::WRITE) =>
            {
                // A signal serves as an RTR, but must still be processed as a signal.
                Signal::parse(write.addr).is_none()
            }
            Header::ReadRequest(read) => read.len == 0 && read.msn == 1 && self.rtr.contains(RtrSet::READ),
            _ => false,
        }
    }

    /// Lets this end send, if it could not before. Called after the first FPDU was processed, because a signal of the
    /// peer has to be answered with a signal before anything else is sent.
    pub(super) fn open_sending(&mut self, qp: &QpContext) {
        let mut obligations = qp.obligations.lock();
        if !obligations.open {
            obligations.open = true;
            self.tx_has_work = true;
            drop(obligations);
            qp.report_first_message();
        }
    }

    /// Takes the receive for a segment that begins a new message and needs one. Returns false if none is posted, so
    /// that the message has to wait. Returns true if the segment needs none.
    pub(super) fn take_receive_for(&mut self, qp: &QpContext, header: &Header) -> Checked<bool> {
        let word = match header {
            Header::Send(send) if send.offset == 0 => send.word,
            Header::SendImmediate(_) if !qp.device().config().send_immediate => {
                return Err(RxFailure::private_message());
            }
            Header::ReadV2Request(_) if !qp.device().config().read_v2 => {
                return Err(RxFailure::private_message());
            }
            Header::SendImmediate(message) if message.send.offset == 0 => message.send.word,
            Header::Immediate(immediate) => SendWord::Srq(immediate.srq),
            _ => return Ok(true),
        };
        if !matches!(self.message, Message::None) {
            return Ok(true); // another message is not finished: `check_header` rejects the segment
        }
        let srq = if let SendWord::Srq(srq) = word { srq } else { 0 };
        let receive = qp.take_receive(srq)?;
        let supplied = receive.is_some();
        if let Some(receive) = receive {
            self.message = Message::Send { receive, received: 0, immediate: None };
        }
        Ok(supplied)
    }

    /// Checks a segment of a Write, or a signal. Does not check the memory of a `whole` segment, because placing it
    /// does.
    fn begin_write(&mut self, qp: &QpContext, tagged: &Tagged, len: usize, whole: bool) -> Checked {
        if signal_of(qp, tagged, len).is_some() {
            return Ok(()); // signals are never parked, so another message may be in progress
        }
        match self.message {
            Message::None => {}
            Message::Write(due) if due == tagged.addr => {}
            _ => return Err(Protocol::Interleaved.into()),
        }
        self.touch.start_segment(tagged.last);
        // Check the whole range before a byte is placed. The closure is empty, because nothing is placed yet.
        if len > 0 && !whole {
            qp.with_remote(&mut None, tagged.addr, len, Rights::REMOTE_WRITE, &mut self.touch, |_, _| ())
                .map_err(|denied| RxFailure::remote(denied, denied.write_cause()))?;
        }
        Ok(())
    }

    /// Checks that a message sequence number is the next one on DDP queue 0.
    fn check_send_msn(&self, found: u32) -> Checked {
        let expected = self.send_msn;
        if found == expected { Ok(()) } else { Err(Protocol::Sequence { queue: 0, expected, found }.into()) }
    }

    /// Checks Immediate Data, which has no payload to place but consumes a receive.
    fn begin_immediate(&self, immediate: &Immediate) -> Checked {
        self.check_send_msn(immediate.msn)?;
        match self.message {
            Message::Send { received: 0, .. } => Ok(()),
            _ => Err(Protocol::Interleaved.into()),
        }
    }

    /// Checks a segment of a Send: it must be the next one of its message, and fit into the receive.
    fn begin_send(&self, send: &Send, len: usize) -> Checked {
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

    /// Checks the sequence of a Read or Atomic Request with the message sequence number `found`: it must be the next
    /// one on DDP queue 1, and not exceed the IRD (requirement M11).
    fn begin_read_or_atomic(&self, qp: &QpContext, found: u32) -> Checked {
        if !matches!(self.message, Message::None) {
            return Err(Protocol::Interleaved.into());
        }
        if found != self.read_msn {
            return Err(Protocol::Sequence { queue: 1, expected: self.read_msn, found }.into());
        }
        if qp.obligations.lock().inbound_reads >= usize::from(self.ird) {
            return Err(Protocol::ReadsExceeded { ird: self.ird }.into());
        }
        Ok(())
    }

    /// Checks a Read Request, of either version, for `len` bytes at `source`, and claims the source for it if that is
    /// one-touch memory. Copies nothing: the tx half builds the response later.
    fn begin_read(&mut self, qp: &QpContext, msn: u32, source: RemoteAddr, len: u32) -> Checked {
        self.begin_read_or_atomic(qp, msn)?;
        self.touch = Touch::for_request();
        if len > 0 {
            // The closure is empty, because the source is only checked here. It is checked again when the response is
            // built, because the program may revoke the memory in between.
            let (len, need) = (len as usize, Rights::REMOTE_READ);
            qp.with_remote(&mut None, source, len, need, &mut self.touch, |_, _| ())
                .map_err(|denied| RxFailure::remote(denied, denied.read_cause()))?;
        }
        Ok(())
    }

    /// Checks an Atomic Request, and claims its target for it if that is one-touch memory. Changes nothing: the tx half
    /// executes the operation later.
    fn begin_atomic(&mut self, qp: &QpContext, request: &AtomicRequest) -> Checked {
        self.begin_read_or_atomic(qp, request.msn)?;
        self.touch = Touch::for_request();
        // Checked again when the operation is executed, because the program may revoke the memory in between.
        let found = atomic::find(qp, request.target, &mut self.touch).map(drop);
        found.map_err(|error| RxFailure { cause: Some(atomic::cause(&error)), error, receive: None })
    }
}

/// Converts a segment of a Send with Immediate to one of a plain Send. The immediate data counts as the first bytes
/// of the message, so later segments have a higher offset.
fn as_plain_send(message: &SendImmediate) -> Send {
    let offset = match message.send.offset {
        0 => 0,
        offset => offset.checked_sub(IMMEDIATE_LEN).unwrap_or(u32::MAX), // an offset that `begin_send` rejects
    };
    Send { offset, ..message.send }
}

/// Number of message bytes that the immediate data of a Send takes.
const IMMEDIATE_LEN: u32 = 8;

/// Parses a Write as a signal. `None` if it is an ordinary Write, or if the private protocol is disabled. A signal is
/// an empty Write in a single segment.
pub(super) fn signal_of(qp: &QpContext, write: &Tagged, len: usize) -> Option<Result<Signal, Unreadable>> {
    let may_be = len == 0 && write.last && qp.device().config().private;
    if may_be { Signal::parse(write.addr) } else { None }
}

/// Returns whether a message is of the request class. While one message of this class waits for a receive, all later
/// ones wait, too. Signals, responses and Terminates are not of this class, and never wait.
fn is_request(qp: &QpContext, header: &Header, len: usize) -> bool {
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
