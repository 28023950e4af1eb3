//! Tests of threads that sleep on a completion queue: on the sockets, on the alarm, and threads that vanish or are
//! cancelled while they sleep.

use super::*;
use crate::config::Config;
use crate::reactor::poll_set::{FollowUp, PollCheck};
use crate::sys::poller::Events;
use crate::sys::testing::RawThread;
use crate::{ConnectOptions, DatagramQueuePairAttributes, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Opcode, Operation, ReceiveRequest, Sges, WorkRequest};
use ironwarp_testkit::wait::until;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// A connected client and server in one process.
pub(super) struct Ends {
    pub(super) server: Arc<Engine>,
    /// The client's queue pair.
    pub(super) near: Arc<QueuePair>,
    /// The server's completion queue.
    pub(super) cq: Arc<CompletionQueue>,
    /// The server's queue pair.
    pub(super) far: Arc<QueuePair>,
    pub(super) client: Arc<Engine>,
}

impl Ends {
    /// Connects two ends over TCP.
    pub(super) fn new() -> Self {
        Self::with(&Config::default().lanes(1).shm(false))
    }

    fn with(config: &Config) -> Self {
        let [client, server] = [(); 2].map(|()| Engine::new(config.clone()).unwrap());
        let [near_cq, cq] = [&client, &server].map(|engine| engine.create_cq(64).unwrap());
        let [near, far] = connect((&client, &near_cq), (&server, &cq));
        Self { server, near, cq, far, client }
    }

    /// Connects another queue pair of the client to another one of the server, with the same completion queues.
    pub(super) fn connect_another(&self) -> [Arc<QueuePair>; 2] {
        connect((&self.client, self.near.receive_cq()), (&self.server, &self.cq))
    }

    /// Connects two ends that use shared memory once a message was sent.
    pub(super) fn over_shared_memory() -> Self {
        Self::with(&Config::default().lanes(1).shm(true))
    }

    /// Connects two ends, and exchanges messages until they arrive at the server in shared memory.
    pub(super) fn shared() -> Self {
        let ends = Self::over_shared_memory();
        until(|| {
            ends.receive();
            let (operation, data) = (Operation::Send { invalidate: None }, Data::Memory(Sges::default()));
            ends.near.post_send(vec![WorkRequest::new(1, operation, data)]).unwrap();
            let (mut received, mut sent) = (0, 0);
            until(|| {
                received += ends.cq.poll(1, drop).unwrap();
                sent += ends.near.send_cq().poll(1, drop).unwrap();
                (received, sent) == (1, 1)
            });
            ends.far.qp().recv_route() == Route::SharedMemory
        });
        ends
    }

    /// Posts a receive at the server.
    pub(super) fn receive(&self) {
        self.far.post_receive(ReceiveRequest { id: 8, buffers: Sges::default() }).unwrap();
    }

    /// Sends an empty message to the server.
    pub(super) fn send(&self) {
        send(&self.near);
    }

    /// Starts a thread that sleeps on the server's sockets, without a timeout.
    fn start_sleeper(&self) -> RawThread {
        let cq = Arc::clone(&self.cq);
        let thread = RawThread::spawn(move || assert_eq!(cq.wait(None), Ok(true)));
        until(|| self.cq.waiters.count() == (1, 1) && self.cq.sets().iter().all(|set| set.is_slept_on()));
        until(|| thread.is_asleep());
        thread
    }
}

/// Connects a queue pair of a client to one of a server, which has posted a receive.
fn connect(
    client: (&Arc<Engine>, &Arc<CompletionQueue>),
    server: (&Arc<Engine>, &Arc<CompletionQueue>),
) -> [Arc<QueuePair>; 2] {
    let listener = server.0.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let [near, far] = [client, server].map(|(engine, cq)| {
        let attributes = QueuePairAttributes::new(engine.device().allocate_domain(), cq);
        let completes = Completes::WhenAcknowledged;
        engine.create_qp(QueuePairAttributes { completes, ..attributes }).unwrap()
    });
    client.0.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
    far.qp().post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
    incoming.accept(&far, server.0.terms(None, None), &[]).unwrap();
    // A thread that went to sleep before the connection was established would not sleep on its socket.
    near.wait_connected(TIMEOUT).unwrap();
    far.wait_connected(TIMEOUT).unwrap();
    [near, far]
}

/// Sends an empty message.
pub(super) fn send(from: &QueuePair) {
    let operation = Operation::Send { invalidate: None };
    let data = Data::Memory(Sges::default());
    let request = WorkRequest { signaled: false, ..WorkRequest::new(1, operation, data) };
    from.post_send(vec![request]).unwrap();
}

