//! Unit tests of both state machines, without a queue pair.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use super::DEFAULT_RETRIES;
use super::flows::{Finished, Flows, Target, Transmission};
use super::senders::{Opening, Outcome, Peer, Senders, Verdict};
use crate::datagram::request::{AddressHandle, DatagramRequest, Destination};
use crate::error::QpError;
use crate::fault::Rng;
use crate::gid::Gid;
use crate::queue::{Data, Operation, WorkRequest};
use crate::retry::Retries;
use ironwarp_wire::private::DatagramAnswer;
use std::time::Duration;

const KEY: [u64; 2] = [1, 2];
const START: Duration = Duration::from_secs(1000);

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

fn peer(port: u16) -> Peer {
    Peer { gid: gid("10.0.0.2"), port, to: gid("10.0.0.1") }
}

/// Returns the cookie with which this sender can open a session.
fn cookie(senders: &mut Senders, now: Duration, peer: Peer, session: u64) -> u64 {
    match senders.open(now, peer, session, 0) {
        Opening::Challenge(cookie) => cookie,
        Opening::Opened => panic!("without a cookie"),
    }
}

fn open(senders: &mut Senders, peer: Peer, session: u64) {
    let cookie = cookie(senders, START, peer, session);
    assert_eq!(senders.open(START, peer, session, cookie), Opening::Opened);
}

#[test]
fn every_number_is_new_once_also_where_numbers_wrap_around() {
    for (first, before) in [(0, &[][..]), (u32::MAX - 100, &[0x7000_0000, 0xd000_0000, u32::MAX - 101])] {
        let mut senders = Senders::new(KEY, 1);
        open(&mut senders, peer(1), 5);
        before.iter().for_each(|sequence| senders.record(peer(1), *sequence, Outcome::Placed));
        let (mut rng, mut seen, mut rejected) = (Rng::new(1), vec![false; 1000], 0);
        for round in 0..20_000_u32 {
            // A window of 64 that moves on.
            let number = round / 40 + u32::try_from(rng.below(64)).unwrap();
            let sequence = first.wrapping_add(number);
            let seen = &mut seen[usize::try_from(number).unwrap()];
            match senders.check(peer(1), 5, sequence) {
                Verdict::New => {
                    assert!(!*seen, "{number} is new again");
                    *seen = true;
                    let outcome = if number % 7 == 0 { Outcome::Rejected } else { Outcome::Placed };
                    senders.record(peer(1), sequence, outcome);
                }
                Verdict::Repeated(outcome) => {
                    assert!(*seen, "{number} was not seen");
                    assert_eq!(outcome == Outcome::Rejected, number % 7 == 0);
                    rejected += u32::from(outcome == Outcome::Rejected);
                }
                Verdict::Stale => {}
                Verdict::Unknown => panic!("the session is open"),
            }
        }
        assert!(seen[..500].iter().filter(|seen| **seen).count() > 480, "most numbers were new once");
        assert!(rejected > 0);
    }
}

#[test]
fn a_cookie_belongs_to_one_sender_and_session_and_expires() {
    let mut senders = Senders::new(KEY, 4);
    let valid = cookie(&mut senders, START, peer(1), 5);
    let elsewhere = Peer { to: gid("10.0.0.9"), ..peer(1) };
    let other_host = Peer { gid: gid("10.0.0.9"), ..peer(1) };
    for (peer, session) in [(peer(2), 5), (elsewhere, 5), (other_host, 5), (peer(1), 6)] {
        assert!(matches!(senders.open(START, peer, session, valid), Opening::Challenge(_)));
    }
    let late = START + Duration::from_secs(33);
    assert!(matches!(senders.open(late, peer(1), 5, valid), Opening::Challenge(_)), "expired");
    assert!(matches!(Senders::new([1, 3], 4).open(START, peer(1), 5, valid), Opening::Challenge(_)));
    assert_eq!(senders.len(), 0, "nothing is kept without a valid cookie");
    assert_eq!(senders.open(START + Duration::from_secs(15), peer(1), 5, valid), Opening::Opened);
    assert_eq!(senders.len(), 1);
}

