//! Receiving datagrams: takes datagrams from the link, places them in the program's memory, each after a GRH, and
//! completes receives.
//!
//! A datagram that is not for this queue pair is dropped and counted. Its sender is not notified, because the
//! service is unreliable. A datagram for this queue pair consumes a receive:
//!
//! | the receive | completes with | and the queue pair |
//! |---|---|---|
//! | is too short for GRH and message | local length error | is not affected |
//! | names memory that may not be written (requirement M8) | local protection error | goes to the error state |
//!
//! By the InfiniBand specification, a datagram that is too long does not change the state of an unreliable queue
//! pair: otherwise any sender that knows the Q_Key could stop the queue pair for all others. The specification allows
//! the receive to complete with an error, as done here, so that a program notices that its receives are too short.
//! Memory that cannot be written is an error of the receiving program itself.

use super::{Arrived, BATCH, DatagramQp, DropReason, Grh, MAX_PAYLOAD, qpn_of_port};
use crate::error::{Protocol, QpError};
use crate::event::AsyncEvent;
use crate::half::Left;
use crate::memory::Guards;
use crate::memory::{Rights, Spans};
use crate::queue::{Completion, Opcode, Receive, ReceiveRequest, Sender, Status};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::private::{Datagram, DatagramKind, MAX_DATAGRAM_HEADER, Unreadable};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A buffer for the longest header and message, and one more byte to detect longer messages.
type Packet = [u8; MAX_DATAGRAM_HEADER + MAX_PAYLOAD + 1];

