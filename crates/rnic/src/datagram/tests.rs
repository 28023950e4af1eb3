//! Unit tests of connectionless queue pairs, on a mock network that delivers the datagrams of the test and records
//! those that are sent.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use super::*;
use crate::config::DeviceConfig;
use crate::host::{Host, Span, Unmapped};
use crate::memory::{Memory, Rights, TagCipher};
use crate::queue::{Data, Opcode, Operation, Sender, Sge, SrqSize, Status, WorkRequest};
use ironwarp_wire::Tag;
use ironwarp_wire::private::{Datagram, DatagramKind};
use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;
use std::time::Duration;

const LOCAL: &str = "10.0.0.1";
const REMOTE: &str = "10.0.0.2";
/// The numbers of the queue pair under test and of its peer, which contain the UDP ports 5000 and 6000.
const LOCAL_QPN: u32 = 5000 << 8 | 255;
const REMOTE_QPN: u32 = 6000 << 8 | 255;
const QKEY: u32 = 0x1ee7;

fn gid(text: &str) -> crate::gid::Gid {
    text.parse().unwrap()
}

/// A network that records the datagrams that are sent, and delivers those of the test. Uses no sockets.
#[derive(Debug, Default)]
struct MockNetwork {
    /// Datagrams to be received, with the UDP port of the sender.
    arriving: StdMutex<VecDeque<(Vec<u8>, u16)>>,
    /// Datagrams that were sent, with the UDP port of the receiver.
    sent: StdMutex<Vec<(u16, Vec<u8>)>>,
    /// Number of datagrams that are taken before there is no room. `None` for no limit.
    room: StdMutex<Option<usize>>,
    /// Whether every datagram that is sent is lost.
    loses: AtomicBool,
    /// Number of calls to `schedule`.
    schedules: AtomicU64,
    now: StdMutex<Duration>,
    /// Number of calls to `schedule_after`.
    timers: AtomicU64,
}

impl DatagramLink for MockNetwork {
    fn has_path(&self, from: crate::gid::Gid, to: crate::gid::Gid) -> bool {
        from == gid(LOCAL) && to.ip().is_some_and(|ip| ip.is_ipv4())
    }

    fn send(&self, from: crate::gid::Gid, to: SendTo, bytes: &[u8]) -> Sent {
        assert_eq!((from, to.gid), (gid(LOCAL), gid(REMOTE)));
        if self.loses.load(Ordering::Relaxed) {
            return Sent::Lost;
        }
        match &mut *self.room.lock().unwrap() {
            Some(0) => return Sent::Full,
            Some(room) => *room -= 1,
            None => {}
        }
        self.sent.lock().unwrap().push((to.port, bytes.to_vec()));
        Sent::Taken
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let (bytes, port) = self.arriving.lock().unwrap().pop_front()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Some(Arrived { from: gid(REMOTE), port, to: gid(LOCAL), len })
    }

    fn schedule(&self) {
        self.schedules.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn schedule_after(&self, _: Duration) {
        self.timers.fetch_add(1, Ordering::Relaxed);
    }
}

/// The program's memory: `LEN` bytes at `BASE`, followed by a page that is registered but not mapped.
const BASE: u64 = 0x1_0000;
const LEN: usize = 64 << 10;

/// The contents of the program's memory.
#[derive(Debug)]
struct MockHost(StdMutex<Vec<u8>>);

impl MockHost {
    /// Returns the part of the memory that `span` names.
    fn range(span: &Span) -> Result<std::ops::Range<usize>, Unmapped> {
        let start = usize::try_from(span.addr.checked_sub(BASE).ok_or(Unmapped)?).unwrap();
        if start + span.len > LEN { Err(Unmapped) } else { Ok(start..start + span.len) }
    }
}

impl Host for MockHost {
    fn gather(&self, from: &[Span], mut into: &mut [u8]) -> Result<(), Unmapped> {
        for span in from {
            let (front, rest) = into.split_at_mut(span.len);
            front.copy_from_slice(&self.0.lock().unwrap()[Self::range(span)?]);
            into = rest;
        }
        Ok(())
    }

