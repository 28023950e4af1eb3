//! Classes on real lanes (requirement N6), by the order and number of turns: low latency before bulk, and bulk by shares.
//! A gate holds a lane until all work is queued, so that nothing depends on the load of the machine.

use super::class::Class;
use super::command::Command;
use super::handle::LaneHandle;
use super::source::Drive;
use crate::config::Config;
use crate::{CompletionHandler, CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::queue::{Arm, Data, Operation, ReceiveRequest, Sges, WorkRequest};
use ironwarp_rnic::sync::lock;
use rustix::event::{PollFd, PollFlags, poll};
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn bulk(share: u8) -> Class {
    Class::Bulk(NonZero::new(share).unwrap())
}

fn engine() -> Arc<Engine> {
    Engine::new(Config::default().lanes(1).shm(false)).unwrap()
}

/// Holds a lane until it is dropped. It is served once.
struct Gate(#[expect(dead_code, reason = "dropping it opens the gate")] Sender<()>);

impl Gate {
    /// Returns when the lane is held.
    fn close(lane: &LaneHandle) -> Self {
        let ((open, is_open), (held, is_held)) = (channel(), channel());
        lane.call(move || {
            held.send(()).unwrap();
            let _ = Receiver::<()>::recv(&is_open); // an error when the gate is dropped
        });
        is_held.recv_timeout(TIMEOUT).unwrap();
        Self(open)
    }
}

/// A connection that always has work, for this many turns. Its class is that of a handler.
#[derive(Debug)]
struct Worker {
    name: &'static str,
    handler: Arc<CompletionHandler>,
    lane: Arc<LaneHandle>,
    turns: Mutex<usize>,
    /// The names of all workers, in the order of their turns.
    log: Arc<Mutex<Vec<&'static str>>>,
    this: std::sync::Weak<Worker>,
    done: Sender<()>,
}

impl Drive for Worker {
    fn class(&self) -> Class {
        self.handler.class()
    }

    fn set_queued(&self, _queued: bool) {}

    fn drive(&self) {
        lock(&self.log).push(self.name);
        let mut turns = lock(&self.turns);
        *turns -= 1;
        match *turns {
            0 => self.done.send(()).unwrap(),
            _ => self.lane.submit(Command::Drive(self.this.upgrade().unwrap())),
        }
    }
}

/// Has workers of these names and handlers compete for a lane, each for `turns` turns. Returns the names in the order of
/// turns.
fn compete(
    engine: &Arc<Engine>,
    turns: usize,
    workers: &[(&'static str, &Arc<CompletionHandler>)],
) -> Vec<&'static str> {
    let lane = engine.steering().default_lane().unwrap().handle();
    let log = Arc::<Mutex<Vec<_>>>::default();
    let (done, is_done) = channel();
    let gate = Gate::close(lane);
    for (name, handler) in workers {
        let worker = Arc::new_cyclic(|this| Worker {
            name,
            handler: Arc::clone(handler),
            lane: Arc::clone(lane),
            turns: Mutex::new(turns),
            log: Arc::clone(&log),
            this: this.clone(),
            done: done.clone(),
        });
        lane.submit(Command::Drive(worker));
    }
    drop(gate);
    workers.iter().for_each(|_| is_done.recv_timeout(TIMEOUT).unwrap());
    std::mem::take(&mut lock(&log))
}

fn count(log: &[&str], name: &str) -> usize {
    log.iter().filter(|turn| **turn == name).count()
}

/// A lane serves low-latency work before bulk work, as long as there is any, in whatever order it came.
#[test]
fn a_lane_serves_low_latency_before_bulk() {
    const TURNS: usize = 50;
    let engine = engine();
    let [urgent, large, small] = [Class::LowLatency, bulk(255), bulk(1)].map(|class| {
        let handler = engine.create_handler().unwrap();
        handler.set_class(class).unwrap();
        handler
    });
    let workers = [("large", &large), ("urgent", &urgent), ("small", &small), ("urgent", &urgent)];
    let log = compete(&engine, TURNS, &workers);
    assert_eq!(log.len(), 4 * TURNS);
    assert_eq!(count(&log[..2 * TURNS], "urgent"), 2 * TURNS, "{log:?}");
}

/// Turns follow the shares, and a share that is changed counts from then on.
#[test]
fn a_lane_divides_turns_by_shares_that_can_change() {
    const TURNS: usize = 400;
    let engine = engine();
    let [one, other] = [(); 2].map(|()| engine.create_handler().unwrap());
    for (shares, expected) in [((16, 16), 100), ((16, 48), 50), ((48, 16), 150), ((1, 199), 1)] {
        one.set_class(bulk(shares.0)).unwrap();
        other.set_class(bulk(shares.1)).unwrap();
        // Two workers of the other class: a class has its share, however many connections it has.
        let log = compete(&engine, TURNS, &[("one", &one), ("other", &other), ("other", &other)]);
        let ones = count(&log[..200], "one");
        if shares.0 == shares.1 {
            // Both handlers have the same class, in which all three connections have the same turns.
            assert!((66..=67).contains(&ones), "{shares:?}: {ones} of 200 turns");
        } else {
            assert!(ones.abs_diff(expected) <= 1, "{shares:?}: {ones} of 200 turns");
        }
    }
}

/// A queue pair whose receives complete on an armed queue of its own, connected to one of `peer`.
struct End {
    cq: Arc<CompletionQueue>,
    handler: Arc<CompletionHandler>,
    peer: Arc<QueuePair>,
    _pair: Arc<QueuePair>,
}

impl End {
    fn new(engine: &Arc<Engine>, peer: &Arc<Engine>, class: Class) -> Self {
        let (cq, handler) = (engine.create_cq(4).unwrap(), engine.create_handler().unwrap());
        handler.set_class(class).unwrap();
        cq.set_handler(Some(&handler));
        let pair = |engine: &Arc<Engine>, cq| {
            engine.create_qp(QueuePairAttributes::new(engine.device().allocate_domain(), cq)).unwrap()
        };
        let (near, far) = (pair(engine, &cq), pair(peer, &peer.create_cq(4).unwrap()));
        let listener = engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        peer.connect(&far, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(TIMEOUT).unwrap();
        near.post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
        incoming.accept(&near, engine.terms(None, None), &[]).unwrap();
        far.wait_connected(TIMEOUT).unwrap();
        assert!(!cq.arm(Arm::Next));
        Self { cq, handler, peer: far, _pair: near }
    }

    fn send(&self) {
        let send = WorkRequest::new(1, Operation::Send { invalidate: None }, Data::Memory(Sges::default()));
        self.peer.post_send([send]).unwrap();
    }

    /// Waits for the event of the message with poll(2), so that the lanes have to receive it.
    fn await_event(&self) {
        let mut fds = [PollFd::new(&*self.handler, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&TIMEOUT.try_into().unwrap())), Ok(1), "the message is received");
        assert_eq!(self.cq.cq().len(), 1);
    }
}

/// While the lane of bulk queue pairs is busy, low-latency queue pairs are served, also one that becomes so meanwhile.
#[test]
fn low_latency_queue_pairs_do_not_wait_for_the_lane_of_bulk_ones() {
    let (near, far) = (engine(), engine());
    let urgent = End::new(&near, &far, Class::LowLatency);
    let later = End::new(&near, &far, Class::DEFAULT);
    let bulk = End::new(&near, &far, bulk(255));
    let gate = Gate::close(near.steering().default_lane().unwrap().handle());
    [&bulk, &later, &urgent].iter().for_each(|end| end.send());
    urgent.await_event();
    assert!(later.cq.cq().is_empty() && bulk.cq.cq().is_empty(), "their lane is held");
    later.handler.set_class(Class::LowLatency).unwrap();
    later.await_event();
    assert!(bulk.cq.cq().is_empty(), "its lane is held");
    drop(gate);
    bulk.await_event();
}
