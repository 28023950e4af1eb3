//! Ten million events: none is lost or duplicated, and the reader is woken once each time an event queue is
//! armed.
//!
//! Two threads complete requests on many queues. Two others, each with a handler, sleep until an event names
//! a queue, poll it, and arm it again: at random for the next completion or the next solicited one.
//! Occasionally a queue is moved to the other handler, or to none for a while, or is resized. If an event
//! were lost, its completion would stay in the queue and the test would not end.

use super::{TIMEOUT, completion};
use ironwarp_engine::EventFdWake;
use ironwarp_rnic::event::{CompletionHandler, HandlerId, Wake};
use ironwarp_rnic::queue::{Arm, Completion, Cq};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Debug builds are ten times slower; `cargo xtask events` runs the full number.
const EVENTS: u64 = if cfg!(debug_assertions) { 200_000 } else { 10_000_000 };
const QUEUES: u32 = 64;
const SMALLEST: usize = 64;
const LARGEST: usize = 256;
/// Tells a consumer to end.
const LAST: u32 = QUEUES;

/// An eventfd that counts its signals.
#[derive(Clone, Debug)]
struct Counted {
    wake: EventFdWake,
    signals: Arc<AtomicU64>,
    consumed: Arc<AtomicU64>,
}

impl Counted {
    fn new() -> Self {
        Self { wake: EventFdWake::new().unwrap(), signals: Arc::default(), consumed: Arc::default() }
    }
}

impl Wake for Counted {
    fn signal(&self) {
        let before = self.signals.fetch_add(1, Ordering::SeqCst);
        // The queue is armed at the beginning, and after each wakeup that was consumed.
        assert_eq!(before, self.consumed.load(Ordering::SeqCst), "one wakeup each time it is armed");
        self.wake.signal();
    }

    fn consume(&self) {
        let before = self.consumed.fetch_add(1, Ordering::SeqCst);
        assert_eq!(before + 1, self.signals.load(Ordering::SeqCst), "consumed without a wakeup");
        self.wake.consume();
    }
}

struct Queue {
    cq: Cq,
    /// The queue is armed, and its event was not taken yet.
    armed: AtomicBool,
    /// The number of the next completion.
    next: AtomicU64,
}

struct Test {
    queues: Vec<Queue>,
    handlers: [(Arc<CompletionHandler>, Counted); 2],
    events: AtomicU64,
}

/// A deterministic pseudo-random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }
}

impl Test {
    fn new() -> Self {
        let handlers = [2, 3].map(|id| {
            let wake = Counted::new();
            (CompletionHandler::new(HandlerId(id), Box::new(wake.clone()), None), wake)
        });
        let queue = |id| {
            let cq = Cq::new(id, LARGEST);
            cq.set_handler(Some(Arc::clone(&handlers[0].0)));
            Queue { cq, armed: AtomicBool::new(false), next: AtomicU64::new(0) }
        };
        let queues = (0..QUEUES).map(queue).collect();
        Self { queues, handlers, events: AtomicU64::new(0) }
    }

    /// Completes requests on every other queue until there were enough events. Returns the number of
    /// completions.
    fn push(&self, first: usize) -> u64 {
        let mut random = Random(1 + first as u64);
        let mut pushed = vec![0; self.queues.len()];
        while self.events.load(Ordering::Relaxed) < EVENTS {
            let n = random.below(self.queues.len() / 2) * 2 + first;
            let cq = &self.queues[n].cq;
            self.disturb(&mut random);
            // Each queue has one pusher: between this check and the push the queue can only become emptier,
            // and it is never made smaller than that.
            if cq.len() >= SMALLEST {
                thread::yield_now();
                continue;
            }
            // The last completion that fits is solicited, so that it wakes every consumer.
            let solicited = cq.len() + 1 == SMALLEST || random.below(3) == 0;
            let mut completion = completion(pushed[n]);
            completion.solicited = solicited;
            cq.push(completion).unwrap();
            pushed[n] += 1;
        }
        pushed.iter().sum()
    }

