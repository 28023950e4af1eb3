//! Queue pairs that move between lanes (requirement I9). Data is verified meanwhile, whichever thread makes progress.
#![allow(clippy::unwrap_used, reason = "a test")]

use ironwarp::completion::{Arm, Class, Completion, CompletionHandler, CompletionQueue, CqEvent, Opcode};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Buffer, MemoryRegion};
use ironwarp::queue::{Completes, QueuePair, WorkRequest};
use ironwarp::steering::RedirectionTable;
use ironwarp::{Adapter, Config};
use ironwarp_testkit::native::{ALL, SOON, pattern};
use rustix::event::{PollFd, PollFlags, poll};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

#[path = "steering/processors.rs"]
mod processors;

const PAIRS: usize = 3;
/// Number of messages of a queue pair in flight.
const WINDOW: u64 = 4;
/// Lengths of one segment, of several, and more than a socket buffer.
const SIZES: [usize; 4] = [16, 3000, 200, 60_000];
const MAX_SIZE: usize = 60_000;
/// Offsets in the pattern: adjacent messages start at different ones.
const PLACES: u64 = 251;

/// How a program waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Polling,
    Sleeping,
    ForEvents,
    /// At two handlers, a low-latency one and another; the queue changes between them.
    AtEither,
}

/// One side: its queue pairs share a completion queue.
struct Side {
    adapter: Adapter,
    cq: CompletionQueue,
    handlers: [CompletionHandler; 2],
    qps: Vec<QueuePair>,
    /// Send buffer.
    source: MemoryRegion,
    /// Receive buffers, one for each message in flight of each queue pair.
    sink: MemoryRegion,
    waits: Waits,
}

impl Side {
    fn new(config: Config, waits: Waits) -> Self {
        let adapter = Adapter::open(config).unwrap();
        let cq = adapter.completion_queue(256).unwrap();
        Self::with(adapter, cq, waits)
    }

    fn with(adapter: Adapter, cq: CompletionQueue, waits: Waits) -> Self {
        let handlers = [(); 2].map(|()| adapter.completion_handler().unwrap());
        handlers[0].set_class(Class::LowLatency).unwrap();
        if waits == Waits::AtEither {
            cq.set_handler(&handlers[1]); // events at its own handler would be missed
        }
        let domain = adapter.protection_domain();
        let places = usize::try_from(PLACES).unwrap();
        let source = domain.register(Buffer::copy_of(&pattern(0, MAX_SIZE + places)).unwrap(), ALL).unwrap();
        let slots = PAIRS * usize::try_from(WINDOW).unwrap();
        let sink = domain.register(Buffer::new(slots * MAX_SIZE).unwrap(), ALL).unwrap();
        let qp = || domain.queue_pair(&cq).completes(Completes::WhenAcknowledged).create().unwrap();
        let qps = std::iter::repeat_with(qp).take(PAIRS).collect();
        Self { adapter, cq, handlers, qps, source, sink, waits }
    }

    fn slot(which: usize, number: u64) -> usize {
        (which * usize::try_from(WINDOW).unwrap() + usize::try_from(number % WINDOW).unwrap()) * MAX_SIZE
    }

    fn receive(&self, which: usize, number: u64) {
        let at = Self::slot(which, number);
        let into = self.sink.slice(at..at + MAX_SIZE).unwrap();
        self.qps[which].post_receive(number, &[into]).unwrap();
    }

    fn send(&self, which: usize, number: u64) {
        let at = usize::try_from(number % PLACES).unwrap();
        let list = [self.source.slice(at..at + length(number)).unwrap()];
        self.qps[which].post_send(WorkRequest::send(number, &list)).unwrap();
    }

    /// Checks that a received message is the one with this number, byte by byte.
    fn verify(&self, which: usize, number: u64, completion: &Completion, expected: &[u8]) {
        assert_eq!(
            (completion.wr_id, completion.byte_len as usize),
            (number, length(number)),
            "{completion:?}"
        );
        let mut bytes = vec![0; length(number)];
        self.sink.read(Self::slot(which, number), &mut bytes).unwrap();
        let at = usize::try_from(number % PLACES).unwrap();
        assert!(bytes == expected[at..][..bytes.len()], "message {number} of queue pair {which} differs");
    }

