//! Addresses of real interfaces, in network namespaces of their own.

use super::*;
use crate::sys::tcp::is_local as can_bind;
use crate::sys::testing::hosts::{Host, MOVING, add, prefix_of, two_hosts};
use ironwarp_testkit::child::in_network;
use ironwarp_testkit::net::ip as run_ip;
use std::process::Command;

/// Returns what ip(8) shows for the addresses of eth0, at a host.
fn shown(host: &Host) -> String {
    host.run(|| {
        let output = Command::new("ip").args(["-d", "addr", "show", "dev", "eth0"]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    })
}

/// Returns the moving addresses.
fn moving() -> [IpAddr; 2] {
    MOVING.map(|ip| ip.parse().unwrap())
}

#[track_caller]
fn assert_still_local(result: Result<impl std::fmt::Debug, FenceError>, ip: IpAddr) {
    assert!(matches!(result, Err(FenceError::StillLocal { ip: found, .. }) if found == ip), "{result:?}");
}

#[test]
fn an_address_is_removed_and_put_back_as_it_was() {
    if !in_network("sys::fence::tests::an_address_is_removed_and_put_back_as_it_was") {
        return;
    }
    let [host, _other] = two_hosts();
    let special = "10.78.0.5".parse().unwrap();
    host.run(|| {
        run_ip("addr add 10.78.0.5/20 brd 10.78.15.255 dev eth0 label eth0:x scope site metric 77");
    });
    let before = shown(&host);
    for ip in moving().into_iter().chain([special]) {
        let fence = host.run(move || Fence::raise(ip).unwrap());
        assert!(!host.run(move || can_bind(ip)));
        assert!(!shown(&host).contains(&format!("{ip}/")));
        fence.put_back().unwrap();
        assert!(host.run(move || can_bind(ip)), "{ip} is usable at once");
        let fence = host.run(move || Fence::raise(ip).unwrap());
        fence.address.add(&fence.socket).unwrap();
        fence.put_back().expect("somebody else has put it back");
    }
    let sorted = |text: &str| {
        // The link-local address is the kernel's, and may be tentative still.
        let mut lines: Vec<_> =
            text.lines().filter(|line| !line.contains("scope link")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&shown(&host)), sorted(&before));
}

#[test]
fn an_address_that_is_added_again_is_noticed() {
    if !in_network("sys::fence::tests::an_address_that_is_added_again_is_noticed") {
        return;
    }
    let [host, _other] = two_hosts();
    for ip in moving() {
        host.run(move || {
            let fence = Fence::raise(ip).unwrap();
            fence.prove().unwrap();
            add(&ip.to_string(), "lo");
            assert_still_local(fence.prove(), ip);
            fence.put_back().unwrap(); // to its own interface
            Fence::raise(ip).unwrap_err();
        });
    }
}

/// The kernel also answers for addresses that no interface has, if a route of type "local" covers them.
#[test]
fn an_address_with_a_local_route_is_not_fenced_and_stays() {
    if !in_network("sys::fence::tests::an_address_with_a_local_route_is_not_fenced_and_stays") {
        return;
    }
    let [host, _other] = two_hosts();
    host.run(|| {
        run_ip("route add local 10.77.0.0/28 dev lo");
        run_ip("route add local fd77::/112 dev lo");
    });
    let before = shown(&host);
    for ip in moving() {
        host.run(move || assert_still_local(Fence::raise(ip), ip));
    }
    assert_eq!(shown(&host).lines().count(), before.lines().count(), "the addresses are back");
}

#[test]
fn without_its_interface_nothing_is_proven() {
    if !in_network("sys::fence::tests::without_its_interface_nothing_is_proven") {
        return;
    }
    let [host, other] = two_hosts();
    let [ip, _] = moving();
    let fence = host.run(move || Fence::raise(ip).unwrap());
    let fence = other.run(move || {
        assert!(matches!(fence.prove(), Err(FenceError::OtherNamespace { .. })), "another namespace");
        fence
    });
    host.run(move || {
        fence.prove().unwrap();
        run_ip("link del eth0");
        let error = fence.prove().unwrap_err();
        assert!(matches!(&error, FenceError::InterfaceGone { interface } if interface == "eth0"), "{error}");
    });
}

#[test]
fn an_address_of_two_interfaces_is_refused_and_stays() {
    if !in_network("sys::fence::tests::an_address_of_two_interfaces_is_refused_and_stays") {
        return;
    }
    let [host, _other] = two_hosts();
    for ip in moving() {
        host.run(move || add(&ip.to_string(), "lo"));
        let before = shown(&host);
        let text = host.run(move || Fence::raise(ip).unwrap_err().to_string());
        assert!(text.contains("lo") && text.contains("eth0"), "{text}");
        assert_eq!(shown(&host), before);
    }
}

/// By default the kernel removes secondary addresses together with their primary address.
#[test]
fn other_addresses_are_not_removed_along() {
    if !in_network("sys::fence::tests::other_addresses_are_not_removed_along") {
        return;
    }
    let [host, _other] = two_hosts();
    let primary = "10.77.0.11".parse().unwrap();
    host.run(move || {
        let settings =
            ["all", "eth0"].map(|name| format!("/proc/sys/net/ipv4/conf/{name}/promote_secondaries"));
        settings.iter().for_each(|path| std::fs::write(path, "0").unwrap());
        let text = Fence::raise(primary).unwrap_err().to_string();
        assert!(
            text.contains("would also remove 10.77.0.2") && text.contains("promote_secondaries"),
            "{text}"
        );
        std::fs::write(&settings[1], "1").unwrap();
        Fence::raise(primary).unwrap();
        assert!(can_bind(moving()[0]));
    });
}

#[test]
fn addresses_that_cannot_move_are_refused() {
    if !in_network("sys::fence::tests::addresses_that_cannot_move_are_refused") {
        return;
    }
    let [host, _other] = two_hosts();
    host.run(|| {
        for ip in ["127.0.0.1", "::1", "fe80::1", "169.254.1.1", "224.0.0.1", "ff02::1", "0.0.0.0", "::"] {
            let ip = ip.parse().unwrap();
            assert!(matches!(Fence::raise(ip), Err(FenceError::NotMovable(found)) if found == ip));
            assert!(matches!(Destination::prepare(ip, 24, "eth0"), Err(FenceError::NotMovable(_))));
        }
        let unknown = "10.77.0.99".parse().unwrap();
        assert!(matches!(Fence::raise(unknown), Err(FenceError::NotAssigned(found)) if found == unknown));
        let text = Destination::prepare(unknown, 24, "eth7").unwrap_err().to_string();
        assert!(text.contains("interface eth7 does not exist"), "{text}");
        moving().into_iter().for_each(|ip| {
            assert_still_local(Destination::prepare(ip, prefix_of(ip), "eth0"), ip);
        });
        run_ip("link set eth0 down");
        let text = Destination::prepare(unknown, 24, "eth0").unwrap_err().to_string();
        assert!(text.contains("interface eth0 is down"), "{text}");
    });
}

/// Returns the hardware address that the test's own host knows for an address, from ip(8).
fn neighbour(ip: IpAddr) -> Option<String> {
    let output = Command::new("ip").args(["neigh", "show", &ip.to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace();
    words.find(|&word| word == "lladdr")?;
    words.next().map(str::to_owned)
}

#[test]
fn neighbours_learn_where_the_address_is() {
    if !in_network("sys::fence::tests::neighbours_learn_where_the_address_is") {
        return;
    }
    let [first, second] = two_hosts();
    let hardware = |host: &Host| {
        let text = shown(host);
        let (_, rest) = text.split_once("link/ether ").unwrap();
        rest.split(' ').next().unwrap().to_owned()
    };
    let (of_first, of_second) = (hardware(&first), hardware(&second));
    assert_ne!(of_first, of_second);
    for ip in moving() {
        // A connection attempt makes this host look for the address.
        let _ = std::net::TcpStream::connect((ip, 9));
        assert_eq!(neighbour(ip), Some(of_first.clone()));
        let fence = first.run(move || Fence::raise(ip).unwrap());
        let destination = second.run(move || Destination::prepare(ip, fence.prefix_len(), "eth0").unwrap());
        assert_eq!(neighbour(ip), Some(of_first.clone()));
        destination.take_address().unwrap();
        let text = shown(&second);
        let line = text.lines().find(|line| line.contains(&format!("{ip}/"))).unwrap();
        assert!(ip.is_ipv4() || line.contains("nodad"), "its detection would take a second: {line}");
        ironwarp_testkit::wait::until(|| neighbour(ip) == Some(of_second.clone()));
    }
}