    fn scatter(&self, mut from: &[u8], to: &[Span]) -> Result<(), Unmapped> {
        for span in to {
            let (front, rest) = from.split_at(span.len);
            self.0.lock().unwrap()[Self::range(span)?].copy_from_slice(front);
            from = rest;
        }
        Ok(())
    }

    fn is_mapped(&self, _: Span) -> bool {
        true
    }
}

type MakeQueue = fn(&Arc<Device>, Domain) -> Arc<SharedReceiveQueue>;
type Count = fn(&DropCounts) -> u64;

/// A queue pair with its mock network and memory. `tag` names the memory.
struct Fixture {
    qp: Arc<DatagramQp>,
    network: Arc<MockNetwork>,
    host: Arc<MockHost>,
    device: Arc<Device>,
    cq: Arc<Cq>,
    tag: Tag,
}

/// A wake without effect: no thread sleeps in these tests.
#[derive(Debug)]
struct SilentWake;

impl crate::event::Wake for SilentWake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl Fixture {
    fn take_events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.device.events().try_next()).collect()
    }

    /// Creates a queue pair that is ready to send.
    fn new() -> Self {
        let fixture = Self::with(64, None);
        fixture.bring_up();
        fixture
    }

    /// Creates a queue pair in the state reset. `completions` is the depth of its completion queue.
    fn with(completions: usize, shared: Option<MakeQueue>) -> Self {
        let host = Arc::new(MockHost(StdMutex::new(vec![0xee; LEN])));
        let device =
            Device::new(DeviceConfig::default(), Arc::<MockHost>::clone(&host), TagCipher::new([0; 16]));
        device.events().open(Box::new(SilentWake));
        let domain = device.allocate_domain();
        let memory = Memory::direct(BASE, LEN as u64 + 4096, Rights::LOCAL_READ | Rights::LOCAL_WRITE);
        let tag = device.register(domain, memory.unwrap()).unwrap();
        let cq = Arc::new(Cq::new(1, completions));
        let network = Arc::<MockNetwork>::default();
        let attributes = DatagramAttributes {
            shared: shared.map(|make| make(&device, domain)),
            max_sges: 3,
            qkey: QKEY,
            ..DatagramAttributes::new(domain, &cq)
        };
        let qp = DatagramQp::new(LOCAL_QPN, &device, attributes, Arc::<MockNetwork>::clone(&network));
        Self { qp, network, host, device, cq, tag }
    }

    /// Moves the queue pair to the state ready to send.
    fn bring_up(&self) {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            self.qp.modify(state).unwrap();
        }
    }

    fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { tag: self.tag, addr: BASE + at, len }
    }

    /// Posts a receive of `len` bytes at offset `at`.
    fn post_receive(&self, id: u64, at: u64, len: u32) {
        let buffers = [self.sge(at, len)].as_slice().into();
        self.qp.post_receive(ReceiveRequest { id, buffers }).unwrap();
    }

    fn post_send(&self, id: u64, data: Data) -> Result<(), PostError> {
        self.qp.post_send(vec![request(id, data)])
    }

    fn memory(&self, at: u64, len: u32) -> Data {
        Data::Memory([self.sge(at, len)].as_slice().into())
    }

    /// Delivers a datagram to the queue pair.
    fn deliver(&self, bytes: Vec<u8>) {
        self.network.arriving.lock().unwrap().push_back((bytes, 6000));
        self.qp.drive(Ready { readable: true, writable: false, ended: false });
    }

    /// Returns the contents of the memory at offset `at`.
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.host.0.lock().unwrap()[at..at + len].to_vec()
    }

    fn poll_one(&self) -> Completion {
        let mut one = None;
        self.cq.poll(1, |completion| one = Some(completion)).unwrap();
        one.expect("a completion")
    }

    /// Polls a completion, which must have these values, and returns it.
    #[track_caller]
    fn expect_completion(&self, id: u64, opcode: Opcode, status: Status) -> Completion {
        let completion = self.poll_one();
        assert_eq!((completion.wr_id, completion.opcode, completion.status), (id, opcode, status));
        assert_eq!(completion.cause.is_some(), status != Status::Success, "a failure has a cause");
        completion
    }

    fn take_sent(&self) -> Vec<(u16, Vec<u8>)> {
        std::mem::take(&mut self.network.sent.lock().unwrap())
    }
}

