//! The window of command numbers, and aborts of commands that wait.

use crate::lab::{LEN, Lab, Mode, TIMEOUT, options, pattern, settings};
use ironwarp::memory::{Access, Buffer};
use ironwarp_iscsi::{Error, Request};
use ironwarp_testkit::iscsi::{Outgoing, Settings};
use ironwarp_wire::iscsi::{InitiatorPdu, NO_TASK, NopIn, SequenceNumbers, TargetPdu};
use std::time::Duration;

/// Fails unless the target has received commands in order and without gaps.
fn check_numbers(lab: &Lab) {
    let numbers: Vec<_> = lab.control.commands().iter().map(|command| command.cmd_sn).collect();
    assert!(numbers.is_sorted_by(|a, b| a.wrapping_add(1) == *b), "{numbers:?}");
}

/// The target is slower than the session: it stops after each command that it has received.
#[test]
fn no_more_commands_are_sent_than_the_window_allows() {
    for window in [1, 2, 3] {
        let mut lab = Lab::start(Settings { window, ..settings() }, &options(true), |_, _| {});
        lab.control.set(Mode::Hold);
        let requests: Vec<_> = (0..40).map(|index| lab.read(index)).collect();
        let tasks = lab.session.start_all(requests).unwrap();
        let before = lab.control.commands().len();
        lab.target.wait_until_held(2 * window as usize);
        assert!(lab.session.next(Duration::from_millis(20)).unwrap().is_none());
        let sent = lab.control.commands().len() as u32;
        assert!(sent <= 3 + window, "{before} and {sent} commands with a window of {window}");
        lab.control.set(Mode::Honest);
        lab.target.release();
        for task in tasks {
            let finished = lab.next();
            assert_eq!((finished.task, finished.result.unwrap() as usize), (task, LEN));
        }
        check_numbers(&lab);
        lab.check_outside();
        lab.check_works();
    }
}

/// Windows that the target announces one after the other, in the answers to commands. MaxCmdSN never decreases: initiators
/// ignore that (RFC 7143 §4.2.2.1).
const WINDOWS: [u32; 8] = [0, 3, 2, 1, 0, 1, 0, 0];

/// The target closes and opens the window: while it is closed, nothing is sent, and commands that wait can be aborted.
#[test]
fn a_window_closes_and_opens() {
    let mut lab = Lab::start(Settings { window: 1, ..settings() }, &options(true), |_, _| {});
    for (round, window) in WINDOWS.into_iter().cycle().take(40).enumerate() {
        lab.control.set_window(window);
        let request = lab.read(round as u64);
        assert_eq!(lab.session.execute(request, TIMEOUT).unwrap() as usize, LEN);
        assert!(lab.bytes() == lab.disk(round), "wrong bytes were read");
        if window > 0 {
            continue;
        }
        let sent = lab.control.commands().len();
        let requests = [lab.read(1), lab.read(2), lab.read(3)];
        let tasks = lab.session.start_all(requests).unwrap();
        assert!(lab.session.next(Duration::from_millis(5)).unwrap().is_none());
        assert_eq!(lab.control.commands().len(), sent, "a command was sent while the window is closed");
        assert!(tasks.into_iter().all(|task| lab.session.abort(task)));
        lab.target.send(&open(lab.control.last_command().cmd_sn.wrapping_add(1)));
    }
    check_numbers(&lab);
    lab.check_outside();
    assert_eq!(lab.target.violations(), [""; 0]);
}

/// Returns a ping that opens the window up to this command.
pub(crate) fn open(cmd_sn: u32) -> Outgoing {
    let numbers = SequenceNumbers { stat_sn: 0, exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn };
    let ping = NopIn { lun: 0, task: NO_TASK, target_task: NO_TASK, numbers };
    Outgoing { own_numbers: true, ..Outgoing::new(TargetPdu::NopIn(ping), Vec::new()) }
}

