//! The socket that wakes the victim, and whose end is the end of the peer.

use super::common::attack::Attack;
use super::common::victim::Victim;
use super::common::wait_until;
use rustix::net::SendFlags;
use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rings without end, with this number of bytes at once.
fn flood(len: usize) {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let mut bell = attack.link.bell.try_clone().unwrap();
                let stop = &stop;
                scope.spawn(move || {
                    let rings = vec![0; len];
                    while !stop.load(Ordering::Relaxed) && bell.write(&rings).is_ok() {}
                });
            }
            for _ in 0..20 {
                victim.go_on();
            }
            stop.store(true, Ordering::Relaxed);
        });
        if attack.pair.qp().error().is_none() {
            attack.assert_works(2);
        }
    }
    victim.assert_survives(());
}

#[test]
fn a_flood_of_rings_delays_nobody() {
    flood(1);
}

#[test]
fn a_flood_of_large_rings_delays_nobody() {
    flood(1 << 20);
}

#[test]
fn rings_without_records_are_harmless() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        (0..1000).for_each(|_| attack.link.ring_bell());
        attack.assert_works(1);
    }
    victim.assert_survives(());
}

#[test]
fn a_record_without_a_ring_is_found_with_the_next_one() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        let fpdu = attack.fpdu(&super::common::send(1), b"no bell!");
        attack.link.ring.put(attack.victims_channel, 0, &fpdu);
        attack.link.ring.set_head(attack.link.ring.head);
        victim.go_on();
        attack.link.ring_bell();
        assert_eq!(attack.completions(1)[0].byte_len, 8);
    }
    victim.assert_survives(());
}

/// The peer never reads its bell: the victim's rings do not block.
#[test]
fn a_full_bell_does_not_block_the_victim() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.grant(u64::MAX);
        for i in 0..2000 {
            // Asks for a ring each time.
            attack.link.ring.set_word(1 - attack.link.ring.out, super::common::ring::Word::Sleeping, 1);
            attack.post_send(i, 8);
            while attack.link.ring.take(true).is_some() {}
            attack.completions(1);
        }
        attack.assert_works(1);
    }
    victim.assert_survives(());
}

#[test]
fn urgent_rings_are_harmless() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let attack = Attack::switched(connect, &victim);
        for i in 0..200 {
            let flags = if i % 3 == 0 { SendFlags::empty() } else { SendFlags::OOB };
            let _ = rustix::net::send(
                &attack.link.bell,
                &[0; 70],
                flags | SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
        }
        victim.go_on();
        if attack.pair.qp().error().is_none() {
            attack.link.ring_bell();
        }
    }
    victim.assert_survives(());
}

/// The victim cannot be woken any more, so the connection ends although TCP is open.
fn ended_by(act: impl Fn(&Attack)) {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        act(&attack);
        attack.error();
    }
    victim.assert_survives(());
}

#[test]
fn the_end_of_the_bell_ends_the_connection() {
    ended_by(|attack| attack.link.bell.shutdown(Shutdown::Both).unwrap());
}

#[test]
fn the_end_of_one_direction_of_the_bell_ends_the_connection() {
    ended_by(|attack| attack.link.bell.shutdown(Shutdown::Write).unwrap());
}

#[test]
fn a_bell_that_nobody_hears_harms_nobody() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.link.bell.shutdown(Shutdown::Read).unwrap();
        attack.link.ring.set_word(1 - attack.link.ring.out, super::common::ring::Word::Sleeping, 1);
        attack.post_send(1, 100);
        wait_until("the Send", || attack.link.ring.take(true).is_some());
        attack.assert_works(1);
    }
    victim.assert_survives(());
}