#[test]
fn the_sender_that_was_silent_longest_is_replaced_and_cannot_come_back_with_its_old_cookie() {
    let mut senders = Senders::new(KEY, 3);
    let old = cookie(&mut senders, START, peer(1), 1);
    (1..=3).for_each(|n| open(&mut senders, peer(n), n.into()));
    senders.record(peer(2), 0, Outcome::Placed);
    assert_eq!(senders.check(peer(1), 1, 0), Verdict::New);
    open(&mut senders, peer(4), 4); // replaces 2, the least recently used
    assert_eq!(senders.len(), 3);
    assert_eq!(senders.check(peer(2), 2, 0), Verdict::Unknown);
    assert_eq!(senders.check(peer(1), 1, 0), Verdict::New);
    // The first one is replaced as well: its cookie is worthless, though it has not expired.
    (5..=7).for_each(|n| open(&mut senders, peer(n), n.into()));
    assert_eq!(senders.check(peer(1), 1, 0), Verdict::Unknown);
    assert!(matches!(senders.open(START, peer(1), 1, old), Opening::Challenge(_)));
    // So it is after a new session of the same sender, and after a reset.
    let old = cookie(&mut senders, START, peer(7), 70);
    open(&mut senders, peer(7), 71);
    assert!(matches!(senders.open(START, peer(7), 70, old), Opening::Challenge(_)));
    senders.clear();
    let again = cookie(&mut senders, START, peer(7), 72);
    senders.clear();
    assert!(matches!(senders.open(START, peer(7), 72, again), Opening::Challenge(_)));
}

fn request(id: u64, qpn: u32) -> DatagramRequest {
    let address = AddressHandle::new(gid("10.0.0.1"), gid("10.0.0.2"));
    let data = Data::Inline(b"".as_slice().into());
    let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
    DatagramRequest { request, destination: Destination { address, qpn, qkey: 7 } }
}

fn target(qpn: u32) -> Target {
    Target { from: gid("10.0.0.1"), to: gid("10.0.0.2"), qpn, qkey: 7 }
}

/// Returns the sequence numbers of the messages that are to be sent now.
fn sent(flows: &mut Flows, now: Duration) -> Vec<u32> {
    let all = std::iter::from_fn(|| flows.next(now));
    all.map(|next| match next {
        Transmission::Message { sequence, .. } => sequence,
        Transmission::Open { .. } => panic!("the session is open"),
    })
    .collect()
}

/// Opens a session to `qpn`, for messages that were added. Returns its number.
fn established(flows: &mut Flows, qpn: u32) -> u64 {
    let Some(Transmission::Open { session, cookie: 0, .. }) = flows.next(START) else {
        panic!("no session yet")
    };
    flows.on_challenge(target(qpn), session, 99);
    let Some(Transmission::Open { session: same, cookie: 99, .. }) = flows.next(START) else { panic!() };
    assert_eq!(same, session);
    flows.on_answer(START, target(qpn), session, 0, DatagramAnswer::Opened);
    session
}

fn ended(flows: &mut Flows) -> Vec<(u64, Option<QpError>)> {
    let finished = flows.take_finished().into_iter();
    finished.map(|Finished { request, error }| (request.request.id, error)).collect()
}

#[test]
fn a_message_is_sent_again_after_twice_the_time_until_its_retries_are_used_up() {
    let mut flows = Flows::new(KEY, DEFAULT_RETRIES.retry_count(3).timeout(12));
    flows.add(START, request(1, 1), 7);
    established(&mut flows, 1);
    assert_eq!(sent(&mut flows, START), [0]);
    let (mut now, mut times) = (START, Vec::new());
    while ended(&mut flows).is_empty() {
        let due = flows.start_timer().expect("a timer");
        assert_eq!(flows.start_timer(), None, "one timer is enough");
        flows.tick(due.checked_sub(Duration::from_nanos(1)).unwrap());
        assert!(!flows.has_work(), "too early");
        times.push((due - now).as_micros());
        now = due;
        flows.tick(now);
        sent(&mut flows, now);
    }
    assert_eq!(times, [16_777, 33_554, 67_108, 134_217]);
    assert_eq!(flows.start_timer(), None, "nothing is left to do");
}

