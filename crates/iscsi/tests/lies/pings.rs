//! Pings of the target.

use crate::lab::{Lab, Mode, TIMEOUT, options, settings};
use ironwarp_testkit::iscsi::Outgoing;
use ironwarp_testkit::wait;
use ironwarp_wire::iscsi::{InitiatorPdu, NO_TASK, NopIn, SequenceNumbers, TargetPdu};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the target pings without a pause, at most.
const FLOOD: Duration = Duration::from_secs(6);

fn ping(target_task: u32, data: &[u8]) -> Outgoing {
    let numbers = SequenceNumbers::default();
    Outgoing::new(TargetPdu::NopIn(NopIn { lun: 0, task: NO_TASK, target_task, numbers }), data.to_vec())
}

/// Waits until the target has received the answer to a ping.
fn wait_for_answer(lab: &Lab, tag: u32, expected: &[u8]) {
    lab.control.wait_for(|pdu, data| {
        matches!(pdu, InitiatorPdu::NopOut(nop) if nop.target_task == tag && nop.task == NO_TASK && nop.immediate)
            && data == expected
    });
}

/// Returns the number of answers to pings that the target has received.
fn answers(lab: &Lab) -> usize {
    let is_answer = |pdu: &InitiatorPdu| matches!(pdu, InitiatorPdu::NopOut(nop) if nop.task == NO_TASK);
    lab.control.received().iter().filter(|(pdu, _)| is_answer(pdu)).count()
}

/// RFC 7143 §11.19 forbids data in a ping of a target, but not in the answer: what comes is returned.
#[test]
fn pings_are_answered_with_their_data_while_a_command_is_outstanding() {
    for digests in [false, true] {
        let mut lab = Lab::start(settings(), &options(digests), |_, _| {});
        lab.control.set(Mode::Hold);
        let request = lab.read(0);
        let task = lab.session.start(request).unwrap();
        lab.target.wait_until_held(2);
        for (tag, len) in [(1, 0), (2, 1), (3, 5), (4, 64), (5, 400)] {
            let data = crate::lab::pattern(tag, len);
            lab.target.send(&ping(tag as u32, &data));
            wait::until(|| {
                assert!(lab.session.next(Duration::from_millis(10)).unwrap().is_none());
                answers(&lab) == tag as usize
            });
            wait_for_answer(&lab, tag as u32, &data);
        }
        lab.target.release();
        let finished = lab.next();
        assert_eq!((finished.task, finished.result.is_ok()), (task, true));
        lab.check_outside();
        lab.check_works();
    }
}

/// A session has no thread: pings that arrive while the program does not call it are answered at its next call.
#[test]
fn pings_while_idle_are_answered_at_the_next_call() {
    let mut lab = Lab::start(settings(), &options(true), |_, _| {});
    for tag in 1..=20 {
        lab.target.send(&ping(tag, b"idle"));
    }
    assert_eq!(answers(&lab), 0, "nobody has called the session");
    wait::until(|| {
        assert!(lab.session.next(TIMEOUT).unwrap().is_none(), "no command is outstanding");
        answers(&lab) == 20
    });
    (1..=20).for_each(|tag| wait_for_answer(&lab, tag, b"idle"));
    lab.check_works();
}

/// Without a tag, a ping only carries sequence numbers.
#[test]
fn pings_that_expect_no_answer_are_not_answered() {
    let mut lab = Lab::start(settings(), &options(true), |_, _| {});
    lab.target.send(&ping(NO_TASK, &[]));
    lab.check_works();
    assert_eq!(answers(&lab), 0);
}

/// More pings than there are receives.
#[test]
fn many_pings_neither_end_the_session_nor_stop_commands() {
    let mut lab = Lab::start(settings(), &options(false), |_, _| {});
    for tag in 0..2000 {
        lab.target.send(&ping(tag, b"flood"));
    }
    lab.check_works();
    lab.check_outside();
}

/// Commands time out although the session always has something to do.
#[test]
fn a_command_times_out_while_the_target_pings() {
    let mut lab = Lab::start(settings(), &options(false), |_, _| {});
    lab.control.set(Mode::Hold);
    let request = lab.read(0);
    let (session, target) = (&mut lab.session, &lab.target);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_over.load(Ordering::SeqCst) && began.elapsed() < FLOOD {
                target.send(&ping(1, &[])); // to answer takes longer than to ask
            }
        });
        let began = Instant::now();
        let result = session.execute(request, Duration::from_millis(100));
        is_over.store(true, Ordering::SeqCst);
        assert!(result.is_err(), "the target holds the data");
        assert!(began.elapsed() < FLOOD / 2, "took {:?}", began.elapsed());
    });
    lab.target.release();
    lab.check_works();
}