    fn next(&self) -> Completion {
        let deadline = Instant::now() + SOON;
        let completion = match self.waits {
            Waits::Sleeping => Some(self.cq.wait(SOON).unwrap()),
            Waits::Polling => loop {
                let found = self.cq.poll_one().unwrap();
                if found.is_some() || Instant::now() > deadline {
                    break found;
                }
            },
            Waits::ForEvents => loop {
                let found = self.cq.poll_one().unwrap();
                if found.is_some() {
                    break found;
                }
                if !self.cq.arm(Arm::Next) && self.cq.own_handler().wait(SOON).is_err() {
                    break None;
                }
            },
            Waits::AtEither => loop {
                let found = self.cq.poll_one().unwrap();
                if found.is_some() {
                    break found;
                }
                if !self.cq.arm(Arm::Next) && self.wait_at_either().is_none() {
                    break None;
                }
            },
        };
        completion.expect("a completion in time").success().unwrap_or_else(|error| panic!("{error}"))
    }

    fn wait_at_either(&self) -> Option<CqEvent> {
        let mut fds = self.handlers.each_ref().map(|handler| PollFd::new(handler, PollFlags::IN));
        poll(&mut fds, Some(&SOON.try_into().unwrap())).unwrap();
        self.handlers.iter().find_map(CompletionHandler::try_next)
    }

    fn which(&self, completion: &Completion) -> usize {
        self.qps.iter().position(|qp| qp.id() == completion.qp).unwrap()
    }
}

fn length(number: u64) -> usize {
    SIZES[usize::try_from(number).unwrap() % SIZES.len()]
}

fn connected(config: &Config, [near, far]: [Waits; 2]) -> (Side, Side) {
    let (client, server) = (Side::new(config.clone(), near), Side::new(config.clone(), far));
    connect(&client, &server);
    (client, server)
}

fn connect(client: &Side, server: &Side) {
    for side in [client, server] {
        side.adapter.steering().set_table(RedirectionTable::spread(1)).unwrap();
        for which in 0..PAIRS {
            (0..WINDOW).for_each(|number| side.receive(which, number));
        }
    }
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    for (one, other) in client.qps.iter().zip(&server.qps) {
        one.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
        let incoming = listener.accept(SOON).unwrap();
        incoming.accept(other, &AcceptOptions::new()).unwrap();
        one.wait_connected(SOON).unwrap();
        other.wait_connected(SOON).unwrap();
    }
}

/// State shared by the two sides of a conversation and its observer.
struct Talk {
    /// Whether the conversation is to end.
    over: AtomicBool,
    /// Final number of messages in each direction of each queue pair, once known.
    last: [AtomicUsize; PAIRS],
    /// Number of messages so far.
    messages: AtomicUsize,
}

/// Sends and receives messages on all queue pairs, with a window of messages in flight, until the conversation ends and
/// everything sent has arrived.
fn talk(side: &Side, talk: &Talk) {
    let last = &talk.last;
    let expected = side.source.to_vec().unwrap();
    let (mut sent, mut done, mut received) = ([WINDOW; PAIRS], [0; PAIRS], [0; PAIRS]);
    for which in 0..PAIRS {
        (0..WINDOW).for_each(|number| side.send(which, number));
    }
    let limit = |which: usize| last[which].load(Ordering::SeqCst) as u64;
    while (0..PAIRS).any(|which| received[which] < limit(which) || done[which] < limit(which)) {
        let completion = side.next();
        let which = side.which(&completion);
        if completion.opcode == Opcode::Receive {
            side.verify(which, received[which], &completion, &expected);
            received[which] += 1;
            talk.messages.fetch_add(1, Ordering::SeqCst);
            side.receive(which, received[which] + WINDOW - 1);
        } else {
            assert_eq!(completion.wr_id, done[which], "out of order: {completion:?}");
            done[which] += 1;
        }
        // The peer has posted a receive for this message: it posts a receive before it replies.
        while sent[which] < (received[which].min(done[which]) + WINDOW).min(limit(which)) {
            side.send(which, sent[which]);
            sent[which] += 1;
        }
        if talk.over.load(Ordering::SeqCst) {
            for (which, last) in last.iter().enumerate() {
                let _ = last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |known| {
                    (known == usize::MAX).then(|| usize::try_from(sent[which] + 2 * WINDOW).unwrap())
                });
            }
        }
    }
}

