//! Two queue pairs with a link that passes only as many bytes as the test allows: regression tests for cases that
//! random runs have found.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{Agreed, MpaMode, Role, Rtr};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::{AsyncEvent, Wake};
use ironwarp_rnic::fault::Faults;
use ironwarp_rnic::host::{Host as _, Span};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::qp::{
    Attributes, Completes, Qp, Ready, Receives, RegistrationFailure, State, StreamDriver,
};
use ironwarp_rnic::queue::{
    Completion, Cq, Data, Opcode, Operation, ReceiveRequest, Sge, SharedReceiveQueue, SrqSize, Status,
    WorkRequest, XrcDomain,
};
use ironwarp_sim::{Alarm, Arena, Clock, tag_cipher};
use ironwarp_wire::mpa::{Framing, RtrSet};
use ironwarp_wire::{RemoteAddr, Tag};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

const BOTH: Ready = Ready { readable: true, writable: true, ended: false };
const LOCAL_ACCESS: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);
/// Payload below this length is staged with its header.
const DIRECT_BELOW: usize = 64 << 10;
/// No limit.
const OPEN: usize = usize::MAX;

/// One end of a link that accepts only as many bytes as allowed.
struct StepLink {
    arena: Arc<Arena>,
    inbox: Arc<Mutex<VecDeque<u8>>>,
    outbox: Arc<Mutex<VecDeque<u8>>>,
    room: Mutex<usize>,
    /// Number of calls that send.
    sends: Mutex<usize>,
    /// Runs once, after bytes have passed and before the call returns.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    received: Mutex<Received>,
    /// Maximum number of bytes moved by one call.
    longest: Mutex<usize>,
    /// The errno of calls, once the connection is lost.
    lost: OnceLock<i32>,
}

/// How the device received.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    /// Number of calls that returned bytes.
    calls: usize,
    /// Number of bytes that were not received directly to their destination.
    staged: usize,
}

impl std::fmt::Debug for StepLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepLink").finish_non_exhaustive()
    }
}

impl StepLink {
    fn moved(&self, len: usize) {
        let mut longest = self.longest.lock().unwrap();
        *longest = len.max(*longest);
    }
}

impl Link for StepLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        *self.sends.lock().unwrap() += 1;
        if let Some(errno) = self.lost.get() {
            return Err(LinkError::Lost(*errno));
        }
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Own(own) => bytes.extend_from_slice(own),
                Piece::Host(span) => bytes.extend(self.arena.read(*span)),
            }
        }
        let mut room = self.room.lock().unwrap();
        let n = bytes.len().min(*room);
        if n == 0 {
            return Err(LinkError::WouldBlock);
        }
        *room -= n;
        self.moved(n);
        self.outbox.lock().unwrap().extend(&bytes[..n]);
        drop(room);
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile();
        }
        Ok(n)
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut inbox = self.inbox.lock().unwrap();
        if inbox.is_empty() {
            return Err(self.lost.get().map_or(LinkError::WouldBlock, |errno| LinkError::Lost(*errno)));
        }
        let mut take = |len: usize| {
            let len = len.min(inbox.len());
            inbox.drain(..len).collect::<Vec<u8>>()
        };
        let mut placed = 0;
        for &Span { addr, len, .. } in host {
            let bytes = take(len);
            self.arena.scatter(&bytes, &[Span::new(addr, bytes.len())]).unwrap();
            placed += bytes.len();
        }
        let bytes = take(own.len());
        own[..bytes.len()].copy_from_slice(&bytes);
        let mut received = self.received.lock().unwrap();
        received.calls += 1;
        received.staged += bytes.len();
        self.moved(placed + bytes.len());
        Ok(placed + bytes.len())
    }

    fn arrived(&self) -> usize {
        self.inbox.lock().unwrap().len()
    }

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

#[derive(Debug)]
struct Nobody;
impl Wake for Nobody {
    fn signal(&self) {}
    fn consume(&self) {}
}
impl StreamDriver for Nobody {
    fn on_peer_not_ready(&self) {}
    fn schedule(&self) {}
    fn on_first_message(&self) {}
    fn on_stream_ended(&self, _: &Arc<QpError>) {}
    fn on_link_closed(&self) {}
}

/// A program with one queue pair.
struct End {
    arena: Arc<Arena>,
    device: Arc<Device>,
    domain: Domain,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    link: Arc<StepLink>,
}

/// Options that differ from the defaults.
struct Options {
    private: bool,
    completes: Completes,
    registration_failure: RegistrationFailure,
    receives: fn(&Arc<Device>, Domain) -> Receives,
    rtr: Option<Rtr>,
    manual: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            private: true,
            completes: Completes::WhenAcknowledged,
            registration_failure: RegistrationFailure::default(),
            receives: |_, _| Receives::Own(8),
            rtr: Some(Rtr::Write),
            manual: false,
        }
    }
}