    /// Occasionally moves a random queue to another handler, or resizes it.
    fn disturb(&self, random: &mut Random) {
        let cq = &self.queues[random.below(self.queues.len())].cq;
        match random.below(64) {
            0 => cq.set_handler(None),
            n @ 1..=4 => cq.set_handler(Some(Arc::clone(&self.handlers[n % 2].0))),
            // Refused if it holds more completions.
            5 => drop(cq.resize(SMALLEST + random.below(LARGEST - SMALLEST + 1)).ok()),
            _ => {}
        }
    }

    /// Serves the queues that have events at a handler. Returns the number of completions taken.
    fn consume(&self, handler: usize) -> u64 {
        let _guard = Guard(self);
        let (handler, wake) = &self.handlers[handler];
        let mut random = Random(7 + handler.id().0);
        let mut taken = 0;
        loop {
            match handler.try_next() {
                Some(event) if event.cq == LAST => return taken,
                Some(event) => {
                    let queue = &self.queues[event.cq as usize];
                    assert!(queue.armed.swap(false, Ordering::SeqCst), "one event each time it is armed");
                    self.events.fetch_add(1, Ordering::Relaxed);
                    taken += queue.serve(&mut random);
                }
                None => sleep(wake),
            }
        }
    }

    /// Tells the consumers to end, after all other events.
    fn end(&self) {
        for queue in &self.queues {
            queue.cq.set_handler(Some(Arc::clone(&self.handlers[0].0)));
        }
        for (handler, _) in &self.handlers {
            let last = Cq::new(LAST, 1);
            last.set_handler(Some(Arc::clone(handler)));
            assert!(!last.arm(Arm::Next));
            last.push(completion(0)).unwrap();
        }
    }
}

/// Keeps the pushers from waiting for a consumer that has failed.
struct Guard<'t>(&'t Test);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.events.store(EVENTS, Ordering::Relaxed);
        }
    }
}

impl Queue {
    fn serve(&self, random: &mut Random) -> u64 {
        let mut taken = self.poll(1 + random.below(8));
        let arm = if random.below(2) == 0 { Arm::Next } else { Arm::Solicited };
        self.armed.store(true, Ordering::SeqCst);
        if self.cq.arm(arm) {
            // Completions from before raise no event: this thread has to take them.
            taken += self.poll(LARGEST);
        }
        taken
    }

    fn poll(&self, most: usize) -> u64 {
        let each = |done: Completion| {
            assert_eq!(
                self.next.fetch_add(1, Ordering::Relaxed),
                done.wr_id,
                "in order, none duplicated or missing"
            );
        };
        self.cq.poll(most, each).unwrap() as u64
    }
}

fn sleep(wake: &Counted) {
    let limit = Timespec::try_from(TIMEOUT).unwrap();
    let ready = poll(&mut [PollFd::new(&wake.wake, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "an event was lost");
}

#[test]
fn ten_million_events_are_neither_lost_nor_doubled_and_wake_once() {
    let test = Test::new();
    let began = Instant::now();
    test.queues.iter().for_each(|queue| assert_eq!(queue.serve(&mut Random(1)), 0));
    let (pushed, mut taken) = thread::scope(|scope| {
        let test = &test;
        let consumers = [0, 1].map(|handler| scope.spawn(move || test.consume(handler)));
        let pushers = [0, 1].map(|first| scope.spawn(move || test.push(first)));
        let pushed: u64 = pushers.map(|pusher| pusher.join().unwrap()).iter().sum();
        test.end();
        (pushed, consumers.map(|consumer| consumer.join().unwrap()).iter().sum::<u64>())
    });
    // Completions that were not solicited, or arrived while the last events were served.
    taken += test.queues.iter().map(|queue| queue.poll(LARGEST)).sum::<u64>();
    assert_eq!(taken, pushed, "every completion is taken once");
    let wakes = test.handlers.each_ref().map(|(handler, wake)| {
        let left = std::iter::from_fn(|| handler.try_next()).count() as u64;
        test.events.fetch_add(left, Ordering::Relaxed);
        let counts = [&wake.signals, &wake.consumed].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts[0], counts[1], "one wakeup per arm, except for the last one");
        counts[0]
    });
    let events = test.events.load(Ordering::Relaxed);
    println!("{events} events, {pushed} completions, {wakes:?} wakes in {:.1?}", began.elapsed());
    assert!(events >= EVENTS);
}
