//! The memory of thousands of connections between two processes that are not used, and of those that are.
//!
//! Prints the sizes: `cargo test -p ironwarp-engine --test shm idle -- --nocapture`

use super::common::{Host, SHARED, TCP, TIMEOUT, rings_mapped};
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, ConnectOptions, QueuePair, QueuePairAttributes};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::Receives;
use ironwarp_rnic::queue::{Completion, Data, Opcode, Operation, ReceiveRequest, Sges, Status, WorkRequest};
use ironwarp_testkit::child::{self, Partner};
use ironwarp_testkit::limits::{raise_descriptor_limit, status};
use ironwarp_testkit::long_form;
use ironwarp_testkit::wait::until;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Maximum memory of an idle connection, in bytes.
const BUDGET: usize = 1_792;
/// Number of connections before the measurement, so that one-time allocations are not counted.
const BEFORE: usize = 100;
/// Maximum number of connections in progress.
const CONNECTING: usize = 128;
const TEST: &str = "idle::unused_connections_stay_within_their_budget";

fn connections() -> usize {
    if long_form::is_requested() { 9_000 } else { 3_000 }
}

/// One process: queue pairs on one completion queue.
struct Process {
    host: Arc<Host>,
    cq: Arc<CompletionQueue>,
    /// Not `End`, which would add to the size of a connection.
    pairs: Vec<Arc<QueuePair>>,
}

impl Process {
    fn new() -> Self {
        raise_descriptor_limit();
        let config = Config::default().shm(true).keepalive(Duration::from_secs(600)).startup(TIMEOUT);
        let host = Host::new(config, 4096);
        let cq = host.engine.create_cq(4 * 9_100).unwrap();
        Self { host, cq, pairs: Vec::with_capacity(9_100) }
    }

    fn add(&mut self) -> &Arc<QueuePair> {
        let attributes = QueuePairAttributes {
            send_depth: 64,
            receives: Receives::Own(64),
            ..QueuePairAttributes::new(self.host.domain, &self.cq)
        };
        self.pairs.push(self.host.engine.create_qp(attributes).unwrap());
        self.pairs.last().unwrap()
    }

    /// Connects until there are `count` connections.
    fn connect(&mut self, at: SocketAddr, count: usize) {
        let engine = Arc::clone(&self.host.engine);
        while self.pairs.len() < count {
            engine.connect(self.add(), at, &ConnectOptions::default()).unwrap();
            if let Some(earlier) = self.pairs.len().checked_sub(CONNECTING) {
                self.pairs[earlier].wait_connected(TIMEOUT).unwrap();
            }
        }
        self.pairs.iter().for_each(|pair| drop(pair.wait_connected(TIMEOUT).unwrap()));
    }

    /// Returns whether all connections use these routes.
    fn use_routes(&self, routes: (Route, Route)) -> bool {
        self.pairs.iter().map(|pair| pair.qp()).all(|qp| (qp.send_route(), qp.recv_route()) == routes)
    }

    /// Waits until this many requests have succeeded.
    fn complete(&self, opcode: Opcode, count: usize) {
        let mut left = count;
        while left > 0 {
            let mut each = |it: Completion| {
                assert_eq!((it.opcode, it.status), (opcode, Status::Success), "{it:?}");
                left -= 1;
            };
            assert!(self.cq.wait(Some(TIMEOUT)).unwrap(), "nothing came");
            self.cq.poll(64, &mut each).unwrap();
        }
    }
}

fn resident() -> usize {
    status("VmRSS:") * 1024
}

fn serve() {
    let mut process = Process::new();
    let listener = process.host.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    child::tell(&format!("address {}", listener.local_addr().unwrap()));
    let (engine, count) = (Arc::clone(&process.host.engine), BEFORE + connections());
    for _ in 0..count {
        let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
        incoming.accept(process.add(), engine.terms(None, None), &[]).unwrap();
    }
    child::wait_for("use them");
    for pair in &process.pairs {
        pair.qp().post_receive(ReceiveRequest { id: 0, buffers: Sges::default() }).unwrap();
    }
    child::tell("posted");
    process.complete(Opcode::Receive, count);
    until(|| process.use_routes(SHARED));
    child::tell(&format!("shared, with {} rings", rings_mapped()));
    child::wait_for_end();
}

#[test]
fn unused_connections_stay_within_their_budget() {
    match child::role().as_deref() {
        None => return assert!(!child::in_child(TEST)),
        Some("child") => {}
        Some(_) => return serve(),
    }
    let mut server = Partner::start(child::command(TEST, "server"));
    let at = server.wait_for("address ").parse().unwrap();
    let mut process = Process::new();
    process.connect(at, BEFORE);
    let before = resident();
    process.connect(at, BEFORE + connections());
    let idle = (resident() - before) / connections();
    assert!(process.use_routes(TCP));
    assert_eq!(rings_mapped(), 0, "connections that are not used share no memory");

    let before = resident();
    server.tell("use them");
    server.wait_for("posted");
    let send = || WorkRequest::new(0, Operation::Send { invalidate: None }, Data::Memory(Sges::default()));
    process.pairs.iter().for_each(|pair| pair.post_send([send()]).unwrap());
    process.complete(Opcode::Send, process.pairs.len());
    until(|| process.use_routes(SHARED));
    let rings = server.wait_for("shared, with ");
    let used = resident().saturating_sub(before) / process.pairs.len();
    println!("{} connections: {idle} bytes each while idle, {used} more when used; {rings}", connections());
    assert!(idle <= BUDGET, "{idle} bytes for each idle connection");
    server.finish();
}
