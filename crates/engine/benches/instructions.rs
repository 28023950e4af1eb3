//! Instructions of polling a completion queue with few and with many queue pairs behind it: the same, by requirement of size.
//! `cargo xtask instructions` runs it under callgrind and holds it to its ceilings.
#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair};
use ironwarp_rnic::qp::{Completes, Route};
use ironwarp_rnic::queue::{Status, WorkRequest};
use ironwarp_testkit::engine::{self, SEND, connect};
use ironwarp_testkit::limits::raise_descriptor_limit;
use ironwarp_testkit::wait::until;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// How often a case is run.
const REPEATS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(300);

/// Both ends of a connection are in this process, so half of the descriptors it may have.
const MANY: usize = 9_000;

/// The cases, with their ceilings per repetition: of instructions, and of locked instructions.
const CASES: &[(&str, u64, u64)] =
    &[("send_8", 2925, 21), ("shm_send_8", 3450, 27), ("poll_10", 205, 2), ("poll_9000", 205, 2)];

fn main() {
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    match argument.as_deref() {
        Some("send_8") => measured_send_8(&Ping::new(Route::Tcp)),
        Some("shm_send_8") => measured_shm_send_8(&Ping::new(Route::SharedMemory)),
        Some("--list") => CASES.iter().for_each(|(name, all, locked)| println!("{name} {all} {locked}")),
        Some("poll_10") => measured_poll_10(&Side::connected(10)),
        Some("poll_9000") => measured_poll_9000(&Side::connected(MANY)),
        _ => println!("run by `cargo xtask instructions`"),
    }
}

/// A Send of 8 bytes with CRC, from post to the polled receive, and the receive posted again: everything but the kernel.
#[inline(never)]
fn measured_send_8(ping: &Ping) {
    for _ in 0..REPEATS {
        ping.once();
    }
}

/// The same in shared memory.
#[inline(never)]
fn measured_shm_send_8(ping: &Ping) {
    black_box(8); // or the compiler would make one function of the two
    for _ in 0..REPEATS {
        ping.once();
    }
}

// The two differ in a constant, or the compiler would make one of them.
#[inline(never)]
fn measured_poll_10(side: &Side) {
    black_box(10);
    side.poll();
}

#[inline(never)]
fn measured_poll_9000(side: &Side) {
    black_box(MANY);
    side.poll();
}

/// A completion queue with queue pairs behind it, all connected to another adapter of this process.
struct Side {
    cq: Arc<CompletionQueue>,
    _pairs: Vec<Arc<QueuePair>>,
}

impl Side {
    fn connected(count: usize) -> Self {
        raise_descriptor_limit();
        let config = || Config::default().startup(PATIENCE).keepalive(PATIENCE).lanes(1);
        let [client, server] =
            [(); 2].map(|()| engine::Side::new(&Engine::new(config()).unwrap(), count, 64));
        let listener = server.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut pairs = Vec::new();
        for _ in 0..count {
            let near = client.pair(4, Completes::WhenSent);
            client.engine.connect(&near, address, &ConnectOptions::default()).unwrap();
            let incoming = listener.incoming().wait(PATIENCE).unwrap();
            let far = server.pair(4, Completes::WhenSent);
            incoming.accept(&far, server.engine.terms(None, None), &[]).unwrap();
            near.wait_connected(PATIENCE).unwrap();
            pairs.extend([near, far]);
        }
        let cq = Arc::clone(&client.cq);
        // What the connections began with is done when a poll finds nothing to do.
        std::mem::forget((client, server, listener));
        for _ in 0..100 {
            assert_eq!(cq.poll(1, drop).unwrap(), 0);
        }
        Self { cq, _pairs: pairs }
    }

    fn poll(&self) {
        for _ in 0..REPEATS {
            // What `poll` does, without the yield or sleep after many empty polls: that depends on the load of the machine.
            let cq = black_box(&self.cq);
            assert_eq!(cq.cq().poll(16, drop).unwrap(), 0);
            cq.progress();
            assert_eq!(cq.cq().poll(16, drop).unwrap(), 0);
        }
    }
}

/// Two connected ends in one thread.
struct Ping {
    ends: [(engine::Side, Arc<QueuePair>); 2],
}

impl Ping {
    fn new(route: Route) -> Self {
        let ends = [(); 2].map(|()| {
            let config = Config::default().lanes(1).shm(route == Route::SharedMemory);
            let engine = Engine::new(config).unwrap();
            let side = engine::Side::new(&engine, 16, 64);
            let pair = side.pair(4, Completes::WhenSent);
            (side, pair)
        });
        let [(client, near), (server, far)] = &ends;
        connect((client, near), (server, far));
        let ping = Self { ends };
        ping.receive();
        (0..10).for_each(|_| ping.once());
        // Shared memory is used soon after the first message.
        until(|| {
            ping.once();
            ping.ends
                .iter()
                .all(|(_, pair)| pair.qp().send_route() == route && pair.qp().recv_route() == route)
        });
        ping
    }

    fn receive(&self) {
        let (side, pair) = &self.ends[1];
        side.receive(pair, 1, 0, 8);
    }

    fn once(&self) {
        let [(client, pair), (server, _)] = &self.ends;
        let request = WorkRequest { signaled: false, ..client.request(1, SEND, 8) };
        pair.post_send([request]).unwrap();
        while server.cq.poll(16, |completion| assert_eq!(completion.status, Status::Success)).unwrap() == 0 {}
        self.receive();
    }
}
