//! Arbitrary senders write to the UDP port of a connectionless queue pair. Whatever is not a valid datagram
//! is dropped, and no memory is accessed.

use crate::common::TIMEOUT;
use crate::common::neighbour::Neighbour;
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, DatagramQueuePair, DatagramQueuePairAttributes, Engine};
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::{Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Status, WorkRequest};
use ironwarp_testkit::mapping::{Mapping, PAGE};
use ironwarp_wire::Tag;
use ironwarp_wire::mpa::Crc;
use ironwarp_wire::private::{DATAGRAM_LEN, Datagram, DatagramKind};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const QKEY: u32 = 0x1ee7;
pub(super) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A connectionless queue pair with three pages of memory.
pub(super) struct Post {
    pub(super) engine: Arc<Engine>,
    pub(super) cq: Arc<CompletionQueue>,
    pub(super) pair: Arc<DatagramQueuePair>,
    pub(super) memory: Mapping,
    tag: Tag,
}

impl Post {
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// Creates a queue pair with attributes that `change` changes.
    pub(super) fn with(change: impl FnOnce(&mut DatagramQueuePairAttributes)) -> Self {
        let engine = Engine::new(Config::default().lanes(1)).unwrap();
        let domain = engine.device().allocate_domain();
        let cq = engine.create_cq(64).unwrap();
        let mut attributes =
            DatagramQueuePairAttributes { qkey: QKEY, ..DatagramQueuePairAttributes::new(domain, &cq) };
        change(&mut attributes);
        let udp = engine.bind_datagram_port(Some(&[LOCALHOST])).unwrap();
        let pair = engine.create_datagram_qp(&attributes, udp).unwrap();
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            pair.qp().modify(state).unwrap();
        }
        let memory = Mapping::new(3);
        memory.fill(0, memory.len(), 0xcc);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
        let tag = engine.device().register(domain, region).unwrap();
        Self { engine, cq, pair, memory, tag }
    }

    pub(super) fn port(&self) -> u16 {
        u16::try_from(self.pair.id() >> 8).unwrap()
    }

    fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { tag: self.tag, addr: self.memory.addr(at), len }
    }

    pub(super) fn receive(&self, id: u64, at: usize, len: u32) {
        let buffers = self.sge(at, len).into();
        self.pair.qp().post_receive(ReceiveRequest { id, buffers }).unwrap();
    }

    fn send(&self, id: u64, data: Data) {
        let address = AddressHandle::new(Gid::from(LOCALHOST), Gid::from(LOCALHOST));
        let destination = Destination { address, qpn: self.pair.id(), qkey: QKEY };
        let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
        self.pair.qp().post_send(vec![DatagramRequest { request, destination }]).unwrap();
    }

    #[track_caller]
    pub(super) fn completes(&self, opcode: Opcode, id: u64, status: Status) -> Completion {
        assert!(self.cq.wait(Some(TIMEOUT)).unwrap(), "nothing completed");
        let mut one = None;
        self.cq.poll(1, |completion| one = Some(completion)).unwrap();
        let completion = one.unwrap();
        let found = (completion.opcode, completion.wr_id, completion.status);
        assert_eq!(found, (opcode, id, status), "{completion:?}");
        completion
    }

    /// Waits for the next completion, which must be successful, and returns its identifier.
    fn next_id(&self) -> u64 {
        assert!(self.cq.wait(Some(TIMEOUT)).unwrap(), "nothing completed");
        let mut id = None;
        self.cq.poll(1, |it| id = Some((it.wr_id, it.status))).unwrap();
        let (id, status) = id.unwrap();
        assert_eq!(status, Status::Success);
        id
    }
}

/// A sender with a plain socket.
pub(super) struct Stranger {
    pub(super) socket: UdpSocket,
    to: u16,
}

impl Stranger {
    pub(super) fn new(to: u16) -> Self {
        Self { socket: UdpSocket::bind((LOCALHOST, 0)).unwrap(), to }
    }

    pub(super) fn number(&self) -> u32 {
        u32::from(self.socket.local_addr().unwrap().port()) << 8 | 255
    }

