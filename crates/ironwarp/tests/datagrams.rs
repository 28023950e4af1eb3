//! Datagram queue pairs over real UDP sockets (requirement P2). Every byte is verified.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::{Arm, Completion, CompletionQueue, Opcode, Status};
use ironwarp::config::PortRange;
use ironwarp::connection::Gid;
use ironwarp::datagram::{AddressHandle, DatagramQueuePair, DatagramRequest, Destination, Grh};
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{CreateError, PostError, QpError, State};
use ironwarp::{Adapter, Config, ProtectionDomain};
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::native::{ALL, Completions, SOON, pattern};
use ironwarp_wire::mpa::Crc;
use ironwarp_wire::private::Datagram;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsFd;

const GRH: usize = Grh::LEN;
const QKEY: u32 = 0x0001_1ee7;
const SIZES: [usize; 7] = [0, 1, 7, 64, 4055, 4095, 4096];
const VERSIONS: [&str; 2] = ["127.0.0.1", "::1"];

/// A datagram queue pair with 64 KiB of memory.
struct End {
    qp: DatagramQueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    domain: ProtectionDomain,
    adapter: Adapter,
}

impl End {
    fn new() -> Self {
        let adapter = Adapter::new().unwrap();
        let cq = adapter.completion_queue(512).unwrap();
        let domain = adapter.protection_domain();
        let qp = domain.datagram_queue_pair(&cq).qkey(QKEY).create().unwrap();
        let region = domain.register(Buffer::new(64 << 10).unwrap(), ALL).unwrap();
        Self { qp, cq, region, domain, adapter }
    }

    /// Returns the destination of this end, for a sender.
    fn destination(&self, from: &DatagramQueuePair, at: &str) -> Destination {
        let address = from.address_handle(at.parse().unwrap()).unwrap();
        Destination { address, qpn: self.qp.qpn(), qkey: QKEY }
    }

    fn receive(&self, id: u64, at: usize, len: usize) {
        self.qp.post_receive(id, &[self.region.slice(at..at + len).unwrap()]).unwrap();
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(at, &mut bytes).unwrap();
        bytes
    }

    /// Takes the next two completions, and checks that they are a successful send and a successful receive, in either
    /// order: a reply may arrive before the sending thread has recorded the completion of the send.
    #[track_caller]
    fn sent_and_received(&self, send: u64, receive: u64) -> Completion {
        let both =
            [self.next(), self.next()].map(|it| it.success().unwrap_or_else(|error| panic!("{error}")));
        let (sent, received): (Vec<_>, Vec<_>) = both.into_iter().partition(|it| it.opcode == Opcode::Send);
        assert_eq!((sent[0].wr_id, received[0].wr_id), (send, receive));
        received[0].clone()
    }
}

impl Completions for End {
    fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

#[test]
fn datagrams_of_every_size_arrive_whole_after_their_grh() {
    let (one, other) = (End::new(), End::new());
    for at in VERSIONS {
        let to = other.destination(&one.qp, at);
        for (seed, size) in (1..).zip(SIZES) {
            for inline in [false, true] {
                let data = pattern(seed, size);
                one.region.write(100, &data).unwrap();
                other.region.write(0, &[0xcc; 8192]).unwrap();
                other.receive(1, 0, 8192);
                let list = [one.region.slice(100..100 + size).unwrap()];
                one.qp
                    .post_send(if inline {
                        DatagramRequest::send_inline(2, &data, to)
                    } else {
                        DatagramRequest::send(2, &list, to)
                    })
                    .unwrap();
                assert_eq!(one.done(Opcode::Send, 2).byte_len as usize, size);
                let received = other.done(Opcode::Receive, 1);
                assert_eq!(received.byte_len as usize, GRH + size);
                assert_eq!(received.sender.unwrap().qp, one.qp.qpn());
                assert_eq!((received.immediate, received.solicited), (None, false));
                let bytes = other.bytes(0, 8192);
                let (grh, rest) = Grh::split(&bytes).unwrap();
                assert_eq!((grh.source, grh.destination), (gid(at), gid(at)));
                assert_eq!(rest[..size], data, "{size} bytes, inline {inline}, at {at}");
                assert!(rest[size..].iter().all(|byte| *byte == 0xcc), "no byte after it changes");
            }
        }
    }
}

#[test]
fn datagrams_are_gathered_and_scattered() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "127.0.0.1");
    let data = pattern(3, 3000);
    one.region.write(0, &data).unwrap();
    let slice = |end: &End, at, len| end.region.slice(at..at + len).unwrap();
    // The GRH is split, one element is empty, and the last is longer than needed.
    let into = [(50_000, 13), (1000, 0), (2000, 30), (40_000, 1500), (10_000, 4000)];
    let list: Vec<_> = into.iter().map(|&(at, len)| slice(&other, at, len)).collect();
    other.qp.post_receive(1, &list).unwrap();
    let from = [slice(&one, 0, 1), slice(&one, 1, 1998), slice(&one, 5, 0), slice(&one, 1999, 1001)];
    one.qp.post_send(DatagramRequest::send(2, &from, to)).unwrap();
    assert_eq!(other.done(Opcode::Receive, 1).byte_len, 3040);
    let received: Vec<u8> = into.iter().flat_map(|&(at, len)| other.bytes(at, len)).collect();
    let (grh, message) = Grh::split(&received).unwrap();
    assert_eq!(grh.source, gid("127.0.0.1"));
    assert_eq!(message[..3000], data);
}