/// Returns an initiator and a responder, whose links pass nothing yet. The options apply to both.
fn pair(options: &Options) -> [End; 2] {
    let pipes = [Arc::<Mutex<VecDeque<u8>>>::default(), Arc::default()];
    let ends = [0, 1].map(|number| {
        let arena = Arena::new(number);
        let config = DeviceConfig { private: options.private, ..DeviceConfig::default() };
        let device = Device::new(config, arena.clone(), tag_cipher(number.into()));
        device.events().open(Box::new(Nobody));
        let domain = device.allocate_domain();
        let cq = Arc::new(Cq::new(1, 64));
        let attributes = Attributes {
            max_sges: 2,
            completes: options.completes,
            registration_failure: options.registration_failure,
            receives: (options.receives)(&device, domain),
            manual: options.manual,
            ..Attributes::new(domain, &cq)
        };
        let qp = Qp::new(u32::from(number) + 1, &device, attributes);
        let here = usize::from(number);
        let (inbox, outbox) = (Arc::clone(&pipes[here]), Arc::clone(&pipes[1 - here]));
        let (room, meanwhile) = (Mutex::new(0), Mutex::default());
        let (sends, received, longest, lost) = Default::default();
        let arena_of_link = arena.clone();
        let link =
            StepLink { arena: arena_of_link, inbox, outbox, room, sends, meanwhile, received, longest, lost };
        End { arena, device, domain, cq, qp, link: Arc::new(link) }
    });
    for (number, end) in ends.iter().enumerate() {
        let framing = Framing { crc: false, markers: false };
        let rtr = if options.rtr == Some(Rtr::Read) { RtrSet::READ } else { RtrSet::WRITE };
        let role = if number == 0 { Role::Initiator { rtr: options.rtr } } else { Role::Responder { rtr } };
        let agreed = Agreed::symmetric(role, MpaMode::PeerToPeer, framing, 8, 8);
        let link: Arc<dyn Link> = end.link.clone();
        end.qp.connect(&link, &agreed, Vec::new(), Arc::new(Nobody)).unwrap();
        if options.manual {
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                end.qp.modify(state).unwrap();
            }
        }
        end.qp.drive(BOTH);
    }
    ends
}

impl End {
    fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.device.events().try_next()).collect()
    }

    /// Allows this many further bytes to pass.
    fn allow(&self, bytes: usize) {
        *self.link.room.lock().unwrap() = bytes;
        self.qp.drive(BOTH);
    }

    fn register(&self, domain: Domain, len: usize, rights: Rights) -> Sge {
        let Span { addr, len, .. } = self.arena.alloc(len);
        let tag = self.device.register(domain, Memory::direct(addr, len as u64, rights).unwrap()).unwrap();
        Sge { tag, addr, len: u32::try_from(len).unwrap() }
    }

    fn post(&self, id: u64, operation: Operation, data: &[Sge]) {
        let request = WorkRequest::new(id, operation, Data::Memory(data.into()));
        self.qp.post_send(vec![request]).unwrap();
    }

    fn post_receive(&self, id: u64) {
        let buffers = self.register(self.domain, 100, LOCAL_ACCESS).into();
        self.qp.post_receive(ReceiveRequest { id, buffers }).unwrap();
    }

    fn poll(&self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.cq.poll(64, |completion| completions.push(completion)).unwrap();
        completions
    }

    /// Returns identifier and status of all completions.
    fn ended(&self) -> Vec<(u64, Status)> {
        self.poll().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }
}

/// Lets everything pass until nothing moves any more.
fn settle(ends: &[End; 2]) {
    for _ in 0..20 {
        for end in ends {
            end.allow(OPEN);
            end.qp.acknowledge();
        }
    }
}

fn addr(sge: Sge) -> RemoteAddr {
    RemoteAddr { tag: sge.tag, offset: sge.addr }
}

const SEND: Operation = Operation::Send { invalidate: None };

