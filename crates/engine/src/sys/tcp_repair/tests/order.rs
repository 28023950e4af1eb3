//! The order of the steps protects a connection: taken out, the peer gets a reset.

use super::*;
use ironwarp_testkit::child::in_network;
use std::io::{ErrorKind, Read, Write};

/// Sends a byte from the peer, and expects that the connection is reset.
#[track_caller]
fn expect_reset(mut peer: TcpStream) {
    peer.write_all(b"x").unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_source_that_keeps_its_address_resets_the_connection() {
    if !in_network("sys::tcp_repair::tests::order::a_source_that_keeps_its_address_resets_the_connection") {
        return;
    }
    let [source, _other] = two_hosts();
    for version in [0, 1] {
        let (link, peer) = connected(&source, version);
        dump_unfenced(&link).unwrap();
        drop(link);
        expect_reset(peer);
    }
}

#[test]
fn a_destination_that_has_the_address_too_early_resets_the_connection() {
    if !in_network(
        "sys::tcp_repair::tests::order::a_destination_that_has_the_address_too_early_resets_the_connection",
    ) {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, peer) = connected(&source, version);
        let destination = prepare(&target, version);
        let fence = fence(&source, &link);
        let _image = leave(link, &fence);
        destination.take_address().unwrap();
        expect_reset(peer);
    }
}

#[test]
fn the_right_order_resets_nothing() {
    if !in_network("sys::tcp_repair::tests::order::the_right_order_resets_nothing") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        let destination = prepare(&target, version);
        let fence = fence(&source, &link);
        peer.write_all(b"while no host has the address").unwrap();
        let bytes = leave(link, &fence);
        peer.write_all(b", and no socket").unwrap();
        let resumed = arrive(&target, &destination, bytes);
        assert_eq!(resumed.received, b"");
        expect(&resumed.link, b"while no host has the address, and no socket");
        send(&resumed.link, b"answer");
        let mut answer = [0; 6];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
}

#[test]
fn the_source_can_take_everything_back() {
    if !in_network("sys::tcp_repair::tests::order::the_source_can_take_everything_back") {
        return;
    }
    let [source, _other] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        sockopt::set_socket_reuseaddr(&link, true).unwrap();
        peer.write_all(b"one ").unwrap();
        wait(&link, PollFlags::IN);
        let fence = fence(&source, &link);
        let image = dump(&link, &fence).unwrap();
        assert_eq!(image.received, b"one ");
        peer.write_all(b"two").unwrap();
        fence.put_back().unwrap();
        thaw(&link, &image).unwrap();
        assert!(sockopt::socket_reuseaddr(&link).unwrap(), "repair mode clears it");
        expect(&link, b"one two");
        send(&link, b"three");
        let mut answer = [0; 5];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"three");
    }
}