/// A thread that polls in vain on a busy processor sleeps for a moment at a time (`idle.rs`).
#[test]
fn a_message_ends_the_nap_of_a_thread_that_polls() {
    for ends in [Ends::new(), Ends::shared()] {
        ends.receive();
        let cq = Arc::clone(&ends.cq);
        let start = Instant::now();
        let thread = RawThread::spawn(move || {
            assert!(cq.nap(TIMEOUT));
            assert_eq!(cq.poll(1, drop), Ok(1));
        });
        until(|| ends.cq.sets().iter().all(|set| set.is_slept_on()));
        until(|| thread.is_asleep());
        ends.send();
        thread.join();
        assert!(start.elapsed() < TIMEOUT, "the message did not wake the thread");
    }
}

/// A sleeping thread wakes too late for the datagrams that a fast sender puts into the socket.
#[test]
fn a_thread_that_polls_for_datagrams_does_not_nap() {
    let ends = Ends::new();
    let udp = ends.server.bind_datagram_port(Some(&[Ipv4Addr::LOCALHOST.into()])).unwrap();
    let attributes = DatagramQueuePairAttributes::new(ends.server.device().allocate_domain(), &ends.cq);
    let _pair = ends.server.create_datagram_qp(&attributes, udp).unwrap();
    assert!(!ends.cq.nap(TIMEOUT));
}

/// A poll set whose program was woken for a message, which the program has not acknowledged.
struct Woken {
    set: Arc<PollSet>,
    /// Number of polls of the set when the program was woken.
    polls: u64,
    /// Blocks the lane of the set until it is dropped.
    _lane_blocker: Sender<()>,
}

/// Blocks the lane, sends a message, and serves the set in place of the lane until the program is woken for the
/// message.
fn wake_for_message(ends: &Ends) -> Woken {
    let set = Arc::clone(&ends.cq.sets()[0]);
    // The first message does not count: it is acknowledged with the answer to the client's signal.
    ends.send();
    until(|| ends.cq.poll(1, drop) == Ok(1));
    until(|| !set.is_polled() && !ends.far.qp().owes_acknowledgement());
    ends.far.qp().post_receive(ReceiveRequest { id: 8, buffers: Sges::default() }).unwrap();
    let ((blocked, is_blocked), (lane_blocker, unblock)) = (channel(), channel::<()>());
    let block = move || {
        blocked.send(()).unwrap();
        let _ = unblock.recv(); // until the sender is dropped
    };
    set.lane().call(block);
    is_blocked.recv_timeout(TIMEOUT).unwrap();
    assert!(!ends.cq.arm(Arm::Next));
    ends.send();
    let (mut events, deadline) = (Events::new(4), Instant::now() + TIMEOUT);
    loop {
        // The set is served in a tight loop, so it may request a pause, as if messages streamed in.
        let fired = match set.serve_event(&mut events) {
            FollowUp::Pause => set.resume(&mut events),
            fired => fired,
        };
        if let FollowUp::CheckPolling(polls) = fired {
            assert!(!ends.cq.cq().is_armed(), "the program was woken");
            assert!(ends.far.qp().owes_acknowledgement(), "and the rest is left to it");
            return Woken { set, polls, _lane_blocker: lane_blocker };
        }
        assert!(Instant::now() < deadline, "the message does not come");
    }
}

fn completion(wr_id: u64) -> Completion {
    Completion::succeeded(wr_id, Opcode::Receive, 1, 0)
}

/// Programs arm the queue, poll once more and then sleep, as the manual pages require. That last poll must leave the
/// sockets to the lane: otherwise the lane would need milliseconds to notice that the program does not poll any more.
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
    let _woken = wake_for_message(&ends);
    send(&ends.far);
    assert!(!ends.far.qp().owes_acknowledgement());
}

#[test]
fn who_is_woken_for_a_message_and_turns_to_other_things_has_it_acknowledged() {
    let ends = Ends::new();
    let woken = wake_for_message(&ends);
    assert!(matches!(woken.set.check_polling(Some(woken.polls)), PollCheck::Over), "nobody polls");
    assert!(!ends.far.qp().owes_acknowledgement());
}

/// A thread that vanishes does not hand the sockets over: the lane has to check that the thread exists.
#[test]
fn a_thread_that_vanishes_in_its_sleep_leaves_the_sockets_to_the_lane() {
    let ends = Ends::new();
    let handler = ends.server.create_handler().unwrap();
    ends.cq.set_handler(Some(&handler));
    assert!(!ends.cq.arm(Arm::Next));
    let sleeper = ends.start_sleeper();
    sleeper.kill();
    sleeper.join();
    ends.send();
    assert!(handler.wait(Some(TIMEOUT)).is_some(), "a lane found the message");
    until(|| ends.cq.waiters.count() == (0, 0)); // and forgot the thread
    assert_eq!(ends.cq.poll(1, drop), Ok(1));
}

