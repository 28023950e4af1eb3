//! Unit tests of consumers: the descriptor is readable exactly while there is an event to take.

use super::super::Code;
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A semaphore whose count can be read.
#[derive(Debug, Default)]
struct Semaphore(AtomicUsize);

impl Wake for Semaphore {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn consume(&self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

/// Creates a consumer, and a function that returns whether its descriptor is readable.
fn consumer() -> (Consumer, impl Fn() -> bool) {
    let semaphore = Arc::<Semaphore>::default();
    let consumer = Consumer::new(2, Sizes { initial: 2, max: 1 << 17 }, Box::new(semaphore.clone()));
    let readable = move || match semaphore.0.load(Ordering::Relaxed) {
        0 => false,
        1 => true,
        more => panic!("{more} signals"),
    };
    (consumer, readable)
}

fn post(consumer: &Consumer, object: u32) {
    consumer.post(Event { code: Code::Completion, object }).expect("the queue has room");
}

fn next(consumer: &Consumer) -> Option<u32> {
    consumer.try_next().map(|event| event.object)
}

#[test]
fn readable_until_the_last_was_taken() {
    let (consumer, readable) = consumer();
    consumer.open();
    assert_eq!((next(&consumer), readable()), (None, false));
    (1..=3).for_each(|n| post(&consumer, n));
    for n in 1..=3 {
        assert!(readable());
        assert_eq!(next(&consumer), Some(n));
    }
    assert_eq!((readable(), next(&consumer)), (false, None));
    post(&consumer, 4);
    assert_eq!((readable(), next(&consumer), readable()), (true, Some(4), false));
}

#[test]
fn what_came_before_it_was_armed_is_found_then() {
    let (consumer, readable) = consumer();
    assert!(consumer.queue().define());
    post(&consumer, 1);
    post(&consumer, 2);
    assert_eq!(consumer.revoke(|event| event.object == 2), 1);
    assert_eq!((readable(), next(&consumer)), (false, None));
    consumer.arm();
    assert_eq!((readable(), next(&consumer), readable()), (true, Some(1), false));
}

/// Requirement I10: the driver decides when to arm.
#[test]
fn a_program_that_polls_is_not_woken_until_it_arms() {
    let (consumer, readable) = consumer();
    consumer.open();
    let poll = || consumer.poll_one().map(|event| event.object);
    assert_eq!(poll(), None);
    (1..=3).for_each(|n| post(&consumer, n));
    assert_eq!((readable(), next(&consumer), poll()), (false, None, Some(1)));
    assert_eq!((consumer.queue().stats().wakes, consumer.queue().stats().unread), (0, 2));
    consumer.arm();
    consumer.arm();
    assert_eq!((readable(), consumer.queue().stats().wakes), (true, 1), "there are events: woken at once");
    assert_eq!((poll(), readable()), (Some(2), false), "polling takes the wakeup away");
    assert_eq!((poll(), poll(), readable()), (Some(3), None, false));
    consumer.arm();
    assert!(!readable(), "there is no event");
    post(&consumer, 4);
    assert_eq!((readable(), next(&consumer), readable()), (true, Some(4), false));
    consumer.unarm();
    post(&consumer, 5);
    assert_eq!((readable(), next(&consumer)), (false, None));
    consumer.arm();
    assert_eq!((readable(), next(&consumer)), (true, Some(5)));
}

/// Requirement I10, for a queue that gets its memory later than the first poll.
#[test]
fn opening_does_not_arm_the_queue_of_a_program_that_polls() {
    let (consumer, readable) = consumer();
    assert_eq!(consumer.poll_one(), None);
    consumer.open();
    post(&consumer, 1);
    assert_eq!((readable(), consumer.queue().stats().wakes), (false, 0));
    consumer.arm();
    assert_eq!((readable(), next(&consumer)), (true, Some(1)));
}

#[test]
fn events_are_taken_back_with_their_wake() {
    let (consumer, readable) = consumer();
    consumer.open();
    for cq in [1, 2, 1, 3] {
        post(&consumer, cq);
    }
    assert_eq!(consumer.revoke(|event| event.object == 1), 2);
    assert_eq!(consumer.revoke(|event| event.object == 1), 0);
    assert_eq!((readable(), next(&consumer)), (true, Some(2)));
    assert_eq!(consumer.revoke(|event| event.object == 3), 1);
    assert_eq!((readable(), next(&consumer)), (false, None), "nothing is left");
    post(&consumer, 4);
    assert_eq!((readable(), next(&consumer)), (true, Some(4)));
}

#[test]
fn each_event_goes_to_one_thread() {
    const EACH: u32 = 5_000;
    let (consumer, readable) = consumer();
    consumer.open();
    let taken = AtomicUsize::new(0);
    let take = || {
        let mut mine = Vec::new();
        while taken.load(Ordering::Relaxed) < 2 * EACH as usize {
            let before = mine.len();
            mine.extend(next(&consumer));
            taken.fetch_add(mine.len() - before, Ordering::Relaxed);
        }
        mine
    };
    let mut all = thread::scope(|scope| {
        for writer in 0..2 {
            let consumer = &consumer;
            scope.spawn(move || (0..EACH).for_each(|n| post(consumer, writer * EACH + n)));
        }
        [scope.spawn(take), scope.spawn(take)].map(|taker| taker.join().unwrap()).concat()
    });
    all.sort_unstable();
    assert!(all.into_iter().eq(0..2 * EACH));
    assert!(!readable());
}
