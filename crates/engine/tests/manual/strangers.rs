//! Connections from anyone but the expected peer do no harm: the expected peer can still connect, or stays
//! connected.

use super::common::{Host, Received, Stranger, TIMEOUT, UNUSED_QPN, port, refusal, talk};
use ironwarp_engine::config::Config;
use ironwarp_engine::{ConnectError, QueuePair};
use ironwarp_rnic::queue::Status;
use ironwarp_wire::private::{Hello, HelloKind, Reason};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// The addresses of the queue pair under attack and of its peer. The peer has the smaller address, so it
/// dials.
const LOCAL_IP: &str = "127.0.0.3";
const PEER_IP: &str = "127.0.0.2";

/// A queue pair that waits for one of `peer`, which is not connecting yet.
fn waiting(host: &Host, peer: &Host) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let (pair, far) = (host.pair(), peer.pair());
    host.bring_up(&pair, LOCAL_IP, (PEER_IP, far.id()));
    (pair, far)
}

/// Waits until all connections made to this listener before have been handled. A client whose Request has
/// arrived when it is accepted may overtake another in the same turn of the lane. When it has been rejected,
/// that turn is over, so the second one overtakes none.
fn wait_until_handled(at: &str, number: u32) {
    // Slots from 240 on are never used.
    let nobody = u32::from(port(number)) << 8 | 250;
    for _ in 0..2 {
        assert_eq!(Stranger::hello("127.0.0.9", (at, nobody), UNUSED_QPN).receive_next(), Received::Rejected);
    }
}

#[test]
fn a_hello_that_is_not_the_peers_is_rejected_and_the_peer_still_connects() {
    let (mut host, mut peer) = (Host::new(Config::default()), Host::new(Config::default()));
    let (pair, far) = waiting(&host, &peer);
    let (number, source) = (pair.id(), far.id());
    for (from, destination, source) in [
        (PEER_IP, number, source + 1), // another queue pair at the right address
        (PEER_IP, number, number),     // the queue pair itself
        ("127.0.0.4", number, source), // the right QPN, from another address
        (LOCAL_IP, number, source),    // the right QPN, from the queue pair's own address
        (PEER_IP, number ^ 1, source), // for a queue pair that does not exist
        (PEER_IP, number & !0xff | 250, source),
    ] {
        let mut stranger = Stranger::hello(from, (LOCAL_IP, destination), source);
        assert_eq!(stranger.receive_next(), Received::Rejected, "{source:#x} at {from} for {destination:#x}");
    }
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, number));
    talk(&mut host, &pair, &mut peer, &far);
}

#[test]
fn an_invalid_hello_is_rejected() {
    let (mut host, mut peer) = (Host::new(Config::default()), Host::new(Config::default()));
    let (pair, far) = waiting(&host, &peer);
    let at = port(pair.id());
    for private_data in [&b""[..], b"IRWH", b"IRWH\x02\0\0\0\0\0\0\0\0\0\0\0", &[0xff; 16], &[0; 200]] {
        let mut stranger = Stranger::connect(PEER_IP, LOCAL_IP, at).unwrap();
        stranger.request(private_data);
        assert_eq!(stranger.receive_next(), Received::Rejected, "{private_data:?}");
    }
    let mut other_protocol = Stranger::connect(PEER_IP, LOCAL_IP, at).unwrap();
    other_protocol.send_bytes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(other_protocol.receive_next(), Received::Closed);
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, pair.id()));
    talk(&mut host, &pair, &mut peer, &far);
}

/// A peer of another release, or one that requires an unknown feature, is told why it is refused.
#[test]
fn hellos_of_another_release_are_refused_with_the_reason() {
    let (mut host, mut peer) = (Host::new(Config::default()), Host::new(Config::default()));
    let (pair, far) = waiting(&host, &peer);
    let mut version_1 = b"IRWH\x01\0\0\0".to_vec();
    version_1.extend([pair.id().to_be_bytes(), far.id().to_be_bytes()].concat());
    let mut must_bit = Hello::new(HelloKind::Dial, pair.id(), far.id()).emit().unwrap().to_vec();
    must_bit[7] = 0x10;
    for (private_data, reason) in [(version_1, Reason::Version), (must_bit, Reason::MustUnderstand)] {
        let mut stranger = Stranger::connect(PEER_IP, LOCAL_IP, port(pair.id())).unwrap();
        stranger.request(&private_data);
        assert_eq!(stranger.receive_refusal(), Some(reason));
    }
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, pair.id()));
    talk(&mut host, &pair, &mut peer, &far);
}

