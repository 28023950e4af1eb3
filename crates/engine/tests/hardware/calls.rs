//! We connect to a card.

use crate::card::{CARDS, CXGB4, Card, DEPTH, IRDMA, M, READ, Refused, S, WRITE};
use crate::common::TIMEOUT;
use crate::common::peer::Received;
use crate::common::victim::{Attacked as Session, RECEIVES};
use crate::session::{
    By, accept_request, adapter, assert_enhanced, connect, connect_to_card, receive_request, receive_rtr,
    talk,
};
use ironwarp_engine::{ConnectError, ConnectOptions};
use ironwarp_rnic::connect::MpaMode;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_testkit::path;

fn options() -> ConnectOptions {
    ConnectOptions::default()
}

/// cxgb4 and irdma use revision 2 with CRCs. irdma requires bit A, and bit C or D, in every frame; cxgb4
/// supports D only. Our Request therefore has all of them.
#[test]
fn our_request_has_the_flags_and_the_rtrs_that_every_card_demands() {
    let adapter = adapter();
    for card in &CARDS {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let (_peer, request) = connect_to_card(&adapter.engine, &pair, card, &options());
        let (ird, ord) = assert_enhanced(&request);
        assert_eq!(ord & !DEPTH, WRITE | READ);
        assert!((1..DEPTH).contains(&ird) && (1..DEPTH).contains(&(ord & DEPTH)), "{request:?}");
    }
}

/// irdma processes one TCP segment at a time: a frame split over two segments is too short for it.
#[test]
fn our_request_comes_in_one_segment_however_long_it_is() {
    let adapter = adapter();
    for len in [0, 252, 508] {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let with_data = ConnectOptions { private_data: vec![7; len], ..options() };
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &with_data).unwrap();
        let (peer, request) = receive_request(&listener, &IRDMA);
        assert_eq!(request.unwrap().private_data.len(), len);
        assert_eq!(path::segments_received(&peer.stream), 1);
    }
}

/// Both cards answer a Request that offers the Read with the Read only.
#[test]
fn a_card_that_names_the_read_as_rtr_gets_one_before_anything_else() {
    for card in &CARDS {
        let adapter = adapter();
        let mut session = connect(&adapter, card, By::Us);
        session.cq.poll(1, |it| panic!("the RTR gave a completion: {it:?}")).unwrap();
        talk(&adapter, &mut session, 1);
    }
}

/// The program's first message is sent after the RTR, even if it was posted while connecting.
#[test]
fn messages_of_the_program_follow_the_rtr() {
    for card in &CARDS {
        let adapter = adapter();
        let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
        let (peer, _) = connect_to_card(&adapter.engine, &pair, card, &options());
        let mut session = Session { peer, pair, cq };
        let send = ironwarp_rnic::queue::Operation::Send { invalidate: None };
        session.post(1, send, adapter.readable.sge(0, 8));
        receive_rtr(&mut session.peer);
        assert!(matches!(
            session.peer.receive_message(),
            Received::Message(ironwarp_wire::Header::Send(_), ..)
        ));
    }
}

/// irdma names the Write if the Read was not offered; cxgb4 does so if configured to.
#[test]
fn a_card_that_names_the_write_as_rtr_gets_one() {
    for card in &CARDS {
        let adapter = adapter();
        let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &options()).unwrap();
        let (mut peer, request) = receive_request(&listener, card);
        let request = request.unwrap();
        let mut reply = card.reply(&request, b"");
        reply[22] = reply[22] & !0x40 | 0x80; // C instead of D
        peer.send_bytes(&reply);
        peer.start_stream(crate::common::peer::StartupSettings::default());
        let Received::Message(ironwarp_wire::Header::Write(write), payload, _) = peer.receive_next() else {
            panic!("expected the RTR");
        };
        assert!(write.last && payload.is_empty(), "{write:?}");
        pair.wait_connected(TIMEOUT).unwrap();
        talk(&adapter, &mut Session { peer, pair, cq }, 1);
    }
}