fn request(id: u64, data: Data) -> DatagramRequest {
    let address = AddressHandle::new(gid(LOCAL), gid(REMOTE));
    let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
    DatagramRequest { request, destination: Destination { address, qpn: REMOTE_QPN, qkey: QKEY } }
}

fn inline(bytes: &[u8]) -> Data {
    Data::Inline(bytes.into())
}

const HEADER: Datagram = Datagram {
    kind: DatagramKind::Message,
    destination: LOCAL_QPN,
    source: REMOTE_QPN,
    qkey: QKEY,
    sequence: 7,
    solicited: false,
    immediate: None,
    hop_limit: 9,
    traffic_class: 0x42,
    flow_label: 0x1_2345,
    service_level: 3,
};

/// Builds a datagram.
fn datagram(header: Datagram, payload: &[u8]) -> Vec<u8> {
    [&header.emit(payload).unwrap()[..], payload].concat()
}

#[test]
fn a_datagram_is_placed_behind_its_grh_and_completes_with_all_that_its_sender_said() {
    let fixture = Fixture::new();
    fixture.post_receive(7, 100, 64);
    let header = Datagram { solicited: true, immediate: Some(0xabcd), ..HEADER };
    fixture.deliver(datagram(header, b"hello"));
    let completion = fixture.expect_completion(7, Opcode::Receive, Status::Success);
    assert_eq!((completion.byte_len, completion.qp), (45, LOCAL_QPN));
    assert_eq!(completion.sender, Some(Sender { qp: REMOTE_QPN, service_level: 3 }));
    assert_eq!((completion.solicited, completion.immediate), (true, Some(0xabcd)));
    let grh = Grh::parse(&fixture.bytes(100, 40)).unwrap();
    assert_eq!((grh.source, grh.destination), (gid(REMOTE), gid(LOCAL)));
    assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit), (0x42, 0x1_2345, 9));
    assert_eq!(grh.payload_len, 12 + 8 + 4 + 8 + 4);
    assert_eq!(fixture.bytes(140, 6), b"hello\xee");
    assert_eq!(fixture.bytes(99, 1), b"\xee");
    let back = AddressHandle::from_completion(&grh, &completion).unwrap();
    assert_eq!((back.source, back.destination, back.service_level), (gid(LOCAL), gid(REMOTE), 3));
}

#[test]
fn a_request_becomes_one_datagram_with_its_address_and_completes_when_it_was_taken() {
    let fixture = Fixture::new();
    fixture.host.0.lock().unwrap()[..6].copy_from_slice(b"abcdef");
    let list: &[Sge] = &[fixture.sge(4, 2), fixture.sge(0, 0), fixture.sge(0, 3)];
    let mut request = request(1, Data::Memory(list.into()));
    request.request.immediate = Some(5);
    request.request.solicited = true;
    request.destination.address.service_level = 2;
    fixture.qp.post_send(vec![request]).unwrap();
    assert_eq!(fixture.expect_completion(1, Opcode::Send, Status::Success).byte_len, 5);
    let [(port, bytes)] = &fixture.take_sent()[..] else { panic!("one datagram") };
    let (header, payload) = Datagram::parse(bytes).unwrap();
    assert_eq!((*port, payload), (6000, &b"efabc"[..]));
    assert_eq!((header.destination, header.source, header.qkey), (REMOTE_QPN, LOCAL_QPN, QKEY));
    assert_eq!((header.immediate, header.solicited, header.service_level), (Some(5), true, 2));
}