/// An older release rejects this one without a reason. The program gets an error that explains it when the
/// request times out.
#[test]
fn a_peer_that_rejects_without_a_reason_is_taken_for_an_older_release() {
    let mut host = Host::new(Config::default());
    let pair = host.pair();
    let old = TcpListener::bind((LOCAL_IP, 0)).unwrap();
    let far = u32::from(old.local_addr().unwrap().port()) << 8;
    host.bring_up(&pair, PEER_IP, (LOCAL_IP, far));
    pair.set_retries(pair.qp().retries().timeout(1).retry_count(0));
    host.send(&pair, 0, b"for nobody");
    let rejects = std::thread::spawn(move || {
        for stream in old.incoming() {
            let mut old = Stranger::from(stream.unwrap());
            old.reject(&[]);
        }
    });
    let error = refusal(&pair);
    assert!(matches!(error, ConnectError::NoReason), "{error}");
    assert!(error.to_string().contains("run the same release on both ends"), "{error}");
    assert_eq!(host.next().status, Status::RetryExceeded);
    drop(rejects); // the thread ends with the process
}

#[test]
fn silent_connections_time_out_and_do_not_block_the_peer() {
    let config = Config::default().startup(Duration::from_millis(300));
    let (mut host, mut peer) = (Host::new(config), Host::new(Config::default()));
    let (pair, far) = waiting(&host, &peer);
    let mut silent: Vec<_> =
        (0..50).map(|_| Stranger::connect(PEER_IP, LOCAL_IP, port(pair.id())).unwrap()).collect();
    let mut half = Stranger::connect(PEER_IP, LOCAL_IP, port(pair.id())).unwrap();
    half.send_bytes(b"MPA ID Req");
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, pair.id()));
    talk(&mut host, &pair, &mut peer, &far);
    assert!(silent.iter_mut().all(|one| one.receive_next() == Received::Closed));
    assert_eq!(half.receive_next(), Received::Closed);
}

#[test]
fn a_second_connection_for_a_connected_queue_pair_changes_nothing() {
    let (mut host, mut peer) = (Host::new(Config::default()), Host::new(Config::default()));
    let (pair, far) = waiting(&host, &peer);
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, pair.id()));
    talk(&mut host, &pair, &mut peer, &far);
    // From the right address, with the right QPNs.
    for _ in 0..10 {
        let mut double = Stranger::hello(PEER_IP, (LOCAL_IP, pair.id()), far.id());
        assert_eq!(double.receive_next(), Received::Rejected);
    }
    talk(&mut host, &pair, &mut peer, &far);
}

/// The end that dials accepts no connections.
#[test]
fn an_end_that_dials_takes_no_connection() {
    let host = Host::new(Config::default());
    let (dials, waits) = (host.pair(), host.pair());
    host.bring_up(&waits, LOCAL_IP, (PEER_IP, UNUSED_QPN)); // creates a listener
    host.bring_up(&dials, LOCAL_IP, ("127.0.0.5", UNUSED_QPN));
    let mut stranger = Stranger::hello("127.0.0.5", (LOCAL_IP, dials.id()), UNUSED_QPN);
    assert_eq!(stranger.receive_next(), Received::Rejected);
}

