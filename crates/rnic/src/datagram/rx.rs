//! Datagrams → receives. Before this: the link; after: the program's memory, with a GRH in front, and a completion.
//!
//! Whatever does not belong to the queue pair is dropped and counted, and its sender is not told: that is what an unreliable
//! service is. A datagram that does belong to it uses up a receive.
//!
//! | the receive | completes with | and the queue pair |
//! |---|---|---|
//! | is too short for GRH and message | local length error | goes on |
//! | names memory that may not be written (requirement M8) | local protection error | goes to the error state |
//!
//! InfiniBand does not let a datagram that is too long change the state of an unreliable queue pair: any sender with the
//! key could end it for all others. It lets a receive be completed with the error, and so we do, because a program that
//! posts short receives should hear of it. Memory that cannot be used is the program's own mistake.

use super::{Arrived, BATCH, DatagramQp, Dropped, Grh, MAX_PAYLOAD, number_of};
use crate::error::{Fault, Protocol};
use crate::event::AsyncEvent;
use crate::half::Left;
use crate::memory::{Rights, Spans};
use crate::queue::{Completion, Opcode, Receive, ReceiveRequest, Sender, Status};
use crate::state::State;
use crate::stream::Guards;
use crate::sync::lock;
use ironwarp_wire::private::{DATAGRAM_LEN, Datagram, MAX_DATAGRAM_HEADER, Unreadable};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The datagram's header lies where the end of the GRH will be, so that the payload is behind both.
const FRONT: usize = Grh::LEN - DATAGRAM_LEN;

/// The longest header and message, and a byte that shows that one was longer.
type Packet = [u8; FRONT + MAX_DATAGRAM_HEADER + MAX_PAYLOAD + 1];

impl DatagramQp {
    /// Receives what is there, or a fair share of it. The rx half is held.
    pub(super) fn receive(&self) -> Left {
        let mut packet: Packet = [0; _];
        let mut left = Left::Work;
        for _ in 0..BATCH {
            let Some(arrived) = self.link.recv(&mut packet[FRONT..]) else {
                left = Left::Nothing;
                break;
            };
            if let Err(why) = self.deliver(&arrived, &mut packet) {
                self.dropped(why);
            }
        }
        if self.state() == State::Error {
            self.flush_receives();
        }
        left
    }

    fn deliver(&self, arrived: &Arrived, packet: &mut Packet) -> Result<(), Dropped> {
        let bytes = packet[FRONT..].get(..arrived.len).ok_or(Dropped::Malformed)?;
        let (header, payload) = Datagram::parse(bytes).map_err(|why| self.unreadable(why, arrived))?;
        let len = payload.len();
        if len > MAX_PAYLOAD {
            return Err(Dropped::Malformed);
        }
        // The kernel knows the port, the header is the sender's word: nobody speaks for another on the same host.
        if header.source != number_of(arrived.port) {
            return Err(Dropped::Malformed);
        }
        if header.destination != self.id {
            return Err(Dropped::OtherNumber);
        }
        if header.qkey != self.qkey() {
            return Err(Dropped::Qkey);
        }
        if matches!(self.state(), State::Reset | State::Init | State::Error) {
            return Err(Dropped::NotReady);
        }
        let receive = self.take_receive().ok_or(Dropped::NoReceive)?;
        let payload_at = FRONT + arrived.len - len;
        if payload_at != Grh::LEN {
            packet.copy_within(payload_at..payload_at + len, Grh::LEN); // the header has extensions
        }
        packet[..Grh::LEN].copy_from_slice(&grh(&header, arrived, len).to_bytes());
        self.place(&receive, &header, &packet[..Grh::LEN + len]);
        Ok(())
    }

    /// A peer of another release would be dropped silently forever, so the first one is logged.
    fn unreadable(&self, why: Unreadable, arrived: &Arrived) -> Dropped {
        match why {
            Unreadable::Foreign | Unreadable::Malformed => Dropped::Malformed,
            _ => {
                if self.drops().other_release == 0 {
                    let peer = arrived.from;
                    tracing::warn!(qp = format_args!("{:#08x}", self.id), %peer, "dropping datagrams: {why}");
                }
                Dropped::OtherRelease
            }
        }
    }

    /// Places GRH and message, and completes the receive.
    fn place(&self, receive: &Receive, header: &Datagram, bytes: &[u8]) {
        let found = bytes.len() as u64;
        if found > receive.room {
            let fault = Fault::Protocol(Protocol::TooLong { room: receive.room, found });
            return self.receive_failed(receive, Status::LocalLength, &Arc::new(fault));
        }
        if let Err(fault) = self.scatter(receive, bytes) {
            self.receive_failed(receive, Status::LocalProtection, &Arc::new(fault.clone()));
            return self.fail(fault);
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

    /// Copies what came into the program's memory, if it may be written (requirement M8).
    fn scatter(&self, receive: &Receive, bytes: &[u8]) -> Result<(), Fault> {
        let buffers = &receive.request.buffers;
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        let (domain, table) = (receive.domain, self.device.table());
        buffers.range(0, bytes.len(), |sge| {
            let guard =
                table.local(domain, sge.tag, sge.addr, sge.len as usize, Rights::LOCAL_WRITE, &mut spans);
            guards.push(guard.map_err(Fault::Local)?);
            Ok(())
        })?;
        let scattered = self.device.host().scatter(bytes, &spans);
        drop(guards);
        scattered.map_err(|_| Fault::Unmapped { place: buffers.place(), len: bytes.len(), remote: false })
    }

    fn take_receive(&self) -> Option<Receive> {
        // One whose memory is being registered (requirement X6) is not posted yet, and a datagram does not wait.
        let table = self.device.table();
        let ready = |request: &ReceiveRequest| {
            !table.has_pending() || !request.buffers.as_slice().iter().any(|sge| table.is_pending(sge.tag))
        };
        match &self.attributes.shared {
            Some(queue) => queue.take_if(ready),
            None => lock(&self.rq).take_if(ready),
        }
    }

    fn receive_failed(&self, receive: &Receive, status: Status, fault: &Arc<Fault>) {
        let cause = Some(Arc::clone(fault));
        let completion = Completion::failed(receive.request.id, Opcode::Receive, self.id, status, cause);
        self.complete_receive(receive, completion);
    }

    fn complete_receive(&self, receive: &Receive, completion: Completion) {
        self.complete(receive.cq.as_ref().unwrap_or(&self.attributes.receive_cq), completion);
    }

    /// Gives all receives back.
    fn flush_receives(&self) {
        let Some(fault) = self.fault() else { return };
        for completion in lock(&self.rq).flush(self.id, &fault) {
            self.complete(&self.attributes.receive_cq, completion);
        }
        if self.attributes.shared.is_some() && !self.last_receive.swap(true, Ordering::AcqRel) {
            self.device.raise(AsyncEvent::LastWqeReached(self.id));
        }
    }
}

/// What the program finds in front of the message.
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
