//! Connections that one end, or both, have closed.

use super::*;
use crate::sys::tcp::Listener;
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::wait::until;
use std::io::{Read, Write};

/// Waits until a connection is in a state.
#[track_caller]
fn reach(link: &TcpLink, state: TcpState) {
    until(|| Info::read(link).unwrap().state == state);
}

/// Reads at the peer until the end of the stream.
#[track_caller]
fn peer_reads_to_end(peer: &mut TcpStream, expected: &[u8]) {
    let mut found = Vec::new();
    peer.read_to_end(&mut found).unwrap();
    assert_eq!(found, expected);
}

/// Expects what the peer sends, in part before the move, and the end of its stream.
#[track_caller]
fn expect_all(resumed: &Resumed, expected: &[u8]) {
    let (carried, later) = expected.split_at(resumed.received.len());
    assert_eq!(resumed.received, carried);
    expect(&resumed.link, later);
    expect_end(&resumed.link);
}

#[test]
fn after_this_end_has_closed_its_direction() {
    if !in_network("sys::tcp_repair::tests::states::after_this_end_has_closed_its_direction") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        send(&link, b"all");
        link.finish();
        peer_reads_to_end(&mut peer, b"all");
        reach(&link, TcpState::FIN_WAIT2);
        peer.write_all(b"before, ").unwrap();
        wait(&link, PollFlags::IN);
        let resumed = relocate(link, &source, &target);
        peer.write_all(b"after").unwrap();
        drop(peer);
        expect_all(&resumed, b"before, after");
    }
}

#[test]
fn while_the_end_of_this_direction_is_not_acknowledged() {
    if !in_network("sys::tcp_repair::tests::states::while_the_end_of_this_direction_is_not_acknowledged") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        let destination = prepare(&target, version);
        let fence = fence(&source, &link);
        // No acknowledgement can arrive any more.
        send(&link, b"all");
        link.finish();
        assert_eq!(Info::read(&link).unwrap().state, TcpState::FIN_WAIT1);
        let resumed = arrive(&target, &destination, leave(link, &fence));
        peer_reads_to_end(&mut peer, b"all");
        reach(&resumed.link, TcpState::FIN_WAIT2);
        peer.write_all(b"answer").unwrap();
        drop(peer);
        expect_all(&resumed, b"answer");
    }
}

#[test]
fn after_the_peer_has_closed_its_direction() {
    if !in_network("sys::tcp_repair::tests::states::after_the_peer_has_closed_its_direction") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        peer.write_all(b"all").unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        wait(&link, PollFlags::RDHUP);
        reach(&link, TcpState::CLOSE_WAIT);
        let resumed = relocate(link, &source, &target);
        assert_eq!(resumed.received, b"all");
        expect_all(&resumed, b"all");
        send(&resumed.link, b"answer");
        resumed.link.finish();
        peer_reads_to_end(&mut peer, b"answer");
    }
}

#[test]
fn after_both_ends_have_closed_their_directions() {
    if !in_network("sys::tcp_repair::tests::states::after_both_ends_have_closed_their_directions") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        peer.write_all(b"all").unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        reach(&link, TcpState::CLOSE_WAIT);
        let destination = prepare(&target, version);
        let fence = fence(&source, &link);
        send(&link, b"last words");
        link.finish();
        assert_eq!(Info::read(&link).unwrap().state, TcpState::LAST_ACK);
        let resumed = arrive(&target, &destination, leave(link, &fence));
        expect_all(&resumed, b"all");
        peer_reads_to_end(&mut peer, b"last words");
    }
}

#[test]
fn a_socket_that_is_not_connected_is_refused_by_its_state() {
    if !in_network("sys::tcp_repair::tests::states::a_socket_that_is_not_connected_is_refused_by_its_state") {
        return;
    }
    let [source, _other] = two_hosts();
    for (ip, peer) in [0, 1].map(addresses) {
        // Nobody has this address, so that no answer comes.
        let nobody = match peer {
            IpAddr::V4(_) => "10.77.0.99:5".parse().unwrap(),
            IpAddr::V6(_) => "[fd77::99]:5".parse().unwrap(),
        };
        let from = SocketAddr::new(ip, 0);
        let (listener, link, unused, fence) = source.run(move || {
            let listener = Listener::new(from, &KEEPALIVE).unwrap();
            let link = connect(nobody, Some(from), 0, &KEEPALIVE).unwrap();
            let unused = rustix::net::socket(
                if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 },
                SocketType::STREAM,
                None,
            );
            let unused = unused.unwrap();
            rustix::net::bind(&unused, &from).unwrap();
            (listener, link, unused, Fence::raise(ip).unwrap())
        });
        let refused = |error: RepairError, state: &str| {
            let text = error.to_string();
            assert!(text.contains(&format!("in state {state} ")), "{text}");
        };
        refused(dump(&listener, &fence).unwrap_err(), "LISTEN");
        refused(dump(&link, &fence).unwrap_err(), "SYN_SENT");
        refused(dump(&unused, &fence).unwrap_err(), "CLOSE");
    }
}
