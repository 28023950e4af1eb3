//! Offers of shared memory, and the tokens in them.

use super::common::attack::{Link, TOKEN};
use super::common::doorway::{self, Doorway, Hello};
use super::common::honest::Honest;
use super::common::resources::resident;
use super::common::ring::{ATTACH, REFUSE, RingEnd};
use super::common::victim::Victim;
use ironwarp_engine::Engine;
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::link::Route;
use ironwarp_wire::private::{Capabilities, Signal};

#[test]
fn offers_without_the_capability_are_ignored() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer_with(Capabilities::empty());
    let doorway = Doorway::new();
    for _ in 0..100 {
        attacked.peer.offer(&TOKEN, &doorway.id, 0);
    }
    attacked.assert_works_over_tcp(1);
    doorway.assert_unused();
    victim.assert_survives(attacked);
}

#[test]
fn offers_in_the_wrong_order_are_ignored() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let doorway = Doorway::new();
    let offer = [&TOKEN[..], &doorway.id, &[0]].concat();
    let parts = offer.as_chunks().0;
    let orders: [&[u8]; 7] =
        [&[3, 2, 1, 0, 7], &[1, 2, 3], &[0, 2, 3], &[0, 1, 3], &[0, 1, 2, 4], &[0, 1, 1, 2, 3], &[255, 128]];
    for part in orders.into_iter().flatten().copied() {
        let data = parts[usize::from(part) % 4];
        attacked.peer.send(&Signal::Offer { part, data }.to_header(), &[]);
    }
    attacked.assert_works_over_tcp(1);
    doorway.assert_unused();
    victim.assert_survives(attacked);
}

#[test]
fn a_flood_of_parts_needs_no_memory() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let before = resident();
    for i in 0..20_000_u32 {
        let [.., a, b] = i.to_be_bytes();
        let part = Signal::Offer { part: (i % 3) as u8, data: [a, b, a, b, a, b] };
        attacked.peer.send(&part.to_header(), &[]);
    }
    attacked.assert_works_over_tcp(1);
    assert!(resident() < before + (8 << 20), "{} KiB more", (resident() - before) >> 10);
    victim.assert_survives(attacked);
}

#[test]
fn too_many_offers_end_the_connection() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    for i in 0..17 {
        attacked.peer.offer(&TOKEN, &[i; 7], i);
    }
    assert_eq!(*attacked.error(), QpError::Protocol(Protocol::TooManyOffers { limit: 16 }));
    victim.assert_survives(attacked);
}

#[test]
fn offers_of_many_adapters_that_do_not_answer_are_bounded() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let doorways: Vec<_> = (0..16).map(|_| Doorway::new()).collect();
    for doorway in &doorways {
        attacked.peer.offer(&TOKEN, &doorway.id, 0);
    }
    let guests: Vec<_> = doorways.iter().map(Doorway::accept).collect();
    attacked.assert_works_over_tcp(1);
    // Three descriptors here, and one of the victim.
    victim.before.assert_bounded(0, 16 * 3 + 16);
    victim.assert_survives((attacked, guests, doorways));
}

#[test]
fn an_offer_in_the_name_of_another_adapter_harms_neither() {
    let victim = Victim::new();
    for adapter in doorway::adapters() {
        let mut attacked = victim.connect_peer();
        attacked.peer.offer(&TOKEN, &adapter, 0);
        attacked.assert_works_over_tcp(1);
        victim.go_on();
    }
    victim.assert_survives(());
}

#[test]
fn a_token_is_taken_once() {
    let victim = Victim::new();
    let mut attacked = victim.dial_peer();
    let (token, adapter, _) = attacked.receive_offer();
    let mut link = Link::joined(token, &adapter);
    link.attach(&token);
    for _ in 0..100 {
        link.send(0, ATTACH, &[&token[..], &7_u32.to_ne_bytes()].concat());
        loop {
            // Other records are the stream of the connection.
            let answer = link.ring.next();
            if (answer.channel, answer.kind) == (7, REFUSE) {
                break;
            }
        }
    }
    victim.assert_survives((attacked, link));
}

#[test]
fn a_token_works_in_any_memory_of_the_same_peer() {
    // Both connections belong to the peer, so it harms only itself.
    let victim = Victim::new();
    let (mut one, mut two) = (victim.dial_peer(), victim.dial_peer());
    let ((token, adapter, _), (other, ..)) = (one.receive_offer(), two.receive_offer());
    let mut link = Link::joined(token, &adapter);
    link.attach(&other);
    two.peer.receive_signal(|signal| (signal == Signal::Switch(Route::SharedMemory)).then_some(()));
    one.assert_works_over_tcp(1);
    victim.assert_survives((one, two, link));
}

/// A process that claims to be another adapter must not be asked for the channels of that adapter's connections: the
/// request contains their tokens, and the answer would have it receive their bytes.
#[test]
fn a_forged_adapter_number_does_not_get_the_connections_of_others() {
    let victim = Victim::new();
    // Another adapter, which listens, because it shares memory with a third.
    let known = doorway::adapters();
    let (other, third) = (Engine::new(one_lane()).unwrap(), Engine::new(one_lane()).unwrap());
    let elsewhere = Honest::between(other.clone(), &third, Route::SharedMemory);
    let adapter = doorway::adapters().into_iter().find(|id| !known.contains(id)).unwrap();
    // The attacker takes its name, with a token of its own connection.
    let mut attacked = victim.dial_peer();
    let (token, victims_id, _) = attacked.receive_offer();
    let bells: Vec<_> = (0..4_u8)
        .map(|lane| Hello { token, adapter, lane }.say(&victims_id))
        .filter_map(|bell| doorway::receive_file(&bell).map(|file| Link { bell, ring: RingEnd::join(file) }))
        .collect();
    assert!(!bells.is_empty());
    let honest = Honest::between(other, &victim.engine, Route::SharedMemory);
    for mut link in bells {
        assert_eq!(link.ring.take(true), None, "the token of another connection");
    }
    honest.leave();
    elsewhere.leave();
    drop(third);
    victim.assert_survives(attacked);
}

fn one_lane() -> Config {
    let mut config = Config::default().shm(true);
    config.lanes = 1;
    config
}

#[test]
fn an_attached_channel_with_number_zero_harms_nobody() {
    let victim = Victim::new();
    let mut attacked = victim.dial_peer();
    let (token, adapter, _) = attacked.receive_offer();
    let mut link = Link::joined(token, &adapter);
    link.send(0, ATTACH, &[&token[..], &0_u32.to_ne_bytes()].concat());
    attacked.peer.receive_signal(|signal| (signal == Signal::Switch(Route::SharedMemory)).then_some(()));
    victim.assert_survives((attacked, link));
}
