//! Unit tests of event queues: step by step with one thread, and under load with several.

use super::super::reader::Reader;
use super::*;
use std::sync::atomic::AtomicUsize;
use std::thread;

/// A semaphore whose count can be read, and a timer that counts its starts.
#[derive(Debug, Default)]
struct Vector {
    signals: AtomicUsize,
    timers: AtomicUsize,
}

impl Vector {
    fn wakes(&self) -> usize {
        self.signals.load(Ordering::Relaxed)
    }
}

impl Wake for Vector {
    fn signal(&self) {
        self.signals.fetch_add(1, Ordering::Relaxed);
    }

    fn consume(&self) {
        assert_ne!(self.signals.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

impl Timer for Vector {
    fn start(&self, after: Duration) {
        assert_eq!(after, INTERVAL);
        self.timers.fetch_add(1, Ordering::Relaxed);
    }
}

const INTERVAL: Duration = Duration::from_millis(3);

/// Creates a queue without memory.
fn undefined(initial: usize, max: usize) -> (Arc<EventQueue>, Reader, Arc<Vector>) {
    let vector = Arc::<Vector>::default();
    let (queue, reader) = Reader::new(7, Sizes { initial, max }, Box::new(vector.clone()));
    (queue, reader, vector)
}

/// Creates an unarmed queue.
fn queue(initial: usize, max: usize) -> (Arc<EventQueue>, Reader, Arc<Vector>) {
    let (queue, reader, vector) = undefined(initial, max);
    assert!(queue.define());
    (queue, reader, vector)
}

fn event(object: u32) -> Event {
    Event { code: Code::Completion, object }
}

fn post(queue: &EventQueue, object: u32) {
    queue.post(event(object)).expect("the queue has room");
}

fn take_all(reader: &mut Reader) -> Vec<u32> {
    std::iter::from_fn(|| reader.take()).map(|event| event.object).collect()
}

#[test]
fn unarmed_it_is_written_armed_it_wakes_once_undefined_it_refuses() {
    let (queue, mut reader, vector) = undefined(8, 8);
    assert_eq!((queue.number(), queue.state()), (7, QueueState::Undefined));
    reader.arm();
    assert_eq!(
        (queue.state(), queue.post(event(0)), reader.take(), vector.wakes()),
        (QueueState::Undefined, Err(PostEventError::Undefined), None, 0),
        "undefined: nothing is written, and it cannot be armed"
    );
    assert_eq!((queue.stats().size, queue.stats().written), (0, 0), "it has no memory");
    assert!(queue.define() && !queue.define(), "memory is given once");
    assert_eq!((queue.state(), queue.stats().size), (QueueState::Unarmed, 8));
    queue.post(event(1)).unwrap();
    assert_eq!(
        (queue.state(), vector.wakes()),
        (QueueState::Unarmed, 0),
        "unarmed: written without a wakeup"
    );
    reader.arm();
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Unarmed, 1), "an event was there already");
    queue.post(event(2)).unwrap();
    assert_eq!((vector.wakes(), take_all(&mut reader)), (1, vec![1, 2]));
    reader.arm();
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Armed, 1), "no event is there");
    queue.post(event(3)).unwrap();
    queue.post(event(4)).unwrap();
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Unarmed, 2), "one wakeup for both events");
    reader.arm();
    assert_eq!(vector.wakes(), 3, "armed although nothing was taken");
    queue.shut_down();
    assert_eq!((queue.state(), queue.post(event(5))), (QueueState::Undefined, Err(PostEventError::ShutDown)));
    assert!(!queue.define(), "it gets no memory any more");
    reader.arm();
    assert_eq!(vector.wakes(), 4, "woken for the remaining events");
    assert_eq!(take_all(&mut reader), [3, 4]);
    reader.arm();
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Undefined, 4));
}

#[test]
fn reading_goes_on_to_the_next_zero_without_being_woken() {
    let (queue, mut reader, vector) = queue(4, 4);
    for round in 0..100 {
        assert!(reader.is_empty() && reader.take().is_none());
        (0..3).for_each(|n| post(&queue, 3 * round + n));
        assert!(!reader.is_empty());
        assert!(take_all(&mut reader).into_iter().eq(3 * round..3 * round + 3));
        reader.advance();
    }
    assert_eq!(vector.wakes(), 0);
}

