//! The third step of receiving a segment: [`end`](Rx::end) records that the segment is complete. If it is the last
//! one of its message, the message is delivered: its receive completes, or its response is queued.

use super::failure::{Checked, RxFailure, Target};
use super::segment::signal_of;
use super::{Message, Opens, Rx, Segment};
use crate::context::QpContext;
use crate::error::{Protocol, QpError};
use crate::memory::Denied;
use crate::outbound::{Opening, RemoteRequest, Response};
use crate::queue::{Completes, Completion, Opcode, Status};
use crate::recording::{Kind, low, record};
use crate::sync::lock;
use ironwarp_wire::mpa::Fpdu;
use ironwarp_wire::private::{SendImmediate, Signal, Unreadable};
use ironwarp_wire::{Dialect, Header, Immediate, Send, SendWord, Tagged};

impl Rx {
    /// Ends the segment in progress, which is complete and whose CRC was checked.
    pub(super) fn end_current(&mut self, qp: &QpContext) -> Checked {
        self.segment.take().map_or(Ok(()), |segment| self.end(qp, *segment))
    }

    /// Ends `segment`, which is complete and whose CRC was checked. After the first one of the stream, lets this end
    /// send.
    pub(super) fn end(&mut self, qp: &QpContext, segment: Segment) -> Checked {
        let Segment { fpdu, target, .. } = segment;
        match std::mem::take(&mut self.opens) {
            Opens::No => self.deliver(qp, fpdu, target),
            Opens::Yes => {
                let delivered = self.deliver(qp, fpdu, target);
                self.open_sending(qp);
                delivered
            }
            Opens::Rtr => {
                if let Header::ReadRequest(read) = fpdu.header {
                    self.read_msn = 2; // the RTR had number 1
                    self.queue_response(qp, RemoteRequest::Read(read));
                }
                self.open_sending(qp);
                Ok(())
            }
        }
    }

    /// Parks the segment if it waits for a receive. Otherwise ends it in the way that its kind of message needs.
    fn deliver(&mut self, qp: &QpContext, fpdu: Fpdu, target: Target) -> Checked {
        let len = fpdu.payload_len;
        if let Target::Park(payload) = target {
            if self.park.is_empty() {
                qp.wait_for_receive(&fpdu.header);
                qp.report_receive_missing();
                qp.obligations.lock().not_ready = Some(self.delivered);
                self.tx_has_work = true;
            }
            self.park.push(qp.shared_device(), fpdu, payload);
            self.ack_parked(qp);
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
                self.end_read_or_atomic(qp, RemoteRequest::Read(*read));
                Ok(())
            }
            Header::ReadV2Request(read) => {
                self.end_read_or_atomic(qp, RemoteRequest::ReadV2(*read));
                Ok(())
            }
            Header::AtomicRequest(request) => {
                self.end_read_or_atomic(qp, RemoteRequest::Atomic(*request));
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
            Header::Terminate(terminate) => {
                let error = QpError::Terminated(*terminate);
                record(Kind::TerminateReceived, qp.id(), error.vendor_err());
                // A Terminate is not answered.
                Err(RxFailure { error, cause: None, receive: None })
            }
        };
        // The caller reports the header of a segment that failed, which it finds in `self.segment`.
        ended.inspect_err(|_| {
            self.segment = Some(Box::new(Segment { fpdu, target: Target::Discard, done: 0 }));
        })
    }

    /// Ends a segment of a Write, whose payload of `len` bytes was placed. If the Write is a signal, handles the signal
    /// instead.
    pub(super) fn end_write(&mut self, qp: &QpContext, write: &Tagged, len: u16) -> Checked {
        if let Some(signal) = signal_of(qp, write, len.into()) {
            return self.handle_signal(qp, signal);
        }
        // If this is the first segment, `written` may still be the length of the last Write.
        let before = if matches!(self.message, Message::Write(_)) { self.written } else { 0 };
        self.written = before + u64::from(len);
        if self.touch.is_complete() {
            // Requirement M10: invalidate the memory after placement, before any later message is delivered.
            qp.device().table().end_touch(std::mem::take(&mut self.touch));
        }
        if write.last {
            self.message = Message::None;
            self.count_delivered();
        } else {
            self.message = Message::Write(write.addr.offset_by(len.into()));
        }
        Ok(())
    }

    /// Handles a signal of an Ironwarp peer.
    fn handle_signal(&mut self, qp: &QpContext, signal: Result<Signal, Unreadable>) -> Checked {
        let signal = match signal {
            Ok(signal) => signal,
            // From a peer that never announced itself as Ironwarp, this may be an ordinary empty Write: ignore it.
            Err(Unreadable::Extension(_)) if self.dialect != Dialect::Ironwarp => return Ok(()),
            Err(why) => return Err(RxFailure::other_release(why)),
        };
        match signal {
            Signal::Capabilities(capabilities) => {
                let mut obligations = qp.obligations.lock();
                if obligations.peer.is_none() {
                    let usable = obligations.usable_on_stream(qp.usable_capabilities(capabilities));
                    obligations.peer = Some(usable);
                    self.dialect = Dialect::Ironwarp;
                    let own = obligations.usable_on_stream(qp.capabilities());
                    obligations.opening = obligations.opening.or(Some(Opening::Signal(own)));
                    let sends_acks = obligations.peer_sends_acks();
                    self.acks_wanted = obligations.peer_wants_acks();
                    drop(obligations);
                    if self.acks_wanted {
                        qp.set_ack_may_be_due(); // for messages that were delivered before
                    }
                    if sends_acks && qp.completes() == Completes::WhenAcknowledged {
                        lock(&qp.sq).set_completes(Completes::WhenAcknowledged);
                    }
                    self.tx_has_work = true;
                    qp.report_peer_capabilities(usable);
                }
                Ok(())
            }
            Signal::NotReady(count) => {
                // The signal also acknowledges the `count` messages before the one that waits. The waiting message
                // itself may be partly sent, so it is not among the acknowledgeable ones yet.
                self.handle_acknowledgement(qp, count)?;
                record(Kind::PeerNotReady, qp.id(), low(count));
                qp.record_peer_not_ready(count)?;
                self.ack_parked(qp);
                Ok(())
            }
            Signal::Acknowledged(count) => self.handle_acknowledgement(qp, count),
            Signal::Offer { part, data } => self.handle_offer(qp, part, &data),
            Signal::Switch(route) => self.handle_switch(qp, route),
            Signal::Leave => {
                self.handle_leave(qp);
                Ok(())
            }
            Signal::Left => {
                Self::handle_left(qp);
                Ok(())
            }
            Signal::Unknown(_) => Ok(()),
        }
    }

