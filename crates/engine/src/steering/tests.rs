//! Moving connections between lanes (requirement I9): a message that the program polled before the move is acknowledged
//! after it, although the lane that would have acknowledged it does not serve the connection any more.

use crate::config::Config;
use crate::verbs::cq::CompletionQueue;
use crate::{ConnectOptions, Engine, Listener, QueuePair, QueuePairAttributes};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sges, WorkRequest};
use ironwarp_rnic::steering::RedirectionTable;
use ironwarp_testkit::wait::until;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The default lane, which answers connections.
const FIRST: usize = 0;
/// Another lane.
const OTHER: usize = 1;

/// An adapter with two lanes whose connections share a completion queue, and a client for it.
struct Server {
    engine: Arc<Engine>,
    cq: Arc<CompletionQueue>,
    listener: Listener,
    client: Arc<Engine>,
}

/// The queue pairs of a client and of the server, which owes an acknowledgement while the sender exists.
type Owing = (Arc<QueuePair>, Arc<QueuePair>, Sender<()>);

impl Server {
    /// Opens both adapters, without rebalancing.
    fn new() -> Self {
        Self::with_rebalancing(0)
    }

    /// Opens both adapters. A lane gives connections away from this load in percent on; zero for never.
    fn with_rebalancing(percent: u16) -> Self {
        let config = Config::default().lanes(2).rebalance(percent).shm(false);
        let [client, engine] = [(); 2].map(|()| Engine::new(config.clone()).unwrap());
        let cq = engine.create_cq(64).unwrap();
        let listener = engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { engine, cq, listener, client }
    }

