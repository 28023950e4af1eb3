//! A connectionless queue pair on a mock network, which determines what arrives and whether it takes what is
//! sent.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use super::*;
use crate::config::DeviceConfig;
use crate::host::{Host, Span, Unmapped};
use crate::memory::{Memory, Rights, TagCipher};
use crate::queue::{Data, Opcode, Operation, Sender, Sge, SrqSize, Status, WorkRequest};
use ironwarp_wire::Tag;
use ironwarp_wire::private::Datagram;
use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;

const HERE: &str = "10.0.0.1";
const THERE: &str = "10.0.0.2";
/// The numbers of the queue pair under test and of its peer, which contain their ports.
const MINE: u32 = 5000 << 8 | 255;
const YOURS: u32 = 6000 << 8 | 255;
const QKEY: u32 = 0x1ee7;

fn gid(text: &str) -> crate::gid::Gid {
    text.parse().unwrap()
}

/// A network that records what is sent, and delivers what the test provides. Uses no sockets.
#[derive(Debug, Default)]
struct MockNetwork {
    arriving: StdMutex<VecDeque<(Vec<u8>, u16)>>,
    sent: StdMutex<Vec<(u16, Vec<u8>)>>,
    /// Number of datagrams that are taken before there is no room. `None` for no limit.
    room: StdMutex<Option<usize>>,
    /// Everything that is sent is lost.
    loses: AtomicBool,
    calls: AtomicU64,
}

impl DatagramLink for MockNetwork {
    fn has_path(&self, from: crate::gid::Gid, to: crate::gid::Gid) -> bool {
        from == gid(HERE) && to.ip().is_some_and(|ip| ip.is_ipv4())
    }

    fn send(&self, from: crate::gid::Gid, to: (crate::gid::Gid, u16), bytes: &[u8]) -> Sent {
        assert_eq!((from, to.0), (gid(HERE), gid(THERE)));
        if self.loses.load(Ordering::Relaxed) {
            return Sent::Lost;
        }
        match &mut *self.room.lock().unwrap() {
            Some(0) => return Sent::Full,
            Some(room) => *room -= 1,
            None => {}
        }
        self.sent.lock().unwrap().push((to.1, bytes.to_vec()));
        Sent::Taken
    }

    fn recv(&self, into: &mut [u8]) -> Option<Arrived> {
        let (bytes, port) = self.arriving.lock().unwrap().pop_front()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Some(Arrived { from: gid(THERE), port, to: gid(HERE), len })
    }

    fn schedule(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// The program's memory: `LEN` bytes at `BASE`, followed by a page that is registered but not mapped.
const BASE: u64 = 0x1_0000;
const LEN: usize = 64 << 10;

#[derive(Debug)]
struct MockHost(StdMutex<Vec<u8>>);

impl MockHost {
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

struct Bench {
    qp: Arc<DatagramQp>,
    network: Arc<MockNetwork>,
    host: Arc<MockHost>,
    device: Arc<Device>,
    cq: Arc<Cq>,
    tag: Tag,
}

/// Nothing sleeps in these tests.
#[derive(Debug)]
struct Awake;

impl crate::event::Wake for Awake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl Bench {
    fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.device.events().try_next()).collect()
    }

    /// A queue pair that is ready to send.
    fn new() -> Self {
        let bench = Self::with(64, None);
        bench.bring_up();
        bench
    }

    fn with(completions: usize, shared: Option<MakeQueue>) -> Self {
        let host = Arc::new(MockHost(StdMutex::new(vec![0xee; LEN])));
        let device =
            Device::new(DeviceConfig::default(), Arc::<MockHost>::clone(&host), TagCipher::new([0; 16]));
        device.events().open(Box::new(Awake));
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
        let qp = DatagramQp::new(MINE, &device, attributes, Arc::<MockNetwork>::clone(&network));
        Self { qp, network, host, device, cq, tag }
    }

    fn bring_up(&self) {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            self.qp.modify(state).unwrap();
        }
    }

    fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { tag: self.tag, addr: BASE + at, len }
    }

    /// Posts a receive of `len` bytes at offset `at`.
    fn receive(&self, id: u64, at: u64, len: u32) {
        let buffers = [self.sge(at, len)].as_slice().into();
        self.qp.post_receive(ReceiveRequest { id, buffers }).unwrap();
    }

    fn send(&self, id: u64, data: Data) -> Result<(), PostError> {
        self.qp.post_send(vec![request(id, data)])
    }

    fn memory(&self, at: u64, len: u32) -> Data {
        Data::Memory([self.sge(at, len)].as_slice().into())
    }

    /// Delivers a datagram to the queue pair.
    fn arrives(&self, bytes: Vec<u8>) {
        self.network.arriving.lock().unwrap().push_back((bytes, 6000));
        self.qp.drive(Ready { readable: true, writable: false, ended: false });
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.host.0.lock().unwrap()[at..at + len].to_vec()
    }

    fn next(&self) -> Completion {
        let mut one = None;
        self.cq.poll(1, |completion| one = Some(completion)).unwrap();
        one.expect("a completion")
    }

    #[track_caller]
    fn completes(&self, id: u64, opcode: Opcode, status: Status) -> Completion {
        let completion = self.next();
        assert_eq!((completion.wr_id, completion.opcode, completion.status), (id, opcode, status));
        assert_eq!(completion.cause.is_some(), status != Status::Success, "a failure has a cause");
        completion
    }

    fn sent(&self) -> Vec<(u16, Vec<u8>)> {
        std::mem::take(&mut self.network.sent.lock().unwrap())
    }
}

fn request(id: u64, data: Data) -> DatagramRequest {
    let address = AddressHandle::new(gid(HERE), gid(THERE));
    let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
    DatagramRequest { request, destination: Destination { address, qpn: YOURS, qkey: QKEY } }
}

fn inline(bytes: &[u8]) -> Data {
    Data::Inline(bytes.into())
}

const HEADER: Datagram = Datagram {
    destination: MINE,
    source: YOURS,
    qkey: QKEY,
    solicited: false,
    immediate: None,
    hop_limit: 9,
    traffic_class: 0x42,
    flow_label: 0x1_2345,
    service_level: 3,
};

fn datagram(header: Datagram, payload: &[u8]) -> Vec<u8> {
    [&header.emit().unwrap()[..], payload].concat()
}

#[test]
fn a_datagram_is_placed_behind_its_grh_and_completes_with_all_that_its_sender_said() {
    let bench = Bench::new();
    bench.receive(7, 100, 64);
    let header = Datagram { solicited: true, immediate: Some(0xabcd), ..HEADER };
    bench.arrives(datagram(header, b"hello"));
    let completion = bench.completes(7, Opcode::Receive, Status::Success);
    assert_eq!((completion.byte_len, completion.qp), (45, MINE));
    assert_eq!(completion.sender, Some(Sender { qp: YOURS, service_level: 3 }));
    assert_eq!((completion.solicited, completion.immediate), (true, Some(0xabcd)));
    let grh = Grh::parse(&bench.bytes(100, 40)).unwrap();
    assert_eq!((grh.source, grh.destination), (gid(THERE), gid(HERE)));
    assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit), (0x42, 0x1_2345, 9));
    assert_eq!(grh.payload_len, 12 + 8 + 4 + 8 + 4);
    assert_eq!(bench.bytes(140, 6), b"hello\xee");
    assert_eq!(bench.bytes(99, 1), b"\xee");
    let back = AddressHandle::from_completion(&grh, &completion).unwrap();
    assert_eq!((back.source, back.destination, back.service_level), (gid(HERE), gid(THERE), 3));
}

