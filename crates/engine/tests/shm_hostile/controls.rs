//! Records that are not data: malformed ones end the connections of the memory, and others change only the channel that
//! they name.

use super::common::attack::{Attack, CHANNEL, Link};
use super::common::resources::resident;
use super::common::ring::{ACCEPT, ATTACH, CREDIT, DATA, REFUSE};
use super::common::victim::Victim;
use super::common::wait_until;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::queue::Status;

/// Sends a record, and checks that the connection ends with an error.
fn broken_by(kind: u8, payload: &[u8]) {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        let channel = attack.victims_channel;
        attack.link.send(channel, kind, payload);
        attack.assert_broken();
    }
    victim.assert_survives(());
}

/// Sends records, and checks that the connection goes on.
fn ignored(act: impl Fn(&mut Attack)) {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        act(&mut attack);
        attack.assert_works(2);
        attack.post_send(7, 1000);
        assert_eq!(attack.completions(1)[0].status, Status::Success);
    }
    victim.assert_survives(());
}

#[test]
fn an_unknown_kind_ends_the_connection() {
    (CREDIT + 2..=15).step_by(5).for_each(|kind| broken_by(kind, &[]));
}

#[test]
fn a_malformed_attach_ends_the_connection() {
    [0, 16, 19, 21, 32 << 10].into_iter().for_each(|len| broken_by(ATTACH, &vec![1; len]));
}

#[test]
fn a_malformed_accept_ends_the_connection() {
    [0, 3, 5].into_iter().for_each(|len| broken_by(ACCEPT, &vec![1; len]));
}

#[test]
fn a_malformed_refusal_ends_the_connection() {
    [1, 4].into_iter().for_each(|len| broken_by(REFUSE, &vec![1; len]));
}

#[test]
fn malformed_credit_ends_the_connection() {
    [0, 7, 9, 4096].into_iter().for_each(|len| broken_by(CREDIT, &vec![1; len]));
}

#[test]
fn a_second_answer_is_ignored() {
    ignored(|attack| {
        let channel = attack.victims_channel;
        for i in 0..100_u32 {
            attack.link.send(channel, ACCEPT, &(CHANNEL + i).to_ne_bytes());
            attack.link.send(channel, ACCEPT, &[0; 4]);
            attack.link.send(channel, REFUSE, &[]);
        }
        // The records of the victim still have the first number.
        attack.post_send(9, 100);
        let record = attack.link.ring.next();
        assert_eq!((record.channel, record.kind), (CHANNEL, DATA));
        attack.completions(1);
    });
}

#[test]
fn records_for_other_channels_are_ignored() {
    ignored(|attack| {
        let own = attack.victims_channel;
        for channel in [0, 1, own + 1, own ^ 1 << 20, own | 0xfff0_0000, u32::MAX] {
            attack.link.send(channel, DATA, &[0xff; 100]);
            attack.link.send(channel, ACCEPT, &1_u32.to_ne_bytes());
            attack.link.send(channel, REFUSE, &[]);
            attack.link.send(channel, CREDIT, &u64::MAX.to_ne_bytes());
        }
    });
}

#[test]
fn credit_that_shrinks_or_is_huge_is_harmless() {
    ignored(|attack| [0, u64::MAX, 1, u64::MAX - 1, 0].into_iter().for_each(|credit| attack.grant(credit)));
}

#[test]
fn a_refused_channel_stays_with_tcp() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let (mut link, channel) = Link::offered(&mut attacked.peer);
    for _ in 0..1000 {
        link.send(channel, REFUSE, &[]);
        link.wait_read();
    }
    link.send(channel, ACCEPT, &CHANNEL.to_ne_bytes());
    link.wait_read();
    attacked.assert_works_over_tcp(1);
    assert_eq!(attacked.pair.qp().send_route(), Route::Tcp);
    victim.assert_survives((attacked, link));
}

#[test]
fn a_flood_of_unknown_tokens_is_refused() {
    ignored(|attack| {
        for i in 0..2000_u32 {
            attack.link.send(0, ATTACH, &[&[0x11; 16][..], &i.to_ne_bytes()].concat());
            loop {
                let record = attack.link.ring.next();
                if (record.kind, record.channel) == (REFUSE, i) {
                    break;
                }
            }
        }
    });
}

/// The answers have no room in the ring, and must not fill the memory of the victim instead.
#[test]
fn a_flood_of_requests_without_reading_the_answers_ends_the_connection() {
    let victim = Victim::new();
    for connect in Attack::both() {
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        let before = resident();
        let request = [&[0x11; 16][..], &7_u32.to_ne_bytes()].concat();
        let mut sent = 0;
        while attack.pair.qp().error().is_none() {
            for _ in 0..1000 {
                attack.link.ring.put(0, ATTACH, &request);
            }
            attack.link.publish();
            wait_until("the victim to read the requests", || {
                attack.link.ring.victims_tail() == attack.link.ring.head || attack.pair.qp().error().is_some()
            });
            sent += 1000;
            assert!(sent < 2_000_000, "no error after {sent} requests");
        }
        attack.assert_broken();
        let more = resident().saturating_sub(before);
        assert!(more < 16 << 20, "{} KiB more", more >> 10);
    }
    victim.assert_survives(());
}