#[test]
fn a_local_operation_is_done_once_even_if_its_batch_is_rebuilt() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    settle(&ends);
    far.post_receive(7);
    let tag = near.device.table().allocate(near.domain).unwrap();
    let Span { addr, len, .. } = near.arena.alloc(50);
    let memory = Memory::direct(addr, len as u64, LOCAL_ACCESS).unwrap();
    let request = |id, operation, data: &[Sge]| WorkRequest::new(id, operation, Data::Memory(data.into()));
    near.allow(0);
    // The registration is done, but the Send after it is not sent: the batch is rebuilt.
    let sends = request(2, SEND, &[Sge { tag, addr, len: 50 }]);
    near.qp.post_send(vec![request(1, Operation::Register { tag, memory }, &[]), sends]).unwrap();
    let ends_it = request(3, Operation::Invalidate(tag), &[]);
    near.qp.post_send(vec![ends_it, request(4, Operation::Write(RemoteAddr::default()), &[])]).unwrap();
    settle(&ends);
    assert_eq!(near.ended(), [1, 2, 3, 4].map(|id| (id, Status::Success)));
    assert_eq!(far.ended(), [(7, Status::Success)]);
}

/// The registration of a request that registers and sends (requirement M12) is done once, even if the link takes nothing
/// of the message, or a part of it, and the peer cannot use the tag before that.
#[test]
fn a_combined_request_registers_once_even_if_its_batch_is_rebuilt() {
    for first in [0, 1, 30, 2000] {
        let ends = pair(&Options::default());
        let [near, far] = &ends;
        settle(&ends);
        let inbox = far.register(far.domain, 3000, LOCAL_ACCESS);
        far.qp.post_receive(ReceiveRequest { id: 7, buffers: inbox.into() }).unwrap();
        let tag = near.device.table().allocate(near.domain).unwrap();
        let span = near.arena.alloc(3000);
        near.arena.fill_pattern(span, 5);
        let memory = Memory::direct(span.addr, 3000, LOCAL_ACCESS).unwrap();
        near.allow(first);
        let operation = Operation::RegisterSend { tag, memory, invalidate: None };
        near.post(1, operation, &[Sge { tag, addr: span.addr, len: 3000 }]);
        assert!(near.device.table().look_up(tag).is_some_and(|entry| entry.valid));
        near.allow(1);
        settle(&ends);
        assert_eq!((near.ended(), far.ended()), (vec![(1, Status::Success)], vec![(7, Status::Success)]));
        far.arena.check_pattern(Span::new(inbox.addr, 3000), 5);
    }
}

/// Requirement X5: inline data goes to the adapter with its request. One post of any number of requests passes all of
/// them, with their data, to the link in one call, which the adapter makes because it was signaled once.
#[test]
fn posting_inline_data_signals_the_adapter_once() {
    for (signaled, completes) in
        [(true, Completes::WhenSent), (false, Completes::WhenSent), (true, Completes::WhenAcknowledged)]
    {
        for len in [0, 1, 30, 31, 128, 200, 256, 1000] {
            for count in [1, 3] {
                let ends = pair(&Options { completes, ..Options::default() });
                let [near, far] = &ends;
                settle(&ends);
                let target = far.register(far.domain, 3000, LOCAL_ACCESS | Rights::REMOTE_WRITE);
                // The stream has carried a request before, so that the call below sends nothing else.
                near.post(9, Operation::Write(addr(target)), &[]);
                settle(&ends);
                let byte = |number: usize| u8::try_from(number + 1).unwrap();
                let requests: Vec<_> = (0..count)
                    .map(|number| {
                        let data = near.qp.inline_data(len, 256, |to| to.fill(byte(number)));
                        let to = RemoteAddr { offset: target.addr + (number * len) as u64, ..addr(target) };
                        let write = WorkRequest::new(number as u64, Operation::Write(to), Data::Inline(data));
                        WorkRequest { signaled, ..write }
                    })
                    .collect();
                *near.link.sends.lock().unwrap() = 0;
                near.qp.post_send(requests).unwrap();
                assert_eq!(*near.link.sends.lock().unwrap(), 1, "{count} of {len} bytes");
                settle(&ends);
                let expected: Vec<u8> = (0..count).flat_map(|number| vec![byte(number); len]).collect();
                assert_eq!(far.arena.read(Span::new(target.addr, count * len)), expected);
            }
        }
    }
}

/// Requirement X5: many requests with inline data use the same memory of the send queue, one after the other.
#[test]
fn inline_data_of_many_requests_uses_the_same_memory() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    settle(&ends);
    let target = far.register(far.domain, 256, LOCAL_ACCESS | Rights::REMOTE_WRITE);
    let mut places = std::collections::BTreeSet::new();
    for round in 0..1000_usize {
        let len = 31 + round % 226;
        let data = near.qp.inline_data(len, 256, |to| to.fill(round.to_le_bytes()[0]));
        places.insert(data.as_ptr());
        near.qp.post_send([WorkRequest::new(1, Operation::Write(addr(target)), Data::Inline(data))]).unwrap();
        if round % 7 == 6 {
            settle(&ends);
            assert!(near.ended().len() == 7 && near.qp.queued_sends() == 0);
            let expected = vec![round.to_le_bytes()[0]; len];
            assert_eq!(far.arena.read(Span::new(target.addr, len)), expected);
        }
    }
    assert!(places.len() <= 8, "{} places for at most 7 requests at a time", places.len());
}

