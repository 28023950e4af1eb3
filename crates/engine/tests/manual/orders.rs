//! The ends can be connected in any order and at any address, whichever end dials, and either may send first.

use super::common::{Host, Received, Stranger, TIMEOUT, gid, port, refusal, talk};
use ironwarp_engine::config::Config;
use ironwarp_engine::{BringUpError, BringUpOptions, ConnectError, Local, QueuePair, Remote};
use ironwarp_rnic::connect::Role;
use ironwarp_rnic::qp::{Retries, State};
use ironwarp_rnic::queue::{Data, Operation, Sge, Status, WorkRequest};
use ironwarp_testkit::child;
use ironwarp_testkit::net::ip;
use ironwarp_wire::Tag;
use std::time::{Duration, Instant};

fn retries(timeout: u8, retry_count: u8) -> Retries {
    Retries::default().timeout(timeout).retry_count(retry_count)
}

/// Connects queue pairs of two adapters, the end at `first` first, and exchanges messages.
fn in_order(first: &str, second: &str) {
    let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (a, b) = (one.pair(), other.pair());
    one.bring_up(&a, first, (second, b.id()));
    other.bring_up(&b, second, (first, a.id()));
    talk(&mut one, &a, &mut other, &b);
    let established = a.wait_connected(TIMEOUT).unwrap();
    assert_eq!(established.peer.ip(), gid(second).ip().unwrap());
    assert_eq!(established.local.ip(), gid(first).ip().unwrap());
    assert_eq!(a.remote(), Some(Remote { gid: gid(second), qpn: b.id() }));
    let dialled = matches!(established.agreed.role, Role::Initiator { .. });
    assert_eq!(dialled, (gid(first), a.id()) < (gid(second), b.id()), "the smaller one dials");
    let listened = if dialled { established.peer.port() } else { established.local.port() };
    assert_eq!(listened, port(if dialled { b.id() } else { a.id() }));
}

#[test]
fn the_end_that_dials_connects_first() {
    in_order("127.0.0.2", "127.0.0.3");
}

#[test]
fn the_end_that_listens_connects_first() {
    in_order("127.0.0.3", "127.0.0.2");
}

#[test]
fn at_one_address_the_numbers_decide() {
    in_order("127.0.0.1", "127.0.0.1");
    let mut host = Host::new(Config::default());
    // Within one adapter, in both orders. The two QPNs share a port.
    for swap in [false, true] {
        let pairs = (host.pair(), host.pair());
        let (a, b) = if swap { (pairs.1, pairs.0) } else { pairs };
        host.bring_up(&a, "127.0.0.1", ("127.0.0.1", b.id()));
        host.bring_up(&b, "127.0.0.1", ("127.0.0.1", a.id()));
        a.wait_connected(TIMEOUT).unwrap();
        b.wait_connected(TIMEOUT).unwrap();
        host.receive(&b, 0, 64);
        host.send(&a, 100, b"neighbour");
        host.one();
        host.one();
        assert_eq!(host.bytes(0, 9), b"neighbour");
    }
}

#[test]
fn over_ipv6() {
    in_order("::1", "::1");
}

/// A link-local address can only be dialled with its interface. The interface is in a network namespace of
/// the test's own.
#[test]
fn over_link_local_addresses() {
    if !child::in_network("orders::over_link_local_addresses") {
        return;
    }
    let set_up = "link set lo up; link add wan type veth peer name far; link set far up; link set wan up; \
                  addr add fe80::a/64 dev wan nodad; addr add fe80::b/64 dev wan nodad";
    set_up.split("; ").for_each(ip);
    in_order("fe80::a", "fe80::b");
    in_order("fe80::b", "fe80::a");
}

#[test]
fn a_queue_pair_connected_to_itself() {
    for address in ["127.0.0.1", "::1"] {
        let mut host = Host::new(Config::default());
        let pair = host.pair();
        host.bring_up(&pair, address, (address, pair.id()));
        pair.wait_connected(TIMEOUT).unwrap();
        for round in 0..20 {
            let message = vec![round; 1 << usize::from(round.min(17))];
            host.receive(&pair, 0, message.len());
            host.send(&pair, 512 << 10, &message);
            host.one();
            host.one();
            assert_eq!(host.bytes(0, message.len()), message);
        }
        pair.disconnect();
        assert!(pair.wait_closed(TIMEOUT));
    }
}