#[test]
fn the_longest_message_is_one_datagram() {
    let fixture = Fixture::new();
    fixture.post_send(1, fixture.memory(0, 4096)).unwrap();
    assert_eq!(fixture.expect_completion(1, Opcode::Send, Status::Success).byte_len, 4096);
    assert_eq!(fixture.take_sent()[0].1.len(), 48 + 4096);
}

#[test]
fn unsignaled_requests_complete_only_if_they_fail() {
    let fixture = Fixture::new();
    for (id, len) in [(1, 10), (2, MAX_PAYLOAD + 1)] {
        let mut request = request(id, fixture.memory(0, u32::try_from(len).unwrap()));
        request.request.signaled = false;
        fixture.qp.post_send(vec![request]).unwrap();
    }
    assert_eq!(fixture.take_sent().len(), 1);
    fixture.expect_completion(2, Opcode::Send, Status::LocalLength);
    assert!(fixture.cq.is_empty());
}

#[test]
fn a_key_with_its_top_bit_set_stands_for_the_queue_pairs_own() {
    let fixture = Fixture::new();
    fixture.qp.set_qkey(0x77);
    for (qkey, sent) in [(5, 5), (0x8000_0005, 0x77)] {
        let mut request = request(1, inline(b""));
        request.destination.qkey = qkey;
        fixture.qp.post_send(vec![request]).unwrap();
        let (_, bytes) = fixture.take_sent().pop().unwrap();
        assert_eq!(Datagram::parse(&bytes).unwrap().0.qkey, sent);
    }
}

/// Each row is a datagram and the counter it must increment. None consumes the receive.
#[test]
fn what_does_not_belong_to_the_queue_pair_is_dropped_and_counted() {
    let fixture = Fixture::new();
    fixture.post_receive(1, 0, 8192);
    let whole = datagram(HEADER, b"x");
    let mut magic = whole.clone();
    magic[0] ^= 1;
    let wrong: [(Vec<u8>, Count); 9] = [
        (vec![], |drops| drops.malformed),
        (whole[..27].to_vec(), |drops| drops.malformed),
        (magic, |drops| drops.malformed),
        (datagram(HEADER, &[0; MAX_PAYLOAD + 1]), |drops| drops.malformed),
        (datagram(HEADER, &[0; 20000]), |drops| drops.malformed),
        (datagram(Datagram { source: 6001 << 8 | 255, ..HEADER }, b""), |drops| drops.malformed),
        (datagram(Datagram { source: REMOTE_QPN - 1, ..HEADER }, b""), |drops| drops.malformed),
        (datagram(Datagram { destination: LOCAL_QPN - 1, ..HEADER }, b""), |drops| drops.other_number),
        (datagram(Datagram { qkey: QKEY + 1, ..HEADER }, b""), |drops| drops.qkey),
    ];
    for (bytes, count) in wrong {
        let before = count(&fixture.qp.drops());
        fixture.deliver(bytes.clone());
        assert_eq!(count(&fixture.qp.drops()), before + 1, "{bytes:x?}");
        assert!(fixture.cq.is_empty(), "{bytes:x?}");
    }
    assert_eq!(fixture.bytes(0, LEN), vec![0xee; LEN], "no byte was written");
    fixture.deliver(datagram(HEADER, &[1; MAX_PAYLOAD]));
    assert_eq!(fixture.expect_completion(1, Opcode::Receive, Status::Success).byte_len, 4136);
    fixture.deliver(whole);
    assert_eq!(fixture.qp.drops().no_receive, 1);
    assert_eq!(fixture.qp.state(), State::ReadyToSend);
}

