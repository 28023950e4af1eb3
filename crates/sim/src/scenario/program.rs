//! A program: posts what it planned, polls its completion queues, and checks everything it is told.

use super::pick;
use super::request::{Kind, LONGEST, Request, Slot, some_len, work_request};
use crate::arena::Arena;
use crate::trace::Trace;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::connect::{Agreed, Setup};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Reregistration, Rights};
use ironwarp_rnic::qp::{Attributes, Completes, Qp, Receives, State};
use ironwarp_rnic::queue::{Completion, Cq, Opcode, Operation, ReceiveRequest, Status};
use std::fmt;
use std::sync::Arc;

/// Room in the queues: less than there is work.
const DEPTH: usize = 6;

pub(super) struct Program {
    number: u16,
    pub(super) arena: Arc<Arena>,
    device: Arc<Device>,
    domain: Domain,
    send_cq: Arc<Cq>,
    receive_cq: Arc<Cq>,
    pub(super) qp: Arc<Qp>,
    /// In the order they are posted; the place in this list is the identifier.
    requests: Vec<Request>,
    posted: usize,
    /// How each ended, as far as it was told.
    outcomes: Vec<Option<Status>>,
    /// All requests before this one are complete.
    completed: usize,
    receives: Vec<Slot>,
    receives_posted: usize,
    received: usize,
    receives_failed: usize,
    /// Success means that the peer has it.
    acknowledged: bool,
    /// Its posted receives are not always found.
    withholds: bool,
    /// What was posted before the program disconnected must still be done.
    disconnected: Option<usize>,
    /// Everything that was registered.
    slots: Vec<Slot>,
    /// What was taken from the adapter in the middle of the run, and what it held then, if it is still there.
    taken: Option<(Span, Option<Vec<u8>>)>,
    trace: Option<Trace>,
}

impl Program {
    pub(super) fn new(number: u16, config: Config, completes: Completes) -> Self {
        let arena = Arena::new(number);
        let device = Device::new(config, arena.clone());
        let domain = device.allocate_domain();
        let (send_cq, receive_cq) = (Arc::new(Cq::new(0, 1000)), Arc::new(Cq::new(1, 1000)));
        let attributes = Attributes {
            domain,
            send_cq: send_cq.clone(),
            receive_cq: receive_cq.clone(),
            send_depth: DEPTH,
            max_sges: 3,
            completes,
            receives: Receives::Own(DEPTH),
            rights: Rights::REMOTE,
            by_hand: false,
        };
        let qp = Qp::new(number.into(), &device, attributes);
        Self {
            number,
            arena,
            device,
            domain,
            send_cq,
            receive_cq,
            qp,
            requests: Vec::new(),
            posted: 0,
            outcomes: Vec::new(),
            completed: 0,
            receives: Vec::new(),
            receives_posted: 0,
            received: 0,
            receives_failed: 0,
            acknowledged: false,
            withholds: false,
            disconnected: None,
            slots: Vec::new(),
            taken: None,
            trace: None,
        }
    }

    fn note(&self, what: fmt::Arguments<'_>) {
        if let Some(trace) = &self.trace {
            trace.note(self.number.into(), what);
        }
    }

    /// What was agreed decides whether acknowledgements can be had from any peer.
    pub(super) fn connected(&mut self, agreed: &Agreed, withholds: bool, trace: &Trace) {
        self.withholds = withholds;
        self.trace = Some(trace.clone());
        let asks = self.qp.attributes().completes == Completes::WhenAcknowledged;
        self.acknowledged = asks && agreed.ord > 0 && agreed.setup != Setup::Unenhanced;
        self.arena.record();
    }

    fn slot(&mut self, len: usize, rights: Rights) -> Slot {
        let once = self.slots.len().is_multiple_of(2);
        let slot = Slot::new(&self.arena, &self.device, self.domain, len, rights, once);
        self.slots.extend((len > 0).then_some(slot));
        slot
    }

