//! Measures how long a peer waits at most around a move from host to host, and around closing a connection and making another one
//! from the other host. Prints numbers, and asserts none:
//! `cargo test -p ironwarp --test hand_over --release -- --ignored --nocapture host_pause`.

use super::hosts::{ARRIVER, start_in};
use super::pause::{Pinger, arrive, flow, play, print};
use super::scene::Process;
use ironwarp_testkit::child;
use ironwarp_testkit::control::pair;
use ironwarp_testkit::hosts::{MOVING, PEER, two_hosts};

const TEST: &str = "host_pause::the_pause_of_a_move_between_hosts_is_printed";
/// Number of moves, and of connections made anew.
const ROUNDS: usize = 100;

#[test]
#[ignore = "prints times, which depend on the machine"]
fn the_pause_of_a_move_between_hosts_is_printed() {
    match child::role().as_deref() {
        Some(ARRIVER) => return arrive(),
        Some("mover") => return play(),
        _ => {}
    }
    if !child::in_network_with(TEST, &["--include-ignored"]) {
        return;
    }
    let hosts = two_hosts();
    let at = format!("{PEER}:0");
    let (mut moved, mut remade) = (Pinger::new(&at), Pinger::new(&at));
    let mut owner = start_in(TEST, &hosts[0]);
    moved.open(&owner, 1, &format!("{MOVING}:0"));
    let mut others = [0, 1].map(|host: usize| start_in(TEST, &hosts[host]));
    remade.open(&others[0], 1, "");
    remade.reconnect(&mut others); // both have opened an adapter then
    let (mut quiet, mut pauses, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        quiet.push(moved.run(flow()));
        let (control, its) = pair();
        owner.tell(&format!("give-host {TEST} {}", hosts[round % 2].namespace()), Some(its));
        let next = Process::arriving(control);
        pauses.push(moved.run_during_move([&owner, &next]));
        owner = next;
        gaps.push(remade.reconnect(&mut others));
    }
    print("nothing happens", quiet);
    print("move to another host", pauses);
    print("closed, and connected from another host", gaps);
}
