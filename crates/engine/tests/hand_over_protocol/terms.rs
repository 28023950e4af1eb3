//! What two honest ends agree on, and what one of them refuses.

use super::simple::{Calls, Giving, Results, Taking, calls, run, source_options, target_options};
use ironwarp_engine::hand_over::{
    Failure, MAX_INLINE, MAX_NAME, Owner, SourceOptions, TargetOptions, hand_over, take_over,
};
use ironwarp_testkit::child::as_root;
use ironwarp_testkit::control::pair;
use ironwarp_testkit::limits::raise_descriptor_limit;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

/// A file whose contents are its name.
pub(crate) fn named(number: u32) -> (Vec<u8>, OwnedFd) {
    let name = format!("file {number}").into_bytes();
    let mut file = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(&name).unwrap();
    (name, file.into())
}

/// Panics unless the file has its name as contents.
pub(crate) fn assert_named((name, file): (Vec<u8>, OwnedFd)) {
    let mut contents = vec![0; name.len()];
    File::from(file).read_exact_at(&mut contents, 0).unwrap();
    assert_eq!(contents, name);
}

/// The errors of both ends, as text. Panics unless the source owns the function.
fn errors((given, taken): Results) -> [String; 2] {
    let (given, taken) = (given.unwrap_err(), taken.unwrap_err());
    assert_eq!((given.owner, taken.owner), (Owner::Source, Owner::Source));
    [given.to_string(), taken.to_string()]
}

/// Runs a hand-over that fails. Returns the errors of both ends, and what was asked of them.
fn fails(
    change: impl FnOnce(&mut Giving, &mut Taking),
    source_options: &SourceOptions,
    target_options: &TargetOptions,
) -> ([String; 2], Vec<String>) {
    let asked = Calls::default();
    let (mut source, mut target) = (Giving::new(&asked), Taking::new(&asked));
    change(&mut source, &mut target);
    let errors = errors(run(source, target, source_options, target_options));
    let mut asked = calls(&asked);
    // The ends end at once.
    if let Some(at) = asked.iter().position(|call| call == "thaw") {
        assert_eq!(asked.iter().filter(|call| *call == "thaw").count(), 1);
        asked.remove(at);
        asked.push("thaw".to_owned());
    }
    (errors, asked)
}

#[test]
fn both_ends_use_the_latest_version_that_both_know() {
    let asked = Calls::default();
    let (given, taken) = run(Giving::new(&asked), Taking::new(&asked), &source_options(), &target_options());
    assert_eq!(given.unwrap().epoch, 2);
    let taken = taken.unwrap();
    assert_eq!((taken.epoch, &taken.program[..], taken.adopted), (2, &b"bytes"[..], false));
    let mut asked = calls(&asked);
    let ends = asked.split_off(4);
    assert_eq!(asked, ["prepare", "freeze 5", "load", "5 snapshot"]);
    assert!(ends.contains(&"activate".to_owned()) && ends.contains(&"release".to_owned()) && ends.len() == 2);
}

#[test]
fn ends_without_a_common_version_refuse_before_the_freeze() {
    for versions in [6..=7, 0..=1] {
        let target_options = TargetOptions { versions, ..target_options() };
        let (errors, asked) = fails(|_, _| {}, &source_options(), &target_options);
        assert!(errors.iter().all(|error| error.contains("no common version of snapshots")), "{errors:?}");
        assert_eq!(asked, ["discard"]);
    }
}

#[test]
fn what_a_target_refuses_stays_at_the_source() {
    let cases = [
        ("copy", vec!["copy", "discard"]),
        ("prepare", vec!["prepare", "discard"]),
        ("load", vec!["prepare", "freeze 5", "load", "discard", "thaw"]),
    ];
    for (refuses, expected) in cases {
        let ([of_source, of_target], asked) = fails(
            |source, target| {
                source.descriptors.push(named(1));
                target.refuses = refuses;
            },
            &source_options(),
            &target_options(),
        );
        assert_eq!(asked, expected);
        let reason = format!("refused: no {refuses} today; the source still owns the function");
        assert_eq!(of_target, reason);
        assert!(of_source.contains(&format!("the other process refused: no {refuses} today")), "{of_source}");
    }
}

#[test]
fn a_function_that_cannot_be_frozen_runs_on() {
    let ([of_source, of_target], asked) =
        fails(|source, _| source.snapshot = None, &source_options(), &target_options());
    assert_eq!(asked, ["prepare", "freeze 5", "discard"]);
    assert!(of_source.contains("failed to freeze the function: a region is not in a memfd"), "{of_source}");
    assert!(of_target.contains("a region is not in a memfd"), "{of_target}");
}

