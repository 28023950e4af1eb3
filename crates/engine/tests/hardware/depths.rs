//! The number of outstanding Reads of each end. A card can hold a fixed number of Reads: one too many ends
//! the stream.

use crate::card::{CARDS, CXGB4, Card, DEPTH, IRDMA};
use crate::common::TIMEOUT;
use crate::common::peer::{Peer, Received};
use crate::common::victim::{Attacked as Session, RECEIVES, Victim};
use crate::session::{
    By, accept_in_program, adapter, assert_enhanced, connect, dial_from_card, first_read, for_each_card,
    receive_reply, send_read_response, send_rtr,
};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Opcode, Operation};
use ironwarp_wire::{Header, ReadRequest, RemoteAddr};
use std::time::Duration;

/// As many Reads as the send queue holds.
const READS: u64 = 64;

/// Our adapter is configured for more outstanding Reads than the card holds: the limit of the card applies,
/// in either role.
#[test]
fn we_never_have_more_reads_outstanding_than_a_card_holds() {
    for_each_card(|card, by| {
        let card = Card { ird: card.ird.min(48), ..*card }; // for irdma, as if its program had requested less
        let adapter = Victim::alone(Config::default().ord(200));
        let mut session = connect(&adapter, &card, by);
        let from = RemoteAddr { tag: ironwarp_wire::Tag(7), offset: 0 };
        for id in 0..READS {
            session.post(id, Operation::Read(from), adapter.open.sge(8 * id, 8));
        }
        let mut asked: Vec<_> = (0..card.ird).map(|_| receive_read(&mut session.peer)).collect();
        assert_eq!(asked[0].msn, first_read(By::Us, by));
        assert_eq!(
            session.peer.receive_within(Duration::from_millis(100)),
            Received::Silence,
            "one Read too many"
        );
        for id in 0..READS {
            let read = asked.remove(0);
            send_read_response(&mut session.peer, read.sink, &id.to_be_bytes());
            assert_eq!(session.one().wr_id, id);
            if id + u64::from(card.ird) < READS {
                asked.push(receive_read(&mut session.peer));
            }
        }
        for id in 0..READS {
            let at = adapter.open.at + 8 * usize::try_from(id).unwrap();
            assert_eq!(adapter.memory.read(at, 8), id.to_be_bytes());
        }
    });
}

fn receive_read(peer: &mut Peer) -> ReadRequest {
    match peer.receive_message() {
        Received::Message(Header::ReadRequest(read), ..) => read,
        other => panic!("expected a Read, got {other:?}"),
    }
}

/// A card may use the IRD stated in our frame at once, and is answered in order.
#[test]
fn a_card_may_have_as_many_reads_outstanding_as_our_frame_says() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        let ours = Config::default().ird;
        let source = RemoteAddr { tag: adapter.readable.tag, offset: adapter.readable.addr };
        let sink = |i: u16| RemoteAddr { tag: ironwarp_wire::Tag(0x5151), offset: u64::from(i) << 8 };
        let mut burst = Vec::new();
        for i in 0..ours.min(card.ord) {
            let msn = first_read(By::Card, by) + u32::from(i);
            let read = ReadRequest { msn, sink: sink(i), len: 8, source };
            burst.extend(session.peer.frame(&Header::ReadRequest(read), &[]));
        }
        session.peer.send_bytes(&burst);
        for i in 0..ours.min(card.ord) {
            let Received::Message(Header::ReadResponse(it), payload, _) = session.peer.receive_message()
            else {
                panic!("expected a Read Response");
            };
            assert_eq!((it.last, it.addr), (true, sink(i)));
            assert_eq!(payload, adapter.memory.read(adapter.readable.at, 8));
        }
        session.assert_works(1);
    });
}

/// RFC 6581 §9.1; irdma also resets a connection if the ORD of the Reply exceeds its own IRD.
#[test]
fn our_reply_grants_the_reads_that_a_card_asks_for_and_asks_for_no_more_than_it_holds() {
    for (card, ours) in CARDS.into_iter().flat_map(|card| [1, 16, 32, 300].map(|ours| (card, ours))) {
        let adapter = Victim::alone(Config::default().ird(ours).ord(ours));
        let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
        let mut peer = dial_from_card(&adapter, &card, b"");
        accept_in_program(&adapter, &pair, b"");
        let (ird, ord) = assert_enhanced(&receive_reply(&mut peer, &card).unwrap());
        assert_eq!(ord & DEPTH, ours.min(card.ird), "{}", card.name);
        assert!(ird >= ours.min(card.ord), "{}: {ird}", card.name);
    }
}