/// Lets both sides exchange messages until `meanwhile` returns false. `meanwhile` is called with the number of messages
/// so far.
fn talk_while(client: &Side, server: &Side, mut meanwhile: impl FnMut(usize) -> bool) {
    let last = std::array::from_fn(|_| AtomicUsize::new(usize::MAX));
    let the = Talk { over: AtomicBool::new(false), last, messages: AtomicUsize::new(0) };
    std::thread::scope(|scope| {
        let ends = [client, server].map(|side| scope.spawn(|| talk(side, &the)));
        let _over = Over(&the.over);
        while meanwhile(the.messages.load(Ordering::SeqCst))
            && !ends.iter().any(ScopedJoinHandle::is_finished)
        {}
    });
}

/// Ends the conversation when dropped, even if a test fails. Otherwise the other threads would run forever.
struct Over<'t>(&'t AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Thousands of moves, with messages in between.
fn moved_back_and_forth(waits: [Waits; 2]) {
    let config = Config::default().rebalance(0);
    let (client, server) = connected(&config, waits);
    let mut moves = 0;
    talk_while(&client, &server, |messages| {
        for side in [&client, &server] {
            let steering = side.adapter.steering();
            let (qp, to) = (&side.qps[moves % PAIRS], (moves / PAIRS) % steering.lanes());
            steering.move_queue_pair(qp, to).unwrap();
            assert_eq!(qp.lane(), Some(to));
        }
        moves += 1;
        moves < 5000 || messages < 5000
    });
}

#[test]
fn nothing_is_lost_while_lanes_serve_and_queue_pairs_move() {
    moved_back_and_forth([Waits::ForEvents, Waits::ForEvents]);
}

#[test]
fn nothing_is_lost_while_programs_poll_and_queue_pairs_move() {
    moved_back_and_forth([Waits::Polling, Waits::Polling]);
}

#[test]
fn nothing_is_lost_while_programs_sleep_and_queue_pairs_move() {
    moved_back_and_forth([Waits::Sleeping, Waits::ForEvents]);
}

/// Returns whether the low-latency lane (requirement N6) serves a queue pair. That lane has the number after all
/// others.
fn is_urgent(side: &Side, qp: &QueuePair) -> bool {
    qp.lane() == Some(side.adapter.steering().lanes())
}

/// Waits until the low-latency lane, or another, serves all queue pairs. A new connection moves to the right lane by
/// itself.
fn wait_for_urgency(side: &Side, urgent: bool) {
    let deadline = Instant::now() + SOON;
    while !side.qps.iter().all(|qp| is_urgent(side, qp) == urgent) {
        assert!(Instant::now() < deadline, "queue pairs are on the wrong lane");
        std::thread::yield_now();
    }
}

/// The consumer sleeps at a handler whose class changes.
#[test]
fn nothing_is_lost_while_a_handler_changes_its_class() {
    let (client, server) = connected(&Config::default(), [Waits::ForEvents, Waits::ForEvents]);
    let share = Class::Bulk(NonZero::new(3).unwrap());
    let mut changes = 0;
    talk_while(&client, &server, |messages| {
        let class = [Class::LowLatency, share, Class::LowLatency, Class::DEFAULT][changes % 4];
        for side in [&client, &server] {
            side.cq.own_handler().set_class(class).unwrap();
            wait_for_urgency(side, class == Class::LowLatency);
        }
        changes += 1;
        changes < 2000 || messages < 5000
    });
}

/// *Modify CQ* with completions in flight, between handlers of different classes (requirements N4, N6).
#[test]
fn nothing_is_lost_while_a_queue_changes_its_handler() {
    let (client, server) = connected(&Config::default(), [Waits::AtEither, Waits::AtEither]);
    let mut changes = 0;
    talk_while(&client, &server, |messages| {
        for side in [&client, &server] {
            side.cq.set_handler(&side.handlers[changes % 2]);
            wait_for_urgency(side, changes.is_multiple_of(2));
        }
        changes += 1;
        changes < 2000 || messages < 5000
    });
}

