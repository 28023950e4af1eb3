//! Tests of completion queues that are frozen, and go on at another function or at the same one (requirement X2).

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