/// A lane may be sending an acknowledgement while the program disconnects. The program may end its process next, so the
/// final acknowledgement must have been sent by then.
#[test]
fn disconnecting_waits_for_a_thread_that_is_sending() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    settle(&ends);
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    far.post_receive(7);
    far.post_receive(8);
    near.post(1, SEND, &[data]);
    far.qp.drive(BOTH);
    let (sending, is_sending) = mpsc::channel();
    let (disconnected, is_disconnected) = mpsc::channel();
    let meanwhile = move || {
        sending.send(()).unwrap();
        // If this arrives, the program has not waited. Otherwise the time passes, and the program is waiting.
        let _ = is_disconnected.recv_timeout(Duration::from_millis(200));
    };
    *far.link.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
    thread::scope(|scope| {
        scope.spawn(|| far.qp.acknowledge());
        is_sending.recv().unwrap();
        near.post(2, SEND, &[data]);
        far.qp.drive(Ready { writable: false, ..BOTH });
        far.qp.disconnect();
        near.qp.drive(BOTH);
        let ended = near.ended();
        let _ = disconnected.send(()); // the thread no longer receives if it has waited for long enough
        assert_eq!(ended, [(1, Status::Success), (2, Status::Success)]);
    });
}

/// A peer that exits resets the connection if it has not read everything. A manually connected queue pair is not told, as
/// on RoCE: it keeps its state and its receives, and its requests wait for an acknowledgement.
#[test]
fn a_reset_ends_only_queue_pairs_that_are_not_manually_connected() {
    const EPIPE: i32 = 32;
    const ECONNRESET: i32 = 104;
    const ETIMEDOUT: i32 = 110;
    let lose = |manual, errno, while_sending| {
        let ends = pair(&Options { manual, ..Options::default() });
        let [near, _] = &ends;
        settle(&ends);
        near.post_receive(7);
        let data = near.register(near.domain, 50, LOCAL_ACCESS);
        near.link.lost.set(errno).unwrap();
        if while_sending {
            near.post(1, SEND, &[data]);
        }
        near.qp.drive(BOTH);
        let mut ended = near.ended();
        ended.sort_unstable_by_key(|(id, _)| *id);
        (near.qp.state(), ended)
    };
    for while_sending in [false, true] {
        for errno in [ECONNRESET, EPIPE] {
            assert_eq!(lose(true, errno, while_sending), (State::ReadyToSend, vec![]));
        }
        let (state, ended) = lose(true, ETIMEDOUT, while_sending);
        assert_eq!((state, ended.len()), (State::Error, 1 + usize::from(while_sending)));
    }
    assert_eq!(lose(false, ECONNRESET, false), (State::Error, vec![(7, Status::Flushed)]));
    let both = vec![(1, Status::RetryExceeded), (7, Status::Flushed)];
    assert_eq!(lose(false, ECONNRESET, true), (State::Error, both));
}

/// A peer may send a Terminate before the call that sent the message returns. The request that is to blame must
/// complete first nevertheless, because programs take the first failed completion for the cause.
#[test]
fn receives_are_flushed_after_the_request_that_failed() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    settle(&ends);
    near.post_receive(8);
    let foreign = far.register(far.device.allocate_domain(), 100, LOCAL_ACCESS).into();
    far.qp.post_receive(ReceiveRequest { id: 7, buffers: foreign }).unwrap();
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    let (here, there) = (Arc::clone(&near.qp), Arc::clone(&far.qp));
    *near.link.meanwhile.lock().unwrap() = Some(Box::new(move || {
        there.drive(BOTH);
        here.drive(Ready { readable: true, writable: false, ended: false });
    }));
    near.post(1, SEND, &[data]);
    assert_eq!(near.ended(), [(1, Status::RemoteOperation), (8, Status::Flushed)]);
    assert_eq!(far.ended(), [(7, Status::LocalProtection)]);
}

