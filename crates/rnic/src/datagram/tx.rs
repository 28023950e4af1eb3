//! Sending datagrams: builds datagrams from posted requests, passes them to the link, and completes the requests.

use super::{
    BATCH, DatagramQp, DatagramRequest, Destination, DropReason, MAX_PAYLOAD, SendTo, Sent, port_of_qpn,
};
use crate::error::QpError;
use crate::gid::Gid;
use crate::half::Left;
use crate::memory::Guards;
use crate::memory::{Check, Denied, RegistrationWaiter, Rights, Spans};
use crate::queue::{Completion, Data, Opcode, Sges, Status};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::Tag;
use ironwarp_wire::private::{Datagram, DatagramKind, MAX_DATAGRAM_HEADER};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A buffer for a header and the longest message.
pub(super) type Packet = [u8; MAX_DATAGRAM_HEADER + MAX_PAYLOAD];

/// The top bit of a Q_Key in a request. If set, the datagram carries the Q_Key of the sending queue pair instead.
const OWN_QKEY: u32 = 1 << 31;

/// Why a request cannot be sent: the status of its completion, and the error with its details.
pub(super) struct Failure {
    status: Status,
    pub(super) error: QpError,
}

impl DatagramQp {
    /// Returns whether requests may be sent in the current state. In the error states, flushes them.
    pub(super) fn may_transmit(&self) -> bool {
        let state = self.state();
        if matches!(state, State::SendError | State::Error) {
            self.flush_sends();
        }
        state == State::ReadyToSend
    }

    /// Sends posted requests until there are none left, the link is full or the turn is over. In the error states,
    /// flushes them. Returns [`Left::Work`] if the turn is over. The tx half is held.
    ///
    /// Datagrams carry consecutive sequence numbers, of which `sequence` is the next, to tell them apart in captures.
    /// Receivers neither suppress duplicates nor restore the order, because the service is unreliable.
    pub(super) fn transmit(&self, sequence: &mut u32) -> Left {
        if let Some(sessions) = &self.sessions {
            return self.transmit_acknowledged(sessions);
        }
        let mut packet: Option<Packet> = None;
        for _ in 0..BATCH {
            if !self.may_transmit() {
                return Left::Nothing;
            }
            let Some((seq, request)) = lock(&self.sq).front() else { return Left::Nothing };
            let packet = packet.get_or_insert([0; _]); // zeroed only if there is something to send
            match self.build(&request, DatagramKind::Message, *sequence, packet) {
                Ok(len) => {
                    if self.send(&request.destination, &packet[..len]) != Sent::Full {
                        *sequence = sequence.wrapping_add(1);
                        self.complete_sent(seq);
                    } else if self.blocked.swap(true, Ordering::SeqCst) {
                        return Left::Nothing; // the second failure in a row: the link will report when it has room
                    }
                    // The flag was just set: try again, because the link may have reported room before.
                }
                // The memory is still being registered (requirement X6): wait for that, or try again if it is done.
                Err(Failure { error: QpError::Local(Denied { check: Check::Pending, tag, .. }), .. }) => {
                    if self.defer_until_registered(tag) {
                        return Left::Nothing;
                    }
                }
                Err(failure) => self.complete_failed(seq, failure),
            }
        }
        Left::Work
    }

    /// Schedules this queue pair for when the registration of `tag` ends. Returns false, without effect, if it has
    /// ended already.
    pub(super) fn defer_until_registered(&self, tag: Tag) -> bool {
        let me: Weak<Self> = Weak::clone(&self.me);
        self.device.table().defer_until_registered(tag, &(me as Weak<dyn RegistrationWaiter>))
    }