    pub(super) fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, (LOCALHOST, self.to)).unwrap();
    }

    /// Builds a valid datagram.
    fn proper(&self, payload: &[u8]) -> Vec<u8> {
        self.datagram(DatagramKind::Message, 1, payload)
    }

    /// Builds a datagram of this kind.
    pub(super) fn datagram(&self, kind: DatagramKind, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let header = Datagram {
            kind,
            destination: u32::from(self.to) << 8 | 255,
            source: self.number(),
            qkey: QKEY,
            sequence,
            solicited: false,
            immediate: None,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
        };
        [&header.emit(payload).unwrap()[..], payload].concat()
    }
}

/// Corrects the CRC of a datagram.
pub(super) fn reseal(bytes: &mut [u8]) {
    let mut crc = Crc::of(&bytes[..DATAGRAM_LEN - 4]);
    crc.update(&bytes[DATAGRAM_LEN..]);
    bytes[DATAGRAM_LEN - 4..DATAGRAM_LEN].copy_from_slice(&crc.to_bytes());
}

#[test]
fn invalid_datagrams_are_dropped_without_accessing_memory() {
    let post = Post::new();
    let neighbour = Neighbour::new(&post.engine, Duration::from_millis(1));
    let stranger = Stranger::new(post.port());
    post.receive(1, 0, 3 * 4096);
    let proper = stranger.proper(&[0xaa; 100]);
    let mut rng = Rng::new(7);
    // Cut off anywhere, lengthened, and with any single bit flipped (requirement P3).
    let mut wrong: Vec<Vec<u8>> = (0..proper.len()).map(|len| proper[..len].to_vec()).collect();
    wrong.extend((1..100).map(|more| [&proper[..], &vec![0xbb; more]].concat()));
    for bit in 0..proper.len() * 8 {
        let mut bytes = proper.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        wrong.push(bytes);
    }
    // Flip every bit that matters, and correct the CRC. May-ignore bits, the immediate data and their flag, flow label
    // and hop limit may have any value.
    let immediate = 7 * 8;
    for bit in (0..8 * 8).filter(|bit| *bit != immediate).chain(10 * 8..11 * 8).chain(12 * 8..24 * 8) {
        let mut bytes = proper.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        reseal(&mut bytes);
        wrong.push(bytes);
    }
    wrong.extend([4097, 9000, 60_000].map(|len| stranger.proper(&vec![0; len])));
    wrong.extend((0..200).map(|n| (0..n).map(|_| rng.next().to_le_bytes()[0]).collect()));
    for bytes in &wrong {
        stranger.send(bytes);
        post.cq.progress(); // the socket's buffer could not hold all of them
    }
    // The valid datagram arrives after all of them, and is the only one that is received.
    stranger.send(&proper);
    let completion = post.completes(Opcode::Receive, 1, Status::Success);
    assert_eq!(completion.byte_len, 140);
    assert_eq!(post.memory.read(40, 100), [0xaa; 100]);
    assert!(post.memory.holds_only(140, 3 * PAGE - 140, 0xcc));
    let drops = post.pair.qp().drops();
    let dropped = drops.malformed + drops.damaged + drops.other_release + drops.other_number + drops.qkey;
    assert_eq!(dropped, wrong.len() as u64, "{drops:?}");
    assert_eq!((drops.other_number, drops.qkey), (24, 32), "one drop per bit of the QPN and of the Q_Key");
    neighbour.leave();
}

#[test]
fn a_flood_of_garbage_stalls_neither_a_neighbour_nor_the_queue_pair() {
    let post = Post::new();
    let neighbour = Neighbour::new(&post.engine, Duration::ZERO);
    let (stranger, friend) = (Stranger::new(post.port()), Stranger::new(post.port()));
    let before = neighbour.rounds();
    let mut received = 0;
    let until = Instant::now() + TIMEOUT;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let garbage = vec![0xee; 2000];
            for _ in 0..100_000 {
                stranger.send(&garbage);
            }
        });
        // Datagrams may be lost, so they are sent again until enough have arrived.
        while !flood.is_finished() || received < 10 || neighbour.rounds() < before + 10 {
            assert!(Instant::now() < until, "{received} received, {} rounds", neighbour.rounds() - before);
            post.receive(1, 0, 4136);
            friend.send(&friend.proper(b"let me through"));
            while !post.cq.wait(Some(Duration::from_millis(20))).unwrap() {
                assert!(Instant::now() < until, "no datagram gets through");
                friend.send(&friend.proper(b"let me through"));
            }
            received += post.cq.poll(1, |it| assert_eq!(it.status, Status::Success)).unwrap();
        }
    });
    assert!(post.pair.qp().drops().malformed > 1000, "{:?}", post.pair.qp().drops());
    neighbour.leave();
}