/// An unsignaled request leaves its queue before it is passed to the link. If the link takes none or a part of it, the
/// request is still there.
#[test]
fn an_unsignaled_request_is_kept_until_it_is_sent() {
    let ends = pair(&Options { completes: Completes::WhenSent, ..Options::default() });
    let [near, far] = &ends;
    settle(&ends);
    (0..4).for_each(|id| far.post_receive(id));
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    let post = |id| {
        let request = WorkRequest::new(id, SEND, Data::Memory(data.into()));
        near.qp.post_send([WorkRequest { signaled: false, ..request }]).unwrap();
    };
    post(1);
    assert_eq!(near.qp.queued_sends(), 0, "it was sent");
    for room in [0, 10] {
        *near.link.room.lock().unwrap() = room;
        post(2);
        assert_eq!(near.qp.queued_sends(), 1, "with room for {room} bytes");
        settle(&ends);
        assert_eq!(near.qp.queued_sends(), 0);
    }
    *near.link.room.lock().unwrap() = 0;
    post(3);
    near.qp.abort(QpError::Lost(104));
    assert_eq!(near.ended(), [(3, Status::Flushed)]);
    assert_eq!(far.ended(), [0, 1, 2].map(|id| (id, Status::Success)));
}

/// If the stream fails while a request is passed to the link, the request completes once: as sent, or with an error because
/// it was not acknowledged.
#[test]
fn the_stream_may_fail_while_a_request_is_sent() {
    for (completes, signaled, expected) in [
        (Completes::WhenSent, false, None),
        (Completes::WhenSent, true, Some(Status::Success)),
        (Completes::WhenAcknowledged, false, Some(Status::RetryExceeded)),
        (Completes::WhenAcknowledged, true, Some(Status::RetryExceeded)),
    ] {
        let ends = pair(&Options { completes, ..Options::default() });
        let [near, far] = &ends;
        settle(&ends);
        far.post_receive(7);
        let data = near.register(near.domain, 50, LOCAL_ACCESS);
        let qp = Arc::clone(&near.qp);
        *near.link.meanwhile.lock().unwrap() = Some(Box::new(move || qp.abort(QpError::Lost(104))));
        let request = WorkRequest::new(1, SEND, Data::Memory(data.into()));
        near.qp.post_send([WorkRequest { signaled, ..request }]).unwrap();
        let expected: Vec<_> = expected.map(|status| (1, status)).into_iter().collect();
        assert_eq!(near.ended(), expected, "{completes:?}, signaled: {signaled}");
        assert_eq!(near.qp.queued_sends(), 0);
    }
}

#[test]
fn unsent_messages_are_not_acknowledged() {
    let ends = pair(&Options { private: false, ..Options::default() });
    let [near, far] = &ends;
    settle(&ends);
    far.post_receive(7);
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    let there = far.register(far.domain, 50, LOCAL_ACCESS | Rights::REMOTE_WRITE);
    // The Write is sent completely. The Send after it has a sequence number, but is not sent.
    near.allow(2 + 14 + 50 + 2 + 4);
    let request = |id, operation| WorkRequest::new(id, operation, Data::Memory(data.into()));
    near.qp.post_send(vec![request(1, Operation::Write(addr(there))), request(2, SEND)]).unwrap();
    // Then the queue is drained: only the adapter itself waits for acknowledgements.
    near.qp.modify(State::Drained).unwrap();
    settle(&ends);
    assert_eq!(near.ended(), [(1, Status::Success)], "the Send was not sent");
    assert_eq!(near.events(), [AsyncEvent::SqDrained(1)]);
    near.qp.modify(State::ReadyToSend).unwrap();
    settle(&ends);
    assert_eq!(near.ended(), [(2, Status::Success)]);
    assert_eq!(far.ended(), [(7, Status::Success)]);
}

/// A short request that is posted while nothing else is to be sent takes a path of its own. The link may take none of its
/// FPDU, or a part, or all.
#[test]
fn a_lone_send_arrives_once_however_the_link_cuts_it() {
    const FPDU: usize = 2 + 18 + 8 + 4;
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let ends = pair(&Options { completes, ..Options::default() });
        let [near, far] = &ends;
        settle(&ends);
        let from = near.register(near.domain, 8, LOCAL_ACCESS);
        let to = far.register(far.domain, 8, LOCAL_ACCESS);
        for id in 0..=FPDU as u64 {
            near.arena.write(from.addr, &id.to_le_bytes());
            far.qp.post_receive(ReceiveRequest { id, buffers: to.into() }).unwrap();
            *near.link.room.lock().unwrap() = usize::try_from(id).unwrap();
            near.post(id, SEND, &[from]);
            settle(&ends);
            assert_eq!(near.ended(), [(id, Status::Success)], "{completes:?}");
            assert_eq!(far.ended(), [(id, Status::Success)], "{completes:?}");
            assert_eq!(far.arena.read(Span::new(to.addr, 8)), id.to_le_bytes());
        }
    }
}

