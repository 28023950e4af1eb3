//! Measures how long a peer waits at most around a hand-over, and around closing a connection and making another one. Prints
//! numbers, and asserts none: `cargo test -p ironwarp --test hand_over --release -- --ignored --nocapture pause`.

use super::role::config;
use super::scene::Process;
use super::{get, hosts};
use ironwarp::function::{Moving, Quotas};
use ironwarp::hand_over::{HandOverOptions, TakeOverOptions, TakenOver};
use ironwarp::memory::{RemoteAddr, Tag};
use ironwarp::prelude::*;
use ironwarp_testkit::child;
use ironwarp_testkit::control::{is_readable, pair, put};
use ironwarp_testkit::hosts::INTERFACE;
use ironwarp_testkit::native::SOON;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::stdin;
use std::time::{Duration, Instant};

/// The test that the processes run in.
const HOST: &str = "pause::the_pause_that_a_peer_sees_is_printed";
/// Number of hand-overs, and of connections made anew.
const ROUNDS: usize = 200;
/// How long traffic flows before and after each.
const FLOW: Duration = Duration::from_millis(5);

/// The end that answers: writes back what the peer writes to a word.
struct Echo {
    adapter: Adapter,
    domain: ProtectionDomain,
    cq: CompletionQueue,
    /// The connection, and others that are idle.
    qps: Vec<QueuePair>,
    region: MemoryRegion,
    theirs: Tag,
}

impl Echo {
    fn new(theirs: Tag) -> Self {
        let adapter = Adapter::open(config()).unwrap();
        let (cq, domain) = (adapter.completion_queue(64).unwrap(), adapter.protection_domain());
        let buffer = Buffer::builder().shareable().allocate(4096).unwrap();
        let region = domain.register(buffer, Access::all()).unwrap();
        Self { adapter, domain, cq, qps: Vec::new(), region, theirs }
    }

    /// Returns the end that was taken over.
    fn of(mut taken: TakenOver) -> Self {
        Self {
            domain: taken.protection_domains.remove(0),
            cq: taken.completion_queues.remove(0),
            qps: taken.queue_pairs,
            region: taken.regions.remove(0),
            adapter: taken.adapter,
            theirs: Tag(u32::from_le_bytes(taken.data[..].try_into().unwrap())),
        }
    }

    fn options(&self) -> HandOverOptions {
        HandOverOptions::new().timeout(SOON).pause(SOON).data(&self.theirs.0.to_le_bytes())
    }

    /// Answers until the test says something.
    fn run(&self) {
        let (word, mut last) = (self.region.view::<u64>(0).unwrap(), 0);
        let to = RemoteAddr { tag: self.theirs, offset: 0 };
        let mut changed = Instant::now();
        for turn in 0_u64.. {
            // An end that nobody measures at the moment leaves the processors to others.
            let wait = if changed.elapsed() > FLOW { Duration::from_millis(1) } else { Duration::ZERO };
            if turn.is_multiple_of(16) && is_readable(stdin(), wait) {
                return;
            }
            assert!(
                self.cq.poll_one().unwrap().is_none_or(|completion| completion.status != Status::Success)
            );
            let value = word.load();
            if value != last
                && let Some(qp) = self.qps.first()
            {
                changed = Instant::now();
                // Refused if the connection has ended.
                if qp.post_send(WorkRequest::write_inline(0, &value.to_ne_bytes(), to).unsignaled()).is_ok() {
                    last = value;
                }
            }
        }
    }
}

/// Does what the test says, to the end.
pub(crate) fn play() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    play_with(None);
}

/// Takes the end that answers over from another host, which has started this process.
pub(crate) fn arrive() {
    put(stdin(), format!("here {}", std::process::id()).as_bytes(), &[]);
    let (input, output) = hosts::pipes();
    let options = TakeOverOptions::new().config(config()).timeout(SOON);
    let taken = Adapter::take_over_from_host(input, output, INTERFACE, options).unwrap();
    let echo = Echo::of(taken);
    put(stdin(), b"taken", &[]);
    play_with(Some(echo));
}

