//! Tests of completions that the adversary holds back.

use super::*;
use crate::adversary::{Adversary, Choice};

/// A timer that the test lets expire.
#[derive(Debug, Default)]
struct ManualTimer(std::sync::atomic::AtomicU32);

impl Timer for ManualTimer {
    fn start(&self, _: Duration) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl ManualTimer {
    /// Lets the timer expire, if it was started. Returns whether it was.
    fn expire(&self, held: &HeldTimer) -> bool {
        let started = self.0.swap(0, Ordering::Relaxed);
        assert!(started <= 1, "the timer was started {started} times");
        if started == 1 {
            held.on_timer();
        }
        started == 1
    }
}

/// Creates a queue with an adversary.
fn adverse_cq(capacity: usize, seed: u64) -> (Arc<Cq>, Count, Arc<ManualTimer>, Arc<Adversary>) {
    let (cq, count) = cq(capacity);
    let (cq, timer, adversary) = (Arc::new(cq), Arc::<ManualTimer>::default(), Adversary::new(seed));
    cq.set_adversary(&adversary, timer.clone());
    (cq, count, timer, adversary)
}

#[test]
fn all_completions_come_and_those_of_a_queue_pair_in_order() {
    let mut interleaved = false;
    for seed in 0..50 {
        let (cq, _, timer, _) = adverse_cq(300, seed);
        let held = cq.held_timer();
        for wr_id in 0..200 {
            let qp = u32::try_from(wr_id % 3).unwrap();
            cq.push(Completion { qp, ..plain(wr_id) }).unwrap();
            if wr_id % 7 == 0 {
                timer.expire(&held);
            }
        }
        while timer.expire(&held) {}
        let mut found = Vec::new();
        cq.poll(300, |completion| found.push(completion.wr_id)).unwrap();
        for qp in 0..3 {
            let of_qp: Vec<_> = found.iter().copied().filter(|wr_id| wr_id % 3 == qp).collect();
            assert!(of_qp.iter().copied().eq((qp..200).step_by(3)), "seed {seed}: {of_qp:?}");
        }
        interleaved |= !found.is_sorted();
    }
    assert!(interleaved, "queue pairs were never interleaved in another order");
}

#[test]
fn an_armed_queue_gets_its_event_for_each_completion_at_the_latest_with_a_timer() {
    let (mut early, mut late) = (0, 0);
    for seed in 0..100 {
        let (cq, count, timer, adversary) = adverse_cq(9, seed);
        let held = cq.held_timer();
        for wr_id in 0..20 {
            let _ = cq.arm(Arm::Next);
            let before = count.events();
            cq.push(plain(wr_id)).unwrap();
            // A consumer as the manual page has it: an event may come without a completion.
            while poll(&cq, 9).unwrap().is_empty() {
                let _ = cq.arm(Arm::Next);
                assert!(timer.expire(&held), "seed {seed}: neither a completion nor a timer");
            }
            while timer.expire(&held) {}
            assert!(count.events() > before, "seed {seed}: no event");
            while timer.expire(&held) {}
            assert!(cq.is_empty());
        }
        early += adversary.counts().of(Choice::EarlyEvent);
        late += adversary.counts().of(Choice::LateCompletion);
    }
    assert!(early > 0 && late > 0, "{early} {late}");
}

#[test]
fn held_completions_count_for_an_overrun_and_are_purged_and_frozen() {
    for seed in 0..20 {
        let (cq, _, timer, _) = adverse_cq(4, seed);
        (0..4).for_each(|wr_id| cq.push(plain(wr_id)).unwrap());
        assert_eq!((cq.capacity(), cq.push(plain(4))), (4, Err(Overrun { cq: ID })));
        let (cq, _, _, _) = adverse_cq(4, seed);
        (0..4).for_each(|wr_id| cq.push(plain(wr_id)).unwrap());
        assert_eq!((cq.resize(3).is_err(), cq.resize(8), cq.capacity()), (true, Ok(()), 8));
        assert!(cq.has_success_of(1) && cq.purge(1) == 4 && !cq.has_success_of(1));
        (0..4).for_each(|wr_id| cq.push(plain(wr_id)).unwrap());
        let (frozen, thawed) = (cq.freeze(), Cq::new(ID, 8));
        thawed.thaw(frozen);
        assert_eq!(poll(&thawed, 9), Ok(vec![0, 1, 2, 3]));
        drop(timer);
    }
}

#[test]
fn a_failure_comes_at_once_with_all_before_it() {
    for seed in 0..20 {
        let (cq, _, _, _) = adverse_cq(9, seed);
        (0..5).for_each(|wr_id| cq.push(plain(wr_id)).unwrap());
        cq.push(flushed(5)).unwrap();
        assert_eq!(poll(&cq, 9), Ok(vec![0, 1, 2, 3, 4, 5]));
    }
}

/// Which completions are late does not depend on the number of draws that timers have made.
#[test]
fn a_seed_repeats_which_completions_are_late() {
    let late = |seed, armed| {
        let (cq, _, timer, adversary) = adverse_cq(300, seed);
        let held = cq.held_timer();
        let late = (0..200).map(|wr_id| {
            if armed {
                let _ = cq.arm(Arm::Next); // a timer draws whether the event is late
            }
            let before = adversary.counts().of(Choice::LateCompletion);
            cq.push(plain(wr_id)).unwrap();
            while timer.expire(&held) {}
            adversary.counts().of(Choice::LateCompletion) > before
        });
        late.collect::<Vec<_>>()
    };
    for seed in 0..20 {
        assert_eq!(late(seed, false), late(seed, true), "seed {seed}");
    }
}

#[test]
fn completions_before_a_lost_one_can_be_polled() {
    for seed in 0..20 {
        let (cq, _, _, _) = adverse_cq(4, seed);
        (0..4).for_each(|wr_id| cq.push(plain(wr_id)).unwrap());
        cq.push(plain(4)).unwrap_err();
        assert_eq!(poll(&cq, 9), Ok(vec![0, 1, 2, 3]));
        assert!(poll(&cq, 9).is_err());
    }
}