/// The other end connects much later than the timeout: without a request nothing times out, and requests
/// posted meanwhile are sent then. In either role.
#[test]
fn an_end_without_requests_waits_indefinitely() {
    let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
    for (near, far) in [("127.0.0.2", "127.0.0.3"), ("127.0.0.3", "127.0.0.2")] {
        let (a, b) = (one.pair(), other.pair());
        let local = Local::Gid(gid(near));
        let options = BringUpOptions { local, ..BringUpOptions::default() };
        a.set_retries(retries(1, 0));
        one.bring_up_with(&a, (far, b.id()), &options);
        let waited = a.wait_connected(Duration::from_millis(1300)).unwrap_err();
        assert!(matches!(waited, ConnectError::TimedOut), "{waited}");
        one.send(&a, 200, b"early");
        other.receive(&b, 300, 64);
        other.bring_up(&b, far, (near, a.id()));
        one.one();
        other.one();
        assert_eq!(other.bytes(300, 5), b"early");
        talk(&mut one, &a, &mut other, &b);
    }
}

/// The timeout is 4.096 µs · 2^timeout · (retry_count + 1), but not less than a second; in either role.
#[test]
fn a_request_fails_after_the_time_given_by_timeout_and_retry_count() {
    let mut host = Host::new(Config::default());
    for (local, remote, retries_set) in [
        ("127.0.0.2", "127.0.0.3", retries(1, 0)),
        ("127.0.0.3", "127.0.0.2", retries(1, 0)),
        ("127.0.0.3", "127.0.0.2", retries(18, 0)),
    ] {
        let pair = host.pair();
        pair.set_retries(retries_set);
        // Its own QPN at another address, where no adapter is.
        host.bring_up(&pair, local, (remote, pair.id()));
        let begun = Instant::now();
        host.send(&pair, 0, b"one");
        host.send(&pair, 8, b"other");
        let failed = [host.next(), host.next()].map(|completion| (completion.wr_id, completion.status));
        assert_eq!(failed, [(0, Status::RetryExceeded), (8, Status::Flushed)]);
        let (took, least) = (begun.elapsed(), retries_set.response_timeout().unwrap());
        assert!(least >= Duration::from_secs(1));
        assert!(took >= least && took < TIMEOUT, "{took:?}");
        let error = refusal(&pair);
        assert!(matches!(error, ConnectError::TimedOut), "{error}");
        assert_eq!(pair.qp().state(), State::Error);
        assert!(pair.wait_closed(TIMEOUT));
    }
}

/// The timeout can be set later: there is none when moving to RTR, but one when moving to RTS.
#[test]
fn the_timeout_can_be_set_after_connecting() {
    let mut host = Host::new(Config::default());
    let pair = host.pair();
    host.bring_up(&pair, "127.0.0.3", ("127.0.0.2", pair.id()));
    pair.set_retries(retries(14, 7));
    host.send(&pair, 0, b"in vain");
    assert_eq!(host.next().status, Status::RetryExceeded);
}

/// On RoCE, a queue pair is not told that its peer is gone: receives stay posted, and requests are retried in
/// vain.
#[test]
fn a_request_to_a_peer_that_has_closed_fails_with_retry_exceeded() {
    for (near, far) in [("127.0.0.2", "127.0.0.3"), ("127.0.0.3", "127.0.0.2")] {
        let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
        let (a, b) = (one.pair(), other.pair());
        a.set_retries(retries(1, 0));
        one.bring_up(&a, near, (far, b.id()));
        other.bring_up(&b, far, (near, a.id()));
        talk(&mut one, &a, &mut other, &b);
        one.receive(&a, 200, 8);
        b.retire();
        assert!(a.wait_closed(TIMEOUT));
        assert_eq!(a.qp().state(), State::ReadyToSend, "the queue pair keeps its state");
        one.send(&a, 0, b"in vain");
        let mut statuses = [one.next(), one.next()].map(|completion| completion.status);
        statuses.sort_by_key(|status| *status as u8);
        assert_eq!(statuses, [Status::Flushed, Status::RetryExceeded]);
        assert_eq!(a.qp().state(), State::Error);
    }
}