#[test]
fn a_request_becomes_one_datagram_with_its_address_and_completes_when_it_was_taken() {
    let bench = Bench::new();
    bench.host.0.lock().unwrap()[..6].copy_from_slice(b"abcdef");
    let list: &[Sge] = &[bench.sge(4, 2), bench.sge(0, 0), bench.sge(0, 3)];
    let mut request = request(1, Data::Memory(list.into()));
    request.request.immediate = Some(5);
    request.request.solicited = true;
    request.destination.address.service_level = 2;
    bench.qp.post_send(vec![request]).unwrap();
    assert_eq!(bench.completes(1, Opcode::Send, Status::Success).byte_len, 5);
    let [(port, bytes)] = &bench.sent()[..] else { panic!("one datagram") };
    let (header, payload) = Datagram::parse(bytes).unwrap();
    assert_eq!((*port, payload), (6000, &b"efabc"[..]));
    assert_eq!((header.destination, header.source, header.qkey), (YOURS, MINE, QKEY));
    assert_eq!((header.immediate, header.solicited, header.service_level), (Some(5), true, 2));
}

#[test]
fn the_longest_message_is_one_datagram() {
    let bench = Bench::new();
    bench.send(1, bench.memory(0, 4096)).unwrap();
    assert_eq!(bench.completes(1, Opcode::Send, Status::Success).byte_len, 4096);
    assert_eq!(bench.sent()[0].1.len(), 36 + 4096);
}

#[test]
fn unsignaled_requests_complete_only_if_they_fail() {
    let bench = Bench::new();
    for (id, len) in [(1, 10), (2, MAX_PAYLOAD + 1)] {
        let mut request = request(id, bench.memory(0, u32::try_from(len).unwrap()));
        request.request.signaled = false;
        bench.qp.post_send(vec![request]).unwrap();
    }
    assert_eq!(bench.sent().len(), 1);
    bench.completes(2, Opcode::Send, Status::LocalLength);
    assert!(bench.cq.is_empty());
}

#[test]
fn a_key_with_its_top_bit_set_stands_for_the_queue_pairs_own() {
    let bench = Bench::new();
    bench.qp.set_qkey(0x77);
    for (qkey, sent) in [(5, 5), (0x8000_0005, 0x77)] {
        let mut request = request(1, inline(b""));
        request.destination.qkey = qkey;
        bench.qp.post_send(vec![request]).unwrap();
        let (_, bytes) = bench.sent().pop().unwrap();
        assert_eq!(Datagram::parse(&bytes).unwrap().0.qkey, sent);
    }
}

/// Each row is a datagram and the counter it must increment. None consumes the receive.
#[test]
fn what_does_not_belong_to_the_queue_pair_is_dropped_and_counted() {
    let bench = Bench::new();
    bench.receive(1, 0, 8192);
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
        (datagram(Datagram { source: YOURS - 1, ..HEADER }, b""), |drops| drops.malformed),
        (datagram(Datagram { destination: MINE - 1, ..HEADER }, b""), |drops| drops.other_number),
        (datagram(Datagram { qkey: QKEY + 1, ..HEADER }, b""), |drops| drops.qkey),
    ];
    for (bytes, count) in wrong {
        let before = count(&bench.qp.drops());
        bench.arrives(bytes.clone());
        assert_eq!(count(&bench.qp.drops()), before + 1, "{bytes:x?}");
        assert!(bench.cq.is_empty(), "{bytes:x?}");
    }
    assert_eq!(bench.bytes(0, LEN), vec![0xee; LEN], "no byte was written");
    bench.arrives(datagram(HEADER, &[1; MAX_PAYLOAD]));
    assert_eq!(bench.completes(1, Opcode::Receive, Status::Success).byte_len, 4136);
    bench.arrives(whole);
    assert_eq!(bench.qp.drops().no_receive, 1);
    assert_eq!(bench.qp.state(), State::ReadyToSend);
}

#[test]
fn a_receive_that_is_too_short_fails_alone() {
    let bench = Bench::new();
    bench.receive(1, 0, 44);
    bench.receive(2, 0, 45);
    bench.arrives(datagram(HEADER, b"hello"));
    bench.arrives(datagram(HEADER, b"hello"));
    bench.completes(1, Opcode::Receive, Status::LocalLength);
    bench.completes(2, Opcode::Receive, Status::Success);
    assert_eq!(bench.qp.state(), State::ReadyToSend);
}

