//! Receiving datagrams: from the link to the program's memory, behind a GRH, and to a completion.
//!
//! A datagram that does not belong to the queue pair is dropped and counted, and its sender is not told, as
//! befits an unreliable service. A datagram that belongs to it consumes a receive:
//!
//! | the receive | completes with | and the queue pair |
//! |---|---|---|
//! | is too short for GRH and message | local length error | is not affected |
//! | names memory that may not be written (requirement M8) | local protection error | goes to the error state |
//!
//! InfiniBand does not let a datagram that is too long change the state of an unreliable queue pair:
//! otherwise any sender with the key could shut it down for all others. It allows the receive to complete
//! with the error, which we do so that a program that posts short receives notices. Memory that cannot be
//! used is an error of the program itself.

use super::{Arrived, BATCH, DatagramQp, DropReason, Grh, MAX_PAYLOAD, number_of};
use crate::error::{Protocol, QpError};
use crate::event::AsyncEvent;
use crate::half::Left;
use crate::memory::Guards;
use crate::memory::{Rights, Spans};
use crate::queue::{Completion, Opcode, Receive, ReceiveRequest, Sender, Status};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::private::{DATAGRAM_LEN, Datagram, MAX_DATAGRAM_HEADER, Unreadable};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the header of the datagram is received, so that it ends where the GRH will end and the payload
/// follows both.
const FRONT: usize = Grh::LEN - DATAGRAM_LEN;

/// Room for the longest header and message, and one more byte to detect longer ones.
type Packet = [u8; FRONT + MAX_DATAGRAM_HEADER + MAX_PAYLOAD + 1];

impl DatagramQp {
    /// Receives datagrams until there are none left or the turn is over. The rx half is held.
    pub(super) fn receive(&self) -> Left {
        let mut packet: Packet = [0; _];
        let mut left = Left::Work;
        for _ in 0..BATCH {
            let Some(arrived) = self.link.recv(&mut packet[FRONT..]) else {
                left = Left::Nothing;
                break;
            };
            if let Err(why) = self.deliver(&arrived, &mut packet) {
                self.count_drop(why);
            }
        }
        if self.state() == State::Error {
            self.flush_receives();
        }
        left
    }

    fn deliver(&self, arrived: &Arrived, packet: &mut Packet) -> Result<(), DropReason> {
        let bytes = packet[FRONT..].get(..arrived.len).ok_or(DropReason::Malformed)?;
        let (header, payload) = Datagram::parse(bytes).map_err(|why| self.unreadable(why, arrived))?;
        let len = payload.len();
        if len > MAX_PAYLOAD {
            return Err(DropReason::Malformed);
        }
        // The kernel reports the port, while the header is only the sender's claim. This keeps a process from
        // impersonating another one on the same host.
        if header.source != number_of(arrived.port) {
            return Err(DropReason::Malformed);
        }
        if header.destination != self.id {
            return Err(DropReason::OtherNumber);
        }
        if header.qkey != self.qkey() {
            return Err(DropReason::Qkey);
        }
        if matches!(self.state(), State::Reset | State::Init | State::Error) {
            return Err(DropReason::NotReady);
        }
        let receive = self.take_receive().ok_or(DropReason::NoReceive)?;
        let payload_at = FRONT + arrived.len - len;
        if payload_at != Grh::LEN {
            packet.copy_within(payload_at..payload_at + len, Grh::LEN); // the header has extensions
        }
        packet[..Grh::LEN].copy_from_slice(&grh(&header, arrived, len).to_bytes());
        self.place(&receive, &header, &packet[..Grh::LEN + len]);
        Ok(())
    }

    /// Logs the first datagram of another release, because all of them are dropped.
    fn unreadable(&self, why: Unreadable, arrived: &Arrived) -> DropReason {
        match why {
            Unreadable::Foreign | Unreadable::Malformed => DropReason::Malformed,
            _ => {
                if self.drops().other_release == 0 {
                    let peer = arrived.from;
                    tracing::warn!(qp = format_args!("{:#08x}", self.id), %peer, "dropping datagrams: {why}");
                }
                DropReason::OtherRelease
            }
        }
    }

    /// Places the GRH and the message in memory, and completes the receive.
    fn place(&self, receive: &Receive, header: &Datagram, bytes: &[u8]) {
        let found = bytes.len() as u64;
        if found > receive.room {
            let error = QpError::Protocol(Protocol::TooLong { room: receive.room, found });
            return self.receive_failed(receive, Status::LocalLength, &Arc::new(error));
        }
        if let Err(error) = self.scatter(receive, bytes) {
            self.receive_failed(receive, Status::LocalProtection, &Arc::new(error.clone()));
            return self.fail(error);
        }
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let completion = Completion {
            solicited: header.solicited,
            immediate: header.immediate,
            sender: Some(Sender { qp: header.source, service_level: header.service_level }),
            ..Completion::succeeded(receive.request.id, Opcode::Receive, self.id, len)
        };
        self.complete_receive(receive, completion);
    }

    /// Copies a datagram into the program's memory, if it may be written (requirement M8).
    fn scatter(&self, receive: &Receive, bytes: &[u8]) -> Result<(), QpError> {
        let buffers = &receive.request.buffers;
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        let (domain, table) = (receive.domain, self.device.table());
        buffers.range(0, bytes.len(), |sge| {
            let guard = table.admit_local(
                domain,
                sge.tag,
                sge.addr,
                sge.len as usize,
                Rights::LOCAL_WRITE,
                &mut spans,
            );
            guards.push(guard.map_err(QpError::Local)?);
            Ok(())
        })?;
        let scattered = self.device.host().scatter(bytes, &spans);
        drop(guards);
        scattered.map_err(|_| QpError::Unmapped { place: buffers.place(), len: bytes.len(), remote: false })
    }

    fn take_receive(&self) -> Option<Receive> {
        // A receive whose memory is still being registered (requirement X6) does not count as posted, and a
        // datagram does not wait for it.
        let table = self.device.table();
        let ready = |request: &ReceiveRequest| {
            !table.has_pending() || !request.buffers.as_slice().iter().any(|sge| table.is_pending(sge.tag))
        };
        match &self.attributes.shared {
            Some(queue) => queue.take_if(ready),
            None => lock(&self.rq).take_if(ready),
        }
    }

    fn receive_failed(&self, receive: &Receive, status: Status, error: &Arc<QpError>) {
        let cause = Some(Arc::clone(error));
        let completion = Completion::failed(receive.request.id, Opcode::Receive, self.id, status, cause);
        self.complete_receive(receive, completion);
    }

    fn complete_receive(&self, receive: &Receive, completion: Completion) {
        self.complete(receive.cq.as_ref().unwrap_or(&self.attributes.receive_cq), completion);
    }

    /// Completes all receives as flushed.
    fn flush_receives(&self) {
        let Some(error) = self.error() else { return };
        for completion in lock(&self.rq).flush(self.id, &error) {
            self.complete(&self.attributes.receive_cq, completion);
        }
        if self.attributes.shared.is_some() && !self.last_receive.swap(true, Ordering::AcqRel) {
            self.device.raise(AsyncEvent::LastWqeReached(self.id));
        }
    }
}

/// The GRH for a received datagram.
fn grh(header: &Datagram, arrived: &Arrived, len: usize) -> Grh {
    Grh {
        traffic_class: header.traffic_class,
        flow_label: header.flow_label,
        payload_len: Grh::counted(len, header.immediate.is_some()),
        hop_limit: header.hop_limit,
        source: arrived.from,
        destination: arrived.to,
    }
}
