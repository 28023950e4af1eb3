//! Hand-overs from process to process while both ends keep all queues full.

use super::role;
use super::scene::{Peer, Process, hand_over};
use ironwarp_testkit::{child, long_form};
use std::time::Instant;

/// The test that the processes of all tests run in.
pub(crate) const HOST: &str =
    "load::connections_under_load_move_from_process_to_process_without_a_wrong_byte";
/// Number of hand-overs after which a process ends, and another takes its place.
const LIFE: u64 = 8;

/// Number of hand-overs.
fn moves() -> u64 {
    if long_form::is_requested() { 10_000 } else { 40 }
}

#[test]
fn connections_under_load_move_from_process_to_process_without_a_wrong_byte() {
    if child::role().is_some() {
        return role::play();
    }
    let (peer, mut owner) = Peer::start();
    let mut next = Process::start();
    let start = Instant::now();
    peer.goes_on("before the first move");
    for number in 1..=moves() {
        hand_over(&owner, &next);
        std::mem::swap(&mut owner, &mut next);
        if number % LIFE == 0 {
            next = Process::start();
        }
        if number % 4 == 0 {
            peer.goes_on(&format!("after move {number}"));
        }
        if number % 500 == 0 {
            println!("{number} hand-overs after {:?}", start.elapsed());
        }
    }
    peer.goes_on("after the last move");
    let operations = peer.finish(&owner);
    println!("{} hand-overs, {operations} operations, {:?}", moves(), start.elapsed());
}
