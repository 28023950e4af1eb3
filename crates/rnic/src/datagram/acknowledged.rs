//! Acknowledged datagrams (requirement P2, "acknowledged" without "connected"): a request completes when its message is in
//! the memory of a receive. It is sent again until then, and placed once.
//!
//! `sessions` has the state of both sides, which is driven by time and datagrams alone. Here, it is connected with the
//! queue pair:
//!
//! ```text
//!  sender                                     receiver
//!    │  Open, session, no cookie                 │  keeps nothing
//!    │ ─────────────────────────────────────────▶│
//!    │ ◀─────────────────────── Challenge, cookie│
//!    │  Open, session, cookie                    │  the sender receives at its address:
//!    │ ─────────────────────────────────────────▶│  a session, with a window of 64 numbers
//!    │ ◀─────────────────────────────────  Opened│
//!    │  Acknowledged, session, sequence number   │
//!    │ ─────────────────────────────────────────▶│  placed, unless it was before
//!    │ ◀─────────────────────────────────  Placed│  or Not ready, Rejected, Unknown
//! ```
//!
//! Such queue pairs exchange messages only with each other: all other datagrams are dropped.

use super::sessions::{Finished, Opening, Outcome, Peer, Sessions, Target, Transmission, Verdict};
use super::tx::Packet;
use super::{Arrived, BATCH, DatagramQp, DropReason, SendTo, Sent, port_of_qpn};
use crate::error::QpError;
use crate::half::Left;
use crate::memory::{Check, Denied};
use crate::queue::{Completion, Opcode};
use crate::sync::lock;
use ironwarp_wire::private::{Datagram, DatagramAnswer, DatagramKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The hop limit of datagrams without a message, which have no GRH.
const HOP_LIMIT: u8 = 64;

impl DatagramQp {
    /// Sends what is posted and what is due to be sent again, until nothing is left, the link is full or the turn is
    /// over. In the error states, flushes all requests. Returns [`Left::Work`] if the turn is over. The tx half is held.
    pub(super) fn transmit_acknowledged(&self, sessions: &Sessions) -> Left {
        let mut packet: Option<Packet> = None;
        for _ in 0..BATCH {
            if !self.may_transmit() {
                return Left::Nothing;
            }
            let posted = lock(&self.sq).take_posted();
            let now = self.link.now();
            let mut flows = lock(&sessions.flows);
            for request in posted {
                let qkey = self.effective_qkey(request.destination.qkey);
                flows.add(now, request, qkey);
            }
            flows.tick(now);
            let (next, finished) = (flows.next(now), flows.take_finished());
            drop(flows);
            self.finish_sends(finished);
            let Some(next) = next else {
                self.start_timer(sessions);
                return Left::Nothing;
            };
            if !self.transmit_one(sessions, &next, packet.get_or_insert([0; _])) {
                self.start_timer(sessions);
                return Left::Nothing;
            }
        }
        Left::Work
    }

    /// Sends a datagram. Returns false if sending has to stop until the link, or a registration, reports progress.
    fn transmit_one(&self, sessions: &Sessions, next: &Transmission, packet: &mut Packet) -> bool {
        let (built, target, traffic_class) = match next {
            Transmission::Open { target, address, session, cookie } => {
                let header = Datagram {
                    kind: DatagramKind::Open { session: *session, cookie: *cookie },
                    destination: target.qpn,
                    source: self.id,
                    qkey: target.qkey,
                    sequence: 0,
                    solicited: false,
                    immediate: None,
                    hop_limit: address.hop_limit,
                    traffic_class: address.traffic_class,
                    flow_label: address.flow_label,
                    service_level: address.service_level,
                };
                let header =
                    header.emit(b"").expect("queue pair numbers are checked when a request is posted");
                packet[..header.len()].copy_from_slice(&header);
                (Ok(header.len()), target, address.traffic_class)
            }
            Transmission::Message { target, session, sequence, request } => {
                let kind = DatagramKind::Acknowledged { session: *session };
                let class = request.destination.address.traffic_class;
                (self.build(request, kind, *sequence, packet), target, class)
            }
        };
        match built {
            Ok(len) => {
                let to = SendTo { gid: target.to, port: port_of_qpn(target.qpn), traffic_class };
                if self.send_to(target.from, to, &packet[..len]) == Sent::Full {
                    lock(&sessions.flows).put_back(next);
                    // If the flag was just set, try again, because the link may have reported room before.
                    return !self.blocked.swap(true, Ordering::SeqCst);
                }
            }
            Err(failure) => {
                if let QpError::Local(Denied { check: Check::Pending, tag, .. }) = failure.error {
                    lock(&sessions.flows).put_back(next);
                    return !self.defer_until_registered(tag);
                }
                let Transmission::Message { target, session, sequence, .. } = next else { return true };
                if let Some(request) = lock(&sessions.flows).remove(*target, *session, *sequence) {
                    lock(&self.sq).free(1);
                    self.fail_request(&request, failure);
                }
            }
        }
        true
    }

    /// Has the link call at the time at which something has to be sent again.
    fn start_timer(&self, sessions: &Sessions) {
        if let Some(due) = lock(&sessions.flows).start_timer() {
            self.link.schedule_after(due.saturating_sub(self.link.now()));
        }
    }

    /// Completes requests that were acknowledged, or whose retries are used up. A failure affects only its own request:
    /// a receiver that does not answer must not stop messages to others.
    fn finish_sends(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        lock(&self.sq).free(finished.len());
        for Finished { request: super::DatagramRequest { request, .. }, error } in finished {
            let completion = match error {
                None if !request.signaled => continue,
                None => {
                    let len = u32::try_from(request.data.len()).unwrap_or(u32::MAX); // limited by `build`
                    Completion::succeeded(request.id, Opcode::Send, self.id, len)
                }
                Some(error) => {
                    tracing::debug!(qp = self.id, %error, "failed to deliver a datagram");
                    let status = error.remote_status();
                    Completion::failed(request.id, Opcode::Send, self.id, status, Some(Arc::new(error)))
                }
            };
            self.complete_send(completion);
        }
    }

    /// Handles a datagram of a session: requests to open one, and answers. Returns the reason if it must be dropped. The
    /// rx half is held.
    pub(super) fn control(
        &self,
        sessions: &Sessions,
        header: &Datagram,
        arrived: &Arrived,
    ) -> Result<(), DropReason> {
        // An answer contains the Q_Key of the request.
        let target = Target { from: arrived.to, to: arrived.from, qpn: header.source, qkey: header.qkey };
        match header.kind {
            DatagramKind::Open { session, cookie } => {
                self.check_ready(header)?;
                let now = self.link.now();
                let opening = lock(&sessions.senders).open(now, Peer::of(arrived), session, cookie);
                let kind = match opening {
                    Opening::Opened => DatagramKind::Answer { session, answer: DatagramAnswer::Opened },
                    Opening::Challenge(cookie) => DatagramKind::Challenge { session, cookie },
                };
                self.answer(header, arrived, kind);
            }
            DatagramKind::Challenge { session, cookie } => {
                lock(&sessions.flows).on_challenge(target, session, cookie);
            }
            DatagramKind::Answer { session, answer } => {
                let mut flows = lock(&sessions.flows);
                flows.on_answer(self.link.now(), target, session, header.sequence, answer);
                let finished = flows.take_finished();
                drop(flows);
                self.finish_sends(finished);
            }
            DatagramKind::Message | DatagramKind::Acknowledged { .. } => {
                return Err(DropReason::OtherService);
            }
        }
        Ok(())
    }

    /// Places the message of a session with `place`, unless it arrived before, and answers. `place` returns `None` if no
    /// receive is posted, and otherwise whether the receive succeeded. The rx half is held.
    pub(super) fn place_once(
        &self,
        sessions: &Sessions,
        (header, session): (&Datagram, u64),
        arrived: &Arrived,
        place: impl FnOnce() -> Option<bool>,
    ) -> Result<(), DropReason> {
        let peer = Peer::of(arrived);
        let verdict = lock(&sessions.senders).check(peer, session, header.sequence);
        let (answer, result) = match verdict {
            Verdict::New => match place() {
                None => (DatagramAnswer::NotReady, Err(DropReason::NoReceive)),
                Some(succeeded) => {
                    let outcome = if succeeded { Outcome::Placed } else { Outcome::Rejected };
                    lock(&sessions.senders).record(peer, header.sequence, outcome);
                    (outcome.answer(), Ok(()))
                }
            },
            Verdict::Repeated(outcome) => (outcome.answer(), Err(DropReason::Duplicate)),
            Verdict::Stale => return Err(DropReason::Duplicate),
            Verdict::Unknown => (DatagramAnswer::Unknown, Err(DropReason::NoSession)),
        };
        self.answer(header, arrived, DatagramKind::Answer { session, answer });
        result
    }

    /// Answers a datagram, unless the answer would be longer: then a sender could multiply traffic by naming the address of
    /// another host as its own. An answer that is lost is not repeated: its sender asks again.
    fn answer(&self, to: &Datagram, arrived: &Arrived, kind: DatagramKind) {
        let header = Datagram {
            kind,
            destination: to.source,
            source: self.id,
            qkey: to.qkey,
            sequence: to.sequence,
            solicited: false,
            immediate: None,
            hop_limit: HOP_LIMIT,
            traffic_class: to.traffic_class,
            flow_label: 0,
            service_level: to.service_level,
        };
        let header = header.emit(b"").expect("numbers of 24 bits");
        if header.len() > arrived.len {
            return;
        }
        let reply_to = SendTo { gid: arrived.from, port: arrived.port, traffic_class: to.traffic_class };
        self.send_to(arrived.to, reply_to, &header);
    }
}

impl Peer {
    /// Returns the sender of a datagram.
    fn of(arrived: &Arrived) -> Self {
        Self { gid: arrived.from, port: arrived.port, to: arrived.to }
    }
}

impl Outcome {
    /// Returns the answer that reports the outcome.
    fn answer(self) -> DatagramAnswer {
        match self {
            Self::Placed => DatagramAnswer::Placed,
            Self::Rejected => DatagramAnswer::Rejected,
        }
    }
}
