//! Moves from host to host while both ends keep all queues full.

use super::hosts::{ARRIVER, HOST, move_to, start};
use super::role;
use super::scene::Peer;
use ironwarp::prelude::*;
use ironwarp_testkit::hosts::{MOVING, MOVING_V6, PEER, PEER_V6, two_hosts};
use ironwarp_testkit::{child, long_form};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Number of moves.
fn moves() -> usize {
    if long_form::is_requested() { 200 } else { 6 }
}

/// Moves the end of this address back and forth.
fn run(address: &str, peer: &str) {
    let hosts = two_hosts();
    let mut owner = start(&hosts[0]);
    let [at, from] = [peer, address].map(|ip| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0).to_string());
    let peer = Peer::connected_to(&owner, Adapter::new().unwrap(), &at, &from);
    peer.goes_on("before the first move");
    let begin = Instant::now();
    for number in 1..=moves() {
        let (from, to) = (&hosts[(number - 1) % 2], &hosts[number % 2]);
        let next = move_to(&owner, to);
        assert!(to.has_address(address) && !from.has_address(address), "after move {number}");
        owner = next;
        peer.goes_on(&format!("after move {number}"));
        if number % 50 == 0 {
            println!("{number} moves after {:?}", begin.elapsed());
        }
    }
    let operations = peer.finish(&owner);
    println!("{} moves, {operations} operations, {:?}", moves(), begin.elapsed());
}

#[test]
fn connections_under_load_move_from_host_to_host_without_a_wrong_byte() {
    match child::role().as_deref() {
        Some(ARRIVER) => role::arrive(),
        Some("mover") => role::play(),
        _ if child::in_network(HOST) => run(MOVING, PEER),
        _ => {}
    }
}

#[test]
fn connections_over_ipv6_move_from_host_to_host_without_a_wrong_byte() {
    if child::in_network("host_load::connections_over_ipv6_move_from_host_to_host_without_a_wrong_byte") {
        run(MOVING_V6, PEER_V6);
    }
}
