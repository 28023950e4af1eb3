//! A card connects to us.

use crate::card::{A, C, CARDS, CXGB4, Card, IRDMA, M, READ, Refused, S, WRITE};
use crate::common::TIMEOUT;
use crate::common::peer::Received;
use crate::common::victim::{Attacked as Session, RECEIVES, Victim};
use crate::session::{
    By, accept_in_program, adapter, assert_enhanced, connect, dial_from_card, receive_reply, send_rtr, talk,
};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::Operation;
use ironwarp_testkit::path;
use std::time::Duration;

/// How long to wait for a message that must not arrive.
const A_WHILE: Duration = Duration::from_millis(100);

/// cxgb4 offers only the Read, and checks for the Write first: if the Reply has bit C, cxgb4 considers it the
/// wrong RTR and ends the stream.
#[test]
fn cxgb4_is_answered_with_the_read_as_rtr_and_nothing_else() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let mut peer = dial_from_card(&adapter, &CXGB4, b"");
    accept_in_program(&adapter, &pair, b"");
    let (_, ord) = assert_enhanced(&receive_reply(&mut peer, &CXGB4).unwrap());
    assert_eq!(ord & (WRITE | READ), READ);
}

/// irdma requires bit A, and bit C or D, in a Reply of revision 2.
#[test]
fn irdma_is_answered_with_the_peer_to_peer_model_and_an_rtr_that_it_offered() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let mut peer = dial_from_card(&adapter, &IRDMA, b"");
    accept_in_program(&adapter, &pair, b"");
    assert_enhanced(&receive_reply(&mut peer, &IRDMA).unwrap());
}

/// The RTR of both cards is an empty Read with tags that were never given out. It is answered, and gives no
/// completion.
#[test]
fn the_rtr_of_a_card_is_answered_whatever_tags_it_names_and_no_program_hears_of_it() {
    for card in &CARDS {
        let adapter = adapter();
        let mut session = connect(&adapter, card, By::Card);
        session.cq.poll(1, |it| panic!("the RTR gave a completion: {it:?}")).unwrap();
        talk(&adapter, &mut session, 1);
        adapter.assert_untouched_except(&[(adapter.private.at, 10)]);
    }
}

/// irdma also offers a Write, and may send it if we name both.
#[test]
fn an_empty_write_from_a_card_is_an_rtr_as_well() {
    let adapter = adapter();
    let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
    let mut peer = dial_from_card(&adapter, &IRDMA, b"");
    accept_in_program(&adapter, &pair, b"");
    let reply = receive_reply(&mut peer, &IRDMA).unwrap();
    assert_ne!(reply.word.unwrap().1 & WRITE, 0, "not named, so the card would not send it");
    peer.open();
    pair.wait_connected(TIMEOUT).unwrap();
    talk(&adapter, &mut Session { peer, pair, cq }, 1);
}

/// cxgb4 takes data after the Reply for part of it, and fails; irdma has not handed the connection to the
/// card yet. Nothing is therefore sent before the card has sent a message (RFC 5044 §7.1.2), whatever our
/// program has posted.
#[test]
fn nothing_follows_our_reply_until_the_card_has_sent_its_rtr() {
    for card in &CARDS {
        let adapter = adapter();
        let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
        let peer = dial_from_card(&adapter, card, b"");
        accept_in_program(&adapter, &pair, b"");
        pair.wait_connected(TIMEOUT).unwrap();
        let mut session = Session { peer, pair, cq };
        session.post(1, Operation::Send { invalidate: None }, adapter.readable.sge(0, 8));
        receive_reply(&mut session.peer, card).unwrap();
        assert_eq!(session.peer.receive_within(A_WHILE), Received::Silence);
        assert_eq!(path::segments_received(&session.peer.stream), 1);
        session.peer.send(&ironwarp_wire::Header::ReadRequest(card.rtr), &[]);
        let messages = [session.peer.receive_message(), session.peer.receive_message()];
        let sent = |it: &Received| matches!(it, Received::Message(ironwarp_wire::Header::Send(_), ..));
        assert_eq!(messages.iter().filter(|it| sent(it)).count(), 1, "{messages:?}");
    }
}