#[test]
fn immediate_data_and_grh_fields_arrive() {
    let (one, other) = (End::new(), End::new());
    let mut to = other.destination(&one.qp, "127.0.0.1");
    to.address = AddressHandle {
        service_level: 5,
        traffic_class: 0x88,
        flow_label: 0xf_edcb,
        hop_limit: 3,
        ..to.address
    };
    other.receive(1, 0, 100);
    one.qp.post_send(DatagramRequest::send_inline(2, b"x", to).immediate(0xdead_beef)).unwrap();
    let received = other.done(Opcode::Receive, 1);
    assert_eq!(received.immediate, Some(0xdead_beef));
    let grh = Grh::parse(&other.bytes(0, 40)).unwrap();
    assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit), (0x88, 0xf_edcb, 3));
    // The GRH and the completion identify the sender.
    let back = AddressHandle::from_completion(&grh, &received).unwrap();
    assert_eq!((back.service_level, back.traffic_class, back.flow_label), (5, 0x88, 0xf_edcb));
    one.receive(3, 0, 100);
    let to = Destination { address: back, qpn: received.sender.unwrap().qp, qkey: QKEY };
    other.qp.post_send(DatagramRequest::send_inline(4, b"answer", to)).unwrap();
    one.sent_and_received(2, 3);
    assert_eq!(one.bytes(40, 6), b"answer");
}

/// A lane receives while the program sleeps, and only the solicited datagram raises the event.
#[test]
fn a_solicited_datagram_wakes_a_sleeping_program() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "::1");
    (1..=2).for_each(|id| other.receive(id, 0, 100));
    assert!(!other.cq.arm(Arm::Solicited));
    one.qp.post_send(DatagramRequest::send_inline(3, b"quiet", to)).unwrap();
    one.qp.post_send(DatagramRequest::send_inline(4, b"loud", to).solicited()).unwrap();
    let fd = other.cq.as_fd();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec::try_from(SOON).unwrap();
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "woken in time");
    assert!(other.cq.take_event());
    let (first, second) = (other.done(Opcode::Receive, 1), other.done(Opcode::Receive, 2));
    assert_eq!((first.solicited, second.solicited), (false, true));
}

#[test]
fn an_unsignaled_datagram_completes_silently() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "127.0.0.1");
    (1..=2).for_each(|id| other.receive(id, 0, 100));
    one.qp.post_send(DatagramRequest::send_inline(3, b"a", to).unsignaled()).unwrap();
    one.qp.post_send(DatagramRequest::send_inline(4, b"b", to)).unwrap();
    one.done(Opcode::Send, 4);
    assert!(one.cq.poll_one().unwrap().is_none());
    other.done(Opcode::Receive, 1);
    other.done(Opcode::Receive, 2);
}

