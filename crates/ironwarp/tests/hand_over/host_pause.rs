//! Measures how long a peer waits at most around a move from host to host, and around closing a connection and making another one
//! from the other host. Prints numbers, and asserts none:
//! `cargo test -p ironwarp --test hand_over --release -- --ignored --nocapture host_pause`.

use super::hosts::{ARRIVER, start_in};
use super::pause::{FLOW, Pinger, arrive, flow, play, print};
use super::scene::Process;
use ironwarp_testkit::child;
use ironwarp_testkit::control::{is_readable, pair};
use ironwarp_testkit::hosts::{MOVING, PEER, two_hosts};
use ironwarp_testkit::native::SOON;
use std::time::{Duration, Instant};

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
    remade.open(&others[1], 1, "");
    others[1].tell("close", None);
    others[1].says();
    remade.open(&others[0], 1, "");
    let (mut quiet, mut pauses, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        quiet.push(moved.run(flow()));
        let (control, its) = pair();
        owner.tell(&format!("give-host {TEST} {}", hosts[round % 2].namespace()), Some(its));
        let next = Process::arriving(control);
        let mut answers = [false; 2];
        let mut settle = None;
        pauses.push(moved.run(|| {
            for (answer, process) in answers.iter_mut().zip([&owner, &next]) {
                *answer |= is_readable(&process.control, Duration::ZERO);
            }
            let now = Instant::now();
            answers == [true; 2] && now >= *settle.get_or_insert(now + FLOW)
        }));
        assert_eq!([owner.says(), next.says()], ["given", "taken"]);
        owner = next;

        remade.run(flow());
        let start = Instant::now();
        others[0].tell("close", None);
        others[0].says();
        remade.open(&others[1], 1, "");
        remade.ping();
        while !remade.is_back() {
            assert!(start.elapsed() < SOON);
        }
        gaps.push(start.elapsed());
        others.swap(0, 1);
    }
    print("nothing happens", quiet);
    print("move to another host", pauses);
    print("closed, and connected from another host", gaps);
}