/// Does what the test says, to the end.
fn play_with(mut state: Option<Echo>) {
    // The domain and the completion queue of the function that the connection is not in.
    let mut spare = None;
    loop {
        if let Some(echo) = &state {
            echo.run();
        }
        while !is_readable(stdin(), SOON) {}
        let (text, descriptors) = get(stdin());
        let words: Vec<_> = str::from_utf8(&text).unwrap().split(' ').collect();
        let socket = descriptors.into_iter().next();
        let answer = match words[0] {
            "open" => {
                let echo = state.get_or_insert_with(|| Echo::new(Tag(words[2].parse().unwrap())));
                echo.region.write(0, &[0; 8]).unwrap();
                for _ in 0..words[3].parse().unwrap() {
                    let qp =
                        echo.domain.queue_pair(&echo.cq).send_depth(16).receive_depth(1).create().unwrap();
                    let options = match words.get(4) {
                        Some(from) => ConnectOptions::new().from_addr(from.parse().unwrap()),
                        None => ConnectOptions::new(),
                    };
                    qp.start_connect(words[1].parse().unwrap(), &options).unwrap();
                    qp.wait_connected(SOON).unwrap();
                    echo.qps.push(qp);
                }
                echo.region.tag().0.to_string()
            }
            "close" => {
                state.as_mut().unwrap().qps.clear();
                "closed".to_owned()
            }
            "give" => {
                let echo = state.take().unwrap();
                echo.adapter.hand_over(socket.unwrap(), &echo.options()).unwrap();
                "given".to_owned()
            }
            "give-host" => {
                let echo = state.take().unwrap();
                let control = socket.unwrap();
                let command = hosts::arriving(words[1], words[2], &control);
                drop(echo.adapter.hand_over_to_host(command, &echo.options()).unwrap());
                "given".to_owned()
            }
            "swap" => {
                let Echo { adapter, domain, cq, mut qps, region, theirs } = state.take().unwrap();
                let (next, next_cq) = spare.take().unwrap_or_else(|| {
                    let function = adapter.function(Quotas::default()).unwrap();
                    (function.protection_domain(), function.completion_queue(64).unwrap())
                });
                let moving = Moving::new(qps.remove(0), [region]);
                let mut moved = moving.move_to(&next, [&next_cq, &next_cq], SOON).unwrap();
                (qps, spare) = (vec![moved.qp], Some((domain, cq)));
                let region = moved.regions.remove(0);
                state = Some(Echo { adapter, domain: next, cq: next_cq, qps, region, theirs });
                "swapped".to_owned()
            }
            "take" => {
                let options = TakeOverOptions::new().timeout(SOON);
                state = Some(Echo::of(Adapter::take_over(socket.unwrap(), options).unwrap()));
                "taken".to_owned()
            }
            _ => return, // the test has ended
        };
        put(stdin(), answer.as_bytes(), &[]);
    }
}

/// The end that measures.
pub(crate) struct Pinger {
    domain: ProtectionDomain,
    cq: CompletionQueue,
    listener: Listener,
    region: MemoryRegion,
    qps: Vec<QueuePair>,
    theirs: Tag,
    count: u64,
}

impl Pinger {
    /// Creates an end that listens at this address.
    pub(crate) fn new(at: &str) -> Self {
        let adapter = Adapter::new().unwrap();
        let (cq, domain) = (adapter.completion_queue(64).unwrap(), adapter.protection_domain());
        let region = domain.register(Buffer::new(4096).unwrap(), Access::all()).unwrap();
        let listener = adapter.listen(at.parse().unwrap()).unwrap();
        Self { domain, cq, listener, region, qps: Vec::new(), theirs: Tag(0), count: 0 }
    }

    /// Has a process connect `count` queue pairs, from an address of the process if one is given.
    pub(crate) fn open(&mut self, process: &Process, count: usize, from: &str) {
        let at = self.listener.local_addr().unwrap();
        process.tell(format!("open {at} {} {count} {from}", self.region.tag().0).trim_end(), None);
        self.qps.clear();
        for _ in 0..count {
            let qp = self.domain.queue_pair(&self.cq).send_depth(16).receive_depth(1).create().unwrap();
            self.listener.accept(SOON).unwrap().accept(&qp, &AcceptOptions::new()).unwrap();
            self.qps.push(qp);
        }
        self.theirs = Tag(process.says().parse().unwrap());
    }

    /// Writes the next number to the word of the other end.
    fn ping(&mut self) {
        self.count += 1;
        let to = RemoteAddr { tag: self.theirs, offset: 0 };
        let bytes = self.count.to_ne_bytes();
        self.qps[0].post_send(WorkRequest::write_inline(0, &bytes, to).unsignaled()).unwrap();
    }

