//! Threads that sleep: on the sockets, on the alarm, and those that go without a word.

use super::*;
use crate::config::Config;
use crate::reactor::poll_set::{FollowUp, PollCheck};
use crate::sys::poller::Events;
use crate::sys::testing::RawThread;
use crate::{ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Opcode, Operation, ReceiveRequest, Sges, WorkRequest};
use ironwarp_testkit::wait::until;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Two connected ends in one process.
struct Ends {
    server: Arc<Engine>,
    near: Arc<QueuePair>,
    /// Of the server.
    cq: Arc<CompletionQueue>,
    far: Arc<QueuePair>,
    _client: Arc<Engine>,
}

impl Ends {
    fn new() -> Self {
        let [client, server] =
            [(); 2].map(|()| Engine::new(Config { lanes: 1, ..Config::default() }).unwrap());
        let listener = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let end = |engine: &Arc<Engine>| {
            let cq = engine.create_cq(64).unwrap();
            let attributes = QueuePairAttributes::new(engine.device().allocate_domain(), &cq);
            let completes = Completes::WhenAcknowledged;
            (cq, engine.create_qp(QueuePairAttributes { completes, ..attributes }).unwrap())
        };
        let ((_, near), (cq, far)) = (end(&client), end(&server));
        client.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
        far.qp().post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
        incoming.accept(&far, server.terms(None, None), &[]).unwrap();
        // Who sleeps before that does not sleep on this socket.
        near.wait_connected(PATIENCE).unwrap();
        far.wait_connected(PATIENCE).unwrap();
        Self { server, near, cq, far, _client: client }
    }

    /// An empty message for the server.
    fn send(&self) {
        send(&self.near);
    }

    /// A thread that sleeps on the server's sockets, and will not wake by itself.
    fn sleeper(&self) -> RawThread {
        let cq = Arc::clone(&self.cq);
        let thread = RawThread::spawn(move || assert_eq!(cq.wait(None), Ok(true)));
        until(|| self.cq.waiters.count() == (1, 1) && self.cq.sets().iter().all(|set| set.is_slept_on()));
        thread
    }
}

/// An empty message.
fn send(from: &QueuePair) {
    let operation = Operation::Send { invalidate: None };
    let data = Data::Memory(Sges::default());
    let request = WorkRequest { signaled: false, ..WorkRequest::new(1, operation, data) };
    from.post_send(vec![request]).unwrap();
}

/// A set that was woken for a message by this thread, which plays the lane, and how often the program had polled until then. The lane itself
/// waits for the end of what is returned last.
fn woken(ends: &Ends) -> (Arc<PollSet>, u64, Sender<()>) {
    let set = Arc::clone(&ends.cq.sets()[0]);
    // The first message is acknowledged with the answer to the client's signal, whoever was woken.
    ends.send();
    until(|| ends.cq.poll(1, drop) == Ok(1));
    until(|| !set.is_polled() && !ends.far.qp().owes_acknowledgement());
    ends.far.qp().post_receive(ReceiveRequest { id: 8, buffers: Sges::default() }).unwrap();
    let (held, (holds, hold)) = (channel(), channel::<()>());
    let wait = move || {
        held.0.send(()).unwrap();
        let _ = hold.recv();
    };
    set.lane().call(wait);
    held.1.recv_timeout(PATIENCE).unwrap();
    assert!(!ends.cq.arm(Arm::Next));
    ends.send();
    let (mut events, deadline) = (Events::new(4), Instant::now() + PATIENCE);
    loop {
        // Asked so often, it thinks that messages stream in.
        let fired = match set.serve_event(&mut events) {
            FollowUp::Pause => set.resume(&mut events),
            fired => fired,
        };
        if let FollowUp::CheckPolling(polls) = fired {
            assert!(!ends.cq.cq().is_armed(), "the program was woken");
            assert!(ends.far.qp().owes_acknowledgement(), "and the rest is left to it");
            return (set, polls, holds);
        }
        assert!(Instant::now() < deadline, "the message does not come");
    }
}

fn completion(wr_id: u64) -> Completion {
    Completion::succeeded(wr_id, Opcode::Receive, 1, 0)
}

/// Ask for an event, look once more, sleep: so the manuals want it done. In between, the lane must not have to find out that
/// nobody polls any more, which takes it milliseconds.
#[test]
fn the_last_look_before_the_sleep_leaves_the_sockets_to_the_lane() {
    let ends = Ends::new();
    let polled = || ends.cq.sets().iter().any(|set| set.is_polled());
    assert_eq!(ends.cq.poll(1, |_| ()), Ok(0));
    assert!(polled(), "the program polls");
    assert!(!ends.cq.arm(Arm::Next));
    assert_eq!(ends.cq.poll(1, |_| ()), Ok(0));
    assert!(!polled(), "the lane has them");
    ends.send();
    until(|| !ends.cq.cq().is_armed());
    assert_eq!(ends.cq.poll(1, |_| ()), Ok(1));
    assert_eq!(ends.cq.poll(1, |_| ()), Ok(0));
    assert!(polled(), "the event came, and the program polls again");
}

#[test]
fn who_is_woken_for_a_message_acknowledges_it_with_the_answer() {
    let ends = Ends::new();
    ends.near.qp().post_receive(ReceiveRequest { id: 9, buffers: Sges::default() }).unwrap();
    let (_set, _, _lane) = woken(&ends);
    send(&ends.far);
    assert!(!ends.far.qp().owes_acknowledgement());
}

#[test]
fn who_is_woken_for_a_message_and_turns_to_other_things_has_it_acknowledged() {
    let ends = Ends::new();
    let (set, polls, _lane) = woken(&ends);
    assert!(matches!(set.check_polling(Some(polls)), PollCheck::Over), "nobody polls");
    assert!(!ends.far.qp().owes_acknowledgement());
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
    until(|| ends.cq.waiters.count() == (0, 0)); // and forgot the thread
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
    assert_eq!(ends.cq.waiters.count(), (0, 0), "it said so itself");
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
    until(|| ends.cq.waiters.count() == (1, 1));
    ends.send();
    assert_eq!(next.join().unwrap(), Ok(true));
}

#[test]
fn who_sleeps_beside_another_wakes_in_time() {
    let ends = Ends::new();
    thread::scope(|scope| {
        let first = scope.spawn(|| ends.cq.wait(Some(PATIENCE)));
        until(|| ends.cq.waiters.count() == (1, 1));
        let began = Instant::now();
        assert_eq!(ends.cq.wait(Some(Duration::from_millis(20))), Ok(false));
        assert!(began.elapsed() < PATIENCE / 2, "not as long as the other");
        // The first may have woken in between, for an event of its socket, and have lain down beside this thread.
        until(|| ends.cq.waiters.count() == (1, 1));
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
        until(|| ends.cq.waiters.count() == (2, 1));
        first.cancel();
        first.join();
        until(|| ends.cq.waiters.count() == (1, 1));
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