#[test]
fn datagram_queue_pairs_share_receives() {
    let (one, other) = (End::new(), End::new());
    let srq = other.domain.shared_receive_queue(8);
    let pair = || other.domain.datagram_queue_pair(&other.cq).qkey(QKEY).srq(&srq).create().unwrap();
    let pairs = [pair(), pair()];
    assert_eq!(pairs[0].post_receive(1, &[]), Err(PostError::NoReceiveQueue));
    for (id, qp) in (10..).zip(&pairs) {
        srq.post_receive(id, &[other.region.slice(..100).unwrap()]).unwrap();
        let address = one.qp.address_handle(gid("127.0.0.1")).unwrap();
        let to = Destination { address, qpn: qp.qpn(), qkey: QKEY };
        one.qp.post_send(DatagramRequest::send_inline(1, &[u8::try_from(id).unwrap()], to)).unwrap();
        assert_eq!(other.done(Opcode::Receive, id).qp, qp.qpn());
        assert_eq!(u64::from(other.bytes(40, 1)[0]), id);
    }
    assert_eq!(srq.query().posted, 0);
}

#[test]
fn dropped_datagrams_are_counted_by_reason() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "127.0.0.1");
    let send = |to| one.qp.post_send(DatagramRequest::send_inline(1, b"?", to)).unwrap();
    other.receive(1, 0, 100);
    send(Destination { qkey: QKEY + 1, ..to });
    send(Destination { qpn: to.qpn - 1, ..to });
    send(to);
    other.done(Opcode::Receive, 1);
    send(to); // no receive is posted for this one
    // Datagrams between two sockets of one host stay in order, so this is the fourth.
    while other.qp.drops().no_receive == 0 {
        assert!(other.cq.poll_one().unwrap().is_none());
    }
    let drops = other.qp.drops();
    assert_eq!((drops.qkey, drops.other_number, drops.no_receive), (1, 1, 1));
    (0..4).for_each(|_| drop(one.done(Opcode::Send, 1)));
}

#[test]
fn a_datagram_to_an_unused_port_completes() {
    let one = End::new();
    // A free port: the kernel replies with "port unreachable".
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = one.qp.address_handle(gid("127.0.0.1")).unwrap();
    let to = Destination { address, qpn: u32::from(gone) << 8 | 255, qkey: QKEY };
    for id in 0..50 {
        one.qp.post_send(DatagramRequest::send_inline(id, b"anybody?", to)).unwrap();
        one.done(Opcode::Send, id);
    }
    assert_eq!(one.qp.state(), State::ReadyToSend);
}

#[test]
fn a_receive_that_is_too_short_for_its_datagram_fails_alone() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "127.0.0.1");
    other.region.write(0, &[0xcc; 200]).unwrap();
    other.receive(1, 0, 49);
    other.receive(2, 100, 50);
    for _ in 0..2 {
        one.qp.post_send(DatagramRequest::send_inline(3, b"ten bytes.", to)).unwrap();
    }
    let cause = other.failed(Opcode::Receive, 1, Status::LocalLength).cause.unwrap();
    assert!(cause.to_string().contains("50 bytes exceeds its receive of 49"), "{cause}");
    other.done(Opcode::Receive, 2);
    assert_eq!(other.bytes(0, 100), [0xcc; 100], "a datagram that does not fit is not placed");
    assert_eq!(other.bytes(140, 10), b"ten bytes.");
}

#[test]
fn a_failed_datagram_stops_the_send_queue_until_it_is_restarted() {
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "127.0.0.1");
    let long = [one.region.slice(..4097).unwrap()];
    one.qp.post_send(DatagramRequest::send(1, &long, to)).unwrap();
    let cause = one.failed(Opcode::Send, 1, Status::LocalLength).cause.unwrap();
    assert_eq!(*cause, QpError::DatagramTooLong { len: 4097, limit: 4096 });
    assert_eq!(one.qp.state(), State::SendError);
    one.qp.post_send(DatagramRequest::send_inline(2, b"", to)).unwrap();
    one.failed(Opcode::Send, 2, Status::Flushed);
    // Receives are still served.
    one.receive(3, 0, 100);
    let back = one.destination(&other.qp, "127.0.0.1");
    other.qp.post_send(DatagramRequest::send_inline(4, b"how are you?", back)).unwrap();
    one.done(Opcode::Receive, 3);
    one.qp.set_state(State::ReadyToSend).unwrap();
    other.receive(5, 0, 100);
    one.qp.post_send(DatagramRequest::send_inline(6, b"fine", to)).unwrap();
    one.done(Opcode::Send, 6);
    other.sent_and_received(4, 5);
}