    /// Whether the last number has come back.
    fn is_back(&self) -> bool {
        assert!(self.cq.poll_one().unwrap().is_none());
        self.region.view::<u64>(0).unwrap().load() == self.count
    }

    /// Goes back and forth until the second process has taken over from the first, and some time longer. Returns the longest
    /// time for one round trip.
    pub(crate) fn run_during_move(&mut self, ends: [&Process; 2]) -> Duration {
        let mut answers = [false; 2];
        let mut settle = None;
        let longest = self.run(|| {
            for (answer, process) in answers.iter_mut().zip(ends) {
                *answer |= is_readable(&process.control, Duration::ZERO);
            }
            let now = Instant::now();
            answers == [true; 2] && now >= *settle.get_or_insert(now + FLOW)
        });
        assert_eq!(ends.map(Process::says), ["given", "taken"]);
        longest
    }

    /// Has the first process close its connection, and the other one connect; they change places. Returns the time for both
    /// and a round trip.
    pub(crate) fn reconnect(&mut self, ends: &mut [Process; 2]) -> Duration {
        self.run(flow());
        let start = Instant::now();
        ends[0].tell("close", None);
        ends[0].says();
        self.open(&ends[1], 1, "");
        self.ping();
        while !self.is_back() {
            assert!(start.elapsed() < SOON);
        }
        ends.swap(0, 1);
        start.elapsed()
    }

    /// Goes back and forth until `is_over`. Returns the longest time for one round trip.
    pub(crate) fn run(&mut self, mut is_over: impl FnMut() -> bool) -> Duration {
        let mut longest = Duration::ZERO;
        let limit = Instant::now() + SOON;
        loop {
            let start = Instant::now();
            self.ping();
            while !self.is_back() {
                assert!(Instant::now() < limit, "no answer");
            }
            longest = longest.max(start.elapsed());
            if is_over() {
                return longest;
            }
        }
    }
}

pub(crate) fn flow() -> impl FnMut() -> bool {
    let end = Instant::now() + FLOW;
    move || Instant::now() >= end
}

pub(crate) fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{what}: median {:?}, 99 % {:?}, longest {:?} of {}", at(50), at(99), at(100), times.len());
}

/// Measures with this many queue pairs.
fn measure(queue_pairs: usize, rounds: usize) {
    let (mut moved, mut remade) = (Pinger::new("127.0.0.1:0"), Pinger::new("127.0.0.1:0"));
    let mut movers = [0, 1].map(|_| Process::start_in(HOST));
    let mut others = [0, 1].map(|_| Process::start_in(HOST));
    moved.open(&movers[0], queue_pairs, "");
    remade.open(&others[0], 1, "");
    remade.reconnect(&mut others); // both have opened an adapter then
    let (mut quiet, mut pauses, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        quiet.push(moved.run(flow()));
        let (here, there) = pair();
        movers[1].tell("take", Some(there));
        movers[0].tell("give", Some(here));
        pauses.push(moved.run_during_move([&movers[0], &movers[1]]));
        movers.swap(0, 1);
        gaps.push(remade.reconnect(&mut others));
    }
    print(&format!("{queue_pairs} queue pairs, nothing happens"), quiet);
    print(&format!("{queue_pairs} queue pairs, hand-over"), pauses);
    print("1 queue pair, closed and connected again", gaps);
}

/// Measures moves from one function of a process to another, and back.
fn measure_functions(rounds: usize) {
    let mut pinger = Pinger::new("127.0.0.1:0");
    let process = Process::start_in(HOST);
    pinger.open(&process, 1, "");
    let (mut quiet, mut pauses) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        quiet.push(pinger.run(flow()));
        process.tell("swap", None);
        pauses.push(pinger.run(|| is_readable(&process.control, Duration::ZERO)));
        assert_eq!(process.says(), "swapped");
    }
    print("functions of a process, nothing happens", quiet);
    print("functions of a process, move", pauses);
}

#[test]
#[ignore = "prints times, which depend on the machine"]
fn the_pause_that_a_peer_sees_is_printed() {
    if child::role().is_some() {
        return play();
    }
    measure_functions(ROUNDS);
    measure(1, ROUNDS);
    measure(1000, ROUNDS / 10);
    measure(9000, ROUNDS / 10);
}