#[test]
fn a_receive_into_memory_that_cannot_be_written_ends_the_queue_pair() {
    for unmapped in [false, true] {
        let bench = Bench::new();
        if unmapped {
            bench.receive(1, LEN as u64 - 42, 100);
        } else {
            bench.receive(1, LEN as u64 + 4096 - 50, 100); // beyond the region
        }
        bench.receive(2, 0, 100);
        *bench.network.room.lock().unwrap() = Some(0);
        bench.send(9, inline(b"waits for room")).unwrap();
        bench.arrives(datagram(HEADER, b"a message that is long enough"));
        let cause = bench.completes(1, Opcode::Receive, Status::LocalProtection).cause.unwrap();
        assert_eq!(matches!(*cause, QpError::Unmapped { .. }), unmapped, "{cause}");
        bench.completes(2, Opcode::Receive, Status::Flushed);
        bench.completes(9, Opcode::Send, Status::Flushed);
        assert_eq!(bench.qp.state(), State::Error);
        bench.send(3, inline(b"")).unwrap();
        bench.completes(3, Opcode::Send, Status::Flushed);
        bench.receive(4, 0, 100);
        bench.completes(4, Opcode::Receive, Status::Flushed);
        assert!(bench.sent().is_empty());
    }
}

/// Send queue error (SQE): requests after the failed one are flushed, receives continue, and a state change
/// recovers the send queue.
#[test]
fn a_failed_send_stops_the_send_queue_and_nothing_else() {
    let bench = Bench::new();
    let stranger = Sge { tag: Tag(0x00de_ad00), addr: 0, len: 1 };
    let failures: [(Data, Status); 4] = [
        (bench.memory(0, 4097), Status::LocalLength),
        (inline(&[0; 4097]), Status::LocalLength),
        (Data::Memory([stranger].as_slice().into()), Status::LocalProtection),
        (bench.memory(LEN as u64 - 1, 2), Status::LocalProtection), // its last byte is not mapped
    ];
    for (data, status) in failures {
        let list = vec![request(1, inline(b"1")), request(2, data), request(3, inline(b"3"))];
        bench.qp.post_send(list).unwrap();
        bench.completes(1, Opcode::Send, Status::Success);
        let cause = bench.completes(2, Opcode::Send, status).cause;
        assert_eq!(
            bench.completes(3, Opcode::Send, Status::Flushed).cause,
            cause,
            "the cause of the first failure"
        );
        assert_eq!(bench.qp.state(), State::SendError);
        bench.send(4, inline(b"")).unwrap();
        bench.completes(4, Opcode::Send, Status::Flushed);
        assert_eq!(bench.sent().len(), 1);

        bench.receive(5, 0, 100);
        bench.arrives(datagram(HEADER, b"still here"));
        bench.completes(5, Opcode::Receive, Status::Success);

        bench.qp.modify(State::ReadyToSend).unwrap();
        assert_eq!(bench.qp.error(), None);
        bench.send(6, inline(b"")).unwrap();
        bench.completes(6, Opcode::Send, Status::Success);
        assert_eq!(bench.sent().len(), 1);
    }
}

#[test]
fn a_full_link_makes_requests_wait_in_order() {
    let bench = Bench::new();
    *bench.network.room.lock().unwrap() = Some(1);
    for id in 1..=3 {
        bench.send(id, inline(&[u8::try_from(id).unwrap()])).unwrap();
    }
    bench.completes(1, Opcode::Send, Status::Success);
    assert!(bench.cq.is_empty());
    *bench.network.room.lock().unwrap() = None;
    bench.qp.drive(Ready { readable: false, writable: true, ended: false });
    bench.completes(2, Opcode::Send, Status::Success);
    bench.completes(3, Opcode::Send, Status::Success);
    let last: Vec<_> = bench.sent().iter().map(|(_, bytes)| *bytes.last().unwrap()).collect();
    assert_eq!(last, [1, 2, 3]);
}

