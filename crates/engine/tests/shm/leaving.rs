//! Connections that leave shared memory for good while they are in use (requirement X2).

use super::common::{
    End, Host, Random, SHARED, TCP, TIMEOUT, Waits, begin_sharing, check, connect, connect_at, greet,
    pattern, rings_mapped, shared_ends,
};
use super::data::{CASES, WORD, talk};
use super::stream::{Place, stream_between};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Opcode, Operation};
use ironwarp_testkit::child;
use ironwarp_testkit::wait::until;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

const PLACE: Place = Place { at: 0, slots: 8, max: 300_000 };
/// Which ends leave.
const LEAVES: [[bool; 2]; 3] = [[true, false], [false, true], [true, true]];

/// Has an end leave, and checks that it is on TCP.
fn leave(end: &End) {
    end.pair.leave_shared_memory(Instant::now() + TIMEOUT).unwrap();
    assert_eq!(end.routes(), TCP);
}

/// Checks that a connection works, and is on TCP at both ends.
fn expect_tcp(client: &End, server: &End) {
    greet(client, server);
    until(|| (client.routes(), server.routes()) == (TCP, TCP));
    greet(client, server);
    assert_eq!((client.routes(), server.routes()), (TCP, TCP));
}

/// Messages of all sizes in both directions, and Reads: before, while and after the ends leave.
#[test]
fn streams_in_both_directions_lose_nothing_while_they_leave() {
    for waits in [Waits::Polling, Waits::Sleeping, Waits::ForEvents] {
        for leaves in LEAVES {
            let config = Config::default().shm(true);
            let (client, server) = shared_ends(&config, Completes::WhenAcknowledged, PLACE.len());
            let (client, server) = (client.waits(waits), server.waits(waits));
            let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    until(|| sent.load(Ordering::Relaxed) > 40);
                    thread::scope(|scope| {
                        for (end, _) in
                            [&client, &server].into_iter().zip(leaves).filter(|(_, leaves)| *leaves)
                        {
                            scope.spawn(|| leave(end));
                        }
                    });
                    let before = sent.load(Ordering::Relaxed);
                    until(|| sent.load(Ordering::Relaxed) > before + 40);
                    done.store(true, Ordering::Relaxed);
                });
                stream_between(&client, &server, PLACE, |_| {
                    sent.fetch_add(1, Ordering::Relaxed);
                    !done.load(Ordering::Relaxed)
                });
            });
            until(|| (client.routes(), server.routes()) == (TCP, TCP));
        }
    }
}

/// Sends, Writes, Reads and atomic operations of many sizes, while the connection leaves after one of them.
#[test]
fn all_operations_go_on_while_the_connection_leaves() {
    for (number, mut case) in (0..).zip(CASES) {
        case.long = false;
        let (client, server) = (case.end(), case.end());
        connect_at(&client, &server, case.at);
        begin_sharing(&client, &server);
        let word = || u64::from_le_bytes(client.host.memory.read(WORD, 8).try_into().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| talk(&client, case, (1, 2), server.remote_addr(0)));
            scope.spawn(|| talk(&server, case, (2, 1), client.remote_addr(0)));
            until(|| word() > 3 * number);
            leave(if number % 2 == 0 { &client } else { &server });
        });
        expect_tcp(&client, &server);
    }
}

/// One end leaves while the first messages are sent, and the memory is offered, set up or used for the first time.
#[test]
fn a_connection_can_leave_while_memory_is_offered() {
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true), PLACE.len()));
    let mut random = Random(7);
    for round in 0..60 {
        let [client, server] = hosts.each_ref().map(|host| host.end(Completes::WhenAcknowledged));
        connect(&client, &server);
        let steps = random.below(400_000);
        let who = if round % 2 == 0 { &client } else { &server };
        thread::scope(|scope| {
            scope.spawn(|| (0..20).for_each(|_| greet(&client, &server)));
            scope.spawn(|| {
                (0..steps).for_each(|_| std::hint::spin_loop());
                leave(who);
            });
        });
        expect_tcp(&client, &server);
    }
}

