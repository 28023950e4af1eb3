//! Offers of shared memory.

use crate::pair::{BOTH, End, OPEN, Options, SEND, pair, settle};
use crate::violations::{encode, expect_violation};
use ironwarp_rnic::error::Protocol;
use ironwarp_rnic::link::Route;
use ironwarp_wire::Operation;
use ironwarp_wire::private::{Capabilities, OFFER_LEN, OFFER_PARTS, Signal};
use std::array;

/// Maximum number of offers.
const MAX_OFFERS: u8 = 16;
/// Length of a signal.
const SIGNAL: usize = 2 + 14 + 4;

/// Returns an offer whose bytes differ from each other and from those of other offers.
fn offer(number: u8) -> [u8; OFFER_LEN] {
    array::from_fn(|at| u8::try_from(at).unwrap() * 10 + number)
}

/// Returns a part of an offer.
fn part(number: u8, part: u8) -> Signal {
    let data = offer(number).as_chunks().0[usize::from(part)];
    Signal::Offer { part, data }
}

fn received(end: &End) -> Vec<[u8; OFFER_LEN]> {
    end.driver.offers.lock().unwrap().clone()
}

#[test]
fn capabilities_and_offers_are_reported() {
    let ends = pair(Options::default());
    for end in &ends {
        let capabilities = end.driver.capabilities.lock().unwrap();
        assert_eq!(capabilities.len(), 1);
        assert!(capabilities[0].contains(Capabilities::SHARED_MEMORY));
    }
    let [near, far] = &ends;
    near.qp.offer(offer(1));
    far.qp.offer(offer(2));
    settle(&ends);
    near.qp.offer(offer(3));
    settle(&ends);
    assert_eq!((received(far), received(near)), (vec![offer(1), offer(3)], vec![offer(2)]));
}

/// Whatever part of an offer the link takes at first, the offer arrives once. If another one replaces it meanwhile, that
/// one arrives, and the parts are never mixed.
#[test]
fn an_offer_that_is_sent_in_part_is_completed_or_replaced() {
    for first in 0..=SIGNAL * usize::from(OFFER_PARTS) {
        for replaced in [false, true] {
            let ends = pair(Options::default());
            let [near, far] = &ends;
            near.allow(first);
            near.qp.offer(offer(1));
            if replaced {
                near.qp.offer(offer(2));
            }
            settle(&ends);
            let all = SIGNAL * usize::from(OFFER_PARTS);
            let expected = match replaced {
                false => vec![offer(1)],
                // Of the fourth part, a byte was sent, so the link gets the rest of it.
                true if first > all - SIGNAL => vec![offer(1), offer(2)],
                true => vec![offer(2)],
            };
            assert_eq!(received(far), expected, "{first} bytes, {replaced}");
        }
    }
}

#[test]
fn an_offer_waits_for_the_end_of_a_message() {
    const LONG: usize = 150_000;
    let ends = pair(Options::default());
    let [near, far] = &ends;
    let buffer = far.post_receive(7, LONG);
    near.allow(70_000); // within the second of three FPDUs
    near.post(1, SEND, near.register(LONG, 3));
    near.qp.offer(offer(1));
    near.allow(70_000);
    far.qp.drive(BOTH);
    assert_eq!(received(far), [[0; OFFER_LEN]; 0]);
    near.allow(OPEN);
    far.qp.drive(BOTH);
    assert_eq!(received(far), [offer(1)]);
    far.expect(buffer, 3);
}

#[test]
fn only_parts_in_order_make_an_offer() {
    for (parts, expected) in [
        (vec![(1, 0), (1, 1), (1, 2), (1, 3)], vec![offer(1)]),
        (vec![(1, 1), (1, 2), (1, 3)], vec![]),
        (vec![(1, 0), (1, 2), (1, 3)], vec![]),
        (vec![(1, 0), (1, 1), (1, 1), (1, 2), (1, 3)], vec![]),
        (vec![(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)], vec![offer(2)]),
        (vec![(1, 0), (1, 1), (1, 2), (1, 3), (1, 3)], vec![offer(1)]),
    ] {
        let ends = pair(Options::default());
        let far = &ends[1];
        for (number, which) in &parts {
            far.inject(Route::Tcp, &encode(part(*number, *which), true));
        }
        // A number that no part has is ignored like any other signal that is not understood.
        far.inject(Route::Tcp, &encode(Signal::Offer { part: 0xff, data: [0; 6] }, true));
        far.qp.drive(BOTH);
        assert_eq!((received(far), far.qp.error()), (expected, None), "{parts:?}");
    }
}

#[test]
fn too_many_offers_end_the_stream() {
    let ends = pair(Options::default());
    let far = &ends[1];
    let send = |number| {
        (0..OFFER_PARTS).for_each(|which| far.inject(Route::Tcp, &encode(part(number, which), true)));
        far.qp.drive(BOTH);
    };
    (0..MAX_OFFERS).for_each(send);
    assert_eq!((received(far).len(), far.qp.error()), (MAX_OFFERS.into(), None));
    send(MAX_OFFERS);
    assert_eq!(received(far).len(), usize::from(MAX_OFFERS));
    expect_violation(&ends, Protocol::TooManyOffers { limit: MAX_OFFERS }, Operation::StreamCatastrophic);
}

#[test]
fn an_end_makes_no_more_offers_than_its_peer_accepts() {
    let ends = pair(Options::default());
    let [near, far] = &ends;
    for number in 0..MAX_OFFERS + 3 {
        near.qp.offer(offer(number));
        settle(&ends);
    }
    assert_eq!((received(far).len(), far.qp.error()), (MAX_OFFERS.into(), None));
}
