//! Model checks of the completion queue with loom, which runs every interleaving of the threads.

use super::super::Opcode;
use super::*;
use loom::thread;
use std::cell::Cell;

const ID: u32 = 7;

/// A wake without effect: the tests poll the handler.
#[derive(Debug)]
struct Silent;

impl Wake for Silent {
    fn signal(&self) {}
    fn consume(&self) {}
}

/// A handler, and the number of events taken from it so far.
struct Count(Arc<CompletionHandler>, Cell<usize>);

impl Count {
    fn new() -> Self {
        Self(CompletionHandler::new(HandlerId(2), Box::new(Silent), None), Cell::new(0))
    }

    /// Takes all events from the handler, and returns how many were taken since the start of the test.
    fn events(&self) -> usize {
        while self.0.try_next().is_some() {
            self.1.set(self.1.get() + 1);
        }
        self.1.get()
    }
}

/// Creates a queue with a handler.
fn cq(capacity: usize) -> (Arc<Cq>, Count) {
    let (cq, count) = (Arc::new(Cq::new(ID, capacity)), Count::new());
    cq.set_handler(Some(count.0.clone()));
    (cq, count)
}

fn completion(qp: u32, wr_id: u64) -> Completion {
    Completion { solicited: true, ..Completion::succeeded(wr_id, Opcode::Receive, qp, 0) }
}

/// Spawns a thread that pushes these completions, one after another.
fn pusher(cq: &Arc<Cq>, qp: u32, wr_ids: std::ops::Range<u64>) -> thread::JoinHandle<()> {
    let cq = cq.clone();
    thread::spawn(move || wr_ids.for_each(|wr_id| cq.push(completion(qp, wr_id)).expect("there is room")))
}

fn poll(cq: &Cq) -> usize {
    cq.poll(9, |_| ()).expect("no overrun")
}

/// A consumer polls, arms, and then polls again if `arm` returned true, or sleeps if it returned false. It must not
/// sleep while there is a completion.
#[test]
fn arm_against_push() {
    for arm in [Arm::Next, Arm::Solicited] {
        loom::model(move || {
            let (cq, count) = cq(2);
            let pusher = pusher(&cq, 1, 0..1);
            if cq.arm(arm) {
                assert_eq!(poll(&cq), 1, "arm announced a completion");
                pusher.join().unwrap();
                assert_eq!(count.events(), 0, "the completion came before the arm");
            } else {
                pusher.join().unwrap();
                assert_eq!((count.events(), poll(&cq)), (1, 1));
            }
        });
    }
}

/// Requirement N9: a thread that sees the event finds the completion.
#[test]
fn an_event_finds_its_completion() {
    loom::model(|| {
        let (cq, count) = cq(2);
        assert!(!cq.arm(Arm::Next));
        let pusher = pusher(&cq, 1, 0..1);
        if count.events() == 1 {
            assert_eq!(poll(&cq), 1);
        }
        pusher.join().unwrap();
    });
}

/// Two completions after one arm raise one event.
#[test]
fn two_push_one_event() {
    loom::model(|| {
        let (cq, count) = cq(2);
        assert!(!cq.arm(Arm::Next));
        let pushers = [pusher(&cq, 1, 0..1), pusher(&cq, 2, 0..1)];
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        assert_eq!((count.events(), poll(&cq)), (1, 2));
    });
}

#[test]
fn push_against_poll() {
    loom::model(|| {
        let (cq, _) = cq(4);
        let pushers = [pusher(&cq, 0, 0..2), pusher(&cq, 1, 0..2)];
        let mut seen = [Vec::new(), Vec::new()];
        let mut poll = || cq.poll(3, |done| seen[done.qp as usize].push(done.wr_id)).unwrap();
        let mut n = poll() + poll();
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        n += poll() + poll();
        assert_eq!((n, seen), (4, [vec![0, 1], vec![0, 1]]));
        assert!(cq.is_empty());
    });
}

/// Requirement N4: there is one event, and the old handler gets none once the queue has left it.
#[test]
fn move_against_push() {
    loom::model(|| {
        let (cq, old) = cq(2);
        let new = Count::new();
        assert!(!cq.arm(Arm::Next));
        let pusher = pusher(&cq, 1, 0..1);
        cq.set_handler(Some(new.0.clone()));
        let before = old.events();
        pusher.join().unwrap();
        assert_eq!(old.events(), before, "the queue has left this handler");
        assert_eq!(old.events() + new.events(), 1);
    });
}

#[test]
fn move_by_way_of_none_against_push() {
    loom::model(|| {
        let (cq, old) = cq(2);
        let new = Count::new();
        assert!(!cq.arm(Arm::Next));
        let pusher = pusher(&cq, 1, 0..1);
        cq.set_handler(None);
        let before = old.events();
        cq.set_handler(Some(new.0.clone()));
        pusher.join().unwrap();
        assert_eq!(old.events(), before, "the queue has left this handler");
        assert_eq!(old.events() + new.events(), 1);
    });
}