/// A connection that was never used, and one that stays with TCP, have nothing to wait for.
#[test]
fn a_connection_on_tcp_leaves_at_once() {
    let config = Config::default().shm(true);
    let new = |config: &Config| Host::new(config.clone(), PLACE.len()).end(Completes::WhenSent);
    for (near, far) in [(config.clone(), config.clone()), (config.clone(), config.clone().shm(false))] {
        let (client, server) = (new(&near), new(&far));
        client.pair.leave_shared_memory(Instant::now()).unwrap(); // not connected
        connect(&client, &server);
        client.pair.leave_shared_memory(Instant::now()).unwrap();
        server.pair.leave_shared_memory(Instant::now()).unwrap();
        expect_tcp(&client, &server);
    }
}

const ALL: &str = "leaving::two_hundred_connections_leave_at_once_and_give_the_memory_back";

/// All connections of an adapter leave while messages go to and fro on each of them. Nothing of the memory is left, and a
/// new connection stays with TCP.
#[test]
fn two_hundred_connections_leave_at_once_and_give_the_memory_back() {
    const CONNECTIONS: usize = 200;
    const THREADS: usize = 4;
    const LEN: usize = 2_000;
    if !child::in_child(ALL) {
        return;
    }
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true), CONNECTIONS * 2 * LEN));
    let new = || hosts.each_ref().map(|host| host.end(Completes::WhenAcknowledged));
    let pairs: Vec<_> = (0..CONNECTIONS).map(|_| new()).collect();
    for [client, server] in &pairs {
        connect(client, server);
        greet(client, server);
    }
    until(|| pairs.iter().flatten().all(|end| end.routes() == SHARED));
    assert!(rings_mapped() > 0);
    let (rounds, left) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for share in pairs.chunks(CONNECTIONS / THREADS).enumerate() {
            let (rounds, left) = (&rounds, &left);
            scope.spawn(move || {
                let (share_number, share) = share;
                let mut after = 0;
                for round in 0.. {
                    for (number, [client, server]) in share.iter().enumerate() {
                        let number = share_number * share.len() + number;
                        exchange(client, server, number * 2 * LEN, LEN, (number as u64) << 32 | round);
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                    after += u32::from(left.load(Ordering::Relaxed));
                    if after == 2 {
                        break;
                    }
                }
            });
        }
        until(|| rounds.load(Ordering::Relaxed) >= THREADS as u64);
        hosts[0].engine.leave_shared_memory(Instant::now() + TIMEOUT).unwrap();
        assert!(pairs.iter().all(|[client, _]| client.routes() == TCP));
        left.store(true, Ordering::Relaxed);
    });
    until(|| pairs.iter().flatten().all(|end| end.routes() == TCP));
    until(|| rings_mapped() == 0);
    let [client, server] = new();
    connect(&client, &server);
    (0..20).for_each(|_| greet(&client, &server));
    expect_tcp(&client, &server);
    assert_eq!(rings_mapped(), 0);
    hosts[0].engine.leave_shared_memory(Instant::now()).unwrap();
}

/// Sends a message in each direction, and checks every byte.
fn exchange(client: &End, server: &End, at: usize, len: usize, seed: u64) {
    for (from, to) in [(client, server), (server, client)] {
        to.receive(1, at + len, len);
        from.host.memory.write(at, &pattern(seed, len));
        from.post(2, Operation::Send { invalidate: None }, at, len);
        to.succeeds(Opcode::Receive, 1);
        from.succeeds(Opcode::Send, 2);
        check(&to.host.memory.read(at + len, len), seed, "a message");
    }
}

const MANY: &str = "leaving::a_left_connection_keeps_nothing_of_the_memory";

/// One connection after the other leaves; the memory stays until the last has left, and the connections stay open.
#[test]
fn a_left_connection_keeps_nothing_of_the_memory() {
    if !child::in_child(MANY) {
        return;
    }
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true).lanes(1), PLACE.len()));
    let pairs: Vec<_> =
        (0..5).map(|_| hosts.each_ref().map(|host| host.end(Completes::WhenAcknowledged))).collect();
    for [client, server] in &pairs {
        connect(client, server);
        begin_sharing(client, server);
    }
    for (number, [client, server]) in pairs.iter().enumerate() {
        assert!(rings_mapped() > 0, "{number} have left");
        leave(if number % 2 == 0 { client } else { server });
        for (other, [client, server]) in pairs.iter().enumerate() {
            greet(client, server);
            if other > number {
                assert_eq!((client.routes(), server.routes()), (SHARED, SHARED));
            }
        }
    }
    until(|| rings_mapped() == 0);
    pairs.iter().for_each(|[client, server]| expect_tcp(client, server));
}