    /// Makes up requests, and everything they need on both sides.
    pub(super) fn plan(&mut self, rng: &mut Rng, count: usize, peer: &mut Self) {
        for id in 0..count as u64 {
            let (len, pattern) = (some_len(rng), rng.next());
            let (kind, here, operation) = match rng.below(3) {
                0 => {
                    let here = self.slot(len, Rights::LOCAL_READ);
                    let receive = peer.slot(LONGEST, Rights::LOCAL_WRITE);
                    peer.receives.push(receive);
                    (Kind::Send, here, Operation::Send { invalidate: None })
                }
                1 => {
                    let here = self.slot(len, Rights::LOCAL_READ);
                    let there = peer.slot(len, Rights::LOCAL_WRITE | Rights::REMOTE_WRITE);
                    (Kind::Write { to: there.span }, here, Operation::Write(there.place()))
                }
                _ => {
                    let here = self.slot(len, Rights::LOCAL_WRITE);
                    let there = peer.slot(len, Rights::REMOTE_READ);
                    peer.arena.fill_pattern(there.span, pattern);
                    (Kind::Read { from: there.span }, here, Operation::Read(there.place()))
                }
            };
            if !matches!(kind, Kind::Read { .. }) {
                self.arena.fill_pattern(here.span, pattern);
            }
            let posted = work_request(rng, &self.arena, id, operation, &here);
            self.requests.push(Request { kind, pattern, here, posted });
        }
        self.outcomes = vec![None; count];
    }

    /// Takes memory away from the adapter: unmaps it, or takes its tag away and goes on with it.
    pub(super) fn take_away(&mut self, rng: &mut Rng) {
        if self.slots.is_empty() || self.taken.is_some() {
            return;
        }
        let Slot { span, tag } = pick(rng, &self.slots);
        let way = rng.below(3);
        match way {
            0 => self.arena.unmap(span),
            1 => self.device.table().deregister(tag).expect("it is registered"),
            _ => {
                let to = Reregistration { rights: Some(Rights::LOCAL_READ), ..Reregistration::default() };
                let changed = self.device.reregister(tag, to).map(|_| ());
                // One-touch memory may have served.
                let is_spent = self.device.table().look_up(tag).is_some_and(|info| !info.valid);
                assert!(changed.is_ok() || is_spent, "{changed:?}");
            }
        }
        let content = (way > 0).then(|| self.arena.read(span));
        self.note(format_args!("takes {span:?} away"));
        self.taken = Some((span, content));
    }

    /// Sends what was posted, and no more.
    pub(super) fn disconnect(&mut self) {
        if self.qp.state() == State::ReadyToSend {
            self.disconnected = Some(self.posted);
        }
        self.note(format_args!("disconnects"));
        self.qp.disconnect();
    }

    pub(super) fn took_away(&self) -> bool {
        self.taken.is_some()
    }

    /// Memory holds what it should, unless it was taken away.
    fn check_pattern(&self, span: Span, pattern: u64) {
        if self.taken.as_ref().is_none_or(|(taken, _)| taken.addr != span.addr) {
            self.arena.check_pattern(span, pattern);
        }
    }

    /// Posts some requests. False: there are none, or there is no room, or the end has begun.
    pub(super) fn post_requests(&mut self, rng: &mut Rng) -> bool {
        let left = self.requests.len() - self.posted;
        if left == 0 {
            return false;
        }
        let count = rng.part_of(left.min(4));
        let some = &self.requests[self.posted..self.posted + count];
        for request in some {
            let (id, len) = (request.posted.id, request.here.span.len);
            self.note(format_args!("posts request {id}, {}, {len} bytes", request.kind.name()));
        }
        let taken = self.qp.post_send(some.iter().map(|request| request.posted.clone()).collect());
        match taken {
            Ok(()) => self.posted += count,
            Err(PostError::Full { .. }) => {}
            Err(PostError::NotConnected) => assert!(self.qp.is_closing()),
            Err(other) => panic!("{other}"),
        }
        taken.is_ok()
    }

