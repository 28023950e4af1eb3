//! Threads that sleep: on the sockets, on the alarm, and those that go without a word.

use super::*;
use crate::sys::testing::RawThread;
use crate::{ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::queue::{Data, Opcode, Operation, ReceiveRequest, Sges, WorkRequest};
use std::thread;

const PATIENCE: Duration = Duration::from_secs(30);

/// Two connected ends in one process.
struct Ends {
    server: Arc<Engine>,
    near: Arc<QueuePair>,
    /// Of the server.
    cq: Arc<CompletionQueue>,
    _far: Arc<QueuePair>,
    _client: Arc<Engine>,
}

impl Ends {
    fn new() -> Self {
        let [client, server] =
            [(); 2].map(|()| Engine::new(Config { lanes: 1, ..Config::default() }).unwrap());
        let listener = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let end = |engine: &Arc<Engine>| {
            let cq = engine.create_cq(64).unwrap();
            let pair =
                engine.create_qp(QueuePairAttributes::new(engine.device().allocate_domain(), &cq)).unwrap();
            (cq, pair)
        };
        let ((_, near), (cq, far)) = (end(&client), end(&server));
        client.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
        far.qp().post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
        incoming.accept(&far, server.terms(None, None), &[]).unwrap();
        // Who sleeps before that does not sleep on this socket.
        near.wait_connected(PATIENCE).unwrap();
        far.wait_connected(PATIENCE).unwrap();
        Self { server, near, cq, _far: far, _client: client }
    }

    /// An empty message for the server.
    fn send(&self) {
        let operation = Operation::Send { invalidate: None };
        let data = Data::Memory(Sges::default());
        let request = WorkRequest { signaled: false, ..WorkRequest::new(1, operation, data) };
        self.near.post_send(vec![request]).unwrap();
    }

    /// A thread that sleeps on the server's sockets, and will not wake by itself.
    fn sleeper(&self) -> RawThread {
        let cq = Arc::clone(&self.cq);
        let thread = RawThread::spawn(move || assert_eq!(cq.wait(None), Ok(true)));
        until(|| self.cq.sleepers.count() == (1, 1) && self.cq.sets().iter().all(|set| set.is_slept_on()));
        thread
    }
}

/// Waits until it is so.
fn until(so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "it does not come to that");
        thread::yield_now();
    }
}

fn completion(wr_id: u64) -> Completion {
    Completion::succeeded(wr_id, Opcode::Receive, 1, 0)
}

/// Nobody tells the lane: it has to look.
#[test]
fn a_thread_that_vanishes_in_its_sleep_leaves_the_sockets_to_the_lane() {
    let ends = Ends::new();
    let handler = ends.server.create_handler().unwrap();
    ends.cq.set_handler(Some(&handler));
    assert!(!ends.cq.arm(Arm::Next));
    let sleeper = ends.sleeper();
    sleeper.vanish();
    sleeper.join();
    ends.send();
    assert!(handler.wait(Some(PATIENCE)).is_some(), "a lane found the message");
    until(|| ends.cq.sleepers.count() == (0, 0)); // and forgot the thread
    assert_eq!(ends.cq.poll(1, drop), Ok(1));
}

#[test]
fn a_thread_that_is_cancelled_in_its_sleep_gives_the_sockets_back() {
    let ends = Ends::new();
    let handler = ends.server.create_handler().unwrap();
    ends.cq.set_handler(Some(&handler));
    assert!(!ends.cq.arm(Arm::Next));
    let sleeper = ends.sleeper();
    sleeper.cancel();
    sleeper.join();
    assert_eq!(ends.cq.sleepers.count(), (0, 0), "it said so itself");
    ends.send();
    assert!(handler.wait(Some(PATIENCE)).is_some(), "a lane found the message");
}

#[test]
fn a_place_on_the_sockets_is_taken_from_a_thread_that_vanished() {
    let ends = Ends::new();
    let sleeper = ends.sleeper();
    sleeper.vanish();
    sleeper.join();
    let cq = Arc::clone(&ends.cq);
    let next = thread::spawn(move || cq.wait(Some(PATIENCE)));
    until(|| ends.cq.sleepers.count() == (1, 1));
    ends.send();
    assert_eq!(next.join().unwrap(), Ok(true));
}

#[test]
fn who_sleeps_beside_another_wakes_in_time() {
    let ends = Ends::new();
    thread::scope(|scope| {
        let first = scope.spawn(|| ends.cq.wait(Some(PATIENCE)));
        until(|| ends.cq.sleepers.count() == (1, 1));
        let began = Instant::now();
        assert_eq!(ends.cq.wait(Some(Duration::from_millis(20))), Ok(false));
        assert!(began.elapsed() < PATIENCE / 2, "not as long as the other");
        assert_eq!(ends.cq.sleepers.count(), (1, 1));
        ends.send();
        assert_eq!(first.join().unwrap(), Ok(true));
    });
}

#[test]
fn when_the_one_on_the_sockets_leaves_another_takes_its_place() {
    let ends = Ends::new();
    let first = ends.sleeper();
    thread::scope(|scope| {
        let second = scope.spawn(|| ends.cq.wait(Some(PATIENCE)));
        until(|| ends.cq.sleepers.count() == (2, 1));
        first.cancel();
        first.join();
        until(|| ends.cq.sleepers.count() == (1, 1));
        ends.send();
        assert_eq!(second.join().unwrap(), Ok(true));
    });
}

/// As many completions as sleepers: each gets one, whoever takes the alarm away.
#[test]
fn every_sleeper_is_woken_for_its_completion() {
    const SLEEPERS: usize = 4;
    let engine = Engine::new(Config::default()).unwrap();
    let cq = engine.create_cq(64).unwrap();
    for _ in 0..200 {
        thread::scope(|scope| {
            let take = || {
                while cq.wait(Some(PATIENCE)).unwrap() {
                    if cq.poll(1, drop).unwrap() == 1 {
                        return true;
                    }
                }
                false
            };
            let sleepers: Vec<_> = (0..SLEEPERS).map(|_| scope.spawn(take)).collect();
            (0..SLEEPERS as u64).for_each(|wr_id| cq.cq().push(completion(wr_id)).unwrap());
            assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
        });
    }
}