/// Requirement I3: writers learn only from the register how many events were read.
#[test]
fn room_is_what_the_register_says_was_read() {
    let (queue, mut reader, _) = queue(4, 4);
    (0..3).for_each(|n| post(&queue, n));
    assert_eq!(take_all(&mut reader), [0, 1, 2]);
    reader.advance();
    (3..6).for_each(|n| post(&queue, n));
    assert_eq!(reader.take(), Some(event(3)));
    assert_eq!(
        queue.post(event(6)),
        Err(PostEventError::Overflow),
        "the register does not know yet that one was taken"
    );
}

#[test]
fn a_full_ring_is_followed_by_a_larger_one() {
    let (queue, mut reader, vector) = queue(2, 16);
    let mut expected = 0..;
    for count in [1, 3, 7, 15, 9] {
        let first = expected.start;
        expected.start += count;
        (first..expected.start).for_each(|n| post(&queue, n));
        assert!(take_all(&mut reader).into_iter().eq(first..expected.start));
        reader.arm();
    }
    assert_eq!(vector.wakes(), 4, "it was not armed the first time");
}

/// Requirement I3: the valid bit says whether the read indicator is valid.
#[test]
fn a_write_without_a_valid_read_indicator_arms_and_unarms_only() {
    let (queue, mut reader, vector) = queue(4, 4);
    (0..3).for_each(|n| post(&queue, n));
    assert_eq!(take_all(&mut reader), [0, 1, 2]);
    reader.write(false, false);
    assert_eq!((queue.state(), queue.stats().unread), (QueueState::Unarmed, 3), "they are reported later");
    reader.write(true, false);
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Unarmed, 1), "armed, with events not reported");
    reader.write(true, true);
    assert_eq!((queue.state(), queue.stats().unread, vector.wakes()), (QueueState::Armed, 0, 1));
    reader.write(true, false);
    assert_eq!((queue.state(), queue.stats().unread, vector.wakes()), (QueueState::Armed, 0, 1));
    reader.write(false, false);
    post(&queue, 3);
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Unarmed, 1), "the driver has unarmed it");
    assert_eq!(take_all(&mut reader), [3]);
    reader.write(false, true);
    assert_eq!((queue.state(), queue.stats().unread), (QueueState::Unarmed, 0));
}

/// Requirement I3: the driver switches to a larger or a smaller ring, with unread events in the old one.
#[test]
fn the_driver_resizes_a_queue_and_its_events_stay_in_order() {
    let (queue, mut reader, vector) = undefined(4, 64);
    queue.resize(3).unwrap();
    assert_eq!(queue.state(), QueueState::Undefined, "a size is no memory");
    assert!(queue.define());
    reader.arm();
    let mut written = 0..;
    let mut sizes = vec![queue.stats().size];
    for size in [2, 64, 2, 2, 8, 3, 64, 64, 5] {
        (&mut written).take(2).for_each(|n| post(&queue, n));
        queue.resize(size).unwrap();
        sizes.push(queue.stats().size);
        (&mut written).take(1).for_each(|n| post(&queue, n));
        if size == 8 {
            assert_eq!(reader.take(), Some(event(0)));
            reader.advance();
        }
    }
    assert_eq!(sizes, [3, 2, 64, 2, 2, 8, 3, 64, 64, 5]);
    assert!(take_all(&mut reader).into_iter().eq(1..written.start), "none is lost, doubled or reordered");
    assert_eq!((vector.wakes(), queue.stats().written), (1, 27));
    reader.arm();
    assert_eq!((queue.state(), queue.stats().unread), (QueueState::Armed, 0));
    queue.resize(2).unwrap();
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Armed, 1), "a resize does not change the state");
    for size in [0, 1, 65] {
        assert_eq!(queue.resize(size), Err(ResizeQueueError::Size { size, max: 64 }));
    }
    queue.shut_down();
    assert_eq!(queue.resize(2), Err(ResizeQueueError::Undefined));
}

#[test]
fn rings_that_nobody_reads_are_freed_one_by_one() {
    let (queue, reader, _) = queue(2, 2);
    (0..200_000).for_each(|_| queue.resize(2).unwrap());
    drop((queue, reader));
}

