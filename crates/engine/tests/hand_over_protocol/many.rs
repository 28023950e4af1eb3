//! More descriptors than a user may have in flight.

use super::simple::{Calls, Giving, Taking, source_options, target_options};
use super::terms::{assert_named, named};
use super::{TIMEOUT, get};
use ironwarp_engine::hand_over::{Owner, hand_over, take_over};
use ironwarp_testkit::child;
use ironwarp_testkit::control::{pair, put};
use ironwarp_testkit::limits::raise_descriptor_limit;
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit};
use rustix::thread::set_thread_uid;
use std::io::stdin;
use std::process::Stdio;
use std::time::Duration;

const COUNT: u32 = 4_000;
/// The usual limit.
const USUAL: u64 = 1_024;
/// Number of descriptors that are left to a source that uses all others: it needs one for itself, and gets one.
const SPARE: u32 = 4;
const OTHER_USER: u32 = 65534;

fn limit_descriptors(limit: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
}

/// Runs `act` in a thread without privileges, which could pass more descriptors than RLIMIT_NOFILE allows.
fn unprivileged<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        if geteuid().is_root() {
            set_thread_uid(Uid::from_raw(OTHER_USER)).unwrap(); // only of this thread
        }
        act()
    });
    thread.join().unwrap()
}

/// The process that gives all files away, under the limit of its role.
fn give_away(role: &str) {
    raise_descriptor_limit();
    let socket = get(stdin()).1.remove(0);
    let spare: Vec<_> = (0..SPARE).map(named).collect();
    let mut source = Giving::new(&Calls::default());
    source.descriptors = (0..COUNT).map(named).collect();
    if let Ok(limit) = role.parse() {
        limit_descriptors(limit); // does not close any
    }
    drop(spare);
    let result = unprivileged(move || hand_over(socket, &mut source, &source_options()));
    let text = match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{:?}: {error}", error.owner),
    };
    assert!(put(stdin(), text.as_bytes(), &[]));
    get(stdin());
}

/// The process that gives files away, its control socket, and the other end of the hand-over.
fn start(test: &str, role: &str) -> (std::process::Child, OwnedFd, OwnedFd) {
    let (control, its) = pair();
    let mut command = child::command(test, role);
    let process = command.stdin(Stdio::from(its)).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    // The socket belongs to the user who speaks over it.
    let (one, other) = unprivileged(pair);
    assert!(put(&control, b"socket", &[one.as_fd()]));
    (process, control, other)
}

fn finish((mut process, control): (std::process::Child, OwnedFd)) {
    drop(control);
    assert!(process.wait().unwrap().success());
}

#[test]
fn four_thousand_descriptors_pass_under_any_limit_of_the_source() {
    const TEST: &str = "many::four_thousand_descriptors_pass_under_any_limit_of_the_source";
    if let Some(role) = child::role() {
        return give_away(&role);
    }
    raise_descriptor_limit();
    // Below 256, the user has more in flight than the limit even with two batches.
    for role in ["raised", "1024", "100"] {
        let (process, control, socket) = start(TEST, role);
        let taken =
            unprivileged(move || take_over(socket, Taking::new(&Calls::default()), &target_options()));
        let descriptors = taken.unwrap().active.1;
        assert_eq!(String::from_utf8(get(&control).0).unwrap(), "ok", "limit {role}");
        let names: Vec<_> = descriptors.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, (0..COUNT).map(|number| format!("file {number}").into_bytes()).collect::<Vec<_>>());
        descriptors.into_iter().for_each(assert_named);
        finish((process, control));
    }
}

/// The target has a limit of its own, which the source hears of before it passes anything.
#[test]
fn a_target_with_too_low_a_limit_refuses() {
    const TEST: &str = "many::a_target_with_too_low_a_limit_refuses";
    match child::role().as_deref() {
        None => return assert!(!child::in_child(TEST)),
        Some("child") => {}
        Some(role) => return give_away(role),
    }
    limit_descriptors(USUAL);
    let (process, control, socket) = start(TEST, "raised");
    let taken = unprivileged(move || take_over(socket, Taking::new(&Calls::default()), &target_options()));
    assert_eq!(taken.unwrap_err().owner, Owner::Source);
    let result = String::from_utf8(get(&control).0).unwrap();
    let expected = "Source: 4000 descriptors exceed the target's limit of 1024: raise RLIMIT_NOFILE there";
    assert!(result.starts_with(expected), "{result}");
    finish((process, control));
}

/// A limit that is high enough for all descriptors, but not for those that are open as well.
#[test]
fn a_target_that_runs_out_of_descriptors_refuses() {
    const TEST: &str = "many::a_target_that_runs_out_of_descriptors_refuses";
    match child::role().as_deref() {
        None => return assert!(!child::in_child(TEST)),
        Some("child") => {}
        Some(role) => return give_away(role),
    }
    raise_descriptor_limit();
    limit_descriptors(COUNT.into());
    let (process, control, socket) = start(TEST, "raised");
    let taken = unprivileged(move || take_over(socket, Taking::new(&Calls::default()), &target_options()));
    let error = taken.unwrap_err();
    assert_eq!(error.owner, Owner::Source);
    assert!(error.to_string().contains("descriptors with a COPY: raise RLIMIT_NOFILE"), "{error}");
    let result = String::from_utf8(get(&control).0).unwrap();
    assert!(result.starts_with("Source: the other process refused: received "), "{result}");
    finish((process, control));
}

/// Descriptors of other processes of the user count as well. A source waits until there is room.
#[test]
fn a_source_waits_for_other_descriptors_in_flight() {
    const TEST: &str = "many::a_source_waits_for_other_descriptors_in_flight";
    if let Some(role) = child::role() {
        return give_away(&role);
    }
    raise_descriptor_limit();
    let (process, control, socket) = start(TEST, "100");
    // As the same user, this process has more in flight than the source's limit allows.
    let held = unprivileged(|| {
        let (one, other) = pair();
        let file = named(1).1;
        assert!(put(&one, b"x", &[file.as_fd(); 200]));
        (one, other)
    });
    let end = std::thread::spawn(move || {
        unprivileged(move || take_over(socket, Taking::new(&Calls::default()), &target_options()))
    });
    assert!(
        !ironwarp_testkit::control::is_readable(&control, Duration::from_millis(300)),
        "it does not wait"
    );
    assert_eq!(get(&held.1).1.len(), 200);
    assert_eq!(end.join().unwrap().unwrap().active.1.len(), COUNT as usize);
    assert!(ironwarp_testkit::control::is_readable(&control, TIMEOUT));
    assert_eq!(get(&control).0, b"ok");
    finish((process, control));
}