    /// Posts a receive. False: there is none, or there is no room.
    pub(super) fn post_receive(&mut self) -> bool {
        let Some(slot) = self.receives.get(self.receives_posted) else { return false };
        let buffers = slot.sges(&mut Rng::new(slot.span.addr));
        self.note(format_args!("posts receive {}, {} bytes", self.receives_posted, slot.span.len));
        let taken = self.qp.post_receive(ReceiveRequest { id: self.receives_posted as u64, buffers });
        match taken {
            Ok(()) => self.receives_posted += 1,
            Err(PostError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        taken.is_ok()
    }

    /// Looks at all that completed.
    pub(super) fn poll(&mut self, peer: &Self) {
        let mut completions = Vec::new();
        self.send_cq.poll(usize::MAX, |completion| completions.push(completion)).expect("there is room");
        completions.drain(..).for_each(|completion| self.check_request(&completion, peer));
        self.receive_cq.poll(usize::MAX, |completion| completions.push(completion)).expect("there is room");
        completions.drain(..).for_each(|completion| self.check_receive(&completion, peer));
    }

    fn check_request(&mut self, completion: &Completion, peer: &Self) {
        self.note(format_args!("request {} ends: {}", completion.wr_id, completion.status));
        let id = usize::try_from(completion.wr_id).expect("it is one of ours");
        assert!(self.completed <= id && id < self.posted, "in order and once: {completion:?}");
        for skipped in self.completed..id {
            assert!(!self.requests[skipped].posted.signaled, "request {skipped} was to be reported");
        }
        let request = &self.requests[id];
        let opcode = match request.kind {
            Kind::Send => Opcode::Send,
            Kind::Write { .. } => Opcode::Write,
            Kind::Read { .. } => Opcode::Read,
        };
        assert_eq!(completion.opcode, opcode);
        if completion.status == Status::Success {
            assert!(request.posted.signaled, "success was not to be reported: {completion:?}");
            assert_eq!(completion.byte_len as usize, request.here.span.len);
        }
        self.completed = id + 1;
        self.outcomes[id] = Some(completion.status);
        if completion.status != Status::Success {
            assert_eq!(self.qp.state(), State::Error, "{completion:?}");
            return;
        }
        let before = self.outcomes[..id].iter().flatten();
        assert!(
            before.copied().all(|status| status == Status::Success),
            "{id} succeeded behind one that failed"
        );
        match request.kind {
            Kind::Read { .. } => self.check_pattern(request.here.span, request.pattern),
            Kind::Write { to } if self.acknowledged && peer.has_all_sent_before(id, self) => {
                peer.check_pattern(to, request.pattern);
            }
            Kind::Send if self.acknowledged && peer.must_have(id, self) => {
                peer.check_pattern(peer.receive_of(id, self), request.pattern);
            }
            Kind::Write { .. } | Kind::Send => {}
        }
    }

    /// Where this end gets what the peer sends with this request.
    fn receive_of(&self, id: usize, peer: &Self) -> Span {
        Span { len: peer.requests[id].here.span.len, ..self.receives[peer.sends_before(id)].span }
    }

    fn sends_before(&self, id: usize) -> usize {
        self.requests[..id].iter().filter(|request| matches!(request.kind, Kind::Send)).count()
    }

    /// No message of the peer's waits for a receive that could be in the way of this request.
    fn has_all_sent_before(&self, id: usize, peer: &Self) -> bool {
        self.received >= peer.sends_before(id)
    }

    /// A message that is acknowledged is in its receive, unless none was there: an adapter may vouch for what it keeps
    /// until there is one.
    fn must_have(&self, id: usize, peer: &Self) -> bool {
        !self.withholds && self.qp.state() != State::Error && self.receives_posted > peer.sends_before(id)
    }

    fn check_receive(&mut self, completion: &Completion, peer: &Self) {
        self.note(format_args!("receive {} ends: {}", completion.wr_id, completion.status));
        let done = self.received + self.receives_failed;
        assert_eq!(
            (completion.wr_id, completion.opcode),
            (done as u64, Opcode::Receive),
            "in order and once"
        );
        if completion.status != Status::Success {
            assert_eq!(self.qp.state(), State::Error, "{completion:?}");
            self.receives_failed += 1;
            return;
        }
        assert_eq!(self.receives_failed, 0, "none succeeds after one that failed");
        let mut sends =
            peer.requests.iter().enumerate().filter(|(_, other)| matches!(other.kind, Kind::Send));
        let (id, send) = sends.nth(self.received).expect("somebody sent it");
        assert!(id < peer.posted);
        assert_eq!(
            (completion.byte_len as usize, completion.solicited),
            (send.here.span.len, send.posted.solicited)
        );
        self.check_pattern(self.receive_of(id, peer), send.pattern);
        // What was written before the Send is there when the Send is.
        for earlier in &peer.requests[..id] {
            if let Kind::Write { to } = earlier.kind {
                self.check_pattern(to, earlier.pattern);
            }
        }
        self.received += 1;
    }

    /// How many requests were reported as done.
    pub(super) fn succeeded(&self) -> usize {
        self.outcomes.iter().filter(|outcome| **outcome == Some(Status::Success)).count()
    }

    /// How many messages came.
    pub(super) fn received(&self) -> usize {
        self.received
    }

    /// Everything was posted.
    pub(super) fn expect_all_posted(&self) {
        assert_eq!(self.posted, self.requests.len(), "{}: all requests were taken", self.number);
        assert_eq!(self.receives_posted, self.receives.len(), "{}: all receives were taken", self.number);
    }

    /// Everything that was posted succeeded, and the peer got it.
    pub(super) fn expect_all_done(&self, peer: &Self) {
        let count = self.disconnected.unwrap_or(self.posted);
        let posted = &self.requests[..count];
        let missing = posted.iter().zip(&self.outcomes).enumerate().filter(|(_, (request, outcome))| {
            request.posted.signaled && **outcome != Some(Status::Success)
                || outcome.is_some_and(|it| it != Status::Success)
        });
        let missing: Vec<usize> = missing.map(|(id, _)| id).collect();
        assert_eq!(missing, [], "{}: all of {count} succeeded", self.number);
        for request in posted {
            if let Kind::Write { to } = request.kind {
                peer.check_pattern(to, request.pattern);
            }
            if let Operation::Write(there) | Operation::Read(there) = request.posted.operation {
                let info = peer.device.table().look_up(there.tag);
                assert!(!info.is_some_and(|info| info.one_touch && info.valid), "it served one message");
            }
        }
        let sends = posted.iter().filter(|request| matches!(request.kind, Kind::Send)).count();
        assert_eq!(peer.received, sends, "{}: all messages were received", peer.number);
    }

    /// Everything that was posted is complete, one way or the other.
    pub(super) fn expect_all_given_back(&self) {
        let open = (self.completed..self.posted).filter(|&id| self.requests[id].posted.signaled);
        assert_eq!(open.collect::<Vec<_>>(), Vec::<usize>::new(), "{}: every request ended", self.number);
        assert_eq!(
            self.received + self.receives_failed,
            self.receives_posted,
            "{}: every receive",
            self.number
        );
    }

    /// The device reached for what it was granted, and for nothing else.
    pub(super) fn expect_untouched(&self, peer: &Self) {
        let (read, written) = self.arena.reached();
        let (mut readable, mut writable) = (Vec::new(), Vec::new());
        for request in &self.requests {
            let list = if matches!(request.kind, Kind::Read { .. }) { &mut writable } else { &mut readable };
            list.push(request.here.span);
        }
        for request in &peer.requests {
            match request.kind {
                Kind::Send => {}
                Kind::Write { to } => writable.push(to),
                Kind::Read { from } => readable.push(from),
            }
        }
        writable.extend(self.receives.iter().map(|slot| slot.span));
        assert!(read.within(&readable) && written.within(&writable));
        if let Some((span, Some(content))) = &self.taken {
            assert!(self.arena.read(*span) == *content, "nobody writes what is not registered any more");
        }
    }
}
