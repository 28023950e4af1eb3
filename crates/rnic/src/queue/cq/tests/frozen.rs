//! Tests of completion queues that are frozen, and go on at another function or at the same one (requirement X2).

use super::super::frozen::MAX_CAPACITY;
use super::*;

/// Moves the state of a queue to a new one with a handler.
fn moved(from: &Cq) -> (Cq, Count) {
    let (to, count) = cq(9);
    to.thaw(from.freeze());
    (to, count)
}

#[test]
fn an_armed_queue_that_is_not_empty_has_one_event_at_the_target() {
    let (source, before) = cq(9);
    source.push(plain(1)).unwrap();
    assert!(source.arm(Arm::Next), "a completion exists, so the consumer polls");
    let (target, count) = moved(&source);
    assert_eq!((before.events(), count.events()), (0, 1));
    assert_eq!((poll(&source, 9), poll(&target, 9)), (Ok(vec![]), Ok(vec![1])));
    target.push(plain(2)).unwrap();
    assert_eq!(count.events(), 1, "the event has used up the arming");
}

#[test]
fn an_armed_queue_that_is_empty_stays_armed() {
    let (source, before) = cq(9);
    assert!(!source.arm(Arm::Next));
    let (target, count) = moved(&source);
    assert_eq!(count.events(), 0);
    target.push(plain(1)).unwrap();
    source.push(plain(2)).unwrap();
    assert_eq!((before.events(), count.events()), (0, 1));
}

#[test]
fn a_queue_that_was_not_armed_has_no_event() {
    let (source, _) = cq(9);
    source.push(solicited(1)).unwrap();
    let (target, count) = moved(&source);
    assert_eq!((target.len(), count.events()), (1, 0));
}

#[test]
fn arming_for_solicited_completions_moves_as_such() {
    let (source, _) = cq(9);
    source.push(plain(1)).unwrap();
    assert!(!source.arm(Arm::Solicited));
    let (target, count) = moved(&source);
    assert_eq!(count.events(), 0, "no completion is solicited");
    let (target, other) = moved(&target);
    target.push(plain(2)).unwrap();
    assert_eq!(other.events(), 0);
    target.push(solicited(3)).unwrap();
    assert_eq!((count.events(), other.events()), (0, 1));
    assert!(target.arm(Arm::Solicited), "the solicited completion exists");
    let (target, last) = moved(&target);
    assert_eq!((poll(&target, 9), last.events()), (Ok(vec![1, 2, 3]), 1));
}

#[test]
fn an_event_that_was_not_taken_is_raised_again() {
    let (source, _before) = cq(9);
    assert!(!source.arm(Arm::Next));
    source.push(plain(1)).unwrap();
    let (target, count) = moved(&source);
    assert_eq!((target.len(), count.events()), (1, 1));
    let (target, count) = moved(&target);
    assert_eq!((target.len(), count.events()), (1, 0), "it was taken");
}

#[test]
fn an_event_without_a_handler_waits_for_one_at_the_target() {
    let source = Cq::new(ID, 9);
    assert!(!source.arm(Arm::Next));
    source.push(plain(1)).unwrap();
    let target = Cq::new(ID, 9);
    target.thaw(source.freeze());
    let [old, new] = [Count::new(), Count::new()];
    source.set_handler(Some(old.0.clone()));
    target.set_handler(Some(new.0.clone()));
    assert_eq!((old.events(), new.events()), (0, 1));
}

/// The source goes on if the target refuses.
#[test]
fn a_queue_that_is_thawed_goes_on_as_before() {
    let (cq, count) = cq(3);
    for wr_id in 1..=3 {
        cq.push(plain(wr_id)).unwrap();
    }
    assert!(cq.push(plain(4)).is_err());
    let frozen = cq.freeze();
    assert_eq!(cq.len(), 0);
    cq.thaw(frozen);
    assert_eq!((poll(&cq, 9), count.events()), (Ok(vec![1, 2, 3]), 0));
    assert_eq!(poll(&cq, 9), Err(Overrun { cq: ID }));
}

/// Until it is thawed, nobody finds anything in the queue, and nothing is signalled.
#[test]
fn a_frozen_queue_is_empty_and_not_armed() {
    let (cq, count) = cq(9);
    cq.push(solicited(1)).unwrap();
    assert!(cq.arm(Arm::Solicited) && cq.is_armed());
    let frozen = cq.freeze();
    assert_eq!((cq.len(), cq.is_armed(), cq.is_ready()), (0, false, false));
    cq.raise_early(0);
    assert_eq!(count.events(), 0, "it is not armed");
    assert!(!cq.arm(Arm::Solicited), "the solicited completion is gone");
    cq.thaw(frozen);
    assert_eq!((count.events(), cq.is_armed(), poll(&cq, 9)), (1, false, Ok(vec![1])));
}

