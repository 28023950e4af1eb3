//! Every order of events.

use super::super::Opcode;
use super::*;
use loom::thread;

const ID: u32 = 7;

/// A handler that counts.
#[derive(Debug)]
struct Count(AtomicUsize);

impl Count {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0)))
    }

    fn events(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Notify for Count {
    fn notify(&self, _: u32) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

fn cq(capacity: usize) -> (Arc<Cq>, Arc<Count>) {
    let (cq, count) = (Arc::new(Cq::new(ID, capacity)), Count::new());
    cq.set_handler(Some(count.clone()));
    (cq, count)
}

fn completion(qp: u32, wr_id: u64) -> Completion {
    Completion { solicited: true, ..Completion::succeeded(wr_id, Opcode::Receive, qp, 0) }
}

/// A thread that pushes these, one after another.
fn pusher(cq: &Arc<Cq>, qp: u32, wr_ids: std::ops::Range<u64>) -> thread::JoinHandle<()> {
    let cq = cq.clone();
    thread::spawn(move || wr_ids.for_each(|wr_id| cq.push(completion(qp, wr_id)).expect("there is room")))
}

fn poll(cq: &Cq) -> usize {
    cq.poll(9, |_| ()).expect("it did not overrun")
}

/// The consumer's loop is poll, arm, poll if `arm` says so, else sleep: it never sleeps over a completion.
#[test]
fn arm_against_push() {
    for arm in [Arm::Next, Arm::Solicited] {
        loom::model(move || {
            let (cq, count) = cq(2);
            let pusher = pusher(&cq, 1, 0..1);
            if cq.arm(arm) {
                assert_eq!(poll(&cq), 1, "what arm announced");
                pusher.join().unwrap();
                assert_eq!(count.events(), 0, "it came before");
            } else {
                pusher.join().unwrap();
                assert_eq!((count.events(), poll(&cq)), (1, 1));
            }
        });
    }
}

/// Requirement N9: whoever sees the event finds the completion.
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

/// Two completions, one arm: one event.
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

/// Requirement N4: one event, and none to the old handler once the queue has left it.
#[test]
fn move_against_push() {
    loom::model(|| {
        let (cq, old) = cq(2);
        let new = Count::new();
        assert!(!cq.arm(Arm::Next));
        let pusher = pusher(&cq, 1, 0..1);
        cq.set_handler(Some(new.clone()));
        let before = old.events();
        pusher.join().unwrap();
        assert_eq!(old.events(), before, "it was left");
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
        cq.set_handler(Some(new.clone()));
        pusher.join().unwrap();
        assert_eq!(old.events(), before, "it was left");
        assert_eq!(old.events() + new.events(), 1);
    });
}

/// One of two finds no room. Its stream is told, and so is the consumer, whether it sleeps, is about to, or polls.
#[test]
fn overrun_is_never_silent() {
    loom::model(|| {
        let (cq, count) = cq(1);
        cq.push(completion(0, 0)).unwrap();
        assert!(cq.arm(Arm::Next), "one is there");
        let other = cq.clone();
        let other = thread::spawn(move || other.push(completion(1, 1)).is_err());
        let polled = poll(&cq);
        let overran = other.join().unwrap();
        assert_eq!((polled, count.events()), (1, 1));
        assert_eq!((overran, cq.overrun(), cq.arm(Arm::Next)), (overran, overran, true));
        let next = if overran { Err(Overrun { cq: ID }) } else { Ok(1) };
        assert_eq!(cq.poll(9, |_| ()), next);
    });
}