/// The port has a listener because another queue pair waits; this one is not being connected yet.
#[test]
fn an_early_hello_waits_and_is_served() {
    let host = Host::new(Config::default());
    let (open, late) = (host.pair(), host.pair());
    host.bring_up(&open, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    let number = late.id();
    let mut wrong = Stranger::hello(PEER_IP, (LOCAL_IP, number), UNUSED_QPN + 2);
    let mut right = Stranger::hello(PEER_IP, (LOCAL_IP, number), UNUSED_QPN + 1);
    let mut elsewhere = Stranger::hello("127.0.0.7", (LOCAL_IP, number), UNUSED_QPN + 1);
    wait_until_handled(LOCAL_IP, number);
    host.bring_up(&late, LOCAL_IP, (PEER_IP, UNUSED_QPN + 1));
    assert_eq!(right.receive_next(), Received::Accepted);
    assert_eq!(wrong.receive_next(), Received::Rejected);
    assert_eq!(elsewhere.receive_next(), Received::Rejected);
    right.open();
    late.wait_connected(TIMEOUT).unwrap();
}

/// The sender of an early hello may be gone when its turn comes: the queue pair waits for the next one.
#[test]
fn an_early_hello_whose_sender_left_is_discarded() {
    let (mut host, mut peer) = (Host::new(Config::default()), Host::new(Config::default()));
    let (open, late, far) = (host.pair(), host.pair(), peer.pair());
    host.bring_up(&open, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    drop(Stranger::hello(PEER_IP, (LOCAL_IP, late.id()), far.id()));
    wait_until_handled(LOCAL_IP, late.id());
    host.bring_up(&late, LOCAL_IP, (PEER_IP, far.id()));
    peer.bring_up(&far, PEER_IP, (LOCAL_IP, late.id()));
    talk(&mut host, &late, &mut peer, &far);
}

#[test]
fn early_hellos_are_bounded_in_number() {
    let host = Host::new(Config::default());
    let pairs: Vec<_> = (0..34).map(|_| host.pair()).collect();
    host.bring_up(&pairs[33], LOCAL_IP, (PEER_IP, UNUSED_QPN));
    let hello = |slot: usize| Stranger::hello(PEER_IP, (LOCAL_IP, pairs[slot].id()), UNUSED_QPN);
    let mut parked = Vec::new();
    for slot in 0..32 {
        parked.extend((0..8).map(|_| hello(slot)));
        wait_until_handled(LOCAL_IP, pairs[33].id()); // all have the same port
        assert_eq!(hello(slot).receive_next(), Received::Rejected, "at most eight wait for one queue pair");
    }
    assert_eq!(hello(32).receive_next(), Received::Rejected, "at most 256 wait for the port");
    // The others still wait. When a queue pair is destroyed, those that wait for it are rejected.
    assert_eq!(parked[8].receive_within(Duration::from_millis(1)), Received::Silence);
    let mut pairs = pairs;
    drop(pairs.remove(0));
    assert!(parked[..8].iter_mut().all(|one| one.receive_next() == Received::Rejected));
    assert_eq!(parked[8].receive_within(Duration::from_millis(1)), Received::Silence);
}

#[test]
fn early_hellos_are_bounded_in_time() {
    let host = Host::new(Config::default().startup(Duration::from_millis(200)));
    let (open, late) = (host.pair(), host.pair());
    host.bring_up(&open, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    let mut early = Stranger::hello(PEER_IP, (LOCAL_IP, late.id()), UNUSED_QPN + 1);
    assert_eq!(early.receive_next(), Received::Rejected);
}

/// Data after an early hello is not read indefinitely: the client must not send before the Reply.
#[test]
fn an_early_hello_with_more_behind_it_is_cut_off() {
    let host = Host::new(Config::default());
    let (open, late) = (host.pair(), host.pair());
    host.bring_up(&open, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    let mut early = Stranger::hello(PEER_IP, (LOCAL_IP, late.id()), UNUSED_QPN + 1);
    wait_until_handled(LOCAL_IP, late.id());
    early.send_bytes(&[0; 1000]);
    assert_eq!(early.receive_next(), Received::Closed);
}

#[test]
fn a_listener_is_not_reachable_at_an_address_that_it_does_not_serve() {
    let host = Host::new(Config::default());
    let pair = host.pair();
    let number = pair.id();
    let refused = |at: &str, from: &str| {
        Stranger::connect(from, at, port(number)).unwrap_err().kind() == ErrorKind::ConnectionRefused
    };
    assert!(refused(LOCAL_IP, PEER_IP), "no queue pair waits");
    host.bring_up(&pair, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    assert!(refused("127.0.0.1", PEER_IP));
    assert!(refused(PEER_IP, PEER_IP));
    assert!(refused("::1", "::1"));
    assert_eq!(Stranger::hello(PEER_IP, (LOCAL_IP, number), UNUSED_QPN).receive_next(), Received::Accepted);
}

/// The adapter listens at two addresses, but each queue pair is reachable at its own only.
#[test]
fn a_queue_pair_is_reachable_at_its_own_address_only() {
    let host = Host::new(Config::default());
    let (here, there) = (host.pair(), host.pair());
    host.bring_up(&here, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    host.bring_up(&there, "127.0.0.4", (PEER_IP, UNUSED_QPN));
    let mut wrong = Stranger::hello(PEER_IP, ("127.0.0.4", here.id()), UNUSED_QPN);
    assert_eq!(wrong.receive_next(), Received::Rejected);
    let mut right = Stranger::hello(PEER_IP, (LOCAL_IP, here.id()), UNUSED_QPN);
    assert_eq!(right.receive_next(), Received::Accepted);
}

#[test]
fn a_setting_makes_it_reachable_everywhere_for_its_peer_alone() {
    let host = Host::new(Config::default().listen_everywhere(true));
    let pair = host.pair();
    let number = pair.id();
    host.bring_up(&pair, LOCAL_IP, (PEER_IP, UNUSED_QPN));
    assert_eq!(
        Stranger::hello("127.0.0.4", ("127.0.0.1", number), UNUSED_QPN).receive_next(),
        Received::Rejected
    );
    assert_eq!(
        Stranger::hello(PEER_IP, ("127.0.0.1", number), UNUSED_QPN).receive_next(),
        Received::Accepted
    );
}
