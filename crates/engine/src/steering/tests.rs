//! What was polled before a move is acknowledged after it (requirement I9), though the lane that would have seen to it does not serve
//! the connection any more.

use crate::config::Config;
use crate::verbs::cq::CompletionQueue;
use crate::{ConnectOptions, Engine, Listener, QueuePair, QueuePairAttributes};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sges, WorkRequest};
use ironwarp_rnic::steering::RedirectionTable;
use ironwarp_testkit::wait::until;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// Where connections are answered, and another lane.
const FIRST: usize = 0;
const OTHER: usize = 1;

/// An adapter with two lanes whose connections share a completion queue, and a client.
struct Server {
    engine: Arc<Engine>,
    cq: Arc<CompletionQueue>,
    listener: Listener,
    client: Arc<Engine>,
}

impl Server {
    fn new() -> Self {
        let [client, engine] =
            [(); 2].map(|()| Engine::new(Config { lanes: 2, rebalance: 0, ..Config::default() }).unwrap());
        let cq = engine.create_cq(64).unwrap();
        let listener = engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { engine, cq, listener, client }
    }

    /// A connection that is served by this lane: the client's end, and the server's.
    fn connect(&self, lane: usize) -> (Arc<QueuePair>, Arc<QueuePair>) {
        let mut table = RedirectionTable::spread(1);
        table.entries_mut().fill(u16::try_from(lane).unwrap());
        self.engine.steering().set_table(table).unwrap();
        let before = self.sockets();
        let near = pair(&self.client, &self.client.create_cq(64).unwrap());
        let far = pair(&self.engine, &self.cq);
        self.client.connect(&near, self.listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = self.listener.incoming().wait(Some(PATIENCE)).unwrap();
        incoming.accept(&far, self.engine.terms(None, None), &[]).unwrap();
        near.wait_connected(PATIENCE).unwrap();
        until(|| far.lane() == Some(lane) && self.sockets() > before);
        (near, far)
    }

    fn sockets(&self) -> usize {
        self.cq.poll_sets().iter().map(|set| set.len()).sum()
    }

    /// The only connection, on the other lane. The program has polled a message, and turned to other things before it was acknowledged:
    /// the lane will find out, but it waits for the end of what is returned last.
    fn polled(&self) -> (Arc<QueuePair>, Arc<QueuePair>, Sender<()>) {
        let (near, far) = self.connect(OTHER);
        // The first message is acknowledged with the answer to the client's signal.
        self.receive(&near, &far);
        until(|| !self.cq.poll_sets()[0].is_polled() && !far.qp().owes_acknowledgement());
        let held = self.hold(OTHER);
        self.receive(&near, &far);
        assert!(far.qp().owes_acknowledgement(), "nobody else has seen it");
        (near, far, held)
    }

    fn receive(&self, near: &QueuePair, far: &QueuePair) {
        far.qp().post_receive(ReceiveRequest { id: 1, buffers: Sges::default() }).unwrap();
        let send = Operation::Send { invalidate: None };
        near.post_send([WorkRequest::new(1, send, Data::Memory(Sges::default()))]).unwrap();
        until(|| self.cq.poll(1, drop) == Ok(1));
    }

    /// A lane does nothing until this is dropped.
    fn hold(&self, lane: usize) -> Sender<()> {
        let (held, (holds, hold)) = (channel(), channel::<()>());
        let wait = move || {
            held.0.send(()).unwrap();
            let _ = hold.recv();
        };
        let lane = self.engine.steering().lane(lane).unwrap();
        lane.handle().call(wait);
        held.1.recv_timeout(PATIENCE).unwrap();
        holds
    }
}

fn pair(engine: &Arc<Engine>, cq: &Arc<CompletionQueue>) -> Arc<QueuePair> {
    let attributes = QueuePairAttributes::new(engine.device().allocate_domain(), cq);
    let completes = Completes::WhenAcknowledged;
    engine.create_qp(QueuePairAttributes { completes, ..attributes }).unwrap()
}

#[test]
fn what_was_polled_before_a_move_is_acknowledged_by_the_new_lane() {
    let server = Server::new();
    let (_near, far, _held) = server.polled();
    let _neighbour = server.connect(FIRST);
    server.engine.steering().move_queue_pair(&far, FIRST).unwrap();
    until(|| !far.qp().owes_acknowledgement());
}

#[test]
fn what_was_polled_alone_is_acknowledged_when_another_is_moved_there() {
    let server = Server::new();
    let (_near, far, held) = server.polled();
    let (_there, moved) = server.connect(FIRST);
    server.engine.steering().move_queue_pair(&moved, OTHER).unwrap();
    drop(held);
    until(|| !far.qp().owes_acknowledgement());
}

#[test]
fn a_connection_waits_for_one_turn_however_often_it_is_left_with_work() {
    let server = Server::new();
    let (_near, far) = server.connect(OTHER);
    let held = server.hold(OTHER);
    let connection = far.connection().unwrap();
    let before = connection.lane().pending_commands();
    for _ in 0..1000 {
        connection.schedule();
    }
    let jobs = connection.lane().pending_commands();
    assert!(jobs <= before + 1, "{jobs} jobs wait for the lane");
    drop(held);
    until(|| !connection.is_queued());
    connection.schedule();
    until(|| !connection.is_queued());
}