/// The stream may end during the call that passes a lone request to the link. The request was sent, and the one that is
/// posted meanwhile is flushed.
#[test]
fn a_lone_send_completes_once_if_the_stream_ends_meanwhile() {
    let ends = pair(&Options { completes: Completes::WhenSent, ..Options::default() });
    let near = &ends[0];
    settle(&ends);
    let from = near.register(near.domain, 8, LOCAL_ACCESS);
    let (qp, second) = (Arc::clone(&near.qp), WorkRequest::new(2, SEND, Data::Memory(from.into())));
    let meanwhile = move || {
        qp.post_send([second]).unwrap();
        qp.abort(QpError::Moved);
    };
    *near.link.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
    near.post(1, SEND, &[from]);
    assert_eq!(near.ended(), [(1, Status::Success), (2, Status::Flushed)]);
}

/// Memory is checked before a byte of a lone request is sent, as for any other request.
#[test]
fn a_lone_write_from_memory_that_cannot_be_read_sends_nothing() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    settle(&ends);
    let to = far.register(far.domain, 8, LOCAL_ACCESS | Rights::REMOTE_WRITE);
    let from = near.register(near.domain, 8, Rights::LOCAL_WRITE);
    far.arena.write(to.addr, &[1; 8]);
    near.post(1, Operation::Write(addr(to)), &[from]);
    settle(&ends);
    assert_eq!(near.ended(), [(1, Status::LocalProtection)]);
    assert_eq!(far.arena.read(Span::new(to.addr, 8)), [1; 8]);
}

/// A program that requests a drain and resumes before it is complete has abandoned the event. A refused registration
/// later drains the queue, but must not raise it.
#[test]
fn a_refusal_does_not_report_an_abandoned_drain() {
    let reactive = RegistrationFailure::Reactive;
    let ends = pair(&Options { registration_failure: reactive, ..Options::default() });
    let [near, far] = &ends;
    settle(&ends);
    let there = far.register(far.domain, 50, LOCAL_ACCESS | Rights::REMOTE_WRITE);
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    near.post(1, Operation::Write(addr(there)), &[data]);
    near.qp.modify(State::Drained).unwrap();
    near.qp.modify(State::ReadyToSend).unwrap();
    let memory = Memory::direct(data.addr, 50, LOCAL_ACCESS).unwrap();
    near.post(2, Operation::Register { tag: Tag(0xff), memory }, &[]);
    settle(&ends);
    assert_eq!(near.ended(), [(1, Status::Success), (2, Status::WindowBind)]);
    assert_eq!((near.qp.state(), near.events()), (State::Drained, vec![]));
}

/// A system call copies all of its bytes, even if a latency-sensitive thread waits for the CPU, so calls must be short
/// (requirement N6).
#[test]
fn calls_are_short_next_to_a_latency_sensitive_queue_pair() {
    /// Maximum number of bytes per call: its limit plus one frame.
    const SHORT: usize = (32 << 10) + 66_000;
    const MESSAGES: usize = 8;
    // Payload that is not copied, and payload that is.
    for len in [200_000, 20_000] {
        let ends = pair(&Options::default());
        let [near, far] = &ends;
        settle(&ends);
        let data = near.register(near.domain, len, LOCAL_ACCESS);
        let there = far.register(far.domain, len, LOCAL_ACCESS | Rights::REMOTE_WRITE);
        let longest_of_all = || {
            near.allow(0);
            for id in 0..MESSAGES as u64 {
                near.post(id, Operation::Write(addr(there)), &[data]);
            }
            ends.iter().for_each(|end| *end.link.longest.lock().unwrap() = 0);
            settle(&ends);
            assert_eq!(near.ended().len(), MESSAGES);
            ends.each_ref().map(|end| *end.link.longest.lock().unwrap())
        };
        let [sent, received] = longest_of_all();
        assert!(sent > SHORT, "{sent} bytes without a latency-sensitive queue pair");
        assert!(len > SHORT || received > SHORT, "{received} bytes without a latency-sensitive queue pair");
        ends.iter().for_each(|end| end.device.shorten_calls());
        for longest in longest_of_all() {
            assert!(longest <= SHORT, "{longest} bytes in one call, for messages of {len}");
        }
    }
}

/// Payload of consecutive large messages is received directly to its destination, except the start of the first one,
/// however the stream is split; and a piece takes at most one call, plus one per header in it.
#[test]
fn large_messages_are_received_directly() {
    receive_large_messages(None);
}

/// So is the payload of Writes with immediate data: the small message between two of them is expected.
#[test]
fn large_writes_with_immediate_data_are_received_directly() {
    receive_large_messages(Some(3));
}

