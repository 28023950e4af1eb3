//! Tests with answers that a kernel gave in a network namespace of its own: the interface `wan` has the default route,
//! `far` has another one, `lan` has no carrier, `spare` is down, and `lo` is loopback.
#![cfg(target_endian = "little")]

use super::*;
use crate::gid::parse::{Interface, NetworkState, Route};
use crate::sys::netlink::DumpProgress;

const LINKS: &[u8] = include_bytes!("../recorded/links.bin");
const ADDRESSES: &[u8] = include_bytes!("../recorded/addresses.bin");
const ROUTES: &[u8] = include_bytes!("../recorded/routes.bin");

/// Returns the recorded state of the host.
fn recorded() -> NetworkState {
    let mut found = NetworkState::default();
    for datagram in [LINKS, ADDRESSES, ROUTES] {
        assert_eq!(found.add_datagram(datagram).unwrap(), DumpProgress::Complete);
    }
    found
}

/// The table after the first reading of the recorded state: index, GID, interface and MTU.
const FIRST: [(usize, &str, &str, u32); 9] = [
    (0, "::ffff:10.1.0.6", "wan", 9000),
    (1, "::ffff:10.1.0.5", "wan", 9000),
    (2, "fd00:1::5", "wan", 9000),
    (3, "fe80::1", "wan", 9000),
    (4, "::ffff:10.4.0.1", "far", 1500),
    (5, "::ffff:172.17.0.1", "lan", 1500),
    (6, "::ffff:10.9.0.1", "lan", 1500),
    (7, "::ffff:127.0.0.1", "lo", 65536),
    (8, "::1", "lo", 65536),
];

/// Returns the GIDs of a table with their indices.
fn gids(state: &State) -> Vec<(usize, String)> {
    state.present().map(|entry| (entry.index, entry.gid.to_string())).collect()
}

/// Removes an address.
fn without(mut found: NetworkState, ip: &str) -> NetworkState {
    let ip: IpAddr = ip.parse().unwrap();
    found.addresses.retain(|address| address.ip != ip);
    found
}

/// Adds an address to an interface.
fn with(mut found: NetworkState, interface: u32, ip: &str) -> NetworkState {
    found.addresses.push(Address { interface, ip: ip.parse().unwrap() });
    found
}

#[test]
fn interfaces_addresses_and_routes_are_read() {
    let found = recorded();
    let lan =
        Interface { index: 4, name: "lan".to_owned(), mtu: 1500, up: true, running: false, loopback: false };
    assert_eq!(found.interfaces[3], lan);
    let names: Vec<&str> = found.interfaces.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["lo", "far", "wan", "lan", "spare"]);
    let route = Route { interface: 3, source: Some("10.1.0.6".parse().unwrap()), metric: 100, ipv6: false };
    assert_eq!(found.default_route(), Some(&route));
}

/// The default route's interface comes first, one without a carrier later, and loopback last. An interface that is
/// down, and an address that cannot be bound yet, have no GIDs.
#[test]
fn gid_0_is_of_the_default_routes_interface_and_loopback_is_last() {
    let mut state = State::default();
    state.update(&recorded());
    let found: Vec<_> =
        state.present().map(|one| (one.index, one.gid.to_string(), one.interface.clone(), one.mtu)).collect();
    let expected: Vec<_> =
        FIRST.map(|(index, gid, name, mtu)| (index, gid.to_owned(), name.to_owned(), mtu)).into();
    assert_eq!(found, expected);
    assert!(state.port_state().active);
}

#[test]
fn without_a_default_route_loopback_is_still_last_and_alone_it_is_first() {
    let mut found = recorded();
    found.routes.clear();
    let mut state = State::default();
    state.update(&found);
    let order = gids(&state);
    assert_eq!(order[0].1, "::ffff:10.4.0.1");
    assert_eq!(order[8].1, "::1");

    found.interfaces.retain(|interface| interface.loopback);
    let mut state = State::default();
    state.update(&found);
    assert_eq!(gids(&state), [(0, "::ffff:127.0.0.1".to_owned()), (1, "::1".to_owned())]);
    assert!(state.port_state().active, "the port represents loopback");
}

#[test]
fn an_index_is_for_life() {
    let mut state = State::default();
    state.update(&recorded());
    let first = gids(&state);

    // An address is removed: its index becomes empty, and the others keep theirs.
    state.update(&without(recorded(), "10.1.0.6"));
    let version = state.version;
    assert_eq!(gids(&state), first[1..]);

    // Another address is added: it is appended, and does not get the empty index.
    let more = with(without(recorded(), "10.1.0.6"), 3, "10.1.0.7");
    state.update(&more);
    assert_eq!(gids(&state).last(), Some(&(9, "::ffff:10.1.0.7".to_owned())));
    assert_eq!(state.version, version + 1);

    // The first address comes back, and has its index again.
    state.update(&recorded());
    assert_eq!(gids(&state), first);

    // The whole interface goes down and comes up, with another number and under another name.
    let mut renamed = recorded();
    let wan = renamed.interfaces.iter_mut().find(|one| one.name == "wan").unwrap();
    (wan.up, wan.running) = (false, false);
    state.update(&renamed);
    assert_eq!(gids(&state), first[4..]);
    assert!(!state.port_state().active, "the port represents that interface");
    let wan = renamed.interfaces.iter_mut().find(|one| one.name == "wan").unwrap();
    *wan = Interface { name: "wan0".to_owned(), index: 77, up: true, running: true, ..wan.clone() };
    renamed.addresses.iter_mut().filter(|one| one.interface == 3).for_each(|one| one.interface = 77);
    state.update(&renamed);
    assert_eq!(gids(&state), first);
    assert_eq!(state.slots[0].entry.interface_index, 77);
    assert!(state.port_state().active);
}

