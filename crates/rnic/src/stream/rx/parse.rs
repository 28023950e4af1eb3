//! Takes the bytes of a stream apart into segments, and passes each through its three steps.

use super::failure::{Checked, RxFailure, Target};
use super::{Message, Rx, Segment};
use crate::context::QpContext;
use crate::memory::CachedGuard;
use crate::stream::MIN_DIRECT;
use ironwarp_wire::mpa::{Fpdu, Piece};
use ironwarp_wire::{Header, MAX_HEADER};

impl Rx {
    /// Parses bytes of the stream.
    pub(super) fn parse(&mut self, qp: &QpContext, mut bytes: &[u8]) {
        let mut cached = None;
        while !self.discarding
            && let Some(more) = self.parse_next(qp, &mut bytes, &mut cached)
        {
            if !more {
                break;
            }
        }
    }

    /// Processes one FPDU if all of it is there, or else one piece. Returns `None` if the stream failed, and
    /// `Some(false)` when all bytes are used up.
    fn parse_next<'q>(
        &mut self,
        qp: &'q QpContext,
        bytes: &mut &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> Option<bool> {
        let dialect = self.dialect;
        let before = *bytes;
        let piece = match self.reader.whole(bytes, dialect) {
            Ok(Some((fpdu, payload))) => {
                return self.process_whole(qp, &fpdu, payload, cached).then_some(true);
            }
            Ok(None) => {
                *cached = None;
                self.reader.next(bytes, dialect)
            }
            Err(violation) => Err(violation),
        };
        let done = match piece {
            Ok(None) => return Some(false),
            Ok(Some(Piece::Header(fpdu))) => match self.begin_and_predict(qp, &fpdu, false) {
                Ok(target) => {
                    self.segment = Some(Box::new(Segment { fpdu, target, done: 0 }));
                    Ok(())
                }
                // The header may have arrived byte by byte, so report it as parsed.
                Err(failure) => {
                    self.fail(qp, failure, &fpdu);
                    return None;
                }
            },
            Ok(Some(Piece::Payload(payload))) => self.place_current(qp, payload),
            Ok(Some(Piece::End)) => self.end_current(qp),
            Err(violation) => {
                let held = self.reader.held();
                let offender = if held.is_empty() { before } else { held };
                let offender = offender[..offender.len().min(MAX_HEADER)].to_vec();
                self.fail_with(qp, RxFailure::violation(violation), None, &offender);
                return None;
            }
        };
        if let Err(failure) = done {
            let fpdu = self
                .segment
                .as_ref()
                .map(|segment| segment.fpdu)
                .expect("a segment that failed is in progress");
            self.fail(qp, failure, &fpdu);
            return None;
        }
        Some(true)
    }

    /// The first step of a segment, which also predicts the size of the next.
    fn begin_and_predict(&mut self, qp: &QpContext, fpdu: &Fpdu, whole: bool) -> Checked<Target> {
        let large = usize::from(fpdu.payload_len) >= MIN_DIRECT
            || (self.gap > 0 && self.continues_message(&fpdu.header));
        self.gap = if large { gap_after(fpdu) } else { 0 };
        self.begin(qp, fpdu, whole)
    }

    /// Whether this segment continues a message.
    fn continues_message(&self, header: &Header) -> bool {
        match header {
            Header::Write(_) => matches!(self.message, Message::Write(_)),
            Header::ReadResponse(_) | Header::ReadV2Response(_) => self.response_in_progress,
            Header::Send(send) => send.offset > 0,
            _ => false,
        }
    }

    /// Processes a segment that arrived in one piece, in the same three steps. Consecutive Writes share a
    /// guard; other messages must not hold one, because their end may wait for guards.
    pub(super) fn process_whole<'q>(
        &mut self,
        qp: &'q QpContext,
        fpdu: &Fpdu,
        payload: &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> bool {
        let begun = self.begin_and_predict(qp, fpdu, true);
        match fpdu.header {
            Header::Write(_) => self.place_and_end(qp, fpdu, payload, begun, cached),
            _ => {
                *cached = None;
                self.place_and_end(qp, fpdu, payload, begun, &mut None)
            }
        }
    }

    /// The second and the third step of a segment that arrived in one piece.
    fn place_and_end<'q>(
        &mut self,
        qp: &'q QpContext,
        fpdu: &Fpdu,
        payload: &[u8],
        begun: Checked<Target>,
        cached: &mut Option<CachedGuard<'q>>,
    ) -> bool {
        let done = begun.and_then(|target| {
            let mut segment = Segment { fpdu: *fpdu, target, done: 0 };
            if !payload.is_empty() {
                self.place(qp, &mut segment, payload, cached)?;
            }
            self.end(qp, segment)
        });
        if let Err(failure) = done {
            self.fail(qp, failure, fpdu);
            return false;
        }
        true
    }

    /// Delivers parked messages for which a receive was posted.
    pub(super) fn unpark(&mut self, qp: &QpContext) {
        while let Some(parked) = self.park.front() {
            let header = parked.fpdu.header;
            let supplied = self.take_receive_for(qp, &header);
            if matches!(supplied, Ok(false)) {
                qp.wait_for_receive(&header);
                // Check again: a receive may have been posted just before, by a thread that did not see this
                // wait.
                if !matches!(self.take_receive_for(qp, &header), Ok(true)) {
                    return;
                }
            }
            let Some(parked) = self.park.pop() else { return };
            if self.park.is_empty() {
                qp.stop_waiting_for_receive();
            }
            // It has waited its turn: segments parked after it must not park it again.
            let begun = supplied.and_then(|_| self.check_header(qp, &parked.fpdu, true));
            if !self.place_and_end(qp, &parked.fpdu, &parked.payload, begun, &mut None) {
                return;
            }
        }
    }
}

/// Number of bytes between the payload of this segment and the next payload, if the next segment is like this
/// one.
fn gap_after(fpdu: &Fpdu) -> u8 {
    let len = fpdu.total_len() - usize::from(fpdu.payload_len);
    u8::try_from(len).expect("a header, padding and a CRC are shorter than 256 bytes")
}