/// A program may destroy a queue pair with pending requests, and then their memory. Its peer notices the
/// former, but not the latter.
#[test]
fn requests_left_on_a_destroyed_queue_pair_do_not_affect_its_peer() {
    let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (a, b) = (one.pair(), other.pair());
    one.bring_up(&a, "127.0.0.2", ("127.0.0.3", b.id()));
    other.bring_up(&b, "127.0.0.3", ("127.0.0.2", a.id()));
    talk(&mut one, &a, &mut other, &b);
    b.qp().retire();
    let gone = Sge { tag: Tag(0x00de_ad00), addr: 0, len: 8 };
    let send = Operation::Send { invalidate: None };
    b.post_send(vec![WorkRequest::new(7, send, Data::Memory(gone.into()))]).unwrap();
    assert!(a.wait_closed(TIMEOUT));
    assert_eq!(a.qp().state(), State::ReadyToSend);
}

/// After a reset the same two queue pairs can be connected again, whether they were connected before or not.
#[test]
fn a_queue_pair_that_was_reset_can_be_brought_up_again() {
    let (mut one, mut other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (a, b, wrong) = (one.pair(), other.pair(), other.pair());
    let reset = |pair: &QueuePair| {
        pair.modify(State::Reset).unwrap();
        assert_eq!(pair.remote(), None);
        pair.modify(State::Init).unwrap();
    };
    for (local, remote) in [("127.0.0.2", "127.0.0.3"), ("127.0.0.3", "127.0.0.2")] {
        one.bring_up(&a, local, (remote, wrong.id()));
        let options = BringUpOptions { local: Local::Gid(gid(local)), ..BringUpOptions::default() };
        let again = one.engine.bring_up(&a, Remote { gid: gid(remote), qpn: b.id() }, &options);
        assert!(matches!(again, Err(BringUpError::State(_))), "a queue pair has one peer at a time");
        reset(&a);
    }
    other.bring_up(&b, "127.0.0.2", ("127.0.0.3", a.id()));
    reset(&b);
    for (near, far) in [("127.0.0.3", "127.0.0.2"), ("127.0.0.2", "127.0.0.3"), ("127.0.0.1", "127.0.0.1")] {
        one.bring_up(&a, near, (far, b.id()));
        other.bring_up(&b, far, (near, a.id()));
        talk(&mut one, &a, &mut other, &b);
        reset(&a);
        // The other end may be slow; the first one dials or waits meanwhile.
        one.bring_up(&a, near, (far, b.id()));
        reset(&b);
        other.bring_up(&b, far, (near, a.id()));
        talk(&mut one, &a, &mut other, &b);
        reset(&b);
        reset(&a);
    }
}

#[test]
fn a_queue_pair_in_the_error_state_is_not_connected_any_more() {
    let (one, other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (a, b) = (one.pair(), other.pair());
    one.bring_up(&a, "127.0.0.3", ("127.0.0.2", b.id()));
    a.modify(State::Error).unwrap();
    let mut peer = Stranger::hello("127.0.0.2", ("127.0.0.3", a.id()), b.id());
    assert_eq!(peer.receive_next(), Received::Rejected);
}

#[test]
fn disconnecting_while_connecting_is_reported() {
    let host = Host::new(Config::default());
    for (local, remote) in [("127.0.0.2", "127.0.0.3"), ("127.0.0.3", "127.0.0.2")] {
        let pair = host.pair();
        host.bring_up(&pair, local, (remote, pair.id()));
        pair.disconnect();
        let error = refusal(&pair);
        assert!(matches!(error, ConnectError::GivenUp), "{error}");
        assert!(pair.wait_closed(TIMEOUT));
    }
}

#[test]
fn depths_are_carried_through_and_the_path_mtu_is_reported() {
    let (one, other) = (Host::new(Config::default()), Host::new(Config::default()));
    let (a, b) = (one.pair(), other.pair());
    let options = |local, ird, ord| BringUpOptions {
        local: Local::Gid(gid(local)),
        ird: Some(ird),
        ord: Some(ord),
        path_mtu: Some(1024),
        ..BringUpOptions::default()
    };
    let to = |address, pair: &QueuePair| Remote { gid: gid(address), qpn: pair.id() };
    one.engine.bring_up(&a, to("127.0.0.3", &b), &options("127.0.0.2", 3, 5)).unwrap();
    other.engine.bring_up(&b, to("127.0.0.2", &a), &options("127.0.0.3", 4, 2)).unwrap();
    let (a_is, b_is) = (a.wait_connected(TIMEOUT).unwrap().agreed, b.wait_connected(TIMEOUT).unwrap().agreed);
    assert_eq!((a_is.ord, b_is.ord), (5, 2));
    assert!(a_is.ird >= b_is.ord && b_is.ird >= a_is.ord, "each end can hold what the other may send");
    assert_eq!(a.bring_up_options(), Some(options("127.0.0.2", 3, 5)));
}