/// The abort of a command that waits for the window leaves no gap.
#[test]
fn aborting_commands_that_wait_for_the_window_leaves_no_gap() {
    let mut lab = Lab::start(Settings { window: 2, ..settings() }, &options(true), |_, _| {});
    lab.control.set(Mode::Hold);
    let requests: Vec<_> = (0..20).map(|index| lab.read(index)).collect();
    let tasks = lab.session.start_all(requests).unwrap();
    lab.target.wait_until_held(4);
    for task in tasks[2..].iter().skip(1).step_by(2) {
        assert!(lab.session.abort(*task));
    }
    lab.control.set(Mode::Honest);
    lab.target.release();
    for _ in 0..2 + 9 {
        assert_eq!(lab.next().result.unwrap() as usize, LEN);
    }
    assert_eq!(lab.session.outstanding(), 0);
    check_numbers(&lab);
    lab.check_works();
}

/// The target drops requests to abort: the session goes on, other commands can be aborted, and it logs out.
#[test]
fn aborts_need_no_answer() {
    let mut lab = Lab::start(settings(), &options(true), |sending, _| match &sending.now[0].pdu {
        TargetPdu::TaskResponse(_) => sending.now.clear(),
        TargetPdu::DataIn(_) => sending.hold(),
        _ => {}
    });
    lab.control.set(Mode::Lie);
    for round in 0..10 {
        let request = lab.read(round);
        let task = lab.session.start(request).unwrap();
        lab.target.wait_until_held(2 * (round as usize + 1));
        assert!(lab.session.abort(task));
        lab.reuse(&pattern(round, LEN));
        lab.session.ready(0).unwrap();
        assert!(lab.bytes() == pattern(round, LEN));
    }
    lab.target.release();
    lab.check_works();
    assert_eq!(lab.session.late_pdus(), 20);
    lab.check_outside();
    lab.control.set(Mode::Honest);
    lab.session.logout().unwrap();
}

/// The target stops receiving, so that commands wait in the send queue. One in their middle is aborted: the numbers of those
/// behind it must follow without a gap.
#[test]
fn aborting_a_command_that_was_not_sent_leaves_no_gap() {
    const BIG: usize = 512 << 10;
    const COUNT: usize = 60;
    let settings =
        Settings { max_burst: BIG, first_burst: BIG, max_recv: BIG, size: 2 << 20, ..Settings::default() };
    let options = options(false).max_burst(BIG as u32).first_burst(BIG as u32);
    let mut lab = Lab::start(settings, &options, |_, _| {});
    let memory = lab.session.domain().register(Buffer::new(BIG).unwrap(), Access::LOCAL_READ).unwrap();
    lab.control.stop(true);
    let list = [memory.slice(..).unwrap()];
    let request = |_| Request::write(0, &lab.capacity, 0, &list).unwrap();
    let requests: Vec<_> = (0..COUNT).map(request).collect();
    let tasks = lab.session.start_all(requests).unwrap();
    assert!(lab.session.abort(tasks[COUNT - 10]) && lab.session.abort(tasks[COUNT - 5]));
    lab.control.stop(false);
    for _ in 0..COUNT - 2 {
        assert_eq!(lab.next().result.unwrap() as usize, BIG);
    }
    assert_eq!(lab.session.outstanding(), 0);
    assert_eq!(lab.target.violations(), [""; 0]);
    let is_write = |(pdu, _): &(InitiatorPdu, Vec<u8>)| matches!(pdu, InitiatorPdu::Command(it) if it.write);
    assert_eq!(lab.control.received().iter().filter(|it| is_write(it)).count(), COUNT - 2);
}

/// More elements than the queue pair takes: the command is refused at once, and no other waits behind it.
#[test]
fn a_command_with_too_many_elements_is_refused() {
    let mut lab = Lab::start(settings(), &options(true), |_, _| {});
    let list: Vec<_> =
        (0..17).map(|index| lab.memory.slice(index * 512..(index + 1) * 512).unwrap()).collect();
    let request = |count: usize| Request::write(0, &lab.capacity, 0, &list[..count]).unwrap();
    let (most, too_many) = (request(16), request(17));
    assert!(matches!(lab.session.start(too_many), Err(Error::Post(_))));
    assert_eq!(lab.session.outstanding(), 0);
    assert_eq!(lab.session.execute(most, TIMEOUT).unwrap(), 16 * 512);
    lab.check_works();
}