#[test]
fn a_datagram_queue_pair_sends_to_itself() {
    let one = End::new();
    for at in VERSIONS {
        one.receive(1, 0, 100);
        one.qp.post_send(DatagramRequest::send_inline(2, b"dear me", one.destination(&one.qp, at))).unwrap();
        one.sent_and_received(2, 1);
        assert_eq!(one.bytes(40, 7), b"dear me");
    }
}

#[test]
fn a_datagram_queue_pair_receives_at_its_own_addresses_only() {
    let one = End::new();
    let at = ["127.0.0.2", "127.0.0.3"].map(gid);
    let ips = at.map(|gid| gid.ip().unwrap());
    let builder = one.domain.datagram_queue_pair(&one.cq).qkey(QKEY).addresses(&ips);
    let other = builder.create().unwrap();
    assert_eq!(other.gids(), at);
    let from = gid("127.0.0.1");
    let send = |to: Gid, byte| {
        let to = Destination { address: AddressHandle::new(from, to), qpn: other.qpn(), qkey: QKEY };
        one.qp.post_send(DatagramRequest::send_inline(9, &[byte], to).unsignaled()).unwrap();
    };
    for (id, to) in (1..).zip(at) {
        other.post_receive(id, &[one.region.slice(..100).unwrap()]).unwrap();
        send(from, 0); // to the same port, at an address that the queue pair does not have
        send(to, 1);
        one.done(Opcode::Receive, id);
        assert_eq!(Grh::parse(&one.bytes(0, 40)).unwrap().destination, to);
        assert_eq!(one.bytes(40, 1), [1]);
    }
    // Nor can it send from that address.
    let to = Destination { address: AddressHandle::new(from, from), qpn: 5, qkey: 0 };
    let refused = other.post_send(DatagramRequest::send_inline(1, b"", to));
    assert_eq!(refused, Err(PostError::NoPath { from, to: from }));
    let mixed = Destination { address: AddressHandle::new(from, gid("::1")), qpn: 5, qkey: 0 };
    let refused = one.qp.post_send(DatagramRequest::send_inline(1, b"", mixed));
    assert_eq!(refused, Err(PostError::NoPath { from, to: gid("::1") }));
}

/// By default at every address of the host that a socket can be bound to, on a port of the range.
#[test]
fn a_datagram_queue_pair_uses_all_addresses_and_the_port_range_by_default() {
    let held = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let ports = PortRange::new(port, port).unwrap();
    let adapter = Adapter::open(Config::default().ports(ports)).unwrap();
    let (cq, domain) = (adapter.completion_queue(4).unwrap(), adapter.protection_domain());
    assert!(matches!(domain.datagram_queue_pair(&cq).create(), Err(CreateError::NoNumber(_))), "taken");
    drop(held);
    let qp = domain.datagram_queue_pair(&cq).create().unwrap();
    assert_eq!(qp.qpn(), u32::from(port) << 8 | 255);
    for entry in adapter.gids().unwrap() {
        let there = UdpSocket::bind(entry.socket_addr(0).unwrap()).is_ok();
        assert_eq!(qp.gids().contains(&entry.gid), there, "{entry:?}");
    }
    assert!(qp.gids().contains(&gid("127.0.0.1")));
}

