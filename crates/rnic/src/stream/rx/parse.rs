//! Takes the received bytes apart into segments, and passes each segment through its three steps: begin, place, end.

use super::failure::{Checked, RxFailure, Target};
use super::{Message, Rx, Segment};
use crate::context::QpContext;
use crate::memory::CachedGuard;
use crate::recording::{Kind, record};
use crate::stream::MIN_DIRECT;
use ironwarp_wire::mpa::{Fpdu, Piece};
use ironwarp_wire::{Header, MAX_HEADER};

impl Rx {
    /// Parses bytes of the stream, and processes the segments in them. A segment that is not complete stays in
    /// progress. Stops after a switch signal: the link gets the bytes behind it back. Returns their number.
    pub(super) fn parse(&mut self, qp: &QpContext, mut bytes: &[u8]) -> usize {
        let mut cached = None;
        while !bytes.is_empty()
            && !self.discarding
            && let Some(more) = self.parse_next(qp, &mut bytes, &mut cached)
        {
            if let Some(route) = self.switch_to {
                self.follow_switch(qp, route, bytes);
                return bytes.len();
            }
            if !more {
                break;
            }
        }
        0
    }

    /// Processes one FPDU if `bytes` contains all of it, or else one piece of it: its header, a part of its payload,
    /// or its end. Returns `None` if the stream failed, `Some(false)` if all bytes were used, and `Some(true)`
    /// otherwise.
    fn parse_next<'q>(
        &mut self,
        qp: &'q QpContext,
        bytes: &mut &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> Option<bool> {
        let dialect = self.dialect;
        let before = *bytes;
        let piece = match &self.reader.take_whole(bytes, dialect) {
            Ok(Some((fpdu, payload))) => {
                return self.process_whole(qp, fpdu, payload, cached).then_some(true);
            }
            Ok(None) => {
                *cached = None;
                self.reader.next(bytes, dialect)
            }
            Err(violation) => Err(*violation),
        };
        let done = match piece {
            Ok(None) => return Some(false),
            Ok(Some(Piece::Header(fpdu))) => match self.begin_and_predict(qp, &fpdu, false) {
                Ok(target) => {
                    self.segment = Some(Box::new(Segment { fpdu, target, done: 0 }));
                    Ok(())
                }
                // The bytes of the header may have arrived in several calls, so the Terminate gets the parsed header.
                Err(failure) => {
                    self.fail(qp, failure, &fpdu);
                    return None;
                }
            },
            Ok(Some(Piece::Payload(payload))) => self.place_current(qp, payload),
            Ok(Some(Piece::End)) => self.end_current(qp),
            Err(violation) => {
                // The reader holds the start of a header that arrived in several calls.
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

    /// Begins a segment, its first step, and predicts whether the next one will be large.
    fn begin_and_predict(&mut self, qp: &QpContext, fpdu: &Fpdu, whole: bool) -> Checked<Target> {
        let segment = u32::from(number_of(&fpdu.header)) << 16 | u32::from(fpdu.payload_len);
        record(Kind::SegmentReceived, qp.id(), segment);
        let is_immediate = matches!(fpdu.header, Header::Immediate(_));
        let large = usize::from(fpdu.payload_len) >= MIN_DIRECT
            || (self.gap > 0 && (is_immediate || self.continues_message(&fpdu.header)));
        let gap = gap_after(fpdu);
        if !large || is_immediate {
            self.immediate = if large { gap } else { 0 };
            self.gap = self.immediate;
        } else {
            self.gap = gap + self.immediate;
        }
        self.begin(qp, fpdu, whole)
    }

    /// Whether a segment with this header continues the message in progress.
    fn continues_message(&self, header: &Header) -> bool {
        match header {
            Header::Write(_) => matches!(self.message, Message::Write(_)),
            Header::ReadResponse(_) | Header::ReadV2Response(_) => self.response_in_progress,
            Header::Send(send) => send.offset > 0,
            _ => false,
        }
    }

    /// Processes a segment that arrived in one piece, in the same three steps. Returns false if the stream failed.
    /// Consecutive Writes to one tag share the guard in `cached`. Other messages must not hold a guard, because ending
    /// them may invalidate memory, which waits for guards.
    pub(super) fn process_whole<'q>(
        &mut self,
        qp: &'q QpContext,
        fpdu: &Fpdu,
        payload: &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> bool {
        if let Some(goes_on) = self.process_straight(qp, fpdu, payload, cached) {
            return goes_on;
        }
        let begun = self.begin_and_predict(qp, fpdu, true);
        match fpdu.header {
            Header::Write(_) => self.place_and_end(qp, fpdu, payload, begun, cached),
            _ => {
                *cached = None;
                self.place_and_end(qp, fpdu, payload, begun, &mut None)
            }
        }
    }

    /// Does the second and the third step of a segment that arrived in one piece. `begun` is the result of the first
    /// step. Returns false if the stream failed.
    pub(super) fn place_and_end<'q>(
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

    /// Delivers parked messages for which a receive was posted, and the messages after them that need none.
    pub(super) fn unpark(&mut self, qp: &QpContext) {
        while let Some(parked) = self.park.front() {
            let header = parked.fpdu.header;
            let supplied = self.take_receive_for(qp, &header);
            if matches!(supplied, Ok(false)) {
                qp.wait_for_receive(&header);
                // Check again: a receive may have been posted just before, by a thread that did not see the mark of
                // `wait_for_receive`.
                if !matches!(self.take_receive_for(qp, &header), Ok(true)) {
                    return;
                }
            }
            let Some(parked) = self.park.pop() else { return };
            if self.park.is_empty() {
                qp.stop_waiting_for_receive();
            }
            // `check_header` instead of `begin`, which would park the segment again behind those that are still parked.
            let begun = supplied.and_then(|_| self.check_header(qp, &parked.fpdu, true));
            if !self.place_and_end(qp, &parked.fpdu, &parked.payload, begun, &mut None) {
                return;
            }
        }
    }
}

/// Returns the number of a type of segment in `recorded.rs`.
const fn number_of(header: &Header) -> u8 {
    match header {
        Header::Write(_) => 0,
        Header::ReadResponse(_) => 1,
        Header::Send(_) => 2,
        Header::Immediate(_) => 3,
        Header::ReadRequest(_) => 4,
        Header::AtomicRequest(_) => 5,
        Header::AtomicResponse(_) => 6,
        Header::Terminate(_) => 7,
        Header::SendImmediate(_) => 8,
        Header::ReadV2Request(_) => 9,
        Header::ReadV2Response(_) => 10,
    }
}

/// Returns the number of bytes, at most 64, between the payload of this segment and the payload of the next one, if both have
/// headers of the same length.
fn gap_after(fpdu: &Fpdu) -> u8 {
    let len = fpdu.total_len() - usize::from(fpdu.payload_len);
    u8::try_from(len).expect("a header, padding and a CRC are shorter than 256 bytes").min(64)
}