#[test]
fn unmapped_memory_fails_a_send_but_not_receives() {
    let post = Post::new();
    let neighbour = Neighbour::new(&post.engine, Duration::from_millis(1));
    post.memory.unmap(PAGE, PAGE);
    let straddles = || Data::Memory(post.sge(PAGE - 10, 20).into());
    post.send(1, straddles());
    let cause = post.completes(Opcode::Send, 1, Status::LocalProtection).cause.unwrap();
    assert!(matches!(*cause, QpError::Unmapped { .. }), "{cause}");
    assert_eq!(post.pair.qp().state(), State::SendError);
    post.send(2, Data::Inline([1].as_slice().into()));
    post.completes(Opcode::Send, 2, Status::Flushed);

    // Receives continue, and so do sends after the program has recovered the send queue.
    post.receive(3, 0, 100);
    let stranger = Stranger::new(post.port());
    stranger.send(&stranger.proper(b"still here"));
    post.completes(Opcode::Receive, 3, Status::Success);
    assert_eq!(post.memory.read(40, 10), b"still here");
    post.pair.qp().modify(State::ReadyToSend).unwrap();
    post.receive(4, 2 * PAGE, 100);
    post.send(5, Data::Inline(b"to myself".as_slice().into()));
    let mut done = [post.next_id(), post.next_id()];
    done.sort_unstable();
    assert_eq!(done, [4, 5]);
    assert_eq!(post.memory.read(2 * PAGE + 40, 9), b"to myself");
    neighbour.leave();
}

#[test]
fn unmapped_memory_fails_a_receive_and_its_queue_pair_only() {
    let post = Post::new();
    let neighbour = Neighbour::new(&post.engine, Duration::from_millis(1));
    post.receive(1, PAGE - 42, 1000);
    post.receive(2, 0, 1000);
    post.memory.unmap(PAGE, PAGE);
    let stranger = Stranger::new(post.port());
    stranger.send(&stranger.proper(b"hello"));
    let cause = post.completes(Opcode::Receive, 1, Status::LocalProtection).cause.unwrap();
    assert!(matches!(*cause, QpError::Unmapped { .. }), "{cause}");
    post.completes(Opcode::Receive, 2, Status::Flushed);
    assert_eq!(post.pair.qp().state(), State::Error);
    neighbour.leave();
}

/// The socket reports room after every datagram that was sent, which wakes a lane. The lane must not take
/// over a request from the thread that posts it: a program that does not poll relies on the completion being
/// there when the post returns.
#[test]
fn a_datagram_is_complete_when_the_post_returns() {
    /// Few enough never to fill the socket, however slowly the kernel delivers them.
    const AT_ONCE: u64 = 8;
    let post = Post::new();
    for batch in 0..1000 {
        let received = Cell::new(0);
        // Poll the completion queue only, so that the lane drives the sockets.
        let sent = || {
            let mut sent = Vec::new();
            let each = |completion: Completion| match completion.opcode {
                Opcode::Receive => received.set(received.get() + 1),
                _ => sent.push(completion.wr_id),
            };
            post.cq.cq().poll(64, each).unwrap();
            sent
        };
        for id in 0..AT_ONCE {
            post.receive(id, 0, 64);
        }
        for id in 0..AT_ONCE {
            post.send(id, Data::Inline([1, 2, 3].as_slice().into()));
            assert_eq!(sent(), [id], "in batch {batch}");
        }
        let start = Instant::now();
        while received.get() < AT_ONCE {
            assert!(start.elapsed() < TIMEOUT, "{} received", received.get());
            assert_eq!(sent(), [0; 0]);
        }
    }
}