    /// Handles the peer's acknowledgement of the first `count` messages of the stream: completes their requests. Fails
    /// if fewer were sent.
    fn handle_acknowledgement(&mut self, qp: &QpContext, count: u64) -> Checked {
        record(Kind::Acknowledged, qp.id(), low(count));
        let sent = qp.acknowledgeable();
        if count > sent {
            return Err(Protocol::Acknowledged { sent, found: count }.into());
        }
        let mut sq = lock(&qp.sq);
        sq.acknowledge(count);
        qp.retire_from(&mut sq);
        drop(sq);
        // The tx half continues a disconnect, or a drain of the queue, once everything is acknowledged.
        self.tx_has_work |= qp.obligations.lock().finish || qp.is_draining();
        Ok(())
    }

    /// Acknowledges the parked Sends as delivered if this end's messages wait for a receive of the peer as well. This
    /// resolves a deadlock: the programs of both ends may post a receive only after their own Sends complete. The
    /// parked Sends have arrived, and this end keeps them.
    fn ack_parked(&mut self, qp: &QpContext) {
        if qp.message_awaiting_receive().is_some() && !self.park.is_empty() {
            self.acked_parked = self.delivered + self.park.whole_sends();
            self.unpublished = true;
            qp.obligations.lock().ack_now = true;
            self.tx_has_work = true;
        }
    }

    /// Ends a segment of a Send. After the last one, invalidates the tag that the Send names, and completes the
    /// receive.
    fn end_send(&mut self, qp: &QpContext, send: &Send, len: u16) -> Checked {
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
            // Requirement M12, RFC 5040 §5.3: invalidate at delivery, final before the completion is visible.
            qp.device().table().invalidate_remotely(qp.stream(), tag).map_err(|denied| RxFailure {
                error: QpError::Remote(denied),
                cause: Some(Denied::invalidate_cause()),
                receive: Some(Status::LocalAccess),
            })?;
        }
        let Message::Send { receive, received, immediate } = self.take_delivered_send(qp) else {
            return Ok(());
        };
        let byte_len = u32::try_from(received).unwrap_or(u32::MAX);
        let completion = Completion::succeeded(receive.request.id, Opcode::Receive, qp.id(), byte_len);
        let solicited = send.solicited;
        qp.complete_receive(&receive, Completion { solicited, invalidated, immediate, ..completion });
        Ok(())
    }

    /// Ends Immediate Data: completes the receive, after the Write before it was placed and delivered (RFC 7306 §6).
    fn end_immediate(&mut self, qp: &QpContext, message: &Immediate) {
        let byte_len = u32::try_from(self.written).unwrap_or(u32::MAX);
        let Message::Send { receive, .. } = self.take_delivered_send(qp) else { return };
        let completion = Completion::succeeded(receive.request.id, Opcode::ReceiveWrite, qp.id(), byte_len);
        let (solicited, immediate) = (message.solicited, Some(message.data.value()));
        qp.complete_receive(&receive, Completion { solicited, immediate, ..completion });
    }

    /// Counts a message of the request class as delivered.
    fn count_delivered(&mut self) {
        self.delivered += 1;
        self.unpublished = true;
    }

    /// Takes the message that consumed a receive, and counts it as delivered.
    fn take_delivered_send(&mut self, qp: &QpContext) -> Message {
        self.count_delivered_send(qp);
        std::mem::replace(&mut self.message, Message::None)
    }

    /// Counts the message that consumed a receive as delivered. Called before its completion is visible, for the reason
    /// given at `QpContext::delivered`.
    pub(super) fn count_delivered_send(&mut self, qp: &QpContext) {
        self.send_msn = self.send_msn.wrapping_add(1);
        self.count_delivered();
        qp.set_delivered(self.delivered.max(self.acked_parked));
        self.written = 0;
    }

    /// Ends a Read or Atomic Request, which has a single segment: counts it as delivered, and queues its response.
    /// Called when the request has arrived whole and is valid.
    fn end_read_or_atomic(&mut self, qp: &QpContext, request: RemoteRequest) {
        self.read_msn = self.read_msn.wrapping_add(1);
        // The tx half learns the number from `publish_delivered`, at the end of the turn: there is no completion that
        // the program could poll before.
        self.count_delivered();
        self.written = 0; // Immediate Data that follows does not belong to an earlier Write any more
        self.queue_response(qp, request);
    }

    /// Queues a request for the tx half, which builds the response.
    fn queue_response(&mut self, qp: &QpContext, request: RemoteRequest) {
        let touch = std::mem::take(&mut self.touch);
        let mut obligations = qp.obligations.lock();
        obligations.inbound_reads += 1;
        obligations.responses.push_back(Response { request, touch });
        self.tx_has_work = true;
    }
}