/// An event that was not taken serves the next arm as well. An event that was taken does not, even if the thread that
/// took it found no completion when it polled.
#[test]
fn an_event_is_not_mistaken_for_one_that_was_taken() {
    loom::model(|| {
        let (cq, count) = cq(4);
        assert!(!cq.arm(Arm::Next));
        cq.push(completion(1, 0)).unwrap();
        assert_eq!(poll(&cq), 1);
        assert!(!cq.arm(Arm::Next), "armed again before the event was taken");
        let pusher = pusher(&cq, 1, 1..2);
        assert_eq!(usize::from(count.0.try_next().is_some()), 1);
        let polled = poll(&cq);
        pusher.join().unwrap();
        assert!(polled == 1 || count.events() == 1, "a thread that found no completion gets another event");
    });
}

/// Requirement N4 and the verb *resize*: existing and new completions are kept, and so is the arming.
#[test]
fn resize_against_push() {
    loom::model(|| {
        let (cq, count) = cq(1);
        assert!(!cq.arm(Arm::Next));
        let pusher = pusher(&cq, 1, 0..1);
        cq.resize(2).unwrap();
        pusher.join().unwrap();
        cq.push(completion(1, 1)).unwrap();
        assert_eq!((cq.len(), count.events(), poll(&cq)), (2, 1, 2));
    });
}

/// If the second completion does not fit, `push` fails, and the consumer learns of the overrun by the event, when it
/// arms, and when it polls.
#[test]
fn overrun_is_never_silent() {
    loom::model(|| {
        let (cq, count) = cq(1);
        cq.push(completion(0, 0)).unwrap();
        assert!(cq.arm(Arm::Next), "one completion exists");
        let other = cq.clone();
        let other = thread::spawn(move || other.push(completion(1, 1)).is_err());
        let polled = poll(&cq);
        let overran = other.join().unwrap();
        assert_eq!((polled, count.events()), (1, 1));
        assert_eq!((overran, cq.has_overrun(), cq.arm(Arm::Next)), (overran, overran, true));
        let next = if overran { Err(Overrun { cq: ID }) } else { Ok(1) };
        assert_eq!(cq.poll(9, |_| ()), next);
    });
}

#[derive(Debug)]
struct NoClock;

impl Timer for NoClock {
    fn start(&self, _: Duration) {}
}

/// The timer expires while the last completion for which the event is held back is pushed: there is still one event.
#[test]
fn expiry_against_the_last_that_was_waited_for() {
    loom::model(|| {
        let (cq, count) = cq(4);
        cq.moderate(Some(Moderation { count: 2, period: Duration::from_secs(1), timer: Arc::new(NoClock) }));
        assert!(!cq.arm(Arm::Next));
        cq.push(completion(1, 0)).unwrap();
        let other = pusher(&cq, 1, 1..2);
        cq.on_timer();
        other.join().unwrap();
        assert_eq!((count.events(), cq.is_armed()), (1, false));
    });
}

/// Moderation ends while a completion is pushed: there is one event, whether or not it was held back.
#[test]
fn the_end_of_moderation_against_push() {
    loom::model(|| {
        let (cq, count) = cq(4);
        cq.moderate(Some(Moderation { count: 9, period: Duration::ZERO, timer: Arc::new(NoClock) }));
        assert!(!cq.arm(Arm::Next));
        let other = pusher(&cq, 1, 0..1);
        cq.moderate(None);
        other.join().unwrap();
        cq.on_timer();
        assert_eq!((count.events(), poll(&cq)), (1, 1));
    });
}

/// How `Qp::retire` ends the completions of a queue pair (requirement N9): it forbids them, waits for the thread that drives
/// the half, which may have found them allowed before, and removes those that it wrote. None comes later.
#[test]
fn retire_against_completion() {
    use crate::half::Half;
    use crate::sync::atomic::{AtomicBool, Ordering};

    loom::model(|| {
        let (cq, _count) = cq(2);
        let shared = Arc::new((Half::new(()), AtomicBool::new(false)));
        let (driven, driver_cq) = (Arc::clone(&shared), cq.clone());
        let driver = thread::spawn(move || {
            let (half, suppressed) = &*driven;
            let _ = half.run(1, |()| {
                if !suppressed.load(Ordering::SeqCst) {
                    driver_cq.push(completion(1, 0)).expect("there is room");
                }
                crate::half::Left::Nothing
            });
        });
        let (half, suppressed) = &*shared;
        suppressed.store(true, Ordering::SeqCst);
        let _ = half.with(|()| ());
        cq.purge(1);
        driver.join().unwrap();
        assert_eq!(poll(&cq), 0, "a completion of an earlier life");
    });
}