fn receive_large_messages(immediate: Option<u32>) {
    const LEN: usize = 200_000;
    const MESSAGES: usize = 6;
    for piece in [500, 9_000, 40_000, 64_800, 70_001, LEN] {
        let ends = pair(&Options::default());
        let [near, far] = &ends;
        settle(&ends);
        let data = near.register(near.domain, LEN, LOCAL_ACCESS);
        let there = far.register(far.domain, LEN, LOCAL_ACCESS | Rights::REMOTE_WRITE);
        let pattern: Vec<u8> = (0..=250_u8).cycle().take(LEN).collect();
        near.arena.scatter(&pattern, &[Span::new(data.addr, LEN)]).unwrap();
        near.allow(0);
        *far.link.received.lock().unwrap() = Received::default();
        for id in 0..MESSAGES as u64 {
            far.post_receive(id);
            let write = WorkRequest::new(id, Operation::Write(addr(there)), Data::Memory([data][..].into()));
            near.qp.post_send(vec![WorkRequest { immediate, ..write }]).unwrap();
        }
        let (mut pieces, mut sent) = (0, 0);
        while sent < MESSAGES * LEN {
            near.allow(piece);
            sent += far.link.inbox.lock().unwrap().len();
            far.qp.drive(BOTH);
            pieces += 1;
        }
        settle(&ends);
        assert_eq!(near.ended().len(), MESSAGES);
        assert!(far.arena.read(Span::new(there.addr, LEN)) == pattern, "in pieces of {piece}");
        let Received { calls, staged } = *far.link.received.lock().unwrap();
        let segments = MESSAGES * (LEN.div_ceil(64_000) + usize::from(immediate.is_some()));
        assert!(calls <= pieces + 2 * segments, "{calls} calls for {pieces} pieces of {piece}");
        let first = piece.max(DIRECT_BELOW);
        // After immediate data, the gap before each segment includes the length of another one.
        let gap = if immediate.is_some() { 24 + 32 } else { 24 };
        assert!(staged <= first + segments * gap + 100, "{staged} bytes staged in pieces of {piece}");
    }
}

#[test]
fn an_empty_write_with_immediate_reports_zero_bytes() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    far.post_receive(7);
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    let there = far.register(far.domain, 50, LOCAL_ACCESS | Rights::REMOTE_WRITE);
    near.post(1, Operation::Write(addr(there)), &[data]);
    let empty = WorkRequest::new(
        2,
        Operation::Write(RemoteAddr::default()),
        Data::Memory(<&[Sge]>::default().into()),
    );
    near.qp.post_send(vec![WorkRequest { immediate: Some(3), ..empty }]).unwrap();
    settle(&ends);
    let done = far.poll();
    let [Completion { opcode: Opcode::ReceiveWrite, byte_len: 0, immediate: Some(3), .. }] = done[..] else {
        panic!("{done:?}")
    };
    assert_eq!(near.ended(), [(1, Status::Success), (2, Status::Success)]);
}

/// Returns an XRC target whose queue belongs to a different domain.
fn named(device: &Arc<Device>, _: Domain) -> Receives {
    let domain = XrcDomain::new();
    let queue = SharedReceiveQueue::new(
        1,
        device.events(),
        device.allocate_domain(),
        SrqSize { depth: 8, max_sges: 2 },
        None,
    );
    domain.add(&queue);
    std::mem::forget(queue); // lives as long as the test
    Receives::Named(domain)
}

#[test]
fn a_read_is_served_from_the_domain_of_a_named_queue() {
    let ends = pair(&Options { receives: named, ..Options::default() });
    let [near, far] = &ends;
    let into = near.register(near.domain, 50, LOCAL_ACCESS);
    let foreign = Domain(far.domain.0 + 1);
    let from = far.register(foreign, 50, LOCAL_ACCESS | Rights::REMOTE_READ);
    far.arena.fill(Span::new(from.addr, 50), 0x5a);
    near.post(1, Operation::Read(addr(from)), &[into]);
    settle(&ends);
    assert_eq!(near.ended(), [(1, Status::Success)]);
    assert_eq!(near.arena.read(Span::new(into.addr, 50)), [0x5a; 50]);
}

#[test]
fn rights_are_checked_when_a_read_is_served() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    settle(&ends);
    let into = near.register(near.domain, 50, LOCAL_ACCESS);
    let from = far.register(far.domain, 50, LOCAL_ACCESS | Rights::REMOTE_READ);
    far.allow(10);
    // The first answer is half sent when the second request arrives, which is still allowed then.
    near.post(1, Operation::Read(addr(from)), &[into]);
    near.post(2, Operation::Read(addr(from)), &[into]);
    far.qp.drive(BOTH);
    far.qp.set_rights(Rights::REMOTE - Rights::REMOTE_READ);
    settle(&ends);
    assert_eq!(near.ended(), [(1, Status::Success), (2, Status::RemoteAccess)]);
    assert!(matches!(far.qp.error().map(|error| &**error), Some(QpError::Remote(_))));
}