#[test]
fn a_manual_datagram_queue_pair_receives_from_ready_to_receive_on() {
    let one = End::new();
    let other = one.domain.datagram_queue_pair(&one.cq).manual().qkey(1).create().unwrap();
    assert_eq!(other.state(), State::Reset);
    assert!(other.post_receive(1, &[]).is_err());
    other.set_state(State::Init).unwrap();
    other.set_qkey(QKEY);
    other.post_receive(1, &[one.region.slice(..100).unwrap()]).unwrap();
    let address = one.qp.address_handle(gid("127.0.0.1")).unwrap();
    let to = Destination { address, qpn: other.qpn(), qkey: QKEY };
    let send = |id| one.qp.post_send(DatagramRequest::send_inline(id, b"", to)).unwrap();
    send(2);
    one.done(Opcode::Send, 2);
    while other.drops().not_ready == 0 {
        assert!(one.cq.poll_one().unwrap().is_none(), "not received before ready to receive");
    }
    other.set_state(State::ReadyToReceive).unwrap();
    let early = other.post_send(DatagramRequest::send_inline(3, b"", to));
    assert_eq!(early, Err(PostError::State(State::ReadyToReceive)));
    send(4);
    one.sent_and_received(4, 1);
}

#[test]
fn a_dropped_datagram_queue_pair_releases_its_port() {
    let one = End::new();
    let other = one.domain.datagram_queue_pair(&one.cq).create().unwrap();
    other.post_receive(1, &[one.region.slice(..100).unwrap()]).unwrap();
    let port = u16::try_from(other.qpn() >> 8).unwrap();
    assert!(UdpSocket::bind(("127.0.0.1", port)).is_err(), "the port is in use");
    drop(other);
    UdpSocket::bind(("127.0.0.1", port)).unwrap();
    assert!(one.cq.poll_one().unwrap().is_none(), "its receives are discarded");
}

#[test]
fn objects_of_another_adapter_are_refused() {
    let (one, other) = (End::new(), End::new());
    let srq = other.domain.shared_receive_queue(4);
    for builder in
        [one.domain.datagram_queue_pair(&other.cq), one.domain.datagram_queue_pair(&one.cq).srq(&srq)]
    {
        assert!(matches!(builder.create(), Err(CreateError::OtherAdapter)));
    }
    let nowhere = ["192.0.2.1".parse().unwrap()];
    let refused = one.domain.datagram_queue_pair(&one.cq).addresses(&nowhere).create();
    assert!(matches!(refused, Err(CreateError::NoNumber(_))), "not an address of this host");
    assert_eq!(one.adapter.config(), other.adapter.config());
}

/// Many threads post to one queue pair. Each message is one datagram, and none is sent twice.
#[test]
fn messages_of_many_threads_arrive_exactly_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 25;
    let (one, other) = (End::new(), End::new());
    let to = other.destination(&one.qp, "127.0.0.1");
    (0..THREADS * EACH).for_each(|id| other.receive(id, usize::try_from(id).unwrap() * 64, 64));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let one = &one;
            scope.spawn(move || {
                for n in 0..EACH {
                    let id = thread * EACH + n;
                    one.qp.post_send(DatagramRequest::send_inline(id, &id.to_le_bytes(), to)).unwrap();
                }
            });
        }
    });
    let mut sent = BTreeSet::new();
    let mut received = BTreeSet::new();
    for _ in 0..THREADS * EACH {
        sent.insert(one.next().success().unwrap().wr_id);
        let at = usize::try_from(other.next().success().unwrap().wr_id).unwrap() * 64;
        received.insert(u64::from_le_bytes(other.bytes(at + 40, 8).try_into().unwrap()));
    }
    let all: BTreeSet<_> = (0..THREADS * EACH).collect();
    assert_eq!((sent, received), (all.clone(), all));
}

