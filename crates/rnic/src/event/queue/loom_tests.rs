//! Loom tests of event queues: all interleavings of writers, the reader, arming, the switch to a larger ring, and the
//! moderation timer.

use super::*;
use crate::sync::atomic::AtomicUsize;
use loom::thread;

/// A semaphore whose count can be read.
#[derive(Debug)]
struct Vector(AtomicUsize);

impl Vector {
    fn wakes(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Vector {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn consume(&self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

impl Timer for Vector {
    fn start(&self, _: Duration) {}
}

fn queue(initial: usize, max: usize) -> (Arc<EventQueue>, Reader, Arc<Vector>) {
    let vector = Arc::new(Vector(AtomicUsize::new(0)));
    let (queue, reader) = EventQueue::new(7, Sizes { initial, max }, Box::new(vector.clone()));
    (queue, reader, vector)
}

/// Spawns a thread that writes these events, one after another.
fn spawn_writer(queue: &Arc<EventQueue>, objects: std::ops::Range<u32>) -> thread::JoinHandle<()> {
    let queue = queue.clone();
    thread::spawn(move || {
        for object in objects {
            queue.post(Event { code: Code::Completion, object }).expect("the queue has room");
        }
    })
}

fn take_all(reader: &mut Reader) -> Vec<u32> {
    std::iter::from_fn(|| reader.take()).map(|event| event.object).collect()
}

/// Arming once gives one wakeup, whichever thread is first, and a reader that was woken finds an event.
#[test]
fn arm_against_two_writers() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(4, 4);
        let writers = [spawn_writer(&queue, 1..2), spawn_writer(&queue, 2..3)];
        reader.arm();
        if vector.wakes() > 0 {
            assert!(!reader.is_empty(), "woken without an event");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!((vector.wakes(), queue.state()), (1, QueueState::Unarmed));
        let mut taken = take_all(&mut reader);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

/// The reader can take an event before the writer checks whether to wake the reader. The reader is then not woken for
/// this event, and does not miss the next one.
#[test]
fn taking_and_arming_against_two_events() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(4, 4);
        reader.arm();
        let writer = spawn_writer(&queue, 1..3);
        let mut taken = take_all(&mut reader);
        reader.arm();
        let armed_twice = vector.wakes();
        assert!(armed_twice <= 2);
        writer.join().unwrap();
        let left = take_all(&mut reader);
        if left.is_empty() {
            assert_ne!(vector.wakes(), 2, "one of the two arms still waits for an event");
        } else {
            assert!(
                vector.wakes() >= 1 && queue.state() == QueueState::Unarmed,
                "woken for the remaining events"
            );
        }
        taken.extend(left);
        assert_eq!(taken, [1, 2], "in order");
    });
}

/// The writer switches the ring while the reader takes and advances, without a lock between them.
#[test]
fn switch_against_reading() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(2, 8);
        reader.arm();
        let writer = spawn_writer(&queue, 1..4);
        let mut taken = take_all(&mut reader);
        reader.advance();
        taken.extend(take_all(&mut reader));
        writer.join().unwrap();
        taken.extend(take_all(&mut reader));
        assert_eq!((taken, vector.wakes() <= 1), (vec![1, 2, 3], true));
    });
}

/// An entry is reused only after the reader has cleared it.
#[test]
fn the_ring_goes_round() {
    loom::model(|| {
        let (queue, mut reader, _) = queue(2, 2);
        queue.post(Event { code: Code::Completion, object: 1 }).unwrap();
        assert_eq!(take_all(&mut reader), [1]);
        let other = queue.clone();
        let other = thread::spawn(move || other.post(Event { code: Code::Completion, object: 2 }));
        reader.advance();
        let written = other.join().unwrap();
        let next = reader.take().unwrap();
        match written {
            Ok(_) => assert_eq!(next.object, 2),
            Err(refused) => {
                assert_eq!((refused, next.code), (PostEventError::Overflow, Code::EventQueueOverflow))
            }
        }
    });
}

/// The timer expires while an event is written and the queue is armed: one of the three wakes the reader,
/// once.
#[test]
fn expiry_against_writing_and_arming() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(4, 4);
        queue.moderate(Some((Duration::from_millis(1), vector.clone())));
        reader.arm();
        queue.post(Event { code: Code::Completion, object: 1 }).unwrap();
        assert_eq!((vector.wakes(), take_all(&mut reader)), (1, vec![1]));
        let writer = spawn_writer(&queue, 2..3);
        let expiry = queue.clone();
        let expiry = thread::spawn(move || expiry.on_timer());
        reader.arm();
        writer.join().unwrap();
        expiry.join().unwrap();
        assert_eq!((vector.wakes(), take_all(&mut reader)), (2, vec![2]));
    });
}

/// The reader is not woken after the shutdown.
#[test]
fn shutdown_against_writing() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(4, 4);
        reader.arm();
        let other = queue.clone();
        let other = thread::spawn(move || other.post(Event { code: Code::Completion, object: 1 }).is_ok());
        queue.shut_down();
        let wakes = vector.wakes();
        let written = other.join().unwrap();
        assert_eq!((vector.wakes(), usize::from(written)), (wakes, wakes));
        assert_eq!(reader.take().is_some(), written);
    });
}