#[test]
fn a_thread_that_is_cancelled_in_its_sleep_gives_the_sockets_back() {
    let ends = Ends::new();
    let handler = ends.server.create_handler().unwrap();
    ends.cq.set_handler(Some(&handler));
    assert!(!ends.cq.arm(Arm::Next));
    let sleeper = ends.start_sleeper();
    sleeper.cancel();
    sleeper.join();
    assert_eq!(ends.cq.waiters.count(), (0, 0), "it said so itself");
    ends.send();
    assert!(handler.wait(Some(TIMEOUT)).is_some(), "a lane found the message");
}

#[test]
fn a_place_on_the_sockets_is_taken_from_a_thread_that_vanished() {
    let ends = Ends::new();
    let sleeper = ends.start_sleeper();
    sleeper.kill();
    sleeper.join();
    let cq = Arc::clone(&ends.cq);
    let next = thread::spawn(move || cq.wait(Some(TIMEOUT)));
    until(|| ends.cq.waiters.count() == (1, 1));
    ends.send();
    assert_eq!(next.join().unwrap(), Ok(true));
}

#[test]
fn who_sleeps_beside_another_wakes_in_time() {
    let ends = Ends::new();
    thread::scope(|scope| {
        let first = scope.spawn(|| ends.cq.wait(Some(TIMEOUT)));
        until(|| ends.cq.waiters.count() == (1, 1));
        let began = Instant::now();
        assert_eq!(ends.cq.wait(Some(Duration::from_millis(20))), Ok(false));
        assert!(began.elapsed() < TIMEOUT / 2, "not as long as the other");
        // The first thread may have woken meanwhile for an event of its socket, and gone to sleep on the alarm.
        until(|| ends.cq.waiters.count() == (1, 1));
        ends.send();
        assert_eq!(first.join().unwrap(), Ok(true));
    });
}

#[test]
fn when_the_one_on_the_sockets_leaves_another_takes_its_place() {
    let ends = Ends::new();
    let first = ends.start_sleeper();
    thread::scope(|scope| {
        let second = scope.spawn(|| ends.cq.wait(Some(TIMEOUT)));
        until(|| ends.cq.waiters.count() == (2, 1));
        first.cancel();
        first.join();
        until(|| ends.cq.waiters.count() == (1, 1));
        ends.send();
        assert_eq!(second.join().unwrap(), Ok(true));
    });
}

/// There are as many completions as sleeping threads: each thread gets one, whichever of them resets the alarm.
#[test]
fn every_sleeper_is_woken_for_its_completion() {
    const SLEEPERS: usize = 4;
    let engine = Engine::new(Config::default()).unwrap();
    let cq = engine.create_cq(64).unwrap();
    for _ in 0..200 {
        thread::scope(|scope| {
            let take = || {
                while cq.wait(Some(TIMEOUT)).unwrap() {
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

/// A program that waits for events polls the armed queue once more, and may hear the bell before the lane does.
#[test]
fn a_bell_that_the_program_has_heard_rings_again() {
    let ends = Ends::shared();
    let handler = ends.server.create_handler().unwrap();
    ends.cq.set_handler(Some(&handler));
    let _ = ends.cq.arm(Arm::Next);
    until(|| ends.cq.poll_sets().iter().all(|set| !set.is_polled()));
    {
        let _blocker = block_lane(&ends.cq);
        ends.receive();
        ends.send();
        // Enough polls that some of them look at the sockets, too. The queue is armed, so the set stays with the lane.
        let polls = (0..100).map(|_| {
            let _ = ends.cq.arm(Arm::Next);
            ends.cq.poll(1, drop).unwrap()
        });
        assert_eq!(polls.sum::<usize>(), 1);
    }
    until(|| handler.try_next().is_none());
    let _ = ends.cq.arm(Arm::Next);
    ends.receive();
    ends.send();
    assert!(handler.wait(Some(TIMEOUT)).is_some(), "the message wakes the program");
}

/// Blocks the lane of the only poll set until the result is dropped.
pub(super) fn block_lane(cq: &CompletionQueue) -> Sender<()> {
    let ((blocked, is_blocked), (blocker, unblock)) = (channel(), channel::<()>());
    let block = move || {
        blocked.send(()).unwrap();
        let _ = unblock.recv(); // until the sender is dropped
    };
    cq.sets()[0].lane().call(block);
    is_blocked.recv_timeout(TIMEOUT).unwrap();
    blocker
}
