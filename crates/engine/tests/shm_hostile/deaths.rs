//! A peer in a process of its own that dies, or stops for some time, at any place.

use super::common::attack::{Attack, CHANNEL, Link};
use super::common::peer::{Peer, StartupSettings};
use super::common::ring::{ACCEPT, DATA};
use super::common::victim::{Victim, VictimEnd};
use super::common::{TIMEOUT, send};
use ironwarp_rnic::link::Route;
use ironwarp_testkit::child::{self, Partner};
use ironwarp_wire::mpa::{FpduWriter, Framing};
use ironwarp_wire::private::{Capabilities, Signal};
use rustix::process::{Pid, Signal as Kill, kill_process};

const TEST: &str = "deaths::a_peer_that_dies_ends_only_its_connections";

/// The peer, in the other process: TCP and its end of the memory, up to the place named by the role.
fn attack(role: &str) {
    let (place, addr) = role.split_once(' ').unwrap();
    let mut peer = Peer::dial(addr.parse().unwrap());
    peer.request(StartupSettings::default());
    peer.await_reply(StartupSettings::default());
    peer.open_as_ironwarp(Capabilities::SHARED_MEMORY);
    let (mut link, channel) = Link::offered(&mut peer);
    if place != "attached" {
        link.send(channel, ACCEPT, &CHANNEL.to_ne_bytes());
        peer.receive_signal(|signal| (signal == Signal::Switch(Route::SharedMemory)).then_some(()));
        peer.send_switch(Route::SharedMemory);
    }
    let mut fpdu = Vec::new();
    let mut writer = FpduWriter::new(Framing { crc: false, markers: false });
    writer.write(&send(1), b"still here", |part| fpdu.extend_from_slice(part)).unwrap();
    match place {
        // Published, but the header is not all there.
        "header" => {
            link.ring.head += 64;
            link.publish();
        }
        "payload" => {
            link.ring.put_with_len(channel, DATA, 100, &fpdu[..8]);
            link.ring.head += 96;
            link.publish();
        }
        "half" => link.send(channel, DATA, &fpdu[..fpdu.len() / 2]),
        "whole" => link.send(channel, DATA, &fpdu),
        "waiting" => link.ring.set_word(link.ring.out, super::common::ring::Word::RoomWanted, 1),
        _ => {}
    }
    child::tell("ready for the end");
    child::wait_for_end();
}

/// Starts the peer, which gets as far as `place`.
fn start(victim: &Victim, place: &str) -> (Partner, VictimEnd) {
    let mut partner = Partner::start(child::command(TEST, &format!("{place} {}", victim.addr())));
    let end = victim.accept();
    partner.wait_for("ready for the end");
    end.pair.wait_connected(TIMEOUT).unwrap();
    (partner, end)
}

fn kill(partner: &Partner, signal: Kill) {
    let pid = Pid::from_raw(i32::try_from(partner.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn a_peer_that_dies_ends_only_its_connections() {
    if let Some(role) = child::role() {
        return attack(&role);
    }
    let victim = Victim::new();
    for place in ["attached", "established", "header", "payload", "half", "whole", "waiting"] {
        let (partner, attacked) = start(&victim, place);
        victim.go_on();
        kill(&partner, Kill::KILL);
        attacked.error();
        victim.go_on();
    }
    victim.assert_survives(());
}

#[test]
fn a_peer_that_dies_while_the_victim_waits_for_room_ends_only_its_connections() {
    let victim = Victim::new();
    let (partner, attacked) = start(&victim, "established");
    (0..32).for_each(|i| attacked.post_send(i, 64 << 10));
    victim.go_on();
    kill(&partner, Kill::KILL);
    attacked.error();
    victim.assert_survives(attacked);
}

#[test]
fn a_peer_that_stops_for_some_time_delays_nobody() {
    let victim = Victim::new();
    let (partner, attacked) = start(&victim, "established");
    kill(&partner, Kill::STOP);
    (0..8).for_each(|i| attacked.post_send(i, 64 << 10));
    for _ in 0..50 {
        victim.go_on();
    }
    assert_eq!(attacked.pair.qp().error(), None);
    kill(&partner, Kill::CONT);
    victim.go_on();
    drop(partner);
    attacked.error();
    victim.assert_survives(attacked);
}

#[test]
fn a_peer_that_dies_takes_no_other_peer_with_it() {
    let victim = Victim::new();
    let mut other = Attack::switched(Attack::offering, &victim);
    let (partner, attacked) = start(&victim, "whole");
    attacked.received();
    other.assert_works(1);
    kill(&partner, Kill::KILL);
    attacked.error();
    other.assert_works(2);
    victim.assert_survives((attacked, other));
}
