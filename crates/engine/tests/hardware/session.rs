//! One of our adapters and a card, connected by either.

use crate::card::{C, Card, Frame, M, READ, Refused};
use crate::common::peer::{Peer, Received};
use crate::common::victim::{Attacked as Session, RECEIVES, Victim};
use crate::common::{SINK, TIMEOUT};
use ironwarp_engine::config::Config;
use ironwarp_engine::{ConnectOptions, Engine, QueuePair};
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::path;
use ironwarp_wire::mpa::Framing;
use ironwarp_wire::{Header, ReadRequest, RemoteAddr, Tagged};
use std::net::TcpListener;
use std::sync::Arc;

/// Which end makes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Us,
    Card,
}

/// Runs a test with each card in each role.
pub(crate) fn for_each_card(does: impl Fn(&Card, By)) {
    for card in &crate::card::CARDS {
        for by in [By::Us, By::Card] {
            eprintln!("{}, connected by {by:?}", card.name); // shown if it fails
            does(card, by);
        }
    }
}

/// An adapter with the default settings, and memory.
pub(crate) fn adapter() -> Victim {
    Victim::alone(Config::default())
}

/// A connection on which both ends may send: the RTR has been sent and answered.
pub(crate) fn connect(adapter: &Victim, card: &Card, by: By) -> Session {
    connect_with(adapter, card, by, Completes::WhenSent)
}

pub(crate) fn connect_with(adapter: &Victim, card: &Card, by: By, completes: Completes) -> Session {
    let (pair, cq) = adapter.queue_pair(completes, RECEIVES);
    let peer = match by {
        By::Us => {
            let (mut peer, _) = connect_to_card(&adapter.engine, &pair, card, &ConnectOptions::default());
            receive_rtr(&mut peer);
            peer
        }
        By::Card => {
            let mut peer = dial_from_card(adapter, card, b"card");
            accept_in_program(adapter, &pair, b"ours");
            receive_reply(&mut peer, card).unwrap();
            send_rtr(&mut peer, card);
            peer
        }
    };
    pair.wait_connected(TIMEOUT).unwrap();
    Session { peer, pair, cq }
}

/// The sequence number of the first Read of an end: 2 for the end that made the connection, because its RTR
/// was a Read.
pub(crate) fn first_read(of: By, by: By) -> u32 {
    if of == by { 2 } else { 1 }
}

// --- We connect to a card ---

/// Connects to the card, which accepts the Request. Also returns the Request.
pub(crate) fn connect_to_card(
    engine: &Arc<Engine>,
    pair: &Arc<QueuePair>,
    card: &Card,
    options: &ConnectOptions,
) -> (Peer, Frame) {
    let listener = path::listener();
    engine.connect(pair, listener.local_addr().unwrap(), options).unwrap();
    let (mut peer, request) = receive_request(&listener, card);
    let request = request.unwrap();
    accept_request(&mut peer, card, &request);
    pair.wait_connected(TIMEOUT).unwrap();
    (peer, request)
}

/// Accepts a connection at the card, and checks the Request.
pub(crate) fn receive_request(listener: &TcpListener, card: &Card) -> (Peer, Result<Frame, Refused>) {
    let mut peer = Peer::from_stream(listener.accept().unwrap().0);
    let bytes = peer.receive_startup();
    (peer, card.check_request(&bytes))
}

pub(crate) fn accept_request(peer: &mut Peer, card: &Card, request: &Frame) {
    peer.send_bytes(&card.reply(request, b"card"));
    start_stream(peer, card, request);
}

/// Checks that the first message is the Read that the card named as RTR, and answers it.
pub(crate) fn receive_rtr(peer: &mut Peer) -> ReadRequest {
    match peer.receive_next() {
        Received::Message(Header::ReadRequest(read), _, _) => {
            assert_eq!((read.msn, read.len), (1, 0), "not an RTR");
            send_read_response(peer, read.sink, &[]);
            read
        }
        other => panic!("expected the RTR, got {other:?}"),
    }
}

