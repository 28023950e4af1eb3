//! Heads, tails and headers of records that violate the protocol: all connections in that memory end, and no others.

use super::common::attack::Attack;
use super::common::ring::{DATA, Word};
use super::common::victim::Victim;
use ironwarp_shm::{MAX_RECORD, RING_LEN};

/// Breaks the protocol in either role, and checks that the victim notices.
fn broken_by(act: impl Fn(&mut Attack)) {
    for connect in Attack::both() {
        let victim = Victim::new();
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        act(&mut attack);
        attack.assert_broken();
        victim.assert_survives(attack);
    }
}

#[test]
fn a_head_beyond_the_ring_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.head += RING_LEN as u64 + 8;
        attack.link.publish();
    });
}

#[test]
fn a_head_that_is_about_to_overflow_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.head = u64::MAX - 7;
        attack.link.publish();
    });
}

#[test]
fn a_head_that_goes_backwards_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.head -= 8;
        attack.link.publish();
    });
}

#[test]
fn a_misaligned_head_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.put(attack.victims_channel, DATA, &[0; 64]);
        attack.link.ring.head -= 3;
        attack.link.publish();
    });
}

#[test]
fn a_record_that_is_too_long_ends_the_connection() {
    broken_by(|attack| {
        let len = u32::try_from(MAX_RECORD + 1).unwrap();
        attack.link.ring.put_with_len(attack.victims_channel, DATA, len, &vec![0; MAX_RECORD + 1]);
        attack.link.publish();
    });
}

#[test]
fn a_record_that_claims_the_longest_length_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.put_with_len(attack.victims_channel, DATA, 0x0fff_ffff, &[0; 64]);
        attack.link.publish();
    });
}

#[test]
fn a_record_that_ends_after_the_head_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.put_with_len(attack.victims_channel, DATA, 65, &[0; 64]);
        attack.link.publish();
    });
}

/// Has the victim send, so that it loads the tail: only when a ring seems full does it have to.
fn victim_sends(attack: &mut Attack, bytes: usize) {
    attack.grant(1 << 40);
    let len = 64 << 10;
    (0..bytes / len).for_each(|i| attack.post_send(i as u64, len));
}

#[test]
fn a_tail_beyond_the_head_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.set_tail(attack.link.ring.victims_head() + (1 << 40));
        victim_sends(attack, RING_LEN);
    });
}

#[test]
fn a_tail_that_goes_backwards_ends_the_connection() {
    broken_by(|attack| {
        // The victim has filled the ring, so it has loaded the tail.
        victim_sends(attack, RING_LEN + RING_LEN / 2);
        attack.link.fill_victims_ring();
        let tail = attack.link.ring.tail;
        attack.link.ring.set_tail(tail + 4096);
        attack.link.ring_bell();
        attack.link.wait_sent_after(tail);
        attack.link.ring.set_tail(tail);
        attack.link.ring_bell();
    });
}

#[test]
fn a_misaligned_tail_ends_the_connection() {
    broken_by(|attack| {
        victim_sends(attack, RING_LEN + RING_LEN / 2);
        attack.link.fill_victims_ring();
        attack.link.ring.set_tail(attack.link.ring.tail + 4097);
        attack.link.ring_bell();
    });
}

#[test]
fn a_tail_of_garbage_ends_the_connection() {
    broken_by(|attack| {
        attack.link.ring.set_tail(u64::MAX);
        victim_sends(attack, RING_LEN);
    });
}

#[test]
fn words_that_change_all_the_time_harm_nobody_else() {
    for connect in Attack::both() {
        let victim = Victim::new();
        let mut attack = Attack::switched(connect, &victim);
        attack.assert_works(1);
        let (ring, out) = (&attack.link.ring, attack.link.ring.out);
        for round in 0..50_000_u64 {
            let value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            for of in [out, 1 - out] {
                ring.set_word(of, Word::Sleeping, value);
                ring.set_word(of, Word::RoomWanted, value);
            }
        }
        attack.assert_works(2);
        victim.assert_survives(attack);
    }
}