/// irdma resets a connection if the Reply names the Read as RTR and an IRD of zero; cxgb4 sends the Read
/// anyway.
#[test]
fn our_reply_has_room_for_a_read_as_rtr_even_if_no_reads_are_granted() {
    for card in &CARDS {
        let adapter = Victim::alone(Config::default().ird(0).ord(0));
        let (pair, cq) = adapter.queue_pair(Completes::WhenSent, RECEIVES);
        let mut peer = dial_from_card(&adapter, card, b"");
        accept_in_program(&adapter, &pair, b"");
        let (ird, _) = assert_enhanced(&receive_reply(&mut peer, card).unwrap());
        assert_eq!(ird, 1);
        send_rtr(&mut peer, card);
        pair.wait_connected(TIMEOUT).unwrap();
        Session { peer, pair, cq }.assert_works(1);
    }
}

/// cxgb4 lowers its IRD to the ORD of our Reply. If that is zero, the adapter may not even send the empty
/// Read that otherwise shows that a card has received all messages before it: requests complete when they are
/// sent.
#[test]
fn an_ord_of_zero_is_respected() {
    for card in &CARDS {
        let adapter = adapter();
        let (pair, cq) = adapter.queue_pair(Completes::WhenAcknowledged, RECEIVES);
        let mut peer = dial_from_card(&adapter, card, b"");
        let incoming = adapter.listener().incoming().wait(Some(TIMEOUT)).unwrap();
        incoming.accept(&pair, adapter.engine.terms(None, Some(0)), &[]).unwrap();
        let (_, ord) = assert_enhanced(&receive_reply(&mut peer, card).unwrap());
        assert_eq!(ord & DEPTH, 0);
        send_rtr(&mut peer, card);
        pair.wait_connected(TIMEOUT).unwrap();
        let mut session = Session { peer, pair, cq };
        session.post(1, Operation::Send { invalidate: None }, adapter.readable.sge(0, 8));
        assert!(matches!(session.peer.receive_message(), Received::Message(Header::Send(_), ..)));
        let done = session.one();
        assert_eq!((done.wr_id, done.opcode), (1, Opcode::Send), "{done:?}");
        assert_eq!(session.peer.receive_within(Duration::from_millis(100)), Received::Silence);
    }
}

/// If Reads are allowed, an empty Read after a Send shows that the card has received it. It counts against
/// the Reads that the card holds.
#[test]
fn a_card_is_asked_by_an_empty_read_whether_it_has_what_was_sent() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = crate::session::connect_with(&adapter, card, by, Completes::WhenAcknowledged);
        session.post(1, Operation::Send { invalidate: None }, adapter.readable.sge(0, 8));
        assert!(matches!(session.peer.receive_message(), Received::Message(Header::Send(_), ..)));
        let read = receive_read(&mut session.peer);
        assert_eq!((read.msn, read.len), (first_read(By::Us, by), 0));
        session.cq.poll(1, |it| panic!("too early: {it:?}")).unwrap();
        send_read_response(&mut session.peer, read.sink, &[]);
        assert_eq!(session.one().wr_id, 1);
    });
}

/// If irdma does not negotiate depths (all ones), neither does our Reply (RFC 6581 §9.1).
#[test]
fn irdma_that_does_not_negotiate_depths_is_answered_in_kind() {
    let card = Card { ird: DEPTH, ord: DEPTH, ..IRDMA };
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let mut peer = dial_from_card(&adapter, &card, b"");
    accept_in_program(&adapter, &pair, b"");
    let (ird, ord) = assert_enhanced(&receive_reply(&mut peer, &card).unwrap());
    assert_eq!((ird, ord & DEPTH), (DEPTH, DEPTH));
}

/// cxgb4 in revision 1 uses as many Reads as it supports: the adapter holds its default, although no frame
/// stated it.
#[test]
fn cxgb4_in_revision_1_may_read_as_much_as_it_can() {
    let card = Card { revision: 1, ..CXGB4 };
    let adapter = adapter();
    let mut session = connect(&adapter, &card, By::Card);
    let source = RemoteAddr { tag: adapter.readable.tag, offset: adapter.readable.addr };
    let burst: Vec<u8> = (0..u32::from(card.ord))
        .flat_map(|i| {
            let read = ReadRequest { msn: 2 + i, sink: crate::common::SINK, len: 8, source };
            session.peer.frame(&Header::ReadRequest(read), &[])
        })
        .collect();
    session.peer.send_bytes(&burst);
    for _ in 0..card.ord {
        assert!(matches!(session.peer.receive_message(), Received::Message(Header::ReadResponse(_), ..)));
    }
    session.assert_works(1);
}