#[test]
fn a_queue_is_resized_while_others_write_and_read() {
    const EVENTS: u32 = 30_000;
    let (queue, mut reader, _) = queue(2, 1 << 16);
    let mut next = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| (0..EVENTS).for_each(|n| post(&queue, n)));
        scope.spawn(|| {
            for size in (2..100).cycle().take_while(|_| queue.stats().written < u64::from(EVENTS)) {
                queue.resize(size).unwrap();
                thread::yield_now();
            }
        });
        while !writer.is_finished() || !reader.is_empty() {
            for object in take_all(&mut reader) {
                assert_eq!(object, next, "in order, none missing");
                next += 1;
            }
            reader.advance();
        }
    });
    assert_eq!((next, reader.take(), queue.stats().unread), (EVENTS, None, 0));
}

#[test]
fn at_the_bound_the_last_entry_says_so_and_the_queue_is_undefined() {
    let (queue, mut reader, vector) = queue(2, 4);
    reader.arm();
    // One event in the first ring, then three in the last.
    (0..4).for_each(|n| post(&queue, n));
    assert_eq!(queue.post(event(4)), Err(PostEventError::Overflow));
    assert_eq!(
        (queue.post(event(5)), queue.state()),
        (Err(PostEventError::Undefined), QueueState::Undefined)
    );
    assert_eq!((0..4).map(|_| reader.take().unwrap().object).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(reader.take(), Some(Event { code: Code::EventQueueOverflow, object: 7 }));
    assert_eq!((reader.take(), vector.wakes()), (None, 1));
    assert!(!queue.define(), "the adapter stops");
}

/// Requirement I5: nothing comes after an overflow, or a shutdown, that would wake the reader.
#[test]
fn a_reader_whose_wakeup_is_held_back_is_woken_at_the_end() {
    for overflows in [true, false] {
        let (queue, mut reader, vector) = queue(4, 4);
        queue.moderate(Some((INTERVAL, vector.clone())));
        reader.arm();
        post(&queue, 0);
        assert_eq!(take_all(&mut reader), [0]);
        reader.arm();
        (1..4).for_each(|n| post(&queue, n));
        assert_eq!(vector.wakes(), 1, "held");
        match overflows {
            true => assert_eq!(queue.post(event(4)), Err(PostEventError::Overflow)),
            false => queue.shut_down(),
        }
        assert_eq!((vector.wakes(), queue.state()), (2, QueueState::Undefined));
        queue.on_timer();
        assert_eq!((vector.wakes(), reader.take()), (2, Some(event(1))));
    }
}

/// Requirement I10: each queue has its own timer, and no event is lost.
#[test]
fn the_moderation_timer_holds_the_wake_back_and_not_the_event() {
    let (queue, mut reader, vector) = queue(8, 8);
    queue.moderate(Some((INTERVAL, vector.clone())));
    let timers = || vector.timers.load(Ordering::Relaxed);
    reader.arm();
    queue.post(event(1)).unwrap();
    assert_eq!((vector.wakes(), timers()), (1, 1), "the first event wakes at once");
    assert_eq!(take_all(&mut reader), [1]);
    reader.arm();
    queue.post(event(2)).unwrap();
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Armed, 1), "the timer is running");
    queue.on_timer();
    assert_eq!((queue.state(), vector.wakes(), timers()), (QueueState::Unarmed, 2, 2));
    queue.on_timer();
    assert_eq!(take_all(&mut reader), [2]);
    reader.arm();
    queue.post(event(3)).unwrap();
    assert_eq!((vector.wakes(), timers()), (3, 3), "the timer expired while nothing was due");
    reader.arm();
    assert_eq!(vector.wakes(), 3, "held");
    queue.moderate(None);
    assert_eq!((vector.wakes(), timers()), (4, 3), "moderation was disabled: the held wakeup is delivered");
    assert_eq!(take_all(&mut reader), [3]);
}

