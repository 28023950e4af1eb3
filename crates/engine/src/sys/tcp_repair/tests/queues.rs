//! What is in the queues of a connection, and its options, when it moves.

use super::*;
use crate::sys::socket::option;
use crate::sys::tcp::{BindOptions, Bound};
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::net::ip;
use std::io::{Read, Write};

/// Reads `len` bytes at the peer, and compares them.
#[track_caller]
fn peer_receives(peer: &mut TcpStream, position: u64, len: u64) {
    let mut found = vec![0; usize::try_from(len).unwrap()];
    peer.read_exact(&mut found).unwrap();
    Pattern::OUT.check(position, &found);
}

#[test]
fn bytes_that_were_sent_and_lost_are_sent_again_by_the_destination() {
    if !in_network(
        "sys::tcp_repair::tests::queues::bytes_that_were_sent_and_lost_are_sent_again_by_the_destination",
    ) {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        send(&link, &Pattern::OUT.bytes(0, 1000));
        peer_receives(&mut peer, 0, 1000);
        let destination = prepare(&target, version);
        // What the source sends reaches nobody from now on.
        let (_, at) = addresses(version);
        source
            .run(move || ip(&format!("neigh replace {at} lladdr 02:00:00:00:00:99 nud permanent dev eth0")));
        send(&link, &Pattern::OUT.bytes(1000, 9000));
        let fence = fence(&source, &link);
        let bytes = leave(link, &fence);
        let image = TcpImage::decode(&bytes).unwrap();
        assert_eq!((image.sent.len(), image.unsent.len()), (9000, 0));
        Pattern::OUT.check(1000, &image.sent);
        let resumed = arrive(&target, &destination, bytes);
        send(&resumed.link, &Pattern::OUT.bytes(10_000, 500));
        peer_receives(&mut peer, 1000, 9500);
    }
}

#[test]
fn bytes_for_which_the_peer_has_no_room_move_too() {
    if !in_network("sys::tcp_repair::tests::queues::bytes_for_which_the_peer_has_no_room_move_too") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        sockopt::set_socket_send_buffer_size(&link, 50_000).unwrap(); // less than the destination allows
        let mut sent = 0;
        loop {
            match link.send(&[Piece::Own(&Pattern::OUT.bytes(sent, 3000))]) {
                Ok(len) => sent += len as u64,
                Err(LinkError::WouldBlock) if send_queue_len(&link, SendQueue::Unsent).unwrap() > 0 => break,
                Err(error) => assert_eq!(error, LinkError::WouldBlock),
            }
        }
        peer.write_all(&Pattern::IN.bytes(0, 7000)).unwrap();
        wait(&link, PollFlags::IN);
        let resumed = relocate(link, &source, &target);
        assert_eq!(resumed.unsent, b"", "as much fits as at the source");
        let carried = resumed.received.len();
        Pattern::IN.check(0, &resumed.received);
        expect(&resumed.link, &Pattern::IN.bytes(carried as u64, 7000 - carried));
        peer_receives(&mut peer, 0, sent);
        send(&resumed.link, &Pattern::OUT.bytes(sent, 1000));
        peer_receives(&mut peer, sent, 1000);
    }
}

#[test]
fn unsent_bytes_without_room_are_returned_and_the_end_of_the_stream_waits_for_them() {
    if !in_network(
        "sys::tcp_repair::tests::queues::unsent_bytes_without_room_are_returned_and_the_end_of_the_stream_waits_for_them",
    ) {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        let destination = prepare(&target, version);
        let fence = fence(&source, &link);
        let mut image = dump(&link, &fence).unwrap();
        drop(link);
        // As if the program had sent more than fits, and closed its direction.
        (image.unsent, image.finished) = (Pattern::OUT.bytes(0, 1_000_000), true);
        image.options.send_buffer = 20_000;
        let resumed = arrive(&target, &destination, image.encode());
        let accepted = 1_000_000 - resumed.unsent.len() as u64;
        assert!(accepted < 1_000_000);
        Pattern::OUT.check(accepted, &resumed.unsent);
        peer_receives(&mut peer, 0, accepted);
        let sender = std::thread::spawn(move || {
            let mut left = &*resumed.unsent;
            while !left.is_empty() {
                wait(&resumed.link, PollFlags::OUT);
                left = &left[resumed.link.send(&[Piece::Own(left)]).unwrap()..];
            }
            resumed.link.finish();
        });
        peer_receives(&mut peer, accepted, 1_000_000 - accepted);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        sender.join().unwrap();
    }
}

