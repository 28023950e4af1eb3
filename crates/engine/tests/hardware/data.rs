//! Private data. cxgb4 has room for 256 bytes and irdma for 512, including the four of revision 2.

use crate::card::{CARDS, CXGB4, Card, IRDMA, Refused};
use crate::common::TIMEOUT;
use crate::session::{
    accept_in_program, accept_request, adapter, connect_to_card, dial_from_card, receive_reply,
    receive_request,
};
use ironwarp_engine::{ConnectError, ConnectOptions};
use ironwarp_rnic::connect::InvalidArgument;
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::path;

/// Maximum length of private data for a card in revision 2.
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
        let (_peer, request) = connect_to_card(&adapter.engine, &pair, card, &with(data(most(card))));
        assert_eq!(request.private_data, data(most(card)), "{}", card.name);
    }
}

#[test]
fn our_reply_fills_the_private_data_of_a_card_to_the_last_byte() {
    let adapter = adapter();
    for card in &CARDS {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let mut peer = dial_from_card(&adapter, card, b"");
        accept_in_program(&adapter, &pair, &data(most(card)));
        assert_eq!(receive_reply(&mut peer, card).unwrap().private_data, data(most(card)), "{}", card.name);
    }
}

#[test]
fn the_private_data_of_a_card_reach_our_program_to_the_last_byte() {
    let adapter = adapter();
    for card in &CARDS {
        // The card connects.
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let _peer = dial_from_card(&adapter, card, &data(most(card)));
        let incoming = adapter.listener().incoming().wait(Some(TIMEOUT)).unwrap();
        assert_eq!(incoming.private_data(), data(most(card)), "{}", card.name);
        drop(incoming);
        // We connect.
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(vec![])).unwrap();
        let (mut peer, request) = receive_request(&listener, card);
        peer.send_bytes(&card.reply(&request.unwrap(), &data(most(card))));
        let established = pair.wait_connected(TIMEOUT).unwrap();
        assert_eq!(&established.private_data[..], data(most(card)), "{}", card.name);
    }
}

/// 253 to 256 bytes are too long together with the word of revision 2, and cxgb4 resets the connection. In
/// revision 1, which has no such word, they fit.
#[test]
fn private_data_too_long_for_cxgb4_in_revision_2_is_sent_in_revision_1() {
    let adapter = adapter();
    for len in [253, 256] {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(data(len))).unwrap();
        let (peer, request) = receive_request(&listener, &CXGB4);
        assert_eq!(request, Err(Refused::Reset("too much private data")));
        peer.reset();
        let (mut peer, request) = receive_request(&listener, &CXGB4);
        let request = request.unwrap();
        assert_eq!((request.revision, &request.private_data), (1, &data(len)));
        accept_request(&mut peer, &CXGB4, &request);
        pair.wait_connected(TIMEOUT).unwrap();
    }
}

/// cxgb4 never accepts more than that: connecting fails, and the program does not wait forever.
#[test]
fn private_data_too_long_for_cxgb4_in_any_revision_is_an_error() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let listener = path::listener();
    adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(data(257))).unwrap();
    for _ in 0..2 {
        let (peer, request) = receive_request(&listener, &CXGB4);
        assert_eq!(request, Err(Refused::Reset("too much private data")));
        peer.reset();
    }
    let error = pair.wait_connected(TIMEOUT).unwrap_err();
    assert!(matches!(error, ConnectError::Closed | ConnectError::System(_)), "{error}");
}

/// Private data longer than the RFC allows is an error of the program, which is detected before anything is
/// sent, in either role.
#[test]
fn private_data_too_long_for_any_card_is_refused_before_anything_is_sent() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let listener = path::listener();
    let error = adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with(data(509))).unwrap_err();
    let too_long = InvalidArgument::PrivateDataTooLong { len: 509, room: 508 };
    assert!(matches!(&error, ConnectError::InvalidArgument(error) if *error == too_long), "{error}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);

    let mut peer = dial_from_card(&adapter, &IRDMA, b"");
    let incoming = adapter.listener().incoming().wait(Some(TIMEOUT)).unwrap();
    let error = incoming.accept(&pair, adapter.engine.terms(None, None), &data(509)).unwrap_err();
    assert!(matches!(&error, ConnectError::InvalidArgument(error) if *error == too_long), "{error}");
    // The connection is then rejected.
    assert_eq!(receive_reply(&mut peer, &IRDMA), Err(Refused::Rejected(vec![])));
}
