//! The straight path: receives a few bytes into a buffer on the stack, and places a message that arrives in one piece and
//! needs nothing special. Everything else is left to the general steps (`segment.rs`, `place.rs`, `deliver.rs`), which
//! start from the same state and make the same checks.

use super::failure::RxFailure;
use super::{Message, Opens, Rx};
use crate::context::QpContext;
use crate::half::Left;
use crate::link::LinkError;
use crate::memory::{CachedGuard, Rights, Translation};
use crate::queue::{Completion, Opcode};
use crate::recording::{Kind, record};
use crate::stream::{MIN_DIRECT, SMALL_RECV};
use ironwarp_wire::mpa::Fpdu;
use ironwarp_wire::{Dialect, Header, Send, SendWord, Tagged};

impl Rx {
    /// Receives like [`run_turn`](Self::run_turn) if the next call to the link is likely to receive fewer than [`SMALL_RECV`]
    /// bytes. Returns `None` if there may be more to receive, or if there is something else to do.
    pub(super) fn run_small_turn(&mut self, qp: &QpContext, polls: usize) -> Option<Left> {
        let may_receive = self.expects_small
            && !self.until_empty
            && !self.ended
            && !self.discarding
            && self.gap == 0
            && self.segment.is_none()
            && self.early.is_empty()
            && self.park.is_empty()
            && !qp.is_ended();
        if !may_receive {
            return None;
        }
        let mut bytes = [0; SMALL_RECV];
        for _ in 0..polls {
            match self.link.recv(&[], &mut bytes) {
                Ok(len) => {
                    self.expects_small = len < SMALL_RECV;
                    self.parse(qp, &bytes[..len]);
                    self.handle_changes(qp);
                    // After a switch, the other route may have more.
                    return (self.expects_small && !self.until_empty).then_some(Left::Nothing);
                }
                Err(LinkError::WouldBlock) => {}
                Err(error) => {
                    self.handle_recv_error(qp, error);
                    self.handle_changes(qp);
                    return Some(Left::Nothing);
                }
            }
        }
        Some(Left::Nothing)
    }

    /// Places and delivers a message that arrived in one piece, if it is a plain Send or Write. Returns `None` if it is
    /// not, before anything was done. Otherwise returns whether the stream goes on.
    #[inline]
    pub(super) fn process_straight<'q>(
        &mut self,
        qp: &'q QpContext,
        fpdu: &Fpdu,
        payload: &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> Option<bool> {
        let plain = !self.awaiting_first
            && self.opens == Opens::No
            && (self.dialect == Dialect::Ironwarp || self.standard_peer)
            && self.park.is_empty()
            && matches!(self.message, Message::None)
            && !payload.is_empty()
            && payload.len() < MIN_DIRECT;
        if !plain {
            return None;
        }
        match &fpdu.header {
            Header::Write(write) if write.last => Some(self.process_write(qp, fpdu, write, payload, cached)),
            Header::Send(send) if send.last && send.offset == 0 && send.msn == self.send_msn => {
                *cached = None; // see `process_whole`
                self.process_send(qp, fpdu, send, payload)
            }
            _ => None,
        }
    }

    /// Places and delivers a Write of one segment. Returns false if the stream failed.
    fn process_write<'q>(
        &mut self,
        qp: &'q QpContext,
        fpdu: &Fpdu,
        write: &Tagged,
        payload: &[u8],
        cached: &mut Option<CachedGuard<'q>>,
    ) -> bool {
        self.gap = 0;
        self.touch.start_segment(true);
        let (host, len) = (qp.device().host(), payload.len());
        let copy = |memory: &Translation, at| memory.write(at, host, payload);
        let placed = qp.with_remote(cached, write.addr, len, Rights::REMOTE_WRITE, &mut self.touch, copy);
        let ended = match placed {
            Ok(Ok(())) => self.end_write(qp, write, fpdu.payload_len),
            Ok(Err(_)) => Err(self.unmapped_failure(qp, fpdu, 0, len)),
            Err(denied) => Err(RxFailure::remote(denied, denied.write_cause())),
        };
        match ended {
            Ok(()) => {
                record(Kind::WritePlaced, qp.id(), fpdu.payload_len.into());
                true
            }
            Err(failure) => {
                self.fail(qp, failure, fpdu);
                false
            }
        }
    }

    /// Places and delivers a Send of one segment, if the next receive has a single buffer.
    fn process_send(&mut self, qp: &QpContext, fpdu: &Fpdu, send: &Send, payload: &[u8]) -> Option<bool> {
        let SendWord::Srq(_) = send.word else { return None };
        let receive = qp.take_own_receive()?;
        self.gap = 0;
        let (id, domain, room) = (receive.request.id, receive.domain, receive.room);
        let only = match receive.request.buffers.as_slice() {
            [only] => Some(*only),
            _ => None,
        };
        // From now on the receive is in use by the message, so that it is completed or flushed whatever happens.
        self.message = Message::Send { receive, received: 0, immediate: None };
        let placed = match only {
            Some(sge) if payload.len() as u64 <= room => {
                let (device, addr) = (qp.device(), (sge.tag, sge.addr));
                let write = |memory: &Translation, at| memory.write(at, device.host(), payload);
                device.table().with_local_once(domain, addr, payload.len(), Rights::LOCAL_WRITE, write)
            }
            _ => None,
        };
        if !matches!(placed, Some(Ok(()))) {
            // The general steps find out what is wrong, or place the payload in several buffers.
            let begun = self.check_header(qp, fpdu, true);
            return Some(self.place_and_end(qp, fpdu, payload, begun, &mut None));
        }
        self.count_delivered_send(qp);
        self.message = Message::None;
        let completion = Completion::succeeded(id, Opcode::Receive, qp.id(), fpdu.payload_len.into());
        qp.complete_own_receive(Completion { solicited: send.solicited, ..completion });
        Some(true)
    }
}