#[test]
fn a_connection_over_ipv4_of_an_ipv6_socket_moves() {
    if !in_network("sys::tcp_repair::tests::queues::a_connection_over_ipv4_of_an_ipv6_socket_moves") {
        return;
    }
    let [source, target] = two_hosts();
    let (ip, _) = addresses(0);
    let (listener, at) = source.run(|| {
        let both = BindOptions { both_versions: true, ..BindOptions::default() };
        let bound = Bound::new("[::]:0".parse().unwrap(), both).unwrap();
        let at = bound.local_addr().unwrap();
        (bound.listen(&KEEPALIVE).unwrap(), at)
    });
    let mut peer = TcpStream::connect((ip, at.port())).unwrap();
    wait(&listener, PollFlags::IN);
    let link = listener.accept().unwrap().unwrap().link;
    assert!(link.local_addr().unwrap().is_ipv6());
    let destination = prepare(&target, 0);
    let fence = fence(&source, &link);
    let resumed = arrive(&target, &destination, leave(link, &fence));
    peer.write_all(&Pattern::IN.bytes(0, 3000)).unwrap();
    expect(&resumed.link, &Pattern::IN.bytes(0, 3000));
    send(&resumed.link, &Pattern::OUT.bytes(0, 3000));
    peer_receives(&mut peer, 0, 3000);
}

#[test]
fn the_options_of_a_connection_and_its_socket_move() {
    if !in_network("sys::tcp_repair::tests::queues::the_options_of_a_connection_and_its_socket_move") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, peer) = connected(&source, version);
        sockopt::set_socket_reuseaddr(&link, true).unwrap();
        sockopt::set_socket_reuseport(&link, version == 0).unwrap();
        sockopt::set_socket_recv_buffer_size(&link, 70_000).unwrap();
        let (local, remote) = (link.local_addr().unwrap(), link.peer_addr().unwrap());
        let before = read_socket_options(&link).unwrap();
        assert_eq!((before.traffic_class, before.user_timeout), (CLASS, 25_500));
        assert!(
            before.fixed_receive_buffer && !before.fixed_send_buffer && before.no_delay && before.keepalive
        );
        let priority = option(&link, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap();

        let destination = prepare(&target, version);
        let first = fence(&source, &link);
        let image = dump(&link, &first).unwrap();
        drop(link);
        let link = arrive(&target, &destination, image.encode()).link;
        assert_eq!((link.local_addr().unwrap(), link.peer_addr().unwrap()), (local, remote));
        assert_eq!(read_socket_options(&link).unwrap(), before);
        assert_eq!(option(&link, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap(), priority);
        assert_eq!(option(&link, libc::IPPROTO_IP, libc::IP_TRANSPARENT).unwrap(), 0);

        let second = fence(&target, &link);
        let again = dump(&link, &second).unwrap();
        assert_eq!((again.send_seq, again.receive_seq), (image.send_seq, image.receive_seq));
        let clock = |image: &TcpImage| image.agreed.timestamp.expect("Linux uses timestamps");
        let ticks = clock(&again).wrapping_sub(clock(&image)).cast_signed();
        assert!(ticks >= 0, "the clock of the timestamps went back by {ticks}");
        let agreed = |image: &TcpImage| Agreed { timestamp: None, ..image.agreed };
        assert_eq!(agreed(&again), agreed(&image));
        assert!(again.agreed.sack && again.agreed.window_scale.is_some() && again.agreed.mss > 1000);
        assert_eq!(again.window.receive_update, image.window.receive_update);
        drop(peer);
    }
}
