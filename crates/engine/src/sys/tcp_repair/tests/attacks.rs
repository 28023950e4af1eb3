//! What must be refused, and leave the connection as it was.

use super::*;
use crate::sys::testing::hosts::add;
use ironwarp_testkit::child::{self, in_network};
use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

/// Exchanges bytes in both directions.
#[track_caller]
fn works(link: &TcpLink, peer: &mut TcpStream) {
    peer.write_all(b"there").unwrap();
    expect(link, b"there");
    send(link, b"back");
    let mut found = [0; 4];
    peer.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"back");
}

#[test]
fn nothing_is_dumped_while_the_source_has_the_address() {
    if !in_network("sys::tcp_repair::tests::attacks::nothing_is_dumped_while_the_source_has_the_address") {
        return;
    }
    let [source, _other] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        let fence = fence(&source, &link);
        let ip = fence.ip();
        // Something that configures interfaces adds the address again.
        source.run(move || add(&ip.to_string(), "eth0"));
        let error = dump(&link, &fence).unwrap_err();
        assert!(
            matches!(error, RepairError::Fence(FenceError::StillLocal { ip: found, .. }) if found == ip),
            "{error}"
        );
        works(&link, &mut peer);
        let other = host_address(&source, version);
        let error = dump(&other, &fence).unwrap_err();
        assert!(matches!(error, RepairError::Fence(FenceError::OtherAddress { .. })), "{error}");
    }
}

/// Returns a socket of a host at an address that does not move.
fn host_address(host: &Host, version: usize) -> TcpListener {
    let ip: IpAddr = ["10.77.0.11", "fd77::11"][version].parse().unwrap();
    host.run(move || TcpListener::bind((ip, 0)).unwrap())
}

#[test]
fn a_fence_of_another_namespace_protects_nothing() {
    if !in_network("sys::tcp_repair::tests::attacks::a_fence_of_another_namespace_protects_nothing") {
        return;
    }
    let [source, other] = two_hosts();
    let (link, mut peer) = connected(&source, 0);
    let (ip, _) = addresses(0);
    let fence = other.run(move || {
        add(&ip.to_string(), "eth0");
        Fence::raise(ip).unwrap()
    });
    let error = dump(&link, &fence).unwrap_err();
    assert!(matches!(error, RepairError::Fence(FenceError::OtherNamespace { .. })), "{error}");
    works(&link, &mut peer);
}

/// Segments that arrive during a dump would be missing in the image.
#[test]
fn a_connection_that_still_receives_is_not_dumped() {
    if !in_network("sys::tcp_repair::tests::attacks::a_connection_that_still_receives_is_not_dumped") {
        return;
    }
    static STOP: AtomicBool = AtomicBool::new(false);
    let [source, _other] = two_hosts();
    let (link, mut peer) = connected(&source, 0);
    let sender = thread::spawn(move || {
        let mut position = 0;
        while !STOP.load(Relaxed) {
            peer.write_all(&Pattern::IN.bytes(position, 1000)).unwrap();
            position += 1000;
        }
        (peer, position)
    });
    let (mut received, mut buffer) = (0, vec![0; 65536]);
    let mut receive = |received: &mut u64| {
        wait(&link, PollFlags::IN);
        let len = link.recv(&[], &mut buffer).unwrap();
        Pattern::IN.check(*received, &buffer[..len]);
        *received += len as u64;
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    // The sender may be interrupted while the connection is dumped: then nothing is missing.
    while let Ok(image) = dump_unfenced(&link) {
        assert!(Instant::now() < deadline, "no dump was refused");
        thaw(&link, &image).unwrap();
        let arrived = received + image.received.len() as u64;
        while received < arrived + 1 {
            receive(&mut received);
        }
    }
    STOP.store(true, Relaxed);
    // The sender ends when there is room for its bytes.
    while !sender.is_finished() || link.arrived() > 0 {
        if link.arrived() > 0 {
            receive(&mut received);
        }
    }
    let (mut peer, sent) = sender.join().unwrap();
    while received < sent {
        receive(&mut received);
    }
    works(&link, &mut peer);
}

#[test]
fn a_connection_is_not_restored_twice() {
    if !in_network("sys::tcp_repair::tests::attacks::a_connection_is_not_restored_twice") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        let destination = prepare(&target, version);
        let fence = fence(&source, &link);
        let bytes = leave(link, &fence);
        let again = bytes.clone();
        let first = target.run(move || restore(TcpImage::decode(&bytes).unwrap()).unwrap());
        let error = target.run(move || restore(TcpImage::decode(&again).unwrap()).unwrap_err());
        assert!(error.to_string().contains("failed to open the connection"), "{error}");
        destination.take_address().unwrap();
        works(&first.resume().unwrap().link, &mut peer);
    }
}

