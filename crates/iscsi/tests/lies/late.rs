//! The data of a command that was aborted, or has timed out, arrives late: its memory, which the program uses for something else,
//! does not change by a byte.

use crate::lab::{LEN, Lab, Mode, PART, TIMEOUT, options, pattern, settings};
use ironwarp_iscsi::Error;
use ironwarp_testkit::iscsi::Sending;
use ironwarp_testkit::{long_form, wait};
use ironwarp_wire::iscsi::TargetPdu;
use std::time::{Duration, Instant};

/// Number of repetitions for a session without digests and for one with them, together.
fn repetitions() -> u64 {
    if long_form::is_requested() { 10_000 } else { 200 }
}

/// Holds all Data-In but the first of a command.
fn hold_second(sending: &mut Sending) {
    if matches!(&sending.now[0].pdu, TargetPdu::DataIn(data) if data.data_sn > 0) {
        sending.hold();
    }
}

/// Repeats a form in which `expected` PDUs of each repetition are late.
fn repeat(name: &str, expected: u64, form: impl Fn(&mut Lab, u64)) {
    let began = Instant::now();
    let mut late = 0;
    for digests in [false, true] {
        let mut lab = Lab::start(settings(), &options(digests), |sending, _| hold_second(sending));
        for round in 0..repetitions() / 2 {
            form(&mut lab, round);
            let counted = lab.session.late_pdus();
            assert_eq!(counted, (round + 1) * expected, "round {round}");
            lab.check_outside();
        }
        late += lab.session.late_pdus();
        lab.check_works();
        lab.session.logout().unwrap();
    }
    println!("{name}: {} repetitions, {late} late PDUs, {:?}", repetitions(), began.elapsed());
}

/// Sends what the target holds, and makes the session receive it. Bytes arrive in order: the answer to a query comes later.
fn arrive_late(lab: &mut Lab) {
    lab.target.release();
    lab.session.ready(0).unwrap();
}

#[test]
fn late_data_of_an_aborted_read_changes_nothing() {
    repeat("aborted", 2, |lab, round| {
        lab.control.set(Mode::Hold);
        let request = lab.read(round % 1000);
        let task = lab.session.start(request).unwrap();
        lab.target.wait_until_held(2);
        assert!(lab.session.abort(task), "the read has ended");
        let bytes = pattern(1000 + round, LEN);
        lab.reuse(&bytes);
        arrive_late(lab);
        assert!(lab.bytes() == bytes, "late data has changed memory");
    });
}

/// The first half of the data arrives before the abort.
#[test]
fn late_data_of_a_read_that_was_aborted_half_way_changes_nothing() {
    repeat("aborted half-way", 1, |lab, round| {
        lab.control.set(Mode::Lie);
        let request = lab.read(round % 1000);
        let task = lab.session.start(request).unwrap();
        lab.target.wait_until_held(1);
        let first = lab.disk((round % 1000) as usize);
        wait::until(|| lab.bytes()[..PART] == first[..PART]);
        assert!(lab.session.abort(task), "the read has ended");
        let bytes = pattern(1000 + round, LEN);
        lab.reuse(&bytes);
        lab.control.set(Mode::Honest);
        arrive_late(lab);
        assert!(lab.bytes() == bytes, "late data has changed memory");
    });
}

#[test]
fn late_data_of_a_read_that_timed_out_changes_nothing() {
    repeat("timed out", 2, |lab, round| {
        lab.control.set(Mode::Hold);
        let request = lab.read(round % 1000);
        let result = lab.session.execute(request, Duration::from_millis(1));
        assert!(matches!(result, Err(Error::TimedOut(_))), "{result:?}");
        let bytes = pattern(1000 + round, LEN);
        lab.reuse(&bytes);
        lab.target.wait_until_held(2);
        arrive_late(lab);
        assert!(lab.bytes() == bytes, "late data has changed memory");
    });
}

/// Another read has filled the memory before the late data comes.
#[test]
fn late_data_does_not_change_what_another_read_has_read() {
    repeat("read again", 2, |lab, round| {
        lab.control.set(Mode::Hold);
        let (late, next) = (lab.read(round % 1000), lab.read(1000 - round % 1000));
        let task = lab.session.start(late).unwrap();
        lab.target.wait_until_held(2);
        assert!(lab.session.abort(task), "the read has ended");
        lab.control.set(Mode::Honest);
        assert_eq!(lab.session.execute(next, TIMEOUT).unwrap() as usize, LEN);
        let expected = lab.disk((1000 - round % 1000) as usize);
        assert!(lab.bytes() == expected, "wrong bytes were read");
        arrive_late(lab);
        assert!(lab.bytes() == expected, "late data has changed memory");
    });
}

/// The late data comes between the first and the second half of the data of another read of the same memory.
#[test]
fn late_data_in_the_middle_of_another_read_changes_nothing() {
    repeat("in the middle", 2, |lab, round| {
        lab.control.set(Mode::Hold);
        let (late, next) = (lab.read(round % 1000), lab.read(1000 - round % 1000));
        let aborted = lab.session.start(late).unwrap();
        lab.target.wait_until_held(2);
        assert!(lab.session.abort(aborted), "the read has ended");
        lab.control.set(Mode::Lie);
        let task = lab.session.start(next).unwrap();
        lab.target.wait_until_held(3);
        lab.control.set(Mode::Honest);
        lab.target.release();
        let finished = lab.next();
        assert_eq!((finished.task, finished.result.unwrap() as usize), (task, LEN));
        assert!(lab.bytes() == lab.disk((1000 - round % 1000) as usize), "wrong bytes were read");
    });
}