#[test]
fn what_the_network_loses_is_not_the_requests_fault() {
    let bench = Bench::new();
    bench.network.loses.store(true, Ordering::Relaxed);
    bench.send(1, inline(b"gone")).unwrap();
    bench.completes(1, Opcode::Send, Status::Success);
    assert_eq!((bench.qp.drops().lost, bench.qp.state()), (1, State::ReadyToSend));
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
        let bench = in_state(state);
        let buffers = [bench.sge(0, 100)].as_slice().into();
        let receive = bench.qp.post_receive(ReceiveRequest { id: 1, buffers }).is_ok();
        bench.arrives(datagram(HEADER, b""));
        let mut received = false;
        bench.cq.poll(9, |completion| received |= completion.status == Status::Success).unwrap();
        let send = bench.send(2, inline(b"")).is_ok();
        assert_eq!([send, receive, received], expected, "{state}");
        assert_eq!(bench.qp.drops().not_ready, u64::from(!received), "{state}");
        assert_eq!(bench.sent().len(), usize::from(state == ReadyToSend), "{state}");
    }
}

/// A queue pair in this state, with no completions left.
fn in_state(state: State) -> Bench {
    use State::{Drained, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendError};
    let bench = Bench::with(64, None);
    let path: &[State] = match state {
        Reset => &[],
        Init => &[Init],
        ReadyToReceive => &[Init, ReadyToReceive],
        ReadyToSend | SendError => &[Init, ReadyToReceive, ReadyToSend],
        Drained => &[Init, ReadyToReceive, ReadyToSend, Drained],
        Error => &[Init, Error],
    };
    for &step in path {
        bench.qp.modify(step).unwrap();
    }
    if state == SendError {
        bench.send(0, inline(&[0; 5000])).unwrap();
        bench.completes(0, Opcode::Send, Status::LocalLength);
    }
    assert_eq!(bench.qp.state(), state);
    bench
}

#[test]
fn a_connectionless_queue_pair_makes_every_legal_transition_and_no_other() {
    for from in State::ALL {
        for to in State::ALL {
            let bench = in_state(from);
            let moved = bench.qp.modify(to);
            assert_eq!(moved.is_ok(), from.may_become(to), "{from} to {to}");
            assert_eq!(bench.qp.state(), if moved.is_ok() { to } else { from }, "{from} to {to}");
        }
    }
}

#[test]
fn a_drained_send_queue_keeps_its_requests_until_it_goes_on() {
    let bench = in_state(State::Drained);
    assert_eq!(bench.events(), [AsyncEvent::SqDrained(MINE)]);
    bench.send(1, inline(b"")).unwrap();
    bench.qp.drive(Ready { readable: true, writable: true, ended: false });
    assert!(bench.sent().is_empty() && bench.cq.is_empty());
    bench.qp.modify(State::ReadyToSend).unwrap();
    bench.completes(1, Opcode::Send, Status::Success);
}

#[test]
fn after_a_reset_nothing_is_left_and_all_works_again() {
    let bench = Bench::new();
    bench.send(1, inline(b"polled too late")).unwrap();
    *bench.network.room.lock().unwrap() = Some(0);
    bench.send(2, inline(b"never sent")).unwrap();
    bench.receive(3, 0, 100);
    bench.qp.modify(State::Reset).unwrap();
    assert!(bench.cq.is_empty(), "completions are removed");
    *bench.network.room.lock().unwrap() = None;
    bench.sent();
    bench.bring_up();
    assert!(bench.sent().is_empty(), "requests are discarded");
    bench.arrives(datagram(HEADER, b""));
    assert_eq!(bench.qp.drops().no_receive, 1, "receives are discarded as well");
    bench.receive(4, 0, 100);
    bench.arrives(datagram(HEADER, b""));
    bench.completes(4, Opcode::Receive, Status::Success);
}