#[test]
fn what_happens_to_a_frozen_queue_is_kept() {
    for (before, meanwhile) in [(Arm::Solicited, Arm::Next), (Arm::Next, Arm::Solicited)] {
        let (cq, count) = cq(9);
        assert!(!cq.arm(before));
        let frozen = cq.freeze();
        assert!(!cq.arm(meanwhile));
        cq.thaw(frozen);
        assert!(cq.is_armed());
        cq.push(plain(1)).unwrap();
        assert_eq!(count.events(), 1, "armed for {before:?}, then for {meanwhile:?}");
    }
    let (cq, _) = cq(9);
    cq.push(plain(1)).unwrap();
    let frozen = cq.freeze();
    cq.push(plain(2)).unwrap();
    cq.thaw(frozen);
    assert_eq!((cq.len(), poll(&cq, 9)), (2, Ok(vec![1, 2])), "in order");
}

#[test]
fn an_overrun_moves() {
    for arm in [None, Some(Arm::Next), Some(Arm::Solicited)] {
        let (source, _) = cq(1);
        source.push(plain(1)).unwrap();
        assert!(source.push(plain(2)).is_err());
        assert_eq!(poll(&source, 9), Ok(vec![1]));
        assert!(arm.is_none_or(|arm| source.arm(arm)), "the consumer polls");
        let (target, count) = moved(&source);
        assert_eq!(count.events(), u32::from(arm.is_some()), "armed for {arm:?}");
        assert!(target.has_overrun());
        assert_eq!(poll(&target, 9), Err(Overrun { cq: ID }));
        assert!(target.push(plain(3)).is_err(), "it would hide that some are missing");
    }
}

/// Also for a handler that the queue gets later (requirement I2).
#[test]
fn the_handler_of_an_armed_queue_has_memory_at_the_target() {
    let source = Cq::new(ID, 9);
    assert!(!source.arm(Arm::Next));
    let target = Cq::new(ID, 9);
    target.thaw(source.freeze());
    let count = Count::new();
    target.set_handler(Some(count.0.clone()));
    target.push(plain(1)).unwrap();
    assert_eq!(count.events(), 1);
}

/// A thread that sleeps at the target finds the completions that come with the state.
#[test]
fn completions_that_arrive_wake_a_thread_that_sleeps() {
    #[derive(Debug, Default)]
    struct Alarm(AtomicUsize);

    impl Wake for Alarm {
        fn signal(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn consume(&self) {}
    }

    let (source, target) = (Cq::new(ID, 9), Cq::new(ID, 9));
    let alarm = Arc::new(Alarm::default());
    target.set_alarm(Arc::<Alarm>::clone(&alarm));
    target.begin_sleep();
    assert!(!target.is_ready());
    source.push(plain(1)).unwrap();
    target.thaw(source.freeze());
    assert_eq!((alarm.0.load(Ordering::Relaxed), target.is_ready()), (1, true));
    target.end_sleep();
}

/// A queue has memory for all completions from the beginning, so that none has to be allocated when one is added.
#[test]
fn a_queue_keeps_its_memory() {
    let (source, _) = cq(1000);
    source.push(plain(1)).unwrap();
    let target = Cq::new(ID, 1000);
    target.thaw(source.freeze());
    source.thaw(target.freeze());
    for cq in [&source, &target] {
        assert!(lock(&cq.ring).completions.capacity() >= 1000);
    }
    assert_eq!(poll(&source, 9), Ok(vec![1]));
}

#[test]
fn a_state_that_no_queue_can_have_is_inconsistent() {
    let (source, _) = cq(2);
    source.push(plain(1)).unwrap();
    source.push(plain(2)).unwrap();
    let frozen = source.freeze();
    let with = |capacity| {
        let mut changed = frozen.clone();
        changed.capacity = capacity;
        changed
    };
    assert!(frozen.is_consistent() && with(MAX_CAPACITY).is_consistent());
    assert!(!with(1).is_consistent(), "more completions than room");
    assert!(!with(MAX_CAPACITY + 1).is_consistent(), "too much memory");
    // Such a queue is refused before it is frozen.
    assert_eq!(source.check_movable(), Ok(()));
    source.resize(MAX_CAPACITY).unwrap();
    assert_eq!(source.check_movable(), Ok(()));
    source.resize(MAX_CAPACITY + 1).unwrap();
    assert_eq!(source.check_movable(), Err(CqTooLarge { cq: ID, capacity: MAX_CAPACITY + 1 }));
}
