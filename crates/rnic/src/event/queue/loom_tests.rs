//! Loom tests of event queues: all interleavings of writers, the reader, arming, memory that is given, the switch to
//! another ring, and the moderation timer.

use super::super::reader::Reader;
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

/// A timer that counts its starts.
#[derive(Debug)]
struct Starts(Arc<Vector>);

impl Timer for Starts {
    fn start(&self, _: Duration) {
        self.0.signal();
    }
}

/// Creates a queue without memory.
fn undefined(initial: usize, max: usize) -> (Arc<EventQueue>, Reader, Arc<Vector>) {
    let vector = Arc::new(Vector(AtomicUsize::new(0)));
    let (queue, reader) = Reader::new(7, Sizes { initial, max }, Box::new(vector.clone()));
    (queue, reader, vector)
}

/// Creates an unarmed queue.
fn queue(initial: usize, max: usize) -> (Arc<EventQueue>, Reader, Arc<Vector>) {
    let (queue, reader, vector) = undefined(initial, max);
    queue.define();
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

/// The driver switches the ring while events are written and read, without a lock between reader and writer.
#[test]
fn resize_against_writing_and_reading() {
    for size in [2, 8] {
        loom::model(move || {
            let (queue, mut reader, vector) = queue(3, 8);
            reader.arm();
            let writer = spawn_writer(&queue, 1..4);
            let driver = queue.clone();
            let driver = thread::spawn(move || driver.resize(size).unwrap());
            let mut taken = take_all(&mut reader);
            reader.advance();
            taken.extend(take_all(&mut reader));
            writer.join().unwrap();
            driver.join().unwrap();
            taken.extend(take_all(&mut reader));
            assert_eq!((taken, vector.wakes() <= 1), (vec![1, 2, 3], true));
        });
    }
}

/// An event is written after the queue got memory, or refused; the driver arms the queue meanwhile.
#[test]
fn memory_against_writing_and_arming() {
    loom::model(|| {
        let (queue, mut reader, vector) = undefined(4, 4);
        let other = queue.clone();
        let other = thread::spawn(move || other.post(Event { code: Code::Completion, object: 1 }));
        assert!(queue.define());
        reader.arm();
        let written = other.join().unwrap();
        assert!(written.is_ok() || written == Err(PostEventError::Undefined));
        assert_eq!(take_all(&mut reader).len(), usize::from(written.is_ok()));
        assert_eq!(vector.wakes(), usize::from(written.is_ok()), "armed: one wakeup for the event");
    });
}

/// The writer knows of no event that was taken until a write of the register with a valid read indicator reports it.
#[test]
fn a_read_indicator_that_is_not_valid_against_writing() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(2, 2);
        queue.post(Event { code: Code::Completion, object: 1 }).unwrap();
        assert_eq!(take_all(&mut reader), [1]);
        let other = queue.clone();
        let other = thread::spawn(move || other.post(Event { code: Code::Completion, object: 2 }));
        reader.write(true, false);
        assert_eq!(other.join().unwrap(), Err(PostEventError::Overflow), "no entry is known to be free");
        assert_eq!(vector.wakes(), 1, "armed, with an event that is not reported");
    });
}

/// Enough events, the timer, and arming: together they wake the reader once, and no event waits without a timer.
#[test]
fn moderation_by_count_against_expiry_and_arming() {
    loom::model(|| {
        let (queue, mut reader, vector) = queue(4, 4);
        let timer = Arc::new(Vector(AtomicUsize::new(0)));
        let starts: Arc<dyn Timer> = Arc::new(Starts(timer.clone()));
        let settings = Moderation { count: 2, period: Duration::from_millis(1), timer: starts };
        queue.moderate_by_count(Some(settings));
        reader.arm();
        let writer = spawn_writer(&queue, 1..2);
        let expiry = queue.clone();
        let expiry = thread::spawn(move || expiry.on_timer());
        let taken = take_all(&mut reader);
        reader.arm();
        writer.join().unwrap();
        expiry.join().unwrap();
        let left = 1 - taken.len();
        if left > 0 && vector.wakes() == 0 {
            assert_eq!((queue.state(), timer.wakes() > 0), (QueueState::Armed, true), "no timer runs");
            queue.on_timer();
            assert_eq!(vector.wakes(), 1);
        }
        assert_eq!(take_all(&mut reader).len(), left);
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