/// irdma processes one TCP segment at a time.
#[test]
fn our_reply_comes_in_one_segment_however_long_it_is() {
    let adapter = adapter();
    for len in [0, 252, 508] {
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let mut peer = dial_from_card(&adapter, &IRDMA, b"");
        accept_in_program(&adapter, &pair, &vec![7; len]);
        assert_eq!(receive_reply(&mut peer, &IRDMA).unwrap().private_data.len(), len);
        assert_eq!(path::segments_received(&peer.stream), 1);
    }
}

/// Checks that a card that uses revision 1 is answered in revision 1. CRCs are used nevertheless.
fn answered_in_revision_1(adapter: &Victim, card: &Card) -> Session {
    let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
    let mut peer = dial_from_card(adapter, card, b"card");
    accept_in_program(adapter, &pair, b"ours");
    let reply = receive_reply(&mut peer, card).unwrap();
    assert_eq!((reply.revision, reply.flags), (1, C), "{reply:?}");
    assert_eq!(reply.private_data, b"ours");
    pair.wait_connected(TIMEOUT).unwrap();
    Session { peer, pair, cq }
}

/// In revision 1 the RTR is not negotiated, but cxgb4 sends its Read nevertheless.
#[test]
fn cxgb4_sends_a_read_as_rtr_in_revision_1_too_and_it_is_answered() {
    let card = Card { revision: 1, ..CXGB4 };
    let adapter = adapter();
    let mut session = answered_in_revision_1(&adapter, &card);
    send_rtr(&mut session.peer, &card);
    session.cq.poll(1, |it| panic!("the RTR gave a completion: {it:?}")).unwrap();
    session.assert_works(1);
}

/// If the program grants its peer no Reads at all, the RTR is still accepted.
#[test]
fn the_rtr_read_of_cxgb4_in_revision_1_is_accepted_even_if_no_reads_are_granted() {
    let card = Card { revision: 1, ..CXGB4 };
    let adapter = adapter();
    let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
    let mut peer = dial_from_card(&adapter, &card, b"");
    let incoming = adapter.listener().incoming().wait(Some(TIMEOUT)).unwrap();
    incoming.accept(&pair, adapter.engine.terms(Some(0), Some(0)), &[]).unwrap();
    receive_reply(&mut peer, &card).unwrap();
    send_rtr(&mut peer, &card);
    pair.wait_connected(TIMEOUT).unwrap();
    Session { peer, pair, cq }.assert_works(1);
}

/// irdma tries revision 1 after a reset in revision 2.
#[test]
fn irdma_is_answered_in_revision_1_after_a_reset() {
    let card = Card { revision: 1, ..IRDMA };
    answered_in_revision_1(&adapter(), &card).assert_works(1);
}

/// irdma checks the model and the RTR of a Reply before whether it is a rejection: without them it reports an
/// error, and the private data of our program is lost.
#[test]
fn our_rejection_has_all_that_a_card_wants_of_a_reply() {
    for card in &CARDS {
        let adapter = adapter();
        let mut peer = dial_from_card(&adapter, card, b"");
        let incoming = adapter.listener().incoming().wait(Some(TIMEOUT)).unwrap();
        incoming.reject(b"not today").unwrap();
        assert_eq!(
            receive_reply(&mut peer, card),
            Err(Refused::Rejected(b"not today".to_vec())),
            "{}",
            card.name
        );
        assert_eq!(peer.receive_next(), Received::End);
    }
}

#[test]
fn our_rejection_in_revision_1_is_understood() {
    for card in &CARDS {
        let (adapter, card) = (adapter(), Card { revision: 1, ..*card });
        let mut peer = dial_from_card(&adapter, &card, b"");
        adapter.listener().incoming().wait(Some(TIMEOUT)).unwrap().reject(b"not today").unwrap();
        assert_eq!(
            receive_reply(&mut peer, &card),
            Err(Refused::Rejected(b"not today".to_vec())),
            "{}",
            card.name
        );
    }
}

#[test]
fn our_replies_never_ask_for_markers() {
    for card in CARDS {
        for revision in [1, 2] {
            let (adapter, card) = (adapter(), Card { revision, ..card });
            let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
            let mut peer = dial_from_card(&adapter, &card, b"");
            accept_in_program(&adapter, &pair, b"");
            let reply = receive_reply(&mut peer, &card).unwrap();
            assert_eq!(reply.flags & M, 0, "{reply:?}");
            assert_eq!(reply.flags & S != 0, reply.word.is_some_and(|(ird, _)| ird & A != 0), "{reply:?}");
        }
    }
}
