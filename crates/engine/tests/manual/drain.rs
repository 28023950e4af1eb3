//! Messages that have arrived are received and acknowledged before an end closes, even if they are still
//! unread in its socket: hardware would have received them. The lane of the closing end is blocked meanwhile,
//! so that only the close itself can read the socket.

use crate::common::{Host, Received, Stranger, TIMEOUT, UNUSED_QPN, talk};
use ironwarp_engine::config::Config;
use ironwarp_engine::{Engine, QueuePair};
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::{Retries, State};
use ironwarp_rnic::queue::{Data, Operation, Sges, Status, WorkRequest};
use ironwarp_wire::RemoteAddr;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How an end closes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Close {
    Error,
    Destroy,
    Reset,
}

impl Close {
    fn apply(self, pair: &QueuePair) {
        match self {
            Self::Error => pair.modify(State::Error).unwrap(),
            Self::Destroy => pair.retire(),
            Self::Reset => pair.modify(State::Reset).unwrap(),
        }
    }
}

/// Blocks the only lane of an adapter until it is dropped.
struct Held {
    _release: Sender<()>,
}

fn hold(engine: &Engine) -> Held {
    let (release, released) = channel::<()>();
    let (begin, begun) = channel();
    let wait = move || {
        begin.send(()).unwrap();
        assert!(released.recv().is_err(), "the channel is only closed");
    };
    engine.call_at(Instant::now(), wait).unwrap();
    begun.recv_timeout(TIMEOUT).expect("the lane is running");
    Held { _release: release }
}

/// Waits until at least `bytes` bytes are unread in the socket between these IPv4 addresses.
fn await_unread(local: SocketAddr, peer: SocketAddr, bytes: u64) {
    let name = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => format!("{:08X}:{:04X}", u32::from_le_bytes(v4.ip().octets()), v4.port()),
        SocketAddr::V6(_) => panic!("{address}"),
    };
    let (local, peer) = (name(local), name(peer));
    let begun = Instant::now();
    loop {
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.len() > 4 && row[1] == local && row[2] == peer);
        let queues = row.expect("the socket exists")[4].to_owned();
        let (_, unread) = queues.split_once(':').unwrap();
        if u64::from_str_radix(unread, 16).unwrap() >= bytes {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{queues}");
        std::thread::yield_now();
    }
}

fn one_lane() -> Host {
    Host::new(Config::default().lanes(1).close(Duration::from_millis(200)).shm(false))
}

/// Two connected queue pairs of two adapters. The first fails after five seconds without an answer.
fn connected(one: &Host, other: &Host) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let (a, b) = (one.pair(), other.pair());
    one.bring_up(&a, "127.0.0.2", ("127.0.0.3", b.id()));
    other.bring_up(&b, "127.0.0.3", ("127.0.0.2", a.id()));
    a.set_retries(Retries::default().timeout(14));
    a.wait_connected(TIMEOUT).unwrap();
    b.wait_connected(TIMEOUT).unwrap();
    (a, b)
}

/// One end posts `operation`, and the other closes while it is unread in its socket: the request must
/// succeed.
fn arrives(close: Close, operation: impl Fn(RemoteAddr) -> Operation, sent: &[u8]) {
    let (mut one, mut other) = (one_lane(), one_lane());
    let (a, b) = connected(&one, &other);
    // Each end has received a message, and none is in flight.
    talk(&mut one, &a, &mut other, &b);
    let theirs: Box<[u8]> = vec![7; 64].into();
    let rights = Rights::REMOTE | Rights::LOCAL_READ | Rights::LOCAL_WRITE;
    let described = Memory::direct(theirs.as_ptr() as u64, theirs.len() as u64, rights).unwrap();
    let tag = other.engine.device().register(other.domain, described).unwrap();
    other.receive(&b, 200, 64);
    let established = b.wait_connected(TIMEOUT).unwrap();

    let held = hold(&other.engine);
    let operation = operation(RemoteAddr { tag, offset: theirs.as_ptr() as u64 });
    let data = one.data(300, sent);
    let request = WorkRequest::new(1, operation.clone(), data);
    a.qp().post_send(vec![request]).unwrap();
    await_unread(established.local, established.peer, 1);
    close.apply(&b);
    drop(held);
    let completion = one.next();
    assert_eq!((completion.wr_id, completion.status), (1, Status::Success), "{close:?} {completion:?}");
    match operation {
        Operation::Write(_) => assert_eq!(&theirs[..sent.len()], sent),
        Operation::Read(_) => assert_eq!(one.bytes(300, sent.len()), &[7; 64][..sent.len()]),
        _ => assert_eq!(other.bytes(200, sent.len()), sent),
    }
    if close == Close::Error && matches!(operation, Operation::Send { .. }) {
        let received = other.one();
        assert_eq!((received.wr_id, received.byte_len as usize), (200, sent.len()));
    }
}

