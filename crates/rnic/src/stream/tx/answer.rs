//! Answers to the peer's Reads and atomic operations, as they go into the train. Before this: `build.rs`, whose requests they take
//! turns with; after it, `payload.rs` and the link.

use super::build::{Failure, Stop};
use super::payload::Source;
use super::{Cursor, Did, Doing, Tx};
use crate::broken;
use crate::error::{Fault, UNMAPPED};
use crate::memory::Touch;
use crate::qp::Qp;
use crate::stream::{Answer, Guards, Question, Train, advance, atomic};
use crate::sync::lock;
use ironwarp_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use ironwarp_wire::private::{ReadV2Request, ReadV2Response};
use ironwarp_wire::{AtomicRequest, AtomicResponse, Header, MAX_HEADER, ReadRequest, Tagged, Terminate};

impl Tx {
    /// The next segment of the answer to the peer's oldest Read or Atomic Request.
    pub(super) fn add_answer<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
    ) -> Result<(), Stop> {
        if train.owed.answers <= self.cursor.answered as usize {
            return Err(Stop::Idle);
        }
        let Some(answer) = lock(&qp.owed).answers.get(self.cursor.answered as usize).copied() else {
            return Err(Stop::Idle);
        };
        match answer.to {
            Question::Read(_) | Question::ReadV2(_) => self.add_read_response(qp, train, guards, &answer),
            Question::Atomic(request) => self.serve_atomic(qp, train, &request, answer.touch),
            Question::Served { id, original } => {
                self.add_atomic_response(qp, train, id, original);
                Ok(())
            }
        }
    }

    /// An atomic operation is done when its answer has its turn: after the Reads that came before it (RFC 7306 §5.4). Its
    /// result is written down, because the answer may have to be put together again.
    fn serve_atomic(
        &mut self,
        qp: &Qp,
        train: &mut Train,
        request: &AtomicRequest,
        touch: Touch,
    ) -> Result<(), Stop> {
        let original = atomic::serve(qp, request, touch).map_err(|fault| {
            let mut bytes = [0; MAX_HEADER];
            let n = Header::AtomicRequest(*request).emit(0, &mut bytes).unwrap_or(0);
            let terminate = Terminate::answer(atomic::cause(&fault), &bytes[..n]);
            Stop::Failed(Box::new(Failure { fault, terminate, request: None }))
        })?;
        let id = request.id;
        if let Some(answer) = lock(&qp.owed).answers.get_mut(self.cursor.answered as usize)
            && !broken::is("atomic")
        {
            answer.to = Question::Served { id, original };
        }
        self.add_atomic_response(qp, train, id, original);
        Ok(())
    }

    fn add_atomic_response(&mut self, qp: &Qp, train: &mut Train, id: u32, original: u64) {
        let msn = self.cursor.atomic_msn;
        self.cursor.atomic_msn = msn.wrapping_add(1);
        self.answered(qp);
        self.add_empty(train, &Header::AtomicResponse(AtomicResponse { msn, id, original }), Did::Answer);
    }

    /// An answer is all in FPDUs.
    fn answered(&mut self, qp: &Qp) {
        self.cursor.answered += 1;
        self.cursor.answer_next = false;
        lock(&qp.owed).held -= 1;
    }

    fn add_read_response<'q>(
        &mut self,
        qp: &'q Qp,
        train: &mut Train,
        guards: &mut Guards<'q>,
        answer: &Answer,
    ) -> Result<(), Stop> {
        let Cursor { offset, read_v2_msn: msn, .. } = self.cursor;
        let cut = |all: u32, header_len| {
            let left = (all - offset) as usize;
            let len = left.min(self.room(train, header_len));
            (len, len == left)
        };
        let (header, source, len, last) = match answer.to {
            Question::Read(read) => {
                let (len, last) = cut(read.len, TAGGED_LEN);
                let place = advance(read.sink, offset.into());
                (Header::ReadResponse(Tagged { last, place }), read.source, len, last)
            }
            Question::ReadV2(read) => {
                let (len, last) = cut(read.len, UNTAGGED_LEN);
                (Header::ReadV2Response(ReadV2Response { msn, last, offset }), read.source, len, last)
            }
            Question::Atomic(_) | Question::Served { .. } => return Err(Stop::Idle),
        };
        let source = Source::Remote(advance(source, offset.into()), answer.touch);
        self.add_payload(qp, train, guards, &header, &source, len)
            .map_err(|fault| Stop::Failed(refused(fault, &answer.to, offset)))?;
        if last {
            self.cursor.read_v2_msn = msn.wrapping_add(u32::from(matches!(answer.to, Question::ReadV2(_))));
            self.answered(qp);
        }
        let (then, did) = if last { (Doing::Nothing, Did::Answer) } else { (Doing::Answer, Did::Other) };
        self.seal(train, len, last, then, did);
        Ok(())
    }
}

/// The peer asked for memory that it may not read, or not any more. RFC 5040 §4.8: of a Read that was served in part, the
/// Terminate returns what is left.
fn refused(fault: Fault, to: &Question, served: u32) -> Box<Failure> {
    let cause = match &fault {
        Fault::Remote(denied) => denied.read_cause(),
        _ => UNMAPPED,
    };
    let behind = |place| advance(place, served.into());
    let mut bytes = [0; MAX_HEADER];
    let left = match *to {
        Question::Read(ReadRequest { msn, sink, len, source }) => {
            let (sink, len, source) = (behind(sink), len - served, behind(source));
            Header::ReadRequest(ReadRequest { msn, sink, len, source }).emit(0, &mut bytes)
        }
        Question::ReadV2(ReadV2Request { msn, len, source }) => {
            let (len, source) = (len - served, behind(source));
            Header::ReadV2Request(ReadV2Request { msn, len, source }).emit(0, &mut bytes)
        }
        Question::Atomic(_) | Question::Served { .. } => Ok(0),
    };
    let n = left.unwrap_or(0);
    Box::new(Failure { fault, terminate: Terminate::answer(cause, &bytes[..n]), request: None })
}