/// A connection made when its queue is already low-latency is served by that lane from the start.
#[test]
fn a_new_connection_starts_on_the_lane_of_its_class() {
    let (client, server) = connected(&Config::default(), [Waits::Sleeping, Waits::Sleeping]);
    assert!(!is_urgent(&client, &client.qps[0]));
    client.cq.set_handler(&client.handlers[0]);
    wait_for_urgency(&client, true);
    assert!(!is_urgent(&server, &server.qps[0]));
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let [one, other] = [&client, &server]
        .map(|side| side.adapter.protection_domain().queue_pair(&side.cq).create().unwrap());
    one.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    listener.accept(SOON).unwrap().accept(&other, &AcceptOptions::new()).unwrap();
    one.wait_connected(SOON).unwrap();
    assert!(is_urgent(&client, &one) && !is_urgent(&server, &other));
    client.cq.set_handler(None);
    wait_for_urgency(&client, false);
}

/// Returns the number of a side's queue pairs that are not on the first lane, where all of them started.
fn count_moved(side: &Side) -> usize {
    side.qps.iter().filter(|qp| qp.lane() != Some(0)).count()
}

#[test]
fn a_busy_lane_hands_queue_pairs_to_an_idle_one() {
    // In shared memory, connections stay with the lane of their carrier.
    let config = Config::default().rebalance(1).shm(false);
    let (client, server) = connected(&config, [Waits::ForEvents, Waits::ForEvents]);
    talk_while(&client, &server, |_| count_moved(&client) == 0);
    assert!(count_moved(&client) < PAIRS, "some stay");
    let load = client.adapter.steering().load();
    assert_eq!(load.iter().map(|lane| lane.sockets).sum::<usize>(), PAIRS);
    assert!(load.iter().all(|lane| lane.sockets > 0 && !lane.busy.is_zero()), "{load:?}");
}

#[test]
fn queue_pairs_stay_if_rebalancing_is_off() {
    let config = Config::default().rebalance(0);
    let (client, server) = connected(&config, [Waits::ForEvents, Waits::ForEvents]);
    talk_while(&client, &server, |messages| messages < 3000);
    assert_eq!((count_moved(&client), count_moved(&server)), (0, 0));
}

/// Returns the processors that the kernel lets each lane with this number run on. The peer is an adapter in the same
/// process, so there are several such lanes.
fn lane_processors(lane: usize) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let read = |task: &Path, file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let named = tasks.filter(|task| read(task, "comm").trim() == format!("ironwarp-{lane}"));
    let status = named.map(|task| read(&task, "status"));
    let list = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    status.map(list).collect()
}

/// Requirement N5: neither steering nor rebalancing moves them.
#[test]
fn a_queue_pair_and_its_lane_stay_on_the_chosen_processor() {
    let config = Config::default().rebalance(1);
    let client = Side::new(config.clone(), Waits::ForEvents);
    let adapter = Adapter::open(config).unwrap();
    let last = adapter.steering().lanes() - 1;
    let processor = *adapter.steering().processors(last).unwrap().last().unwrap();
    adapter.steering().set_processors(last, &[processor]).unwrap();
    assert!(lane_processors(last).contains(&processor.to_string()), "{:?}", lane_processors(last));

    let cq = adapter.completion_queue_on(256, last).unwrap();
    let server = Side::with(adapter, cq, Waits::ForEvents);
    connect(&client, &server);
    let there = || server.qps.iter().all(|qp| qp.lane() == Some(last));
    assert!(there(), "regardless of the table");
    let before = server.adapter.steering().load();
    talk_while(&client, &server, |messages| messages < 10_000);
    let after = server.adapter.steering().load();
    assert!(there(), "regardless of the load");
    let served = |lane: usize| after[lane].wakes - before[lane].wakes;
    assert!(served(last) > 100, "{} wakes", served(last));
    assert!((0..last).all(|lane| served(lane) < 10 && after[lane].sockets == 0), "{before:?} {after:?}");
    assert_eq!(server.adapter.steering().processors(last).unwrap(), [processor]);
}

#[test]
fn moves_that_are_impossible_are_refused() {
    let config = Config::default();
    let (client, server) = connected(&config, [Waits::Sleeping, Waits::Sleeping]);
    let steering = client.adapter.steering();
    let lanes = steering.lanes();
    let error = steering.move_queue_pair(&client.qps[0], lanes).unwrap_err().to_string();
    assert_eq!(error, format!("lane {lanes} out of range: the adapter has lanes 0 to {}", lanes - 1));
    server.qps[0].disconnect();
    client.qps[0].disconnect();
    assert!(client.qps[0].wait_closed(SOON));
    let error = steering.move_queue_pair(&client.qps[0], lanes - 1).unwrap_err().to_string();
    assert_eq!(error, "the queue pair is not connected");
}