#[test]
fn the_same_link_local_address_on_two_interfaces_has_two_indices() {
    let two = with(recorded(), 2, "fe80::1");
    let mut state = State::default();
    state.update(&two);
    let index_on = |state: &State, name: &str| {
        let mut all = state.present();
        all.find(|one| one.interface == name && one.gid.is_link_local()).map(|one| one.index)
    };
    let (wan, far) = (index_on(&state, "wan").unwrap(), index_on(&state, "far").unwrap());
    assert_ne!(wan, far);
    state.update(&recorded());
    assert_eq!((index_on(&state, "wan"), index_on(&state, "far")), (Some(wan), None));
    state.update(&two);
    assert_eq!((index_on(&state, "wan"), index_on(&state, "far")), (Some(wan), Some(far)));
    let entry = &state.slots[far].entry;
    assert_eq!(entry.socket_addr(7).unwrap().to_string(), "[fe80::1%2]:7");
}

#[test]
fn there_are_no_more_indices_than_promised() {
    let mut state = State::default();
    for round in 0..=u16::try_from(MAX_GIDS).unwrap() {
        let [a, b] = round.to_be_bytes();
        state.update(&with(recorded(), 3, &format!("10.77.{a}.{b}")));
    }
    assert_eq!(state.slots.len(), MAX_GIDS);
    assert_eq!(gids(&state).len(), FIRST.len(), "the last address has no index");
}

/// A multipath default route has a list of interfaces.
#[test]
fn a_route_over_several_ways_is_of_the_first() {
    let attribute = |kind: u16, value: &[u8]| {
        let len = u16::try_from(value.len() + 4).unwrap();
        [&len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    };
    let hop = |interface: u32| [&[8, 0, 0, 0], &interface.to_ne_bytes()[..]].concat();
    let mut body = vec![2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    body.extend(attribute(9, &[hop(5), hop(6)].concat()));
    let mut message = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
    message.extend(24_u16.to_ne_bytes());
    message.extend([0; 10]);
    message.extend(body);
    let mut found = NetworkState::default();
    assert_eq!(found.add_datagram(&message).unwrap(), DumpProgress::Partial);
    assert_eq!(found.routes, [Route { interface: 5, source: None, metric: 0, ipv6: false }]);
}

/// Datagrams that are truncated anywhere, or have any byte changed, are parsed without a panic.
#[test]
fn nothing_the_kernel_could_say_does_harm() {
    for dump in [LINKS, ADDRESSES, ROUTES] {
        for end in 0..dump.len() {
            let _ = NetworkState::default().add_datagram(&dump[..end]);
        }
        let mut wrong = dump.to_vec();
        for at in 0..wrong.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let right = std::mem::replace(&mut wrong[at], value);
                let _ = NetworkState::default().add_datagram(&wrong);
                wrong[at] = right;
            }
        }
    }
}

#[test]
fn an_error_of_the_kernel_is_returned() {
    let mut message = 36_u32.to_ne_bytes().to_vec();
    message.extend(2_u16.to_ne_bytes());
    message.extend([0; 10]);
    message.extend((-libc::EPERM).to_ne_bytes());
    message.extend([0; 16]);
    let error = NetworkState::default().add_datagram(&message).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

/// If the state changes while the kernel sends a dump, the dump is inconsistent and must be repeated.
#[test]
fn an_answer_that_was_interrupted_is_asked_for_anew() {
    let mut dump = ADDRESSES.to_vec();
    dump[6] |= u8::try_from(libc::NLM_F_DUMP_INTR).unwrap();
    assert_eq!(NetworkState::default().add_datagram(&dump).unwrap(), DumpProgress::Interrupted);
}

/// The table of the host that runs the test has loopback, and lookups by index and by GID agree with the list.
#[test]
fn the_hosts_own_table_is_consistent() {
    let table = GidTable::of_process();
    let entries = table.entries().unwrap();
    for entry in &entries {
        assert_eq!(table.get(entry.index).unwrap().as_ref(), Some(entry));
        assert!(std::net::UdpSocket::bind(entry.socket_addr(0).unwrap()).is_ok(), "{entry:?} can be bound");
    }
    let loopback = table.find("127.0.0.1".parse().unwrap()).unwrap().unwrap();
    assert_eq!(loopback.interface, "lo");
    assert_eq!(table.get(MAX_GIDS).unwrap(), None);
}