/// A destination that is refused, or dies, must not disturb the connection, which the source still has.
#[test]
fn a_restored_connection_that_is_dropped_sends_nothing() {
    if !in_network("sys::tcp_repair::tests::attacks::a_restored_connection_that_is_dropped_sends_nothing") {
        return;
    }
    let [source, target] = two_hosts();
    for version in [0, 1] {
        let (link, mut peer) = connected(&source, version);
        let fence = fence(&source, &link);
        send(&link, b"unacknowledged, ");
        let image = dump(&link, &fence).unwrap();
        let copy = image.clone();
        target.run(move || drop(restore(copy).unwrap()));
        fence.put_back().unwrap();
        thaw(&link, &image).unwrap();
        send(&link, b"and more");
        let mut found = [0; 24];
        peer.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"unacknowledged, and more");
        works(&link, &mut peer);
    }
}

/// A process that is root only of a user namespace may not exceed the limits of the host.
#[test]
fn more_sent_bytes_than_the_host_allows_are_refused() {
    if !in_network("sys::tcp_repair::tests::attacks::more_sent_bytes_than_the_host_allows_are_refused") {
        return;
    }
    let [source, target] = two_hosts();
    let (link, mut peer) = connected(&source, 0);
    let fence = fence(&source, &link);
    let image = dump(&link, &fence).unwrap();
    let mut huge = image.clone();
    (huge.sent, huge.options.send_buffer) = (vec![0; 4 << 20], 20_000);
    let error = target.run(|| restore(huge).unwrap_err());
    assert!(matches!(error, RepairError::SendBuffer { need: 0x40_0000, have: 20_000 }), "{error:?}");
    fence.put_back().unwrap();
    thaw(&link, &image).unwrap();
    works(&link, &mut peer);
}

/// Returns a command that runs `test` in a user namespace that does not own its network namespace, so that no process there has
/// a capability for the network. The network has a loopback interface, and an Ethernet interface with an address.
fn without_capabilities(test: &str) -> Command {
    let script = "ip link set lo up && ip link add eth0 type veth peer name eth1 && \
                  ip link set eth0 up && ip addr add 10.77.0.2/24 dev eth0 && exec unshare --user --map-root-user \"$0\" \"$@\"";
    child::in_front(&["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script], test, "child")
}

#[test]
fn without_capabilities_the_errors_say_what_to_do() {
    let test = "sys::tcp_repair::tests::attacks::without_capabilities_the_errors_say_what_to_do";
    if child::role().is_none() {
        let output = without_capabilities(test).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let says = |error: &dyn std::error::Error, action: &str| {
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("not permitted to {action}: run as root, or grant CAP_NET_ADMIN")),
            "{text}"
        );
    };
    let (link, other) = crate::sys::testing::pair();
    says(&dump_unfenced(&link).unwrap_err(), "set TCP_REPAIR");
    send(&link, b"unharmed");
    expect(&other, b"unharmed");
    let (ip, _) = addresses(0);
    says(&Fence::raise(ip).unwrap_err(), "open a packet socket");
    assert!(crate::sys::tcp::is_local(ip));
    let elsewhere = "10.77.0.3".parse().unwrap();
    says(&Destination::prepare(elsewhere, 24, "eth0").unwrap_err(), "open a packet socket");
}