/// Checks that a card that refuses revision 2 is asked again with revision 1.
fn falls_back(card: &Card, why: &'static str, options: &ConnectOptions) {
    let adapter = adapter();
    let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
    let listener = path::listener();
    adapter.engine.connect(&pair, listener.local_addr().unwrap(), options).unwrap();
    let (peer, request) = receive_request(&listener, card);
    assert_eq!(request, Err(Refused::Reset(why)));
    peer.reset();
    let (mut peer, request) = receive_request(&listener, card);
    let request = request.unwrap();
    assert_eq!((request.revision, request.flags & (S | M)), (1, 0), "{request:?}");
    assert_eq!(request.private_data, options.private_data, "with the private data of the program");
    accept_request(&mut peer, card, &request);
    pair.wait_connected(TIMEOUT).unwrap();
    let mut session = Session { peer, pair, cq };
    let send = ironwarp_rnic::queue::Operation::Send { invalidate: None };
    // In revision 1 the initiator's program has to send first.
    session.post(1, send, adapter.readable.sge(0, 8));
    let Received::Message(ironwarp_wire::Header::Send(send), ..) = session.peer.receive_message() else {
        panic!("expected a Send");
    };
    assert_eq!((send.msn, session.one().wr_id), (1, 1));
    session.assert_works(1);
}

/// cxgb4 configured for revision 1 (`mpa_rev`) resets a connection that starts with a later one.
#[test]
fn cxgb4_of_revision_1_is_asked_again_in_revision_1_after_its_reset() {
    let options = ConnectOptions { private_data: b"hello".to_vec(), ..options() };
    falls_back(&Card { revision: 1, ..CXGB4 }, "the revision", &options);
}

/// irdma does not support the client-server model in revision 2: a program that asks for it gets it in
/// revision 1.
#[test]
fn irdma_is_asked_again_in_revision_1_if_the_program_does_not_want_the_peer_to_peer_model() {
    let options = ConnectOptions { mode: MpaMode::ClientServer, ..options() };
    falls_back(&IRDMA, "not the peer-to-peer model", &options);
}

/// A card that resets both attempts has another reason, and is not asked a third time.
#[test]
fn a_card_that_resets_revision_1_as_well_is_left_alone() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let listener = path::listener();
    adapter.engine.connect(&pair, listener.local_addr().unwrap(), &options()).unwrap();
    for _ in 0..2 {
        receive_request(&listener, &CXGB4).0.reset();
    }
    let error = pair.wait_connected(TIMEOUT).unwrap_err();
    assert!(matches!(error, ConnectError::Closed | ConnectError::System(_)), "{error}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "a third time");
}

/// A rejection is a Reply with the bit R, possibly followed by a FIN at once. It is final: the card is not
/// asked again.
#[test]
fn a_card_that_rejects_is_understood_and_not_asked_again() {
    for card in &CARDS {
        let adapter = adapter();
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let listener = path::listener();
        adapter.engine.connect(&pair, listener.local_addr().unwrap(), &options()).unwrap();
        let (mut peer, request) = receive_request(&listener, card);
        peer.send_bytes(&card.rejection(&request.unwrap(), b"not today"));
        peer.finish();
        let error = pair.wait_connected(TIMEOUT).unwrap_err();
        let ConnectError::Rejected { private_data, depths } = &error else { panic!("{error}") };
        assert_eq!(&private_data[..], b"not today");
        assert_eq!(depths.ird, Some(card.ird), "{depths:?}");
        assert_eq!(peer.receive_next(), Received::End);
        assert_eq!(pair.qp().state(), State::Init);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "{}", card.name);
    }
}

/// Markers are a demand on the other end (RFC 5044 §7.1.1), which a card meets in firmware at best: we never
/// make it.
#[test]
fn our_requests_never_ask_for_markers() {
    let adapter = adapter();
    for mode in [MpaMode::PeerToPeer, MpaMode::Unenhanced] {
        for card in &CARDS {
            let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
            let (_peer, request) =
                connect_to_card(&adapter.engine, &pair, card, &ConnectOptions { mode, ..options() });
            assert_eq!(request.flags & M, 0, "{request:?}");
        }
    }
}
