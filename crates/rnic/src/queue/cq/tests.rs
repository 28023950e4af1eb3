//! One thread, and many.

use super::super::{Opcode, Status};
use super::*;
use std::sync::atomic::AtomicU32;
use std::thread;

const ID: u32 = 7;

/// A handler that counts.
#[derive(Debug, Default)]
struct Count(AtomicU32);

impl Notify for Count {
    fn notify(&self, cq: u32) {
        assert_eq!(cq, ID);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn events(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

fn cq(capacity: usize) -> (Cq, Arc<Count>) {
    let (cq, count) = (Cq::new(ID, capacity), Arc::<Count>::default());
    cq.set_handler(Some(count.clone()));
    (cq, count)
}

fn plain(wr_id: u64) -> Completion {
    Completion::succeeded(wr_id, Opcode::Receive, 1, 0)
}

fn solicited(wr_id: u64) -> Completion {
    Completion { solicited: true, ..plain(wr_id) }
}

fn flushed(wr_id: u64) -> Completion {
    Completion::failed(wr_id, Opcode::Receive, 1, Status::Flushed, None)
}

fn poll(cq: &Cq, most: usize) -> Result<Vec<u64>, Overrun> {
    let mut ids = Vec::new();
    let n = cq.poll(most, |completion| ids.push(completion.wr_id))?;
    assert_eq!(n, ids.len());
    Ok(ids)
}

#[test]
fn hands_out_in_order_and_no_more_than_asked() {
    let (cq, count) = cq(3);
    assert_eq!((poll(&cq, 9), cq.len(), cq.is_empty()), (Ok(vec![]), 0, true));
    for wr_id in 1..=3 {
        cq.push(plain(wr_id)).unwrap();
    }
    assert_eq!((poll(&cq, 0), cq.len(), cq.is_empty()), (Ok(vec![]), 3, false));
    assert_eq!((poll(&cq, 2), cq.len()), (Ok(vec![1, 2]), 1));
    cq.push(plain(4)).unwrap();
    assert_eq!((poll(&cq, 9), cq.len()), (Ok(vec![3, 4]), 0));
    assert_eq!(count.events(), 0, "it was never armed");
}

#[test]
fn armed_once_is_one_event() {
    let (cq, count) = cq(9);
    assert!(!cq.arm(Arm::Next));
    assert!(!cq.arm(Arm::Next));
    for wr_id in 1..=3 {
        cq.push(plain(wr_id)).unwrap();
    }
    assert_eq!(count.events(), 1);
    assert!(cq.arm(Arm::Next), "three are there already");
    assert_eq!(count.events(), 1, "but what was there before raises no event");
    cq.push(plain(4)).unwrap();
    assert_eq!(count.events(), 2, "it was armed all the same");
}

#[test]
fn solicited_events_are_for_solicited_completions_and_errors() {
    for waking in [solicited(2), flushed(2)] {
        let (cq, count) = cq(9);
        assert!(!cq.arm(Arm::Solicited));
        cq.push(plain(1)).unwrap();
        assert_eq!(count.events(), 0);
        assert!(!cq.arm(Arm::Solicited), "what is there is not solicited");
        cq.push(waking).unwrap();
        assert_eq!(count.events(), 1);
        assert!(cq.arm(Arm::Solicited), "it is there");
        assert_eq!(poll(&cq, 1), Ok(vec![1]));
        assert!(cq.arm(Arm::Solicited), "it is still there");
        assert_eq!(poll(&cq, 1), Ok(vec![2]));
        assert!(!cq.arm(Arm::Solicited), "it was taken");
    }
}

#[test]
fn armed_in_both_ways_the_earlier_counts() {
    for arms in [[Arm::Next, Arm::Solicited], [Arm::Solicited, Arm::Next]] {
        let (cq, count) = cq(9);
        assert!(!arms.iter().any(|&arm| cq.arm(arm)));
        cq.push(plain(1)).unwrap();
        assert_eq!(count.events(), 1);
        cq.push(solicited(2)).unwrap();
        assert_eq!(count.events(), 1);
    }
}

#[test]
fn an_overrun_is_told_to_all() {
    const OVERRUN: Overrun = Overrun { cq: ID };
    let (cq, count) = cq(1);
    cq.push(plain(1)).unwrap();
    assert!(!cq.arm(Arm::Solicited));
    assert!(!cq.overrun());
    assert_eq!(cq.push(plain(2)), Err(OVERRUN), "the stream");
    assert!(cq.overrun());
    assert_eq!(count.events(), 1, "a consumer that sleeps");
    assert!(cq.arm(Arm::Solicited), "a consumer that is about to");
    assert_eq!(cq.len(), 1);
    assert_eq!(poll(&cq, 9), Ok(vec![1]), "what came before is good");
    assert_eq!(poll(&cq, 9), Err(OVERRUN), "a consumer that polls");
    assert_eq!(cq.push(plain(3)), Err(OVERRUN), "there is room, but a gap before it");
    assert_eq!(poll(&cq, 9), Err(OVERRUN));
    assert_eq!(cq.len(), 0);
}

#[test]
fn an_armed_queue_moves_to_another_handler() {
    let (cq, old) = cq(9);
    let new = Arc::<Count>::default();
    assert!(!cq.arm(Arm::Next));
    cq.set_handler(Some(new.clone()));
    cq.push(plain(1)).unwrap();
    assert_eq!((old.events(), new.events()), (0, 1));
}

#[test]
fn events_wait_while_there_is_no_handler() {
    let (cq, old) = cq(9);
    let new = Arc::<Count>::default();
    cq.set_handler(None);
    for wr_id in 1..=2 {
        assert!(!cq.arm(Arm::Next));
        cq.push(plain(wr_id)).unwrap();
        assert_eq!(poll(&cq, 9), Ok(vec![wr_id]));
    }
    cq.set_handler(None);
    cq.set_handler(Some(new.clone()));
    assert_eq!((old.events(), new.events()), (0, 2), "one for each time it was armed");
    cq.set_handler(Some(old.clone()));
    assert_eq!((old.events(), new.events()), (0, 2), "they are given once");
}

#[test]
fn many_push_while_two_poll() {
    const PUSHERS: u32 = 3;
    const EACH: u64 = 5_000;
    let all = usize::try_from(u64::from(PUSHERS) * EACH).unwrap();
    let (cq, _) = cq(all);
    let polled = AtomicUsize::new(0);
    let poller = || {
        let mut mine = Vec::new();
        while polled.load(Ordering::Relaxed) < all {
            let n = cq.poll(16, |completion| mine.push((completion.qp, completion.wr_id))).unwrap();
            polled.fetch_add(n, Ordering::Relaxed);
        }
        mine
    };
    let (one, two) = thread::scope(|scope| {
        for qp in 0..PUSHERS {
            let cq = &cq;
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    cq.push(Completion::succeeded(wr_id, Opcode::Send, qp, 0)).unwrap();
                }
            });
        }
        let (one, two) = (scope.spawn(poller), scope.spawn(poller));
        (one.join().unwrap(), two.join().unwrap())
    });
    for qp in 0..PUSHERS {
        let of = |list: &[(u32, u64)]| -> Vec<u64> {
            list.iter().filter(|entry| entry.0 == qp).map(|entry| entry.1).collect()
        };
        assert!(
            of(&one).is_sorted() && of(&two).is_sorted(),
            "each poller sees the order of queue pair {qp}"
        );
        let mut both = [of(&one), of(&two)].concat();
        both.sort_unstable();
        assert!(both.into_iter().eq(0..EACH), "each completion of queue pair {qp} once");
    }
}