/// A plain socket receives the datagram that the documentation shows, except for the two queue pair numbers, which
/// include the ports, and the CRC, which covers them.
#[test]
fn the_documented_datagram_is_what_is_sent() {
    let page = include_str!("../../../docs/wire.md");
    let (_, dump) = page.split_once("49 52 57 44").expect("a datagram in the page");
    let (dump, _) = dump.split_once("```").expect("the end of the dump");
    let bytes = "49 52 57 44".split_whitespace().chain(dump.split_whitespace());
    let mut shown: Vec<u8> = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert!(Datagram::parse(&shown).is_ok());

    let one = End::new();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let qpn = u32::from(socket.local_addr().unwrap().port()) << 8 | 255;
    let to = Destination { address: one.qp.address_handle(gid("127.0.0.1")).unwrap(), qpn, qkey: QKEY };
    one.qp.post_send(DatagramRequest::send_inline(1, b"hello", to).solicited().immediate(42)).unwrap();
    let mut bytes = [0; 100];
    let (len, from) = socket.recv_from(&mut bytes).unwrap();
    assert_eq!(u32::from(from.port()) << 8 | 255, one.qp.qpn());
    shown[12..16].copy_from_slice(&qpn.to_be_bytes());
    shown[16..20].copy_from_slice(&one.qp.qpn().to_be_bytes());
    let mut crc = Crc::of(&shown[..44]);
    crc.update(&shown[48..]);
    shown[44..48].copy_from_slice(&crc.to_bytes());
    assert_eq!(bytes[..len], shown);
}

/// The other process of [`two_processes_talk_by_number_and_address`]: replies to each datagram with its reversed
/// contents. Does nothing when run as a test.
#[test]
fn other_process() {
    if child::role().is_none() {
        return;
    }
    let end = End::new();
    // More receives than the other process sends datagrams.
    (0..15).for_each(|id| end.receive(id, usize::try_from(id).unwrap() * 4136, 4136));
    println!("\nnumber {}", end.qp.qpn());
    std::io::stdout().flush().unwrap();
    loop {
        let completion = end.next().success().unwrap();
        if completion.opcode == Opcode::Send {
            continue;
        }
        let at = usize::try_from(completion.wr_id).unwrap() * 4136;
        let bytes = end.bytes(at, usize::try_from(completion.byte_len).unwrap());
        let (grh, message) = Grh::split(&bytes).unwrap();
        let address = AddressHandle::from_completion(&grh, &completion).unwrap();
        let to = Destination { address, qpn: completion.sender.unwrap().qp, qkey: QKEY };
        let answer: Vec<u8> = message.iter().rev().copied().collect();
        end.qp.post_send(DatagramRequest::send_inline(99, &answer, to)).unwrap();
        if completion.immediate == Some(0) {
            return;
        }
    }
}

#[test]
fn two_processes_talk_by_number_and_address() {
    let mut other = Partner::start(child::command("other_process", "other"));
    let qpn: u32 = other.wait_for("number ").parse().unwrap();
    let one = End::new();
    let mut left = 2 * SIZES.len();
    for at in VERSIONS {
        let address = one.qp.address_handle(gid(at)).unwrap();
        let to = Destination { address, qpn, qkey: QKEY };
        for (seed, size) in (7..).zip(SIZES) {
            left -= 1;
            let mut data = pattern(seed, size);
            one.receive(1, 0, 4136);
            let request = DatagramRequest::send_inline(2, &data, to).immediate(u32::try_from(left).unwrap());
            one.qp.post_send(request).unwrap();
            let received = one.sent_and_received(2, 1);
            assert_eq!((received.byte_len as usize, received.sender.unwrap().qp), (GRH + size, qpn));
            data.reverse();
            assert_eq!(one.bytes(GRH, size), data, "{size} bytes at {at}");
        }
    }
    other.finish();
}

/// Requirement N10: the local port is that of the sockets, at each address.
#[test]
fn a_query_returns_the_local_port() {
    let end = End::new();
    let info = end.qp.query();
    assert_eq!((info.id, info.qkey, info.domain), (end.qp.qpn(), QKEY, end.domain.id()));
    assert_eq!((info.send_cq, info.handlers), (end.cq.id(), [Some(end.cq.own_handler().id()); 2]));
    let port = u16::try_from(end.qp.qpn() >> 8).unwrap();
    assert!(!info.local.is_empty() && info.local.iter().all(|local| local.port() == port));
    let gids: Vec<_> = info.local.iter().map(|local| Gid::from(local.ip())).collect();
    assert_eq!(gids, end.qp.gids());
    for local in info.local.iter().filter(|local| VERSIONS.contains(&local.ip().to_string().as_str())) {
        let taken = UdpSocket::bind(local).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse, "{local} belongs to the queue pair");
    }
}