#[test]
fn a_reset_raises_no_event() {
    let shared = |device: &Arc<Device>, domain| {
        Receives::Shared(SharedReceiveQueue::new(
            1,
            device.events(),
            domain,
            SrqSize { depth: 8, max_sges: 2 },
            None,
        ))
    };
    let ends = pair(&Options { receives: shared, ..Options::default() });
    let [near, far] = &ends;
    settle(&ends);
    near.qp.reset();
    assert_eq!(near.events(), []);
    far.qp.modify(State::Error).unwrap();
    assert_eq!(far.events(), [AsyncEvent::LastWqeReached(2)], "a failure raises an event");
}

#[test]
fn a_responder_sends_nothing_before_the_first_fpdu_and_then_its_signal() {
    let ends = pair(&Options::default());
    let [near, far] = &ends;
    far.allow(OPEN);
    let data = far.register(far.domain, 50, LOCAL_ACCESS);
    let request = WorkRequest::new(1, SEND, Data::Memory(data.into()));
    far.qp.post_send(vec![WorkRequest { immediate: Some(5), ..request }]).unwrap();
    near.allow(18); // the complete header, but not the complete FPDU
    far.qp.drive(BOTH);
    assert_eq!(near.link.inbox.lock().unwrap().len(), 0, "nothing may be sent yet");
    near.post_receive(7);
    settle(&ends);
    assert!(near.qp.is_peer_ironwarp() && far.qp.is_peer_ironwarp());
    assert_eq!(far.ended(), [(1, Status::Success)]);
    assert_eq!(near.poll()[0].immediate, Some(5));
}

#[test]
fn a_peer_is_recognised_after_it_answers_the_opening_read() {
    let ends = pair(&Options { rtr: Some(Rtr::Read), ..Options::default() });
    let [near, far] = &ends;
    far.post_receive(7);
    let data = near.register(near.domain, 50, LOCAL_ACCESS);
    let request = WorkRequest::new(1, SEND, Data::Memory(data.into()));
    near.qp.post_send(vec![WorkRequest { immediate: Some(5), ..request }]).unwrap();
    // The Read arrives, but not the signal after it: the peer answers before it has recognised the requester.
    near.allow(52);
    far.allow(OPEN);
    near.qp.drive(BOTH);
    assert!(!near.qp.is_peer_ironwarp() && near.qp.error().is_none());
    settle(&ends);
    assert_eq!(near.ended(), [(1, Status::Success)]);
    assert_eq!(far.poll()[0].immediate, Some(5));
}

/// A message for one queue of an XRC domain may get its receive without being woken for it, here because faults
/// withhold it and grant it later. The next message waits for another queue, and must be woken by that one.
#[test]
fn a_message_that_waits_for_a_second_named_queue_is_woken_by_it() {
    for seed in 0..32 {
        let ends =
            pair(&Options { receives: |_, _| Receives::Named(XrcDomain::new()), ..Options::default() });
        let [near, far] = &ends;
        let clock = Clock::new();
        let alarm = Alarm::new(&clock);
        let faults = Faults::new("no-receive@0.5".parse().unwrap(), seed);
        far.qp.set_faults(faults.receive_faults(1, alarm.clone()));
        let Receives::Named(xrc) = &far.qp.attributes().receives else { unreachable!() };
        let queues = [1, 2].map(|number| {
            SharedReceiveQueue::new(
                number,
                far.device.events(),
                far.domain,
                SrqSize { depth: 8, max_sges: 2 },
                None,
            )
        });
        queues.iter().for_each(|queue| xrc.add(queue));
        let receive = |id| ReceiveRequest { id, buffers: far.register(far.domain, 100, LOCAL_ACCESS).into() };
        queues[0].post(receive(1)).unwrap();
        settle(&ends);
        for srq in [1, 2] {
            let request = WorkRequest::new(srq, SEND, Data::Memory(<&[Sge]>::default().into()));
            let srq = u32::try_from(srq).unwrap();
            near.qp.post_send(vec![WorkRequest { srq, ..request }]).unwrap();
        }
        let mut received = far.ended();
        settle(&ends);
        clock.advance(Duration::from_secs(1));
        alarm.take_expired();
        queues[1].post(receive(2)).unwrap();
        received.extend(far.ended());
        // From here on it is driven only if it requested that.
        while received.len() < 2 {
            clock.advance_to(alarm.next().expect("a timer"));
            assert!(alarm.take_expired());
            far.qp.drive(BOTH);
            received.extend(far.ended());
        }
        assert_eq!(received, [(1, Status::Success), (2, Status::Success)]);
    }
}
