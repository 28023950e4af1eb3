//! Threads that sleep until a message arrives in shared memory: the other process rings a bell.

use super::common::{End, SHARED, TIMEOUT, Waits, check, pattern, shared_ends};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Arm, Completion, Opcode, Operation, Status};
use ironwarp_testkit::wait::until;
use std::fs;
use std::sync::atomic::{AtomicI32, Ordering};

const MESSAGES: u64 = 300;
/// Number of messages in each direction, where threads sleep only sometimes.
const ROUND_TRIPS: u64 = 3_000;
/// Number of polls of an armed queue: enough to poll its sockets several times.
const POLLS: usize = 400;
const LEN: usize = 200;
const BYTES: usize = 2 * LEN;

/// A thread, as /proc shows it.
#[derive(Default)]
struct Thread(AtomicI32);

impl Thread {
    /// Records that the calling thread is this one.
    fn is_this(&self) {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/self/task/{}/{name}", self.0.load(Ordering::Acquire))).ok()
    }

    /// Waits until the thread sleeps.
    fn await_sleep(&self) {
        until(|| {
            self.file("stat")
                .is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, it)| it.starts_with('S')))
        });
    }

    /// Number of times that the thread has gone to sleep.
    fn sleeps(&self) -> u64 {
        let status = self.file("status").unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Runs one end: each message is sent when the other thread sleeps.
fn take_turns(end: &End, starts: bool, this: &Thread, other: &Thread) {
    this.is_this();
    let (own, others) = if starts { (1, 2) } else { (2, 1) };
    let send = |number: u64| {
        other.await_sleep();
        end.host.memory.write(0, &pattern(own << 32 | number, LEN));
        end.post(number, Operation::Send { invalidate: None }, 0, LEN);
        end.succeeds(Opcode::Send, number);
    };
    let before = this.sleeps();
    for number in 0..MESSAGES {
        end.receive(number, LEN, LEN);
        if starts {
            send(number);
        }
        end.succeeds(Opcode::Receive, number);
        check(&end.host.memory.read(LEN, LEN), others << 32 | number, "a message that woke this thread");
        if !starts {
            send(number);
        }
    }
    let sleeps = this.sleeps() - before;
    assert!(sleeps >= MESSAGES, "{sleeps} sleeps for {MESSAGES} messages");
}

fn both_sleep(waits: [Waits; 2]) {
    let (client, server) = shared_ends(&Config::default().shm(true), Completes::WhenSent, BYTES);
    let (client, server) = (client.waits(waits[0]), server.waits(waits[1]));
    let (near, far) = (Thread::default(), Thread::default());
    std::thread::scope(|scope| {
        scope.spawn(|| take_turns(&server, false, &far, &near));
        until(|| far.0.load(Ordering::Acquire) != 0);
        take_turns(&client, true, &near, &far);
    });
    assert_eq!((client.routes(), server.routes()), (SHARED, SHARED));
}

#[test]
fn each_message_wakes_a_thread_that_sleeps_in_wait() {
    both_sleep([Waits::Sleeping, Waits::Sleeping]);
}

#[test]
fn each_message_wakes_a_thread_that_waits_for_events() {
    both_sleep([Waits::ForEvents, Waits::ForEvents]);
}

#[test]
fn each_message_wakes_a_thread_whichever_way_it_sleeps() {
    both_sleep([Waits::Sleeping, Waits::ForEvents]);
}

/// Waits for the next completion as C programs do: they arm the queue, poll until it is empty, and only then sleep.
fn next_after_arming(end: &End, polls: usize) -> Completion {
    let handler = end.handler.as_ref().unwrap();
    loop {
        let armed = !end.cq.arm(Arm::Next);
        for _ in 0..polls {
            let mut found = None;
            end.cq.poll(1, |completion| found = Some(completion)).unwrap();
            if let Some(completion) = found {
                return completion;
            }
        }
        assert!(!armed || handler.wait(Some(TIMEOUT)).is_some(), "no event, routes {:?}", end.routes());
    }
}

/// A thread that polls may take the ring of a bell that was for the lane. The next message must ring it again: here the
/// thread sleeps after every other message.
#[test]
fn polling_an_armed_queue_loses_no_bell() {
    let (client, server) = shared_ends(&Config::default().shm(true), Completes::WhenAcknowledged, BYTES);
    let (client, server) = (client.waits(Waits::ForEvents), server.waits(Waits::ForEvents));
    let play = |end: &End, starts: bool| {
        for number in 0..ROUND_TRIPS {
            end.receive(number, LEN, LEN);
            if starts {
                end.post(number, Operation::Send { invalidate: None }, 0, LEN);
            }
            let mut left = if starts { 2 } else { 1 };
            while left > 0 {
                let completion = next_after_arming(end, if number % 2 == 0 { POLLS } else { 1 });
                assert_eq!(completion.status, Status::Success);
                left -= usize::from(starts || completion.opcode == Opcode::Receive);
            }
            if !starts {
                end.post(number, Operation::Send { invalidate: None }, 0, LEN);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&server, false));
        play(&client, true);
    });
}