const CLOSES: [Close; 3] = [Close::Error, Close::Destroy, Close::Reset];

/// UCX uses an empty Write to check whether everything that it sent before has arrived.
#[test]
fn an_empty_write_that_lies_unread_is_acknowledged() {
    CLOSES.into_iter().for_each(|close| arrives(close, |_| Operation::Write(RemoteAddr::default()), b""));
}

#[test]
fn a_write_that_lies_unread_is_placed_and_acknowledged() {
    CLOSES.into_iter().for_each(|close| arrives(close, Operation::Write, b"written"));
}

#[test]
fn a_send_that_lies_unread_is_received_and_acknowledged() {
    CLOSES.into_iter().for_each(|close| arrives(close, |_| Operation::Send { invalidate: None }, b"sent"));
}

#[test]
fn a_read_that_lies_unread_is_answered() {
    CLOSES.into_iter().for_each(|close| arrives(close, Operation::Read, b"whatever"));
}

/// A peer that keeps sending does not delay the close: what arrives after the call is not part of it.
#[test]
fn a_peer_that_keeps_sending_does_not_delay_the_close() {
    for close in CLOSES {
        let host = one_lane();
        let pair = host.pair();
        host.bring_up(&pair, "127.0.0.3", ("127.0.0.2", UNUSED_QPN));
        let mut stranger = Stranger::hello("127.0.0.2", ("127.0.0.3", pair.id()), UNUSED_QPN);
        assert_eq!(stranger.receive_next(), Received::Accepted);
        stranger.open();
        pair.wait_connected(TIMEOUT).unwrap();
        let (peer, local) = stranger.addresses();
        let flood = std::thread::spawn(move || stranger.flood());
        let held = hold(&host.engine);
        await_unread(local, peer, 1 << 16);
        let (done, is_done) = channel();
        let closing = std::thread::spawn(move || {
            close.apply(&pair);
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(TIMEOUT).is_ok(), "{close:?} did not return");
        closing.join().unwrap();
        drop(held);
        drop(host);
        flood.join().unwrap();
    }
}

/// Both ends use an empty Write to check whether everything has arrived, and one closes before the other has
/// asked: the other can complete it. Some time later the same Write checks whether the peer is still there.
#[test]
fn an_empty_write_succeeds_if_the_peer_has_just_closed() {
    for close in CLOSES {
        let (mut one, mut other) = (one_lane(), one_lane());
        let (a, b) = connected(&one, &other);
        talk(&mut one, &a, &mut other, &b);
        close.apply(&b);
        assert!(a.wait_closed(TIMEOUT));
        let empty = || {
            vec![WorkRequest::new(1, Operation::Write(RemoteAddr::default()), Data::Memory(Sges::default()))]
        };
        a.post_send(empty()).unwrap();
        assert_eq!(one.one().wr_id, 1, "{close:?}");
        let begun = Instant::now();
        while a.qp().queued_sends() == 0 {
            assert!(begun.elapsed() < TIMEOUT, "the empty Writes still succeed");
            a.post_send(empty()).unwrap();
            one.cq.poll(16, |completion| assert_eq!(completion.status, Status::Success)).unwrap();
        }
    }
}

/// A request that has an effect fails, because success would mean that it took effect at the peer.
#[test]
fn nothing_else_succeeds_if_the_peer_has_closed() {
    let (mut one, mut other) = (one_lane(), one_lane());
    let (a, b) = connected(&one, &other);
    talk(&mut one, &a, &mut other, &b);
    b.retire();
    assert!(a.wait_closed(TIMEOUT));
    one.send(&a, 500, b"lost");
    let empty = WorkRequest::new(1, Operation::Write(RemoteAddr::default()), Data::Memory(Sges::default()));
    a.post_send([empty]).unwrap();
    let (sent, empty) = (one.next(), one.next());
    assert_eq!((sent.wr_id, sent.status), (500, Status::RetryExceeded));
    assert_eq!((empty.wr_id, empty.status), (1, Status::Flushed));
}