impl DatagramQp {
    /// Receives datagrams until there are none left or the turn is over, and flushes receives in the error state.
    /// Returns whether datagrams may be left. The rx half is held.
    pub(super) fn receive(&self) -> Left {
        let mut packet: Packet = [0; _];
        let mut left = Left::Work;
        for _ in 0..BATCH {
            let Some(arrived) = self.link.recv(&mut packet) else {
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

    /// Checks a received datagram, places it in the memory of a receive, and completes the receive. Returns the
    /// reason if the datagram must be dropped instead.
    fn deliver(&self, arrived: &Arrived, packet: &mut Packet) -> Result<(), DropReason> {
        if arrived.len >= packet.len() {
            return Err(DropReason::Malformed); // too long, and perhaps cut off
        }
        let bytes = &packet[..arrived.len];
        let (header, payload) =
            Datagram::parse(bytes).map_err(|why| self.classify_unreadable(why, arrived))?;
        let len = payload.len();
        if len > MAX_PAYLOAD {
            return Err(DropReason::Malformed);
        }
        // The kernel has reported the sender's port, so a process cannot pretend to be another process of its host by
        // a false source in the header.
        if header.source != qpn_of_port(arrived.port) {
            return Err(DropReason::Malformed);
        }
        if header.destination != self.id {
            return Err(DropReason::OtherNumber);
        }
        // The GRH takes the place of the last bytes of the header, which is longer, so that the payload need not be moved.
        let message = arrived.len - len - Grh::LEN..arrived.len;
        let place = |packet: &mut Packet| {
            let receive = self.take_receive(arrived)?;
            let grh = create_grh(&header, arrived, len).to_bytes();
            packet[message.start..message.start + Grh::LEN].copy_from_slice(&grh);
            Some(self.place(&receive, &header, &packet[message], arrived))
        };
        match (header.kind, &self.sessions) {
            (DatagramKind::Message, None) => {
                self.check_ready(&header)?;
                place(packet).map(|_| ()).ok_or(DropReason::NoReceive)
            }
            (DatagramKind::Acknowledged { session }, Some(sessions)) => {
                self.check_ready(&header)?;
                self.place_once(sessions, (&header, session), arrived, || place(packet))
            }
            (_, Some(sessions)) => self.control(sessions, &header, arrived),
            (_, None) => Err(DropReason::OtherService),
        }
    }

    /// Checks that the queue pair is ready to receive a datagram with this Q_Key.
    pub(super) fn check_ready(&self, header: &Datagram) -> Result<(), DropReason> {
        if header.qkey != self.qkey() {
            return Err(DropReason::Qkey);
        }
        match self.state() {
            State::Reset | State::Init | State::Error => Err(DropReason::NotReady),
            _ => Ok(()),
        }
    }

    /// Returns the drop reason for a datagram whose header cannot be parsed. Logs the first datagram of another
    /// release, because all datagrams from there will be dropped.
    fn classify_unreadable(&self, why: Unreadable, arrived: &Arrived) -> DropReason {
        match why {
            Unreadable::Foreign | Unreadable::Malformed => DropReason::Malformed,
            Unreadable::Damaged => DropReason::Damaged,
            _ => {
                if self.drops().other_release == 0 {
                    let peer = arrived.from;
                    tracing::warn!(qp = format_args!("{:#08x}", self.id), %peer, "dropping datagrams: {why}");
                }
                DropReason::OtherRelease
            }
        }
    }

    /// Places `bytes`, the GRH and the message, in the memory of a receive, and completes the receive. Returns whether the
    /// receive succeeded.
    fn place(&self, receive: &Receive, header: &Datagram, bytes: &[u8], arrived: &Arrived) -> bool {
        let found = bytes.len() as u64;
        if found > receive.room {
            let error = QpError::Protocol(Protocol::TooLong { room: receive.room, found });
            self.complete_failed_receive(receive, Status::LocalLength, &Arc::new(error), arrived);
            return false;
        }
        if let Err(error) = self.scatter(receive, bytes) {
            self.complete_failed_receive(receive, Status::LocalProtection, &Arc::new(error.clone()), arrived);
            self.fail(error);
            return false;
        }
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let completion = Completion {
            solicited: header.solicited,
            immediate: header.immediate,
            sender: Some(Sender { qp: header.source, service_level: header.service_level }),
            ..Completion::succeeded(receive.request.id, Opcode::Receive, self.id, len)
        };
        self.complete_receive(receive, completion, arrived);
        true
    }

    /// Copies `bytes` into the memory of a receive, if the checks of requirement M8 allow it.
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
        scattered.map_err(|_| QpError::Unmapped { addr: buffers.addr(), len: bytes.len(), remote: false })
    }

    /// Takes the oldest receive, if its memory is registered. `None` if there is no such receive.
    fn take_receive(&self, arrived: &Arrived) -> Option<Receive> {
        // A receive whose memory is still being registered (requirement X6) counts as not posted: datagrams do not
        // wait for it.
        let table = self.device.table();
        let ready = |request: &ReceiveRequest| {
            !table.has_pending() || !request.buffers.as_slice().iter().any(|sge| table.is_pending(sge.tag))
        };
        match &self.attributes.shared {
            Some(queue) => queue.take_if(|| self.link.lane(Some(arrived)), ready),
            None => lock(&self.rq).take_if(ready),
        }
    }

    /// Completes a receive with an error.
    fn complete_failed_receive(
        &self,
        receive: &Receive,
        status: Status,
        error: &Arc<QpError>,
        arrived: &Arrived,
    ) {
        let cause = Some(Arc::clone(error));
        let completion = Completion::failed(receive.request.id, Opcode::Receive, self.id, status, cause);
        self.complete_receive(receive, completion, arrived);
    }

    /// Appends the completion of a receive to the completion queue of the receive, or else of the queue pair.
    fn complete_receive(&self, receive: &Receive, completion: Completion, arrived: &Arrived) {
        let cq = receive.cq.as_ref().unwrap_or(&self.attributes.receive_cq);
        self.complete(cq, completion, Some(arrived));
    }

    /// Completes all receives of the queue pair's own queue as flushed, or reports once that it takes no more receives
    /// from the shared queue.
    fn flush_receives(&self) {
        let Some(error) = self.error() else { return };
        for completion in lock(&self.rq).flush(self.id, &error) {
            self.complete(&self.attributes.receive_cq, completion, None);
        }
        if self.attributes.shared.is_some() && !self.last_receive.swap(true, Ordering::AcqRel) {
            self.raise(AsyncEvent::LastWqeReached(self.id));
        }
    }
}

/// Creates the GRH for a received datagram with a message of `len` bytes.
fn create_grh(header: &Datagram, arrived: &Arrived, len: usize) -> Grh {
    Grh {
        traffic_class: header.traffic_class,
        flow_label: header.flow_label,
        payload_len: Grh::ib_payload_len(len, header.immediate.is_some()),
        hop_limit: header.hop_limit,
        source: arrived.from,
        destination: arrived.to,
    }
}