#[test]
fn a_state_above_the_targets_limit_stays_at_the_source() {
    for len in [100, 2 * MAX_INLINE] {
        let target_options = TargetOptions { state: len as u64 + 4, ..target_options() };
        let ([of_source, of_target], asked) =
            fails(|source, _| source.snapshot = Some(vec![1; len]), &source_options(), &target_options);
        assert_eq!(asked, ["prepare", "freeze 5", "discard", "thaw"]);
        let expected =
            format!("{} bytes of snapshot and program exceed the target's limit of {}", len + 5, len + 4);
        assert!(
            of_source.starts_with(&expected) && of_target.contains(&expected),
            "{of_source}; {of_target}"
        );
    }
}

#[test]
fn descriptors_above_the_targets_limit_are_refused() {
    let target_options = TargetOptions { descriptors: 3, ..target_options() };
    let files = |source: &mut Giving, before, late| {
        source.descriptors = (0..before).map(named).collect();
        source.late = (before..before + late).map(named).collect();
    };
    let (errors, asked) = fails(|source, _| files(source, 4, 0), &source_options(), &target_options);
    assert!(
        errors.iter().all(|error| error.contains("4 descriptors exceed the target's limit of 3")),
        "{errors:?}"
    );
    assert_eq!(asked, ["discard"]);
    let (errors, asked) = fails(|source, _| files(source, 2, 2), &source_options(), &target_options);
    assert!(
        errors.iter().all(|error| error.contains("4 descriptors exceed the target's limit of 3")),
        "{errors:?}"
    );
    assert!(errors[0].starts_with("4 descriptors"), "{errors:?}"); // the source notices
    assert_eq!(asked, ["prepare", "freeze 5", "discard", "thaw"]);
    let long = |source: &mut Giving| source.descriptors.push((vec![0; MAX_NAME + 1], named(1).1));
    let (errors, _) = fails(|source, _| long(source), &source_options(), &target_options);
    assert!(errors.iter().all(|error| error.contains("has 65 bytes")), "{errors:?}");
}

#[test]
fn descriptors_that_are_new_when_the_function_freezes_are_passed_as_well() {
    raise_descriptor_limit();
    let asked = Calls::default();
    let mut source = Giving::new(&asked);
    source.descriptors = (0..300).map(named).collect();
    source.late = (300..700).map(named).collect();
    let (given, taken) = run(source, Taking::new(&asked), &source_options(), &target_options());
    given.unwrap();
    let descriptors = taken.unwrap().active.1;
    let names: Vec<_> = descriptors.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, (0..700).map(|number| named(number).0).collect::<Vec<_>>());
    descriptors.into_iter().for_each(assert_named);
}

#[test]
fn two_processes_of_the_same_role_refuse_each_other() {
    let asked = Calls::default();
    let (one, other) = pair();
    let options = source_options();
    std::thread::scope(|scope| {
        let (mut first, mut second) = (Giving::new(&asked), Giving::new(&asked));
        let options = &options;
        let both = [
            scope.spawn(move || hand_over(one, &mut first, options)),
            scope.spawn(move || hand_over(other, &mut second, options)),
        ];
        let errors = both.map(|end| end.join().unwrap().unwrap_err());
        // One may hear the other's refusal first.
        assert!(
            errors.iter().all(|error| error.to_string().contains("both processes are the Source")),
            "{errors:?}"
        );
    });
    assert_eq!(calls(&asked), [""; 0]);
}

#[test]
fn sockets_of_other_kinds_are_refused() {
    let flags = SocketFlags::CLOEXEC;
    let stream = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap().0;
    let datagram = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap().0;
    let tcp = super::echo::connection().0.into();
    let file = named(1).1;
    for socket in [stream, datagram, tcp, file] {
        let asked = Calls::default();
        let given = hand_over(socket.try_clone().unwrap(), &mut Giving::new(&asked), &source_options());
        assert!(matches!(given.unwrap_err().failure, Failure::SocketType));
        let taken = take_over(socket, Taking::new(&asked), &target_options());
        assert!(matches!(taken.unwrap_err().failure, Failure::SocketType));
        assert_eq!(calls(&asked), ["discard"]);
    }
}

#[test]
fn a_process_of_another_user_is_refused() {
    const OTHER_USER: u32 = 65534;
    if !as_root("terms::a_process_of_another_user_is_refused") {
        return;
    }
    let theirs = std::thread::spawn(|| {
        set_thread_uid(Uid::from_raw(OTHER_USER)).unwrap(); // only of this thread
        pair()
    });
    let (one, other) = theirs.join().unwrap();
    let asked = Calls::default();
    let given = hand_over(one, &mut Giving::new(&asked), &source_options()).unwrap_err();
    assert!(matches!(given.failure, Failure::OtherUser { theirs: OTHER_USER, own: 0 }), "{given}");
    let taken = take_over(other, Taking::new(&asked), &target_options()).unwrap_err();
    assert!(matches!(taken.failure, Failure::OtherUser { theirs: OTHER_USER, own: 0 }), "{taken}");
    assert_eq!(calls(&asked), ["discard"]);
}