    /// Makes a connection that this lane of the server serves. Returns the queue pairs of the client and of the server.
    fn connect(&self, lane: usize) -> (Arc<QueuePair>, Arc<QueuePair>) {
        let mut table = RedirectionTable::spread(1);
        table.entries_mut().fill(u16::try_from(lane).unwrap());
        self.engine.steering().set_table(table).unwrap();
        let before = self.sockets();
        let near = create_qp(&self.client, &self.client.create_cq(64).unwrap());
        let far = create_qp(&self.engine, &self.cq);
        self.client.connect(&near, self.listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = self.listener.incoming().wait(Some(TIMEOUT)).unwrap();
        incoming.accept(&far, self.engine.terms(None, None), &[]).unwrap();
        near.wait_connected(TIMEOUT).unwrap();
        until(|| far.lane() == Some(lane) && self.sockets() > before);
        (near, far)
    }

    /// Returns the number of sockets in the poll sets of the server's completion queue.
    fn sockets(&self) -> usize {
        self.cq.poll_sets().iter().map(|set| set.len()).sum()
    }

    /// Makes the only connection, on the other lane, and polls a message that is not acknowledged yet. The program does
    /// not poll again: the lane would notice and acknowledge, but it is held until the returned sender is dropped.
    /// Returns both queue pairs and the sender, or `None` if the message was acknowledged at once: on a busy machine,
    /// something else may be sent and carry the acknowledgement.
    fn connect_and_poll(&self) -> Option<Owing> {
        let (near, far) = self.connect(OTHER);
        // The acknowledgement of the first message travels with the answer to the client's signal, so a second one is
        // needed.
        self.receive(&near, &far);
        until(|| !self.cq.poll_sets()[0].is_polled() && !far.qp().owes_acknowledgement());
        let held = self.hold(OTHER);
        self.receive(&near, &far);
        far.qp().owes_acknowledgement().then_some((near, far, held))
    }

    /// Opens both adapters, and [makes a connection](Self::connect_and_poll) that owes an acknowledgement.
    fn with_owed_acknowledgement() -> (Self, Owing) {
        let attempt = |_| {
            let server = Self::new();
            let connected = server.connect_and_poll();
            connected.map(|connected| (server, connected))
        };
        (0..5).find_map(attempt).expect("a message that is not acknowledged yet")
    }

    /// Sends a message, and polls its completion at the server.
    fn receive(&self, near: &QueuePair, far: &QueuePair) {
        far.qp().post_receive(ReceiveRequest { id: 1, buffers: Sges::default() }).unwrap();
        let send = Operation::Send { invalidate: None };
        near.post_send([WorkRequest::new(1, send, Data::Memory(Sges::default()))]).unwrap();
        // Not `poll`, which may sleep on a busy machine: a thread that goes to sleep drives both directions, and what is
        // sent carries the acknowledgement.
        until(|| {
            self.cq.progress();
            self.cq.cq().poll(1, drop) == Ok(1)
        });
    }

    /// Blocks a lane's thread until the returned sender is dropped.
    fn hold(&self, lane: usize) -> Sender<()> {
        let ((started, has_started), (release, released)) = (channel(), channel::<()>());
        let wait = move || {
            started.send(()).unwrap();
            let _ = released.recv(); // fails when the sender is dropped
        };
        let lane = self.engine.steering().lane(lane).unwrap();
        lane.handle().call(wait);
        has_started.recv_timeout(TIMEOUT).unwrap();
        release
    }
}

/// Creates a queue pair whose sends complete when they are acknowledged.
fn create_qp(engine: &Arc<Engine>, cq: &Arc<CompletionQueue>) -> Arc<QueuePair> {
    let attributes = QueuePairAttributes::new(engine.device().allocate_domain(), cq);
    let completes = Completes::WhenAcknowledged;
    engine.create_qp(QueuePairAttributes { completes, ..attributes }).unwrap()
}

#[test]
fn what_was_polled_before_a_move_is_acknowledged_by_the_new_lane() {
    let (server, (_near, far, _held)) = Server::with_owed_acknowledgement();
    let _neighbour = server.connect(FIRST);
    server.engine.steering().move_queue_pair(&far, FIRST).unwrap();
    until(|| !far.qp().owes_acknowledgement());
}

#[test]
fn what_was_polled_alone_is_acknowledged_when_another_is_moved_there() {
    let (server, (_near, far, held)) = Server::with_owed_acknowledgement();
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
    let after = connection.lane().pending_commands();
    assert!(after <= before + 1, "{after} commands wait for the lane");
    drop(held);
    until(|| !connection.is_queued());
    connection.schedule();
    until(|| !connection.is_queued());
}

/// Requirements I9 and N5: rebalancing moves a queue pair from a busy lane to an idle one, unless that is outside of the
/// processors of its handler.
#[test]
fn rebalancing_stays_within_the_processors_of_the_handler() {
    const ROUNDS: usize = 10;
    let server = Server::with_rebalancing(1);
    let steering = server.engine.steering();
    let handler = server.engine.create_handler().unwrap();
    server.cq.set_handler(Some(&handler));
    let pairs = [server.connect(FIRST), server.connect(FIRST)];
    let first = steering.processors(FIRST).unwrap()[0];
    server.engine.set_handler_processors(&handler, &[first]).unwrap();
    let lane = pairs[0].1.lane().unwrap();
    steering.set_processors(1 - lane, &steering.processors(1 - lane).unwrap()).unwrap();
    let is_there = || pairs.iter().all(|(_, far)| far.lane() == Some(lane));
    assert!(is_there());
    // The lane serves both, and is busy besides.
    let round = || {
        for (near, far) in &pairs {
            far.qp().post_receive(ReceiveRequest { id: 1, buffers: Sges::default() }).unwrap();
            let send = Operation::Send { invalidate: None };
            near.post_send([WorkRequest::new(1, send, Data::Memory(Sges::default()))]).unwrap();
        }
        until(|| server.cq.cq().len() >= 2);
        assert_eq!(server.cq.cq().poll(2, drop), Ok(2));
        let (done, is_done) = channel();
        steering.lane(lane).unwrap().handle().call(move || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(120) {}
            done.send(()).unwrap();
        });
        is_done.recv_timeout(TIMEOUT).unwrap();
        steering.rebalance();
    };
    (0..ROUNDS).for_each(|_| round());
    assert!(is_there(), "another lane does not run on the processors of the handler");
    server.engine.set_handler_processors(&handler, &[]).unwrap();
    until(|| {
        round();
        !is_there()
    });
}
