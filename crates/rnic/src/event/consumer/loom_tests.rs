//! Loom tests of consumers: all interleavings of threads, with a semaphore in place of the file descriptor.

use super::super::Code;
use super::*;
use crate::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

#[derive(Debug)]
struct Semaphore(AtomicUsize);

impl Semaphore {
    fn signals(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Semaphore {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn consume(&self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

fn consumer() -> (Arc<Consumer>, Arc<Semaphore>) {
    let semaphore = Arc::new(Semaphore(AtomicUsize::new(0)));
    let consumer = Consumer::new(2, Sizes { initial: 4, max: 4 }, Box::new(semaphore.clone()));
    consumer.open();
    (Arc::new(consumer), semaphore)
}

/// Spawns a thread that writes an event.
fn spawn_writer(consumer: &Arc<Consumer>, object: u32) -> thread::JoinHandle<()> {
    let consumer = consumer.clone();
    thread::spawn(move || {
        consumer.post(Event { code: Code::Completion, object }).expect("the queue has room");
    })
}

/// A thread that finds the descriptor readable gets an event. The descriptor is readable as long as an event is left,
/// and no longer.
#[test]
fn readable_exactly_while_there_is_an_event() {
    loom::model(|| {
        let (consumer, semaphore) = consumer();
        let writers = [spawn_writer(&consumer, 1), spawn_writer(&consumer, 2)];
        let mut taken = 0;
        if semaphore.signals() > 0 {
            assert!(consumer.try_next().is_some());
            taken += 1;
        }
        taken += usize::from(consumer.try_next().is_some());
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        while taken < 2 {
            assert_eq!(semaphore.signals(), 1);
            assert!(consumer.try_next().is_some());
            taken += 1;
        }
        assert_eq!((semaphore.signals(), consumer.try_next()), (0, None));
    });
}

/// Threads take events without waiting for the descriptor.
#[test]
fn each_event_goes_to_one_of_two() {
    loom::model(|| {
        let (consumer, semaphore) = consumer();
        let writer = spawn_writer(&consumer, 1);
        let other = consumer.clone();
        let other = thread::spawn(move || other.try_next().is_some());
        let taken = usize::from(consumer.try_next().is_some()) + usize::from(other.join().unwrap());
        writer.join().unwrap();
        let left = usize::from(consumer.try_next().is_some());
        assert_eq!((taken + left, semaphore.signals()), (1, 0));
    });
}

#[test]
fn revoke_against_next() {
    loom::model(|| {
        let (consumer, semaphore) = consumer();
        consumer.post(Event { code: Code::Completion, object: 1 }).unwrap();
        let writer = spawn_writer(&consumer, 2);
        let other = consumer.clone();
        let other = thread::spawn(move || usize::from(other.try_next().is_some()));
        let revoked = consumer.revoke(|event| event.object == 1);
        let taken = other.join().unwrap();
        writer.join().unwrap();
        let left = 2 - revoked - taken;
        assert_eq!(semaphore.signals(), left.min(1));
        assert_eq!(usize::from(consumer.try_next().is_some()), left.min(1));
    });
}

/// A thread that polls takes the wakeup away, and arms the queue later: no event is left without a wakeup.
#[test]
fn polling_and_arming_against_writing() {
    loom::model(|| {
        let (consumer, semaphore) = consumer();
        let writers = [spawn_writer(&consumer, 1), spawn_writer(&consumer, 2)];
        let polled = usize::from(consumer.poll_one().is_some());
        assert_eq!(semaphore.signals(), 0, "not armed");
        consumer.arm();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let left = 2 - polled;
        assert_eq!(semaphore.signals(), left.min(1));
        assert_eq!(std::iter::from_fn(|| consumer.try_next()).count(), left);
    });
}