/// A timer that was started before the change is dropped.
#[test]
fn changed_moderation_waits_for_no_timer_of_before() {
    let (queue, mut reader, vector) = queue(8, 8);
    queue.moderate(Some((INTERVAL, vector.clone())));
    reader.arm();
    queue.post(event(1)).unwrap();
    assert_eq!(take_all(&mut reader), [1]);
    reader.arm();
    queue.post(event(2)).unwrap();
    assert_eq!(vector.wakes(), 1, "held");
    queue.moderate(Some((INTERVAL, vector.clone())));
    let timers = vector.timers.load(Ordering::Relaxed);
    assert_eq!((queue.state(), vector.wakes(), timers), (QueueState::Unarmed, 2, 2));
}

/// Requirement I10: moderation by count and period, as completion queues have it.
#[test]
fn a_wakeup_waits_for_a_number_of_events_or_a_time() {
    let (queue, mut reader, vector) = queue(16, 16);
    let settings = |count, period| Some(Moderation { count, period, timer: vector.clone() });
    let timers = || vector.timers.load(Ordering::Relaxed);
    queue.moderate_by_count(settings(3, INTERVAL));
    reader.arm();
    (1..3).for_each(|n| post(&queue, n));
    assert_eq!((queue.state(), vector.wakes(), timers()), (QueueState::Armed, 0, 1), "one timer for both");
    post(&queue, 3);
    assert_eq!((queue.state(), vector.wakes()), (QueueState::Unarmed, 1), "enough");
    queue.on_timer();
    assert_eq!(vector.wakes(), 1, "the queue is not armed");
    assert_eq!(reader.take(), Some(event(1)));
    reader.arm();
    assert_eq!((vector.wakes(), timers()), (1, 2), "two are left when it is armed: the time begins");
    queue.on_timer();
    assert_eq!((vector.wakes(), take_all(&mut reader)), (2, vec![2, 3]));
    reader.arm();
    queue.on_timer();
    assert_eq!(vector.wakes(), 2, "a timer without events");
    post(&queue, 4);
    assert_eq!((vector.wakes(), timers()), (2, 3));
    queue.wake_now();
    assert_eq!((vector.wakes(), take_all(&mut reader)), (3, vec![4]), "urgent");
    queue.moderate_by_count(settings(2, Duration::ZERO));
    reader.arm();
    post(&queue, 5);
    assert_eq!((vector.wakes(), timers()), (3, 3), "without a period there is no timer");
    queue.moderate_by_count(None);
    assert_eq!((vector.wakes(), take_all(&mut reader)), (4, vec![5]), "no more moderation: delivered");
    reader.arm();
    post(&queue, 6);
    assert_eq!(vector.wakes(), 5);
}

#[test]
fn a_ticket_tells_whether_its_event_was_taken() {
    let (queue, mut reader, _) = queue(8, 8);
    let tickets = [1, 2].map(|n| queue.post(event(n)).unwrap());
    assert_eq!(tickets.map(|ticket| queue.is_taken(ticket)), [false, false]);
    reader.take().unwrap();
    reader.advance();
    assert_eq!(tickets.map(|ticket| queue.is_taken(ticket)), [true, false]);
}

#[test]
fn events_that_are_taken_back_make_room() {
    let (queue, mut reader, vector) = queue(4, 4);
    queue.post(event(0)).unwrap();
    for n in 1..100 {
        queue.post(event(n)).unwrap();
        assert_eq!(reader.revoke(|event| event.object == n), 1);
        reader.advance();
    }
    reader.arm();
    assert_eq!(vector.wakes(), 1, "one event is left");
    assert_eq!(take_all(&mut reader), [0]);
}

#[test]
fn many_write_while_one_reads_and_is_woken_once_for_each_arm() {
    const WRITERS: u32 = 3;
    const EACH: u32 = 20_000;
    let (queue, mut reader, vector) = queue(2, 1 << 17);
    let mut next = [0; WRITERS as usize];
    let mut wakes = 0;
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let queue = &queue;
            scope.spawn(move || (0..EACH).for_each(|n| post(queue, n * WRITERS + writer)));
        }
        reader.arm();
        while next.iter().any(|&n| n < EACH) {
            while vector.wakes() == wakes {
                thread::yield_now();
            }
            wakes += 1;
            assert_eq!(vector.wakes(), wakes, "one wakeup each time it was armed");
            for object in take_all(&mut reader) {
                let writer = (object % WRITERS) as usize;
                assert_eq!(object / WRITERS, next[writer], "in order, none missing");
                next[writer] += 1;
            }
            reader.arm();
        }
    });
}
