//! One end speaks to a test that does not keep to the protocol.

use super::get;
use super::simple::{Calls, Giving, Taking, calls, source_options, target_options};
use super::terms::named;
use ironwarp_engine::hand_over::{
    Failure, Hello, MAX_BATCH, MAX_MESSAGE, Message, Offer, Owner, Role, hand_over, take_over,
};
use ironwarp_testkit::control::{is_readable, pair, put};
use ironwarp_testkit::limits::raise_descriptor_limit;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::pipe;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

/// How long a test waits for what must not come.
const NOT_YET: Duration = Duration::from_millis(50);

fn hello(role: Role) -> Message {
    Message::Hello(Hello { role, snapshots: 5..=5, descriptors: 10_000, state: 1 << 20 })
}

fn offer(state: Option<Vec<u8>>, snapshot: u64) -> Message {
    Message::Offer(Offer { epoch: 1, version: 5, snapshot, program: 0, state })
}

fn pidfd() -> OwnedFd {
    pidfd_open(getpid(), PidfdFlags::empty()).unwrap()
}

fn send(socket: &OwnedFd, message: &Message, descriptors: &[BorrowedFd<'_>]) {
    assert!(put(socket, &message.encode(), descriptors));
}

fn next(socket: &OwnedFd) -> Message {
    Message::decode(&get(socket).0).unwrap()
}

/// Returns the reason of the next message, which refuses.
fn reason(socket: &OwnedFd) -> String {
    match next(socket) {
        Message::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// Greets the end, which has this role.
fn greet(socket: &OwnedFd, its: Role) {
    assert!(matches!(next(socket), Message::Hello(hello) if hello.role == its));
    let own = if its == Role::Source { Role::Target } else { Role::Source };
    send(socket, &hello(own), &[pidfd().as_fd()]);
}

/// Lets a test speak to a source with this many descriptors. Returns how it failed, and what was asked of it.
fn source(descriptors: u32, test: impl FnOnce(&OwnedFd)) -> (Failure, Vec<String>) {
    let asked = Calls::default();
    let (one, other) = pair();
    let mut source = Giving::new(&asked);
    source.descriptors = (0..descriptors).map(named).collect();
    let failure = thread::scope(|scope| {
        let end = scope.spawn(move || hand_over(one, &mut source, &source_options()));
        test(&other);
        drop(other);
        failed(end)
    });
    (failure, calls(&asked))
}

/// Lets a test speak to a target. Returns how it failed, and what was asked of it.
fn target(test: impl FnOnce(&OwnedFd)) -> (Failure, Vec<String>) {
    let asked = Calls::default();
    let (one, other) = pair();
    let target = Taking::new(&asked);
    let failure = thread::scope(|scope| {
        let end = scope.spawn(move || take_over(one, target, &target_options()));
        test(&other);
        drop(other);
        failed(end)
    });
    (failure, calls(&asked))
}

/// Returns why the end failed. This process is alive, so it is taken for a source that is.
fn failed<T: std::fmt::Debug>(
    end: ScopedJoinHandle<'_, Result<T, ironwarp_engine::hand_over::HandOverError>>,
) -> Failure {
    let error = end.join().unwrap().unwrap_err();
    assert_eq!(error.owner, Owner::Source);
    error.failure
}

#[test]
fn unknown_versions_and_kinds_are_refused_with_a_reason() {
    let changed = |at: usize, to: u8, role| {
        let mut bytes = hello(role).encode();
        bytes[at] = to;
        bytes
    };
    let cases =
        [(4, 2, "unknown version 2 of the hand-over protocol"), (5, 99, "unknown message of kind 99")];
    for (at, to, expected) in cases {
        let test = |socket: &OwnedFd, role| {
            next(socket);
            assert!(put(socket, &changed(at, to, role), &[pidfd().as_fd()]));
            let reason = reason(socket);
            assert!(reason.contains(expected), "{reason}");
        };
        let (failure, asked) = source(0, |socket| test(socket, Role::Target));
        assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
        assert_eq!(asked, [""; 0]);
        let (failure, asked) = target(|socket| test(socket, Role::Source));
        assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
        assert_eq!(asked, ["discard"]);
    }
}

#[test]
fn messages_that_are_too_long_are_refused() {
    let (failure, _) = target(|socket| {
        next(socket);
        assert!(put(socket, &vec![0; MAX_MESSAGE + 1000], &[]));
        let reason = reason(socket);
        assert!(reason.contains("exceeds the maximum"), "{reason}");
    });
    assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
}

#[test]
fn a_hello_must_have_one_pidfd() {
    let (file, pidfd) = (named(1).1, pidfd());
    let wrong = [vec![], vec![file.as_fd()], vec![pidfd.as_fd(), pidfd.as_fd()]];
    for descriptors in wrong {
        let (failure, _) = target(|socket| {
            next(socket);
            send(socket, &hello(Role::Source), &descriptors);
            reason(socket);
        });
        let is_number = matches!(failure, Failure::Descriptors { need: 1, .. });
        assert_eq!(is_number, descriptors.len() != 1, "{failure}");
        assert!(is_number || failure.to_string().contains("as a pidfd"), "{failure}");
    }
}

#[test]
fn messages_that_are_not_due_are_refused() {
    // To a source, which has not frozen its function yet.
    for message in [Message::Taken, Message::Copied(1), Message::Prepare(0), offer(Some(Vec::new()), 0)] {
        let (failure, asked) = source(0, |socket| {
            greet(socket, Role::Source);
            assert_eq!(next(socket), Message::Prepare(0));
            send(socket, &message, &[]);
            reason(socket);
        });
        assert!(matches!(failure, Failure::Unexpected { awaited: "READY", .. }), "{failure}");
        assert_eq!(asked, [""; 0]);
    }
    // To a target.
    for message in [Message::Taken, Message::Copied(1), Message::Prepare(7), offer(Some(Vec::new()), 0)] {
        let (failure, asked) = target(|socket| {
            greet(socket, Role::Target);
            send(socket, &message, &[]);
            reason(socket);
        });
        assert!(matches!(failure, Failure::Unexpected { awaited: "COPY", .. }), "{failure}");
        assert_eq!(asked, ["discard"]);
    }
}

#[test]
fn descriptors_that_are_not_due_are_closed() {
    let (reader, writer) = pipe().unwrap();
    let (failure, _) = source(0, |socket| {
        greet(socket, Role::Source);
        next(socket);
        send(socket, &Message::Ready, &[writer.as_fd(), writer.as_fd()]);
        reason(socket);
    });
    assert!(matches!(failure, Failure::Descriptors { have: 2, need: 0, message: "READY" }), "{failure}");
    drop(writer);
    let mut byte = [0];
    assert_eq!(rustix::io::read(&reader, &mut byte), Ok(0), "the pipe has a writer");
}

#[test]
fn a_source_sends_two_batches_of_descriptors_ahead() {
    raise_descriptor_limit();
    let (failure, asked) = source(1_000, |socket| {
        greet(socket, Role::Source);
        let mut total = 0;
        let mut batch = |expected: usize| {
            let (bytes, descriptors) = get(socket);
            let Message::Copy(names) = Message::decode(&bytes).unwrap() else { panic!() };
            assert_eq!((names.len(), descriptors.len()), (expected, expected));
            total += u32::try_from(expected).unwrap();
            total
        };
        let mut acknowledged = [0; 9];
        for at in 1..=8 {
            acknowledged[at] = batch(if at == 8 { 1_000 - 7 * MAX_BATCH } else { MAX_BATCH });
            if at >= 2 {
                assert!(!is_readable(socket, NOT_YET), "batch {} was sent ahead", at + 1);
                send(socket, &Message::Copied(acknowledged[at - 1]), &[]);
            }
        }
        assert!(!is_readable(socket, NOT_YET), "the last batch is not acknowledged");
        send(socket, &Message::Copied(1_000), &[]);
        assert_eq!(next(socket), Message::Prepare(1_000));
        send(socket, &Message::Refused("enough".to_owned()), &[]);
    });
    assert!(matches!(failure, Failure::Refused(_)), "{failure}");
    assert_eq!(asked, [""; 0]);
}

#[test]
fn a_wrong_acknowledgement_is_refused() {
    for wrong in [0, 1, 3, u32::MAX] {
        let (failure, _) = source(2, |socket| {
            greet(socket, Role::Source);
            next(socket);
            send(socket, &Message::Copied(wrong), &[]);
            reason(socket);
        });
        assert!(matches!(failure, Failure::Unexpected { awaited: "COPIED", .. }), "{failure}");
    }
}

/// What comes before TAKEN does not matter: TAKEN was sent, so the target is the owner.
#[test]
fn a_taken_that_follows_a_malformed_message_counts() {
    let asked = Calls::default();
    let (one, other) = pair();
    let mut source = Giving::new(&asked);
    // All messages are in the queue before the source begins.
    send(&other, &hello(Role::Target), &[pidfd().as_fd()]);
    send(&other, &Message::Ready, &[]);
    assert!(put(&other, &Message::Taken.encode()[..7], &[]));
    send(&other, &Message::Taken, &[]);
    let result = hand_over(one, &mut source, &source_options());
    assert_eq!(result.unwrap().epoch, 2);
    assert_eq!(calls(&asked), ["freeze 5", "release"]);
}

#[test]
fn a_snapshot_that_can_change_is_refused() {
    let (failure, asked) = target(|socket| {
        greet(socket, Role::Target);
        send(socket, &Message::Prepare(0), &[]);
        assert_eq!(next(socket), Message::Ready);
        send(socket, &offer(None, 6), &[named(1).1.as_fd()]);
        let reason = reason(socket);
        assert!(reason.contains("is not sealed"), "{reason}");
    });
    assert!(matches!(failure, Failure::NotSealed { len: 6 }), "{failure}");
    assert_eq!(asked, ["prepare", "discard"]);
}

#[test]
fn a_snapshot_of_another_version_is_refused() {
    let (failure, asked) = target(|socket| {
        greet(socket, Role::Target);
        send(socket, &Message::Prepare(0), &[]);
        next(socket);
        let other = Offer { epoch: 1, version: 4, snapshot: 0, program: 0, state: Some(Vec::new()) };
        send(socket, &Message::Offer(other), &[]);
        reason(socket);
    });
    assert!(matches!(failure, Failure::NoCommonVersion { .. }), "{failure}");
    assert_eq!(asked, ["prepare", "discard"]);
}

#[test]
fn the_reason_of_an_end_that_is_gone_is_heard() {
    let refusal = Message::Refused("enough".to_owned());
    // It is gone before this end says anything.
    let (one, other) = pair();
    send(&other, &refusal, &[]);
    drop(other);
    let error = hand_over(one, &mut Giving::new(&Calls::default()), &source_options()).unwrap_err();
    assert!(matches!(&error.failure, Failure::Refused(reason) if reason.0 == "enough"), "{error}");
    // It has not received everything, so this end gets ECONNRESET before the reason.
    let (failure, _) = source(0, |socket| {
        greet(socket, Role::Source);
        assert!(is_readable(socket, super::TIMEOUT));
        send(socket, &refusal, &[]);
    });
    assert!(matches!(&failure, Failure::Refused(reason) if reason.0 == "enough"), "{failure}");
}

#[test]
fn a_source_that_died_after_its_hello_is_known_to_be_dead() {
    let mut process = std::process::Command::new("true").spawn().unwrap();
    let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).unwrap();
    process.wait().unwrap();
    let (one, other) = pair();
    send(&other, &hello(Role::Source), &[pidfd.as_fd()]);
    drop(other);
    let error = take_over(one, Taking::new(&Calls::default()), &target_options()).unwrap_err();
    assert!(matches!(error.failure, Failure::Ended { .. }), "{error}");
    assert_eq!(error.owner, Owner::Nobody);
}
