//! Instructions of polling a completion queue with few and with many queue pairs behind it: the same, by requirement of size.
//! `cargo xtask instructions` runs it under callgrind and holds it to its ceilings.
#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, Status, WorkRequest};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// How often a case is run.
const REPEATS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(300);

/// Both ends of a connection are in this process, so half of the descriptors it may have.
const MANY: usize = 9_000;

const CASES: &[(&str, u64)] = &[("loop", 0), ("send_8", 6500), ("poll_10", 270), ("poll_9000", 270)];

fn main() {
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    match argument.as_deref() {
        Some("send_8") => measured_send_8(&Ping::new()),
        Some("--list") => CASES.iter().for_each(|(name, ceiling)| println!("{name} {ceiling}")),
        Some("loop") => measured_loop(),
        Some("poll_10") => measured_poll_10(&Side::connected(10)),
        Some("poll_9000") => measured_poll_9000(&Side::connected(MANY)),
        _ => println!("run by `cargo xtask instructions`"),
    }
}

#[inline(never)]
fn measured_loop() {
    for i in 0..REPEATS {
        black_box(i);
    }
}

/// A Send of 8 bytes with CRC, from post to the polled receive, and the receive posted again: everything but the kernel.
#[inline(never)]
fn measured_send_8(ping: &Ping) {
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
        let all = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: all.maximum, maximum: all.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let config = || Config { startup: PATIENCE, keepalive: PATIENCE, lanes: 1, ..Config::default() };
        let (client, server) = (Engine::new(config()).unwrap(), Engine::new(config()).unwrap());
        let listener = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (cq, far_cq) = (client.create_cq(count).unwrap(), server.create_cq(count).unwrap());
        let (domain, far_domain) = (client.device().allocate_domain(), server.device().allocate_domain());
        let mut pairs = Vec::new();
        for _ in 0..count {
            let near = client.create_qp(attributes(domain, &cq));
            client.connect(&near, address, &ConnectOptions::default()).unwrap();
            let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
            let far = server.create_qp(attributes(far_domain, &far_cq));
            incoming.accept(&far, server.terms(None, None), &[]).unwrap();
            near.wait_connected(PATIENCE).unwrap();
            pairs.extend([near, far]);
        }
        // What the connections began with is done when a poll finds nothing to do.
        std::mem::forget((client, server, listener));
        for _ in 0..100 {
            assert_eq!(cq.poll(1, drop).unwrap(), 0);
        }
        Self { cq, _pairs: pairs }
    }

    fn poll(&self) {
        for _ in 0..REPEATS {
            assert_eq!(black_box(&self.cq).poll(16, drop).unwrap(), 0);
        }
    }
}

/// Two connected ends in one thread.
struct Ping {
    ends: [(Arc<QueuePair>, Arc<CompletionQueue>, Sge); 2],
    _memory: Vec<u8>,
}

impl Ping {
    fn new() -> Self {
        let engines = [(); 2].map(|()| Engine::new(Config { lanes: 1, ..Config::default() }).unwrap());
        let listener = engines[1].listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let memory = vec![7_u8; 64];
        let ends = engines.each_ref().map(|engine| {
            let (domain, cq) = (engine.device().allocate_domain(), engine.create_cq(16).unwrap());
            let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
            let described = Memory::direct(memory.as_ptr() as u64, 64, rights).unwrap();
            let tag = engine.device().register(domain, described).unwrap();
            let sge = Sge { tag, addr: memory.as_ptr() as u64, len: 8 };
            (engine.create_qp(attributes(domain, &cq)), cq, sge)
        });
        engines[0].connect(&ends[0].0, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
        incoming.accept(&ends[1].0, engines[1].terms(None, None), &[]).unwrap();
        ends[0].0.wait_connected(PATIENCE).unwrap();
        ends[1].0.wait_connected(PATIENCE).unwrap();
        std::mem::forget((engines, listener));
        let ping = Self { ends, _memory: memory };
        ping.receive();
        (0..10).for_each(|_| ping.once());
        ping
    }

    fn receive(&self) {
        let (pair, _, sge) = &self.ends[1];
        pair.qp().post_receive(ReceiveRequest { id: 1, buffers: (*sge).into() }).unwrap();
    }

    fn once(&self) {
        let (pair, _, sge) = &self.ends[0];
        let operation = Operation::Send { invalidate: None };
        let data = Data::Memory((*sge).into());
        let request = WorkRequest { signaled: false, ..WorkRequest::new(1, operation, data) };
        pair.qp().post_send(vec![request]).unwrap();
        while self.ends[1].1.poll(16, |completion| assert_eq!(completion.status, Status::Success)).unwrap()
            == 0
        {}
        self.receive();
    }
}

fn attributes(domain: ironwarp_rnic::memory::Domain, cq: &Arc<CompletionQueue>) -> QueuePairAttributes {
    QueuePairAttributes {
        send_depth: 4,
        receives: Receives::Own(4),
        max_sges: 1,
        completes: Completes::WhenSent,
        ..QueuePairAttributes::new(domain, cq)
    }
}