// --- A card connects to us ---

/// Connects the card to us, and sends its Request.
pub(crate) fn dial_from_card(adapter: &Victim, card: &Card, private_data: &[u8]) -> Peer {
    let mut peer = Peer::from_stream(path::dial(adapter.addr()));
    peer.send_bytes(&card.request(private_data));
    peer
}

/// Accepts the connection in our program.
pub(crate) fn accept_in_program(adapter: &Victim, pair: &Arc<QueuePair>, private_data: &[u8]) {
    let incoming = adapter.listener().incoming().wait(Some(TIMEOUT)).expect("the Request arrived");
    incoming.accept(pair, adapter.engine.terms(None, None), private_data).unwrap();
}

/// Checks our Reply at the card.
pub(crate) fn receive_reply(peer: &mut Peer, card: &Card) -> Result<Frame, Refused> {
    let bytes = peer.receive_startup();
    let reply = card.check_reply(&bytes)?;
    start_stream(peer, card, &reply);
    Ok(reply)
}

/// Sends the RTR of the card, and checks the response: an empty Read Response for the address that the card
/// named.
pub(crate) fn send_rtr(peer: &mut Peer, card: &Card) {
    peer.send(&Header::ReadRequest(card.rtr), &[]);
    let response = Header::ReadResponse(Tagged { last: true, addr: card.rtr.sink });
    match peer.receive_message() {
        Received::Message(header, payload, _) => assert_eq!((header, payload), (response, vec![])),
        other => panic!("expected the response to the RTR, got {other:?}"),
    }
}

// --- Both ---

/// Starts the exchange of FPDUs, with CRCs, because every card wants them.
fn start_stream(peer: &mut Peer, card: &Card, ours: &Frame) {
    let crc = true;
    peer.start_stream_with(
        Framing { crc, markers: ours.flags & M != 0 },
        Framing { crc, markers: card.markers },
    );
}

/// Sends a Read Response of one segment.
pub(crate) fn send_read_response(peer: &mut Peer, sink: RemoteAddr, payload: &[u8]) {
    peer.send(&Header::ReadResponse(Tagged { last: true, addr: sink }), payload);
}

/// Checks what all of our startup frames must have in common: CRCs, no markers, and no reserved bits. Returns
/// the IRD, and the ORD with its flags.
pub(crate) fn assert_enhanced(frame: &Frame) -> (u16, u16) {
    assert_eq!((frame.revision, frame.flags), (2, C | crate::card::S), "{frame:?}");
    let (ird, ord) = frame.word.expect("a frame of revision 2");
    assert_ne!(ird & crate::card::A, 0, "the peer-to-peer model");
    assert_eq!(ird & crate::card::B, 0, "an empty Send would consume a receive of the program");
    assert_ne!(ord & READ, 0, "every card supports this RTR");
    (ird & crate::card::DEPTH, ord)
}

/// Sends a message in each direction; `msn` is the number of the next Send of both ends.
pub(crate) fn talk(adapter: &Victim, session: &mut Session, msn: u32) {
    use ironwarp_rnic::queue::Operation;
    session.assert_works(msn);
    session.post(100, Operation::Send { invalidate: None }, adapter.readable.sge(0, 10));
    match session.peer.receive_message() {
        Received::Message(header, payload, _) => {
            assert_eq!(header, crate::common::send(msn));
            assert_eq!(payload, adapter.memory.read(adapter.readable.at, 10));
        }
        other => panic!("expected a Send, got {other:?}"),
    }
    assert_eq!(session.one().wr_id, 100);
}

/// Sends a Read of `len` bytes from the card; `msn` is its number.
pub(crate) fn fetch(session: &mut Session, msn: u32, source: RemoteAddr, len: u32) {
    session.peer.send(&Header::ReadRequest(ReadRequest { msn, sink: SINK, len, source }), &[]);
}