/// Requirement P3: what the network damaged, cut off or lengthened is never delivered.
#[test]
fn a_damaged_datagram_is_dropped_and_counted() {
    let fixture = Fixture::new();
    fixture.post_receive(1, 0, 8192);
    let whole = datagram(HEADER, b"whole");
    let mut damaged = vec![whole[..whole.len() - 1].to_vec(), [&whole[..], &[0]].concat()];
    // The fields behind the prologue: QPNs, Q_Key, immediate data, flow, hop limit, sequence number, CRC; the payload.
    damaged.extend([12, 16, 23, 27, 31, 32, 38, 47, 48, whole.len() - 1].map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    }));
    for (n, bytes) in damaged.into_iter().enumerate() {
        fixture.deliver(bytes);
        assert_eq!(fixture.qp.drops(), DropCounts { damaged: n as u64 + 1, ..DropCounts::default() });
        assert!(fixture.cq.is_empty());
    }
    assert_eq!(fixture.bytes(0, LEN), vec![0xee; LEN], "no byte was written");
    // Without the fields of a cell, damage would not be noticed.
    let mut unchecked = [&whole[..36], b"whole"].concat();
    unchecked[5] = 9;
    fixture.deliver(unchecked);
    assert_eq!(fixture.qp.drops().other_release, 1);
    fixture.deliver(whole);
    fixture.expect_completion(1, Opcode::Receive, Status::Success);
    assert_eq!(fixture.bytes(40, 5), b"whole");
}

