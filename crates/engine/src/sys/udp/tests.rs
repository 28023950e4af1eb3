//! Real UDP sockets, on loopback.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use super::*;
use crate::sys::traffic;
use std::time::{Duration, Instant};

fn addresses(list: &[&str]) -> Vec<LocalAddress> {
    list.iter().map(|text| text.parse::<IpAddr>().unwrap().into()).collect()
}

fn port(list: &[&str]) -> UdpPort {
    UdpPort::bind(&addresses(list), PortRange::default()).unwrap()
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

fn send_to(address: &str, port: u16) -> SendTo {
    SendTo { gid: gid(address), port, traffic_class: 0 }
}

/// Receives the next datagram. Marks all sockets as readable, as a poll set would.
fn next(port: &UdpPort, into: &mut [u8]) -> Arrived {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        (0..port.sockets().len()).for_each(|socket| port.set_readable(socket));
        if let Some(arrived) = port.recv(into) {
            return arrived;
        }
        assert!(Instant::now() < until, "no datagram arrived in ten seconds");
    }
}

#[test]
fn one_port_serves_every_address_and_the_source_is_the_one_that_was_chosen() {
    let (one, other) = (port(&["127.0.0.1", "127.0.0.2", "::1"]), port(&["127.0.0.3", "::1"]));
    let mut into = [0; 100];
    for (from, to) in [("127.0.0.1", "127.0.0.3"), ("127.0.0.2", "127.0.0.3"), ("::1", "::1")] {
        let sent = one.at_gid(gid(from)).unwrap().send(send_to(to, other.port()), b"hello");
        assert_eq!(sent, Sent::Taken);
        let arrived = next(&other, &mut into);
        assert_eq!(arrived, Arrived { from: gid(from), port: one.port(), to: gid(to), len: 5 });
        assert_eq!(&into[..5], b"hello");
    }
    assert!(one.at_gid(gid("127.0.0.3")).is_none());
}

#[test]
fn nothing_is_bound_to_the_wildcard() {
    let one = port(&["127.0.0.1"]);
    let other = port(&["127.0.0.2"]);
    other.sockets()[0].send(send_to("127.0.0.2", one.port()), b"not there");
    other.sockets()[0].send(send_to("127.0.0.1", one.port()), b"there");
    let mut into = [0; 100];
    assert_eq!(next(&one, &mut into).to, gid("127.0.0.1"));
    assert_eq!(&into[..5], b"there");
}

#[test]
fn a_port_that_is_taken_anywhere_is_not_chosen() {
    let taken = port(&["127.0.0.2"]);
    let only = PortRange::new(taken.port(), taken.port()).unwrap();
    for at in ["127.0.0.1", "127.0.0.2"] {
        let refused = UdpPort::bind(&addresses(&[at]), only);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
    // A socket with SO_REUSEADDR cannot be bound to it, either.
    let at = SocketAddr::new("127.0.0.2".parse().unwrap(), taken.port());
    let sharer = open(at).unwrap();
    sockopt::set_socket_reuseaddr(&sharer, true).unwrap();
    assert_eq!(rustix::net::bind(&sharer, &at), Err(Errno::ADDRINUSE));
}

#[test]
fn an_address_that_is_not_there_is_left_out_if_that_was_asked_for() {
    let list = addresses(&["192.0.2.1", "127.0.0.1"]);
    let refused = UdpPort::bind(&list, PortRange::default());
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    let port = UdpPort::bind_available(&list, PortRange::default()).unwrap();
    assert_eq!(port.sockets().iter().map(UdpSocket::gid).collect::<Vec<_>>(), [gid("127.0.0.1")]);
    assert!(UdpPort::bind_available(&list[..1], PortRange::default()).is_err(), "none is left");
    assert!(UdpPort::bind(&[], PortRange::default()).is_err());
}

#[test]
fn what_nobody_receives_is_taken_all_the_same() {
    let one = port(&["127.0.0.1"]);
    let gone = port(&["127.0.0.1"]).port();
    for _ in 0..10 {
        assert_eq!(one.sockets()[0].send(send_to("127.0.0.1", gone), b"into the void"), Sent::Taken);
    }
    assert_eq!(one.sockets()[0].send(send_to("127.0.0.1", 0), b""), Sent::Lost, "there is no such port");
    assert!(one.recv(&mut [0; 10]).is_none());
}

#[test]
fn the_source_is_what_the_routes_say() {
    let one = port(&["127.0.0.1", "::1"]);
    assert_eq!(one.source_for(gid("127.0.0.9")).unwrap(), gid("127.0.0.1"));
    assert_eq!(one.source_for(gid("::1")).unwrap(), gid("::1"));
    let far = port(&["127.0.0.7"]);
    assert!(far.source_for(gid("127.0.0.1")).is_err(), "the routes say 127.0.0.1, which is not its own");
}

#[test]
fn a_longer_datagram_is_cut_off_and_shows_it() {
    let one = port(&["127.0.0.1"]);
    one.sockets()[0].send(send_to("127.0.0.1", one.port()), &[7; 500]);
    let mut into = [0; 100];
    assert_eq!(next(&one, &mut into).len, 100);
    assert!(one.recv(&mut into).is_none(), "the rest is gone");
}

/// Other tests of this process may send at the same time, so the counters may grow by more.
#[test]
fn datagrams_are_counted() {
    let before = traffic::of_process();
    let (one, other) = (port(&["127.0.0.1"]), port(&["127.0.0.2"]));
    one.sockets()[0].send(send_to("127.0.0.2", other.port()), &[7; 1000]);
    next(&other, &mut [0; 1000]);
    let after = traffic::of_process();
    assert!(after.sent >= before.sent + 1000 && after.received >= before.received + 1000, "{after:?}");
    assert!(after.segments_sent > before.segments_sent && after.segments_received > before.segments_received);
}
