//! Moves from host to host while both ends keep all queues full.

use super::hosts::{ARRIVER, HOST, move_to, start};
use super::role;
use super::scene::Peer;
use ironwarp::prelude::*;
use ironwarp_testkit::hosts::{MOVING, PEER, two_hosts};
use ironwarp_testkit::{child, long_form};
use std::time::Instant;

/// Number of moves.
fn moves() -> usize {
    if long_form::is_requested() { 400 } else { 8 }
}

#[test]
fn connections_under_load_move_from_host_to_host_without_a_wrong_byte() {
    match child::role().as_deref() {
        Some(ARRIVER) => return role::arrive(),
        Some("mover") => return role::play(),
        _ => {}
    }
    if !child::in_network(HOST) {
        return;
    }
    let hosts = two_hosts();
    let mut owner = start(&hosts[0]);
    let peer =
        Peer::connected_to(&owner, Adapter::new().unwrap(), &format!("{PEER}:0"), &format!("{MOVING}:0"));
    peer.goes_on("before the first move");
    let begin = Instant::now();
    for number in 1..=moves() {
        let (from, to) = (&hosts[(number - 1) % 2], &hosts[number % 2]);
        let next = move_to(&owner, to);
        assert!(to.has_address() && !from.has_address(), "after move {number}");
        owner = next;
        peer.goes_on(&format!("after move {number}"));
        if number % 50 == 0 {
            println!("{number} moves after {:?}", begin.elapsed());
        }
    }
    let operations = peer.finish(&owner);
    println!("{} moves, {operations} operations, {:?}", moves(), begin.elapsed());
}