#[test]
fn at_most_64_messages_are_outstanding() {
    let mut flows = Flows::new(KEY, DEFAULT_RETRIES);
    (0..100).for_each(|id| flows.add(START, request(id, 1), 7));
    let session = established(&mut flows, 1);
    assert_eq!(sent(&mut flows, START), Vec::from_iter(0..64));
    // The window starts at the oldest message, so later answers do not move it.
    flows.on_answer(START, target(1), session, 63, DatagramAnswer::Placed);
    assert_eq!(sent(&mut flows, START), [0; 0]);
    flows.on_answer(START, target(1), session, 0, DatagramAnswer::Placed);
    assert_eq!(sent(&mut flows, START), [64]);
    assert_eq!(ended(&mut flows), [(63, None), (0, None)]);
}

/// The receiver may have placed what was sent, so only what was not sent goes on.
#[test]
fn only_messages_that_were_not_sent_go_on_in_another_session() {
    let mut flows = Flows::new(KEY, DEFAULT_RETRIES);
    (0..4).for_each(|id| flows.add(START, request(id, 1), 7));
    let session = established(&mut flows, 1);
    let first = flows.next(START).unwrap();
    let second = flows.next(START).unwrap();
    flows.put_back(&second); // the link had no room
    assert!(matches!(first, Transmission::Message { sequence: 0, .. }));
    flows.on_answer(START, target(1), session, 0, DatagramAnswer::Unknown);
    assert_eq!(ended(&mut flows), [(0, Some(QpError::SessionLost))]);
    let another = established(&mut flows, 1);
    assert_ne!(another, session);
    assert_eq!(sent(&mut flows, START), [0, 1, 2]);
    (0..3).for_each(|sequence| {
        flows.on_answer(START, target(1), session, sequence, DatagramAnswer::Placed); // of the old session
    });
    assert_eq!(ended(&mut flows), []);
    (0..3).for_each(|sequence| {
        flows.on_answer(START, target(1), another, sequence, DatagramAnswer::Placed);
    });
    assert_eq!(ended(&mut flows), [(1, None), (2, None), (3, None)]);
}

/// A sender that was idle is likely to be forgotten, so it does not risk a message in its old session.
#[test]
fn a_flow_that_was_idle_opens_another_session() {
    let mut flows = Flows::new(KEY, DEFAULT_RETRIES);
    flows.add(START, request(1, 1), 7);
    let first = established(&mut flows, 1);
    assert_eq!(sent(&mut flows, START), [0]);
    flows.on_answer(START, target(1), first, 0, DatagramAnswer::Placed);
    let soon = START + Duration::from_secs(5);
    flows.add(soon, request(2, 1), 7);
    assert_eq!(sent(&mut flows, soon), [1]);
    flows.on_answer(soon, target(1), first, 1, DatagramAnswer::Placed);
    flows.add(soon + Duration::from_secs(6), request(3, 1), 7);
    assert_ne!(established(&mut flows, 1), first);
    assert_eq!(sent(&mut flows, START), [0]);
}

#[test]
fn a_receiver_without_receives_is_asked_again_a_few_times() {
    let mut flows = Flows::new(KEY, Retries::default().timeout(12).rnr_retry(2).rnr_timer(12));
    flows.add(START, request(1, 1), 7);
    let session = established(&mut flows, 1);
    let mut now = START;
    for wait in [640, 1280] {
        assert_eq!(sent(&mut flows, now), [0]);
        for _ in 0..3 {
            flows.on_answer(now, target(1), session, 0, DatagramAnswer::NotReady); // two are duplicates
        }
        assert_eq!(sent(&mut flows, now), [0; 0]);
        now += Duration::from_micros(wait);
        flows.tick(now);
    }
    assert_eq!(sent(&mut flows, now), [0]);
    flows.on_answer(now, target(1), session, 0, DatagramAnswer::NotReady);
    assert_eq!(ended(&mut flows), [(1, Some(QpError::NotReady))]);
}

/// Flows without messages are forgotten when there are many, so a program may send to any number of queue pairs.
#[test]
fn the_number_of_flows_is_bounded() {
    let mut flows = Flows::new(KEY, DEFAULT_RETRIES);
    for qpn in 0..3000 {
        flows.add(START, request(1, qpn), 7);
        let session = established(&mut flows, qpn);
        assert_eq!(sent(&mut flows, START), [0]);
        flows.on_answer(START, target(qpn), session, 0, DatagramAnswer::Placed);
    }
    assert_eq!(flows.take_finished().len(), 3000);
    assert_eq!(flows.len(), 1024);
}