/// Requirement P3: the datagrams of a queue pair are numbered, whatever their destination.
#[test]
fn datagrams_carry_consecutive_sequence_numbers() {
    let fixture = Fixture::new();
    *fixture.network.room.lock().unwrap() = Some(2);
    fixture.qp.post_send((0..4).map(|id| request(id, inline(b"next"))).collect()).unwrap();
    *fixture.network.room.lock().unwrap() = None;
    fixture.qp.drive(Ready { readable: false, writable: true, ended: false });
    let sent = fixture.take_sent();
    let sequences = sent.iter().map(|(_, bytes)| Datagram::parse(bytes).unwrap().0.sequence);
    assert_eq!(sequences.collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn a_receive_that_is_too_short_fails_alone() {
    let fixture = Fixture::new();
    fixture.post_receive(1, 0, 44);
    fixture.post_receive(2, 0, 45);
    fixture.deliver(datagram(HEADER, b"hello"));
    fixture.deliver(datagram(HEADER, b"hello"));
    fixture.expect_completion(1, Opcode::Receive, Status::LocalLength);
    fixture.expect_completion(2, Opcode::Receive, Status::Success);
    assert_eq!(fixture.qp.state(), State::ReadyToSend);
}

#[test]
fn a_receive_into_memory_that_cannot_be_written_ends_the_queue_pair() {
    for unmapped in [false, true] {
        let fixture = Fixture::new();
        if unmapped {
            fixture.post_receive(1, LEN as u64 - 42, 100);
        } else {
            fixture.post_receive(1, LEN as u64 + 4096 - 50, 100); // beyond the region
        }
        fixture.post_receive(2, 0, 100);
        *fixture.network.room.lock().unwrap() = Some(0);
        fixture.post_send(9, inline(b"waits for room")).unwrap();
        fixture.deliver(datagram(HEADER, b"a message that is long enough"));
        let cause = fixture.expect_completion(1, Opcode::Receive, Status::LocalProtection).cause.unwrap();
        assert_eq!(matches!(*cause, QpError::Unmapped { .. }), unmapped, "{cause}");
        fixture.expect_completion(2, Opcode::Receive, Status::Flushed);
        fixture.expect_completion(9, Opcode::Send, Status::Flushed);
        assert_eq!(fixture.qp.state(), State::Error);
        fixture.post_send(3, inline(b"")).unwrap();
        fixture.expect_completion(3, Opcode::Send, Status::Flushed);
        fixture.post_receive(4, 0, 100);
        fixture.expect_completion(4, Opcode::Receive, Status::Flushed);
        assert!(fixture.take_sent().is_empty());
    }
}

/// Send queue error (SQE): requests after the failed one are flushed, receives continue, and a state change
/// recovers the send queue.
#[test]
fn a_failed_send_stops_the_send_queue_and_nothing_else() {
    let fixture = Fixture::new();
    let stranger = Sge { tag: Tag(0x00de_ad00), addr: 0, len: 1 };
    let failures: [(Data, Status); 4] = [
        (fixture.memory(0, 4097), Status::LocalLength),
        (inline(&[0; 4097]), Status::LocalLength),
        (Data::Memory([stranger].as_slice().into()), Status::LocalProtection),
        (fixture.memory(LEN as u64 - 1, 2), Status::LocalProtection), // its last byte is not mapped
    ];
    for (data, status) in failures {
        let list = vec![request(1, inline(b"1")), request(2, data), request(3, inline(b"3"))];
        fixture.qp.post_send(list).unwrap();
        fixture.expect_completion(1, Opcode::Send, Status::Success);
        let cause = fixture.expect_completion(2, Opcode::Send, status).cause;
        assert_eq!(
            fixture.expect_completion(3, Opcode::Send, Status::Flushed).cause,
            cause,
            "the cause of the first failure"
        );
        assert_eq!(fixture.qp.state(), State::SendError);
        fixture.post_send(4, inline(b"")).unwrap();
        fixture.expect_completion(4, Opcode::Send, Status::Flushed);
        assert_eq!(fixture.take_sent().len(), 1);

        fixture.post_receive(5, 0, 100);
        fixture.deliver(datagram(HEADER, b"still here"));
        fixture.expect_completion(5, Opcode::Receive, Status::Success);

        fixture.qp.modify(State::ReadyToSend).unwrap();
        assert_eq!(fixture.qp.error(), None);
        fixture.post_send(6, inline(b"")).unwrap();
        fixture.expect_completion(6, Opcode::Send, Status::Success);
        assert_eq!(fixture.take_sent().len(), 1);
    }
}

#[test]
fn a_full_link_makes_requests_wait_in_order() {
    let fixture = Fixture::new();
    *fixture.network.room.lock().unwrap() = Some(1);
    for id in 1..=3 {
        fixture.post_send(id, inline(&[u8::try_from(id).unwrap()])).unwrap();
    }
    fixture.expect_completion(1, Opcode::Send, Status::Success);
    assert!(fixture.cq.is_empty());
    *fixture.network.room.lock().unwrap() = None;
    fixture.qp.drive(Ready { readable: false, writable: true, ended: false });
    fixture.expect_completion(2, Opcode::Send, Status::Success);
    fixture.expect_completion(3, Opcode::Send, Status::Success);
    let last: Vec<_> = fixture.take_sent().iter().map(|(_, bytes)| *bytes.last().unwrap()).collect();
    assert_eq!(last, [1, 2, 3]);
}

#[test]
fn what_the_network_loses_is_not_the_requests_fault() {
    let fixture = Fixture::new();
    fixture.network.loses.store(true, Ordering::Relaxed);
    fixture.post_send(1, inline(b"gone")).unwrap();
    fixture.expect_completion(1, Opcode::Send, Status::Success);
    assert_eq!((fixture.qp.drops().lost, fixture.qp.state()), (1, State::ReadyToSend));
}

/// For every state: whether sends and receives may be posted, and whether a datagram is received.
#[test]
fn each_state_takes_and_delivers_what_the_verbs_say() {
    use State::{Drained, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendError};
    let table = [
        (Reset, [false, false, false]),
        (Init, [false, true, false]),
        (ReadyToReceive, [false, true, true]),
        (ReadyToSend, [true, true, true]),
        (Drained, [true, true, true]),
        (SendError, [true, true, true]),
        (Error, [true, true, false]),
    ];
    for (state, expected) in table {
        let fixture = in_state(state);
        let buffers = [fixture.sge(0, 100)].as_slice().into();
        let receive = fixture.qp.post_receive(ReceiveRequest { id: 1, buffers }).is_ok();
        fixture.deliver(datagram(HEADER, b""));
        let mut received = false;
        fixture.cq.poll(9, |completion| received |= completion.status == Status::Success).unwrap();
        let send = fixture.post_send(2, inline(b"")).is_ok();
        assert_eq!([send, receive, received], expected, "{state}");
        assert_eq!(fixture.qp.drops().not_ready, u64::from(!received), "{state}");
        assert_eq!(fixture.take_sent().len(), usize::from(state == ReadyToSend), "{state}");
    }
}

/// Creates a queue pair in this state, with an empty completion queue.
fn in_state(state: State) -> Fixture {
    use State::{Drained, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendError};
    let fixture = Fixture::with(64, None);
    let path: &[State] = match state {
        Reset => &[],
        Init => &[Init],
        ReadyToReceive => &[Init, ReadyToReceive],
        ReadyToSend | SendError => &[Init, ReadyToReceive, ReadyToSend],
        Drained => &[Init, ReadyToReceive, ReadyToSend, Drained],
        Error => &[Init, Error],
    };
    for &step in path {
        fixture.qp.modify(step).unwrap();
    }
    if state == SendError {
        fixture.post_send(0, inline(&[0; 5000])).unwrap();
        fixture.expect_completion(0, Opcode::Send, Status::LocalLength);
    }
    assert_eq!(fixture.qp.state(), state);
    fixture
}

#[test]
fn a_connectionless_queue_pair_makes_every_legal_transition_and_no_other() {
    for from in State::ALL {
        for to in State::ALL {
            let fixture = in_state(from);
            let moved = fixture.qp.modify(to);
            assert_eq!(moved.is_ok(), from.may_become(to), "{from} to {to}");
            assert_eq!(fixture.qp.state(), if moved.is_ok() { to } else { from }, "{from} to {to}");
        }
    }
}

#[test]
fn a_drained_send_queue_keeps_its_requests_until_it_goes_on() {
    let fixture = in_state(State::Drained);
    assert_eq!(fixture.take_events(), [AsyncEvent::SqDrained(LOCAL_QPN)]);
    fixture.post_send(1, inline(b"")).unwrap();
    fixture.qp.drive(Ready { readable: true, writable: true, ended: false });
    assert!(fixture.take_sent().is_empty() && fixture.cq.is_empty());
    fixture.qp.modify(State::ReadyToSend).unwrap();
    fixture.expect_completion(1, Opcode::Send, Status::Success);
}

#[test]
fn after_a_reset_nothing_is_left_and_all_works_again() {
    let fixture = Fixture::new();
    fixture.post_send(1, inline(b"polled too late")).unwrap();
    *fixture.network.room.lock().unwrap() = Some(0);
    fixture.post_send(2, inline(b"never sent")).unwrap();
    fixture.post_receive(3, 0, 100);
    fixture.qp.modify(State::Reset).unwrap();
    assert!(fixture.cq.is_empty(), "completions are removed");
    *fixture.network.room.lock().unwrap() = None;
    fixture.take_sent();
    fixture.bring_up();
    assert!(fixture.take_sent().is_empty(), "requests are discarded");
    fixture.deliver(datagram(HEADER, b""));
    assert_eq!(fixture.qp.drops().no_receive, 1, "receives are discarded as well");
    fixture.post_receive(4, 0, 100);
    fixture.deliver(datagram(HEADER, b""));
    fixture.expect_completion(4, Opcode::Receive, Status::Success);
}

#[test]
fn what_cannot_be_posted_is_refused_at_once_and_whole() {
    let fixture = Fixture::new();
    let good = || request(1, inline(b""));
    let list: &[Sge] = &[fixture.sge(0, 1); 4];
    let mut write = good();
    write.request.operation = Operation::Write(ironwarp_wire::RemoteAddr::default());
    let mut invalidate = good();
    invalidate.request.operation = Operation::Send { invalidate: Some(fixture.tag) };
    let mut number = good();
    number.destination.qpn = 1 << 24;
    let mut from = good();
    from.destination.address.source = gid(REMOTE);
    let wrong = [
        (write, PostError::Connectionless),
        (invalidate, PostError::Connectionless),
        (number, PostError::NoNumber(1 << 24)),
        (from, PostError::NoPath { from: gid(REMOTE), to: gid(REMOTE) }),
        (request(1, Data::Memory(list.into())), PostError::TooManySges { have: 4, limit: 3 }),
    ];
    for (wrong, error) in wrong {
        assert_eq!(fixture.qp.post_send(vec![good(), wrong]), Err(error));
    }
    let many = (0..17).map(|_| good()).collect();
    assert_eq!(fixture.qp.post_send(many), Err(PostError::Full { capacity: 16 }));
    assert!(fixture.take_sent().is_empty() && fixture.cq.is_empty());
}

#[test]
fn receives_of_a_shared_queue_serve_datagrams() {
    let fixture = Fixture::with(
        8,
        Some(|device, domain| {
            SharedReceiveQueue::new(1, device.events(), domain, SrqSize { depth: 4, max_sges: 1 }, None)
        }),
    );
    fixture.bring_up();
    let buffers = |at| ReceiveRequest { id: at, buffers: [fixture.sge(at, 100)].as_slice().into() };
    assert_eq!(fixture.qp.post_receive(buffers(0)), Err(PostError::NoReceiveQueue));
    let srq = fixture.qp.attributes().shared.clone().unwrap();
    srq.post(buffers(200)).unwrap();
    fixture.deliver(datagram(HEADER, b"shared"));
    fixture.expect_completion(200, Opcode::Receive, Status::Success);
    assert_eq!(fixture.bytes(240, 6), b"shared");
    fixture.deliver(datagram(HEADER, b"one too many"));
    assert_eq!(fixture.qp.drops().no_receive, 1);
    // Receives of the shared queue are left to its other users.
    srq.post(buffers(400)).unwrap();
    fixture.qp.modify(State::Error).unwrap();
    assert_eq!((srq.query().posted, fixture.cq.len()), (1, 0));
    assert_eq!(fixture.take_events(), [AsyncEvent::LastWqeReached(LOCAL_QPN)]);
}

/// Requirement I5: a lost completion is an error.
#[test]
fn a_completion_that_finds_no_room_ends_the_queue_pair() {
    let fixture = Fixture::with(1, None);
    fixture.bring_up();
    fixture.post_send(1, inline(b"")).unwrap();
    assert_eq!(fixture.qp.state(), State::ReadyToSend);
    fixture.post_send(2, inline(b"")).unwrap();
    assert_eq!(fixture.qp.state(), State::Error);
    assert_eq!(fixture.qp.error().as_deref(), Some(&QpError::Overrun(1)));
    assert_eq!(fixture.take_events(), [AsyncEvent::QpFatal(LOCAL_QPN)]);
    assert!(
        fixture.network.schedules.load(Ordering::Relaxed) > 0,
        "the driver is called to flush the queues"
    );
}

/// A thread that polls handles a bounded number of datagrams; the driver continues.
#[test]
fn a_flood_is_received_in_bounded_shares() {
    let fixture = Fixture::new();
    let garbage = || std::iter::repeat_n((vec![0; 100], 6000), 10_000);
    fixture.network.arriving.lock().unwrap().extend(garbage());
    fixture.qp.drive(Ready { readable: true, writable: true, ended: false });
    let left = fixture.network.arriving.lock().unwrap().len();
    assert!((1..10_000).contains(&left), "{left} left");
    assert_eq!(fixture.network.schedules.load(Ordering::Relaxed), 1);
    assert_eq!(fixture.qp.drops().malformed, 10_000 - left as u64);
}