    /// Builds the datagram of a request in `packet`: the header and a copy of the payload. Returns its length.
    pub(super) fn build(
        &self,
        request: &DatagramRequest,
        kind: DatagramKind,
        sequence: u32,
        packet: &mut Packet,
    ) -> Result<usize, Failure> {
        let DatagramRequest { request, destination: Destination { address, qpn, qkey } } = request;
        let len = request.data.len();
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= MAX_PAYLOAD) else {
            let error = QpError::DatagramTooLong { len, limit: MAX_PAYLOAD };
            return Err(Failure { status: Status::LocalLength, error });
        };
        let header = Datagram {
            kind,
            destination: *qpn,
            source: self.id,
            qkey: self.effective_qkey(*qkey),
            sequence,
            solicited: request.solicited,
            immediate: request.immediate,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
            flow_label: address.flow_label,
            service_level: address.service_level,
        };
        let (front, payload) = packet.split_at_mut(kind.header_len());
        let payload = &mut payload[..len];
        match &request.data {
            Data::Inline(bytes) => payload.copy_from_slice(bytes),
            Data::Memory(sges) => self.gather(sges, payload)?,
        }
        // Of the copy, because the program may change its memory meanwhile.
        let header = header.emit(payload).expect("queue pair numbers are checked when a request is posted");
        front.copy_from_slice(&header);
        Ok(front.len() + len)
    }

    /// Returns the Q_Key that a datagram carries, for the Q_Key of its request.
    pub(super) fn effective_qkey(&self, qkey: u32) -> u32 {
        if qkey & OWN_QKEY != 0 { self.qkey() } else { qkey }
    }

    /// Copies the payload from the program's memory to `into`, if the checks of requirement M8 allow it.
    fn gather(&self, sges: &Sges, into: &mut [u8]) -> Result<(), Failure> {
        let failure = |error| Failure { status: Status::LocalProtection, error };
        let (mut spans, mut guards) = (Spans::new(), Guards::default());
        let (domain, table) = (self.attributes.domain, self.device.table());
        sges.range(0, into.len(), |sge| {
            let guard = table.admit_local(
                domain,
                sge.tag,
                sge.addr,
                sge.len as usize,
                Rights::LOCAL_READ,
                &mut spans,
            );
            guards.push(guard.map_err(|denied| failure(QpError::Local(denied)))?);
            Ok(())
        })?;
        let len = into.len();
        let gathered = self.device.host().gather(&spans, into);
        drop(guards);
        gathered.map_err(|_| failure(QpError::Unmapped { addr: sges.addr(), len, remote: false }))
    }

    /// Passes the datagram of a request to the link. Returns whether the link took it.
    fn send(&self, destination: &Destination, bytes: &[u8]) -> Sent {
        let Destination { address, qpn, .. } = destination;
        let (gid, traffic_class) = (address.destination, address.traffic_class);
        self.send_to(address.source, SendTo { gid, port: port_of_qpn(*qpn), traffic_class }, bytes)
    }

    /// Passes a datagram from a local address to the link, and counts it if it is lost at once.
    pub(super) fn send_to(&self, from: Gid, to: SendTo, bytes: &[u8]) -> Sent {
        let sent = self.link.send(from, to, bytes);
        if sent == Sent::Lost {
            self.count_drop(DropReason::Lost);
        }
        sent
    }

    /// Removes the request with this sequence number, whose datagram was sent or is lost, and completes it as
    /// successful if it is signaled. Does nothing if another thread has emptied the queue meanwhile, at a change of the
    /// state.
    fn complete_sent(&self, seq: u64) {
        let Some(DatagramRequest { request, .. }) = lock(&self.sq).pop(seq) else { return };
        if request.signaled {
            let len = u32::try_from(request.data.len()).unwrap_or(u32::MAX); // `build` has limited it to MAX_PAYLOAD
            self.complete_send(Completion::succeeded(request.id, Opcode::Send, self.id, len));
        }
    }

    /// Removes the request with this sequence number, completes it with an error, and stops the send queue. Does
    /// nothing if another thread has emptied the queue meanwhile, at a change of the state.
    fn complete_failed(&self, seq: u64, failure: Failure) {
        let Some(request) = lock(&self.sq).pop(seq) else { return };
        self.fail_request(&request, failure);
    }

    /// Completes a request with an error, and stops the send queue.
    pub(super) fn fail_request(&self, request: &DatagramRequest, Failure { status, error }: Failure) {
        let error = Arc::new(error);
        tracing::debug!(qp = self.id, %error, "failed to send a datagram");
        self.fail_sends(&error);
        let id = request.request.id;
        self.complete_send(Completion::failed(id, Opcode::Send, self.id, status, Some(error)));
    }

    /// Completes all posted requests as flushed.
    pub(super) fn flush_sends(&self) {
        let unanswered = self.sessions.as_ref().map_or(Vec::new(), |state| state.take_all());
        let requests = lock(&self.sq).take_all();
        if requests.is_empty() && unanswered.is_empty() {
            return;
        }
        let cause = self.error();
        for DatagramRequest { request, .. } in unanswered.into_iter().chain(requests) {
            let (opcode, status) = (Opcode::Send, Status::Flushed);
            self.complete_send(Completion::failed(request.id, opcode, self.id, status, cause.clone()));
        }
    }

    /// Appends a completion to the completion queue for sends.
    pub(super) fn complete_send(&self, completion: Completion) {
        self.complete(&self.attributes.send_cq, completion, None);
    }
}