#[test]
fn what_cannot_be_posted_is_refused_at_once_and_whole() {
    let bench = Bench::new();
    let good = || request(1, inline(b""));
    let list: &[Sge] = &[bench.sge(0, 1); 4];
    let mut write = good();
    write.request.operation = Operation::Write(ironwarp_wire::Place::default());
    let mut invalidate = good();
    invalidate.request.operation = Operation::Send { invalidate: Some(bench.tag) };
    let mut number = good();
    number.destination.qpn = 1 << 24;
    let mut from = good();
    from.destination.address.source = gid(THERE);
    let wrong = [
        (write, PostError::Connectionless),
        (invalidate, PostError::Connectionless),
        (number, PostError::NoNumber(1 << 24)),
        (from, PostError::NoPath { from: gid(THERE), to: gid(THERE) }),
        (request(1, Data::Memory(list.into())), PostError::TooManySges { have: 4, limit: 3 }),
    ];
    for (wrong, error) in wrong {
        assert_eq!(bench.qp.post_send(vec![good(), wrong]), Err(error));
    }
    let many = (0..17).map(|_| good()).collect();
    assert_eq!(bench.qp.post_send(many), Err(PostError::Full { capacity: 16 }));
    assert!(bench.sent().is_empty() && bench.cq.is_empty());
}

#[test]
fn receives_of_a_shared_queue_serve_datagrams() {
    let bench = Bench::with(
        8,
        Some(|device, domain| {
            SharedReceiveQueue::new(1, device.events(), domain, SrqSize { depth: 4, max_sges: 1 }, None)
        }),
    );
    bench.bring_up();
    let buffers = |at| ReceiveRequest { id: at, buffers: [bench.sge(at, 100)].as_slice().into() };
    assert_eq!(bench.qp.post_receive(buffers(0)), Err(PostError::NoReceiveQueue));
    let srq = bench.qp.attributes().shared.clone().unwrap();
    srq.post(buffers(200)).unwrap();
    bench.arrives(datagram(HEADER, b"shared"));
    bench.completes(200, Opcode::Receive, Status::Success);
    assert_eq!(bench.bytes(240, 6), b"shared");
    bench.arrives(datagram(HEADER, b"one too many"));
    assert_eq!(bench.qp.drops().no_receive, 1);
    // Receives of the shared queue are left to its other users.
    srq.post(buffers(400)).unwrap();
    bench.qp.modify(State::Error).unwrap();
    assert_eq!((srq.query().posted, bench.cq.len()), (1, 0));
    assert_eq!(bench.events(), [AsyncEvent::LastWqeReached(MINE)]);
}

/// Requirement I5.
#[test]
fn a_completion_that_finds_no_room_ends_the_queue_pair() {
    let bench = Bench::with(1, None);
    bench.bring_up();
    bench.send(1, inline(b"")).unwrap();
    assert_eq!(bench.qp.state(), State::ReadyToSend);
    bench.send(2, inline(b"")).unwrap();
    assert_eq!(bench.qp.state(), State::Error);
    assert_eq!(bench.qp.error().as_deref(), Some(&QpError::Overrun(1)));
    assert_eq!(bench.events(), [AsyncEvent::QpFatal(MINE)]);
    assert!(bench.network.calls.load(Ordering::Relaxed) > 0, "the driver is called to flush the queues");
}

/// A thread that polls handles a bounded number of datagrams; the driver continues.
#[test]
fn a_flood_is_received_in_bounded_shares() {
    let bench = Bench::new();
    let garbage = || std::iter::repeat_n((vec![0; 100], 6000), 10_000);
    bench.network.arriving.lock().unwrap().extend(garbage());
    bench.qp.drive(Ready { readable: true, writable: true, ended: false });
    let left = bench.network.arriving.lock().unwrap().len();
    assert!((1..10_000).contains(&left), "{left} left");
    assert_eq!(bench.network.calls.load(Ordering::Relaxed), 1);
    assert_eq!(bench.qp.drops().malformed, 10_000 - left as u64);
}
