//! Private data. cxgb4 has room for 256 bytes and irdma for 512, the four of revision 2 included.

use crate::card::{CARDS, CXGB4, Card, IRDMA, Refused};
use crate::common::PATIENCE;
use crate::path;
use crate::session::{accepted, accepts, adapter, dials, hears_request, reached, takes_reply};
use ironwarp_engine::{ConnectError, ConnectOptions};
use ironwarp_rnic::connect::Misuse;
use ironwarp_rnic::qp::Completes;

/// What is left of a card's room in revision 2.
fn most(card: &Card) -> usize {
    card.room - 4
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect()
}

fn with(private_data: Vec<u8>) -> ConnectOptions {
    ConnectOptions { private_data, ..ConnectOptions::default() }
}

/// 252 bytes, or 508.
#[test]
fn our_request_fills_the_private_data_of_a_card_to_the_last_byte() {
    let adapter = adapter();
    for card in &CARDS {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let (_peer, request) = reached(&adapter.engine, &pair, card, &with(data(most(card))));
        assert_eq!(request.private_data, data(most(card)), "{}", card.name);
    }
}

#[test]
fn our_reply_fills_the_private_data_of_a_card_to_the_last_byte() {
    let adapter = adapter();
    for card in &CARDS {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let mut peer = dials(&adapter, card, b"");
        accepted(&adapter, &pair, &data(most(card)));
        assert_eq!(takes_reply(&mut peer, card).unwrap().private_data, data(most(card)), "{}", card.name);
    }
}

#[test]
fn the_private_data_of_a_card_reach_our_program_to_the_last_byte() {
    let adapter = adapter();
    for card in &CARDS {
        // It connects.
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let _peer = dials(&adapter, card, &data(most(card)));
        let incoming = adapter.listener().incoming().wait(Some(PATIENCE)).unwrap();
        assert_eq!(incoming.private_data(), data(most(card)), "{}", card.name);
        drop(incoming);
        // We connect.
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(vec![])).unwrap();
        let (mut peer, request) = hears_request(&listener, card);
        peer.raw(&card.reply(&request.unwrap(), &data(most(card))));
        let established = pair.wait_connected(PATIENCE).unwrap();
        assert_eq!(&established.private_data[..], data(most(card)), "{}", card.name);
    }
}

/// 253 to 256 bytes are too many with the word of revision 2. cxgb4 resets; in revision 1, which has no word, they fit.
#[test]
fn what_is_too_long_for_cxgb4_in_revision_2_by_the_word_alone_gets_there_in_revision_1() {
    let adapter = adapter();
    for len in [253, 256] {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(data(len))).unwrap();
        let (peer, request) = hears_request(&listener, &CXGB4);
        assert_eq!(request, Err(Refused::Reset("too much private data")));
        peer.reset();
        let (mut peer, request) = hears_request(&listener, &CXGB4);
        let request = request.unwrap();
        assert_eq!((request.revision, &request.private_data), (1, &data(len)));
        accepts(&mut peer, &CXGB4, &request);
        pair.wait_connected(PATIENCE).unwrap();
    }
}

/// More than that cxgb4 never takes: the program is told that there is no connection, and does not wait for ever.
#[test]
fn what_is_too_long_for_cxgb4_in_any_revision_is_an_error() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let listener = path::listener();
    adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(data(257))).unwrap();
    for _ in 0..2 {
        let (peer, request) = hears_request(&listener, &CXGB4);
        assert_eq!(request, Err(Refused::Reset("too much private data")));
        peer.reset();
    }
    let error = pair.wait_connected(PATIENCE).unwrap_err();
    assert!(matches!(*error, ConnectError::Closed | ConnectError::System(_)), "{error}");
}

/// More than the RFC allows is a mistake of the program, found before anything is sent, in either role.
#[test]
fn what_no_card_could_take_is_refused_before_anything_is_sent() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let listener = path::listener();
    let error = adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(data(509))).unwrap_err();
    let too_long = Misuse::PrivateDataTooLong { len: 509, room: 508 };
    assert!(matches!(&error, ConnectError::Misuse(misuse) if *misuse == too_long), "{error}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);

    let mut peer = dials(&adapter, &IRDMA, b"");
    let incoming = adapter.listener().incoming().wait(Some(PATIENCE)).unwrap();
    let error = incoming.accept(&pair, adapter.engine.terms(None, None), &data(509)).unwrap_err();
    assert!(matches!(&error, ConnectError::Misuse(misuse) if *misuse == too_long), "{error}");
    // Nobody takes it then, and the card is told so.
    assert_eq!(takes_reply(&mut peer, &IRDMA), Err(Refused::Rejected(vec![])));
}
