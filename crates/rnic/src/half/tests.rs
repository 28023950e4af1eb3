//! Tests of the halves, with one thread and with many.

use super::*;
use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;

#[test]
fn runs_one_round_when_nothing_is_left() {
    let half = Half::new(0);
    let round = |rounds: &mut i32| {
        *rounds += 1;
        Left::Nothing
    };
    assert_eq!(half.run(ROUNDS, round), Left::Nothing);
    assert_eq!(half.run(ROUNDS, round), Left::Nothing);
    assert_eq!(half.with(|rounds| *rounds), (2, Left::Nothing));
}

#[test]
fn goes_round_for_what_a_round_left() {
    let half = Half::new(3);
    let round = |items: &mut i32| {
        *items -= 1;
        if *items > 0 { Left::Work } else { Left::Nothing }
    };
    assert_eq!(half.run(ROUNDS, round), Left::Nothing);
    assert_eq!(half.with(|items| *items), (0, Left::Nothing));
}

#[test]
fn a_thread_is_not_held_for_ever() {
    let half = Half::new(0);
    let round = |rounds: &mut usize| {
        *rounds += 1;
        Left::Work
    };
    assert_eq!(half.run(ROUNDS, round), Left::Work);
    assert_eq!(half.with(|rounds| *rounds), (ROUNDS, Left::Nothing), "the caller has to see to the work");
}

#[test]
fn a_turn_is_one_round() {
    let half = Half::new(3);
    let round = |items: &mut i32| {
        *items -= 1;
        if *items > 0 { Left::Work } else { Left::Nothing }
    };
    assert_eq!([0; 3].map(|_| half.run(TURN, round)), [Left::Work, Left::Work, Left::Nothing]);
    assert_eq!(half.with(|items| *items), (0, Left::Nothing));
}

/// For example, a round completes a request, and the callback for the completion posts another one.
#[test]
fn a_round_may_run_its_own_half() {
    let half = Half::new(0);
    let left = half.run(ROUNDS, |rounds: &mut i32| {
        *rounds += 1;
        if *rounds == 1 {
            assert_eq!(half.run(ROUNDS, |_| panic!("the half is held")), Left::Nothing);
        }
        Left::Nothing
    });
    assert_eq!(left, Left::Nothing);
    assert_eq!(half.with(|rounds| *rounds), (2, Left::Nothing));
}

#[test]
fn nobody_waits_for_the_holder() {
    let half = Half::new(0);
    let (inside, outside) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rounds = 0;
            let left = half.run(ROUNDS, |state: &mut i32| {
                rounds += 1;
                if rounds == 1 {
                    inside.wait();
                    outside.wait();
                }
                *state += 1;
                Left::Nothing
            });
            assert_eq!(
                (left, rounds),
                (Left::Nothing, 2),
                "the second round does the work that was left to the holder"
            );
        });
        inside.wait();
        assert_eq!(half.run(ROUNDS, |_| panic!("the half is held")), Left::Nothing);
        outside.wait();
    });
    assert_eq!(half.with(|state| *state), (2, Left::Nothing));
}

/// Work that arrives while the control path holds the half is reported to the control path.
#[test]
fn control_is_told_of_work_that_was_left_to_it() {
    let half = Half::new(());
    let ((), left) = half.with(|()| {
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(half.run(ROUNDS, |()| panic!("the half is held")), Left::Nothing));
        });
    });
    assert_eq!(left, Left::Work);
    assert_eq!(half.run(ROUNDS, |()| Left::Nothing), Left::Nothing);
    assert_eq!(half.with(|()| ()), ((), Left::Nothing));
}

#[test]
fn every_item_of_many_threads_is_taken_once() {
    const THREADS: usize = 4;
    const ITEMS: usize = 2_000;
    let (post, inbox) = mpsc::channel();
    let half = Half::new((inbox, vec![0_u32; THREADS * ITEMS]));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (half, post) = (&half, post.clone());
            scope.spawn(move || {
                for item in 0..ITEMS {
                    post.send(thread * ITEMS + item).unwrap();
                    while half.run(ROUNDS, |(inbox, taken)| {
                        inbox.try_iter().for_each(|item| taken[item] += 1);
                        Left::Nothing
                    }) == Left::Work
                    {}
                }
            });
        }
    });
    let ((), left) = half.with(|(_, taken)| assert!(taken.iter().all(|&times| times == 1)));
    assert_eq!(left, Left::Nothing);
}
