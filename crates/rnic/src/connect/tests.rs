//! Unit tests of MPA startup: with frames of real peers, with both of our own ends on all terms, and with arbitrary
//! bytes.

use super::*;
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::Role as Frame;
use ironwarp_wire::mpa::{Framing, MAX_STARTUP, RtrSet, Startup};
use ironwarp_wire::{Cause, MpaFault, Violation};
use proptest::collection::vec;
use proptest::prelude::*;
use std::error::Error;

const TERMS: Terms = Terms { ird: 4, max_ird: 128, ord: 4, crc: true, markers: false };
/// The terms of siw, as configured and built in the captures: without CRC.
const SIW: Terms = Terms { crc: false, ..TERMS };
const CRC: Framing = Framing { crc: true, markers: false };
const WRITE_READ: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// Builds a frame from its key, the hexadecimal digits of the fields, and the private data.
fn build_frame(key: &str, fields: &str, private_data: &[u8]) -> Vec<u8> {
    let digits: Vec<u32> = fields.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes = digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap());
    [key.as_bytes(), &bytes.collect::<Vec<_>>(), private_data].concat()
}

/// Builds a Request.
fn request_frame(fields: &str, private_data: &[u8]) -> Vec<u8> {
    build_frame("MPA ID Req Frame", fields, private_data)
}

/// Builds a Reply.
fn reply_frame(fields: &str, private_data: &[u8]) -> Vec<u8> {
    build_frame("MPA ID Rep Frame", fields, private_data)
}

/// Parses a Request, which must be valid.
fn parse_incoming(bytes: &[u8]) -> Incoming {
    let Ok(Parse::Done(incoming)) = Incoming::parse(bytes) else { panic!("the Request was not accepted") };
    incoming
}

fn initiator(mode: MpaMode, terms: Terms) -> Initiator {
    Initiator::new(mode, terms, b"").unwrap()
}

/// Parses a Reply, which must accept the connection, and returns the terms.
fn parse_accepted(initiator: &Initiator, reply: &[u8]) -> Agreed {
    let Ok(Parse::Done(Reply::Accepted { agreed, .. })) = initiator.parse_reply(reply) else {
        panic!("the Reply was not accepted")
    };
    agreed
}

fn depths(ird: u16, ord: u16) -> Depths {
    Depths { ird: Some(ird), ord: Some(ord) }
}

/// Connects two of our own ends, and returns the agreed terms of the initiator and of the responder.
fn connect(mode: MpaMode, ours: Terms, theirs: Terms) -> (Agreed, Agreed) {
    let initiator = initiator(mode, ours);
    let (reply, responder) = parse_incoming(initiator.request()).accept(theirs, b"").unwrap();
    (parse_accepted(&initiator, &reply), responder)
}

// --- Outgoing Requests ---

#[test]
fn default_request_is_what_every_peer_takes() {
    // The Intel driver requires A with C or D, the Chelsio driver requires D. RFC 5044 §7.1.1: CRC by
    // default.
    let initiator = Initiator::new(MpaMode::default(), TERMS, b"hello").unwrap();
    assert_eq!(initiator.request(), request_frame("50 02 0009 8004 c004", b"hello"));
}

#[test]
fn request_of_a_siw_built_for_peer_to_peer_and_crc() {
    // siw-gold-p2p-crc.pcap, frame 11.
    let terms = Terms { ird: 3, ord: 5, ..TERMS };
    let initiator = Initiator::new(MpaMode::PeerToPeer, terms, b"hello-from-client").unwrap();
    assert_eq!(initiator.request(), request_frame("50 02 0015 8003 c005", b"hello-from-client"));
}

#[test]
fn requests_of_the_other_setups() {
    // siw-gold.pcap, frame 11; siw-rping-v1.pcap, frame 11.
    let terms = Terms { ird: 3, ord: 5, ..SIW };
    assert_eq!(initiator(MpaMode::ClientServer, terms).request(), request_frame("10 02 0004 0003 0005", b""));
    assert_eq!(initiator(MpaMode::Unenhanced, terms).request(), request_frame("00 01 0000", b""));
    let terms = Terms { markers: true, ..TERMS };
    assert_eq!(initiator(MpaMode::Unenhanced, terms).request(), request_frame("c0 01 0000", b""));
}

#[test]
fn peer_to_peer_asks_for_at_least_one_read() {
    // RFC 6581 §9.1: a Read may have to be the RTR. siw does the same.
    let terms = Terms { ird: 0, ord: 0, ..TERMS };
    assert_eq!(initiator(MpaMode::PeerToPeer, terms).request(), request_frame("50 02 0004 8000 c001", b""));
    assert_eq!(initiator(MpaMode::ClientServer, terms).request(), request_frame("50 02 0004 0000 0000", b""));
}

// --- Incoming Replies ---

#[test]
fn replies_of_siw() {
    // siw-gold-p2p-crc.pcap, frames 11 and 13.
    let terms = Terms { ird: 3, ord: 5, ..TERMS };
    let reply = reply_frame("50 02 0014 8005 8003", b"sixteen bytes ok");
    let Ok(Parse::Done(answer)) = initiator(MpaMode::PeerToPeer, terms).parse_reply(&reply) else { panic!() };
    let agreed = Agreed {
        role: Role::Initiator { rtr: Some(Rtr::Write) },
        mode: MpaMode::PeerToPeer,
        send: CRC,
        receive: CRC,
        ird: 3,
        ord: 5,
        peer: depths(5, 3),
    };
    let private_data = Box::from(*b"sixteen bytes ok");
    assert_eq!(answer, Reply::Accepted { agreed, private_data, consumed: 40 });

    // siw-rping.pcap, frames 14 and 16: no RTR, no CRC.
    let agreed =
        parse_accepted(&initiator(MpaMode::ClientServer, SIW), &reply_frame("10 02 0004 0001 0001", b""));
    let plain = Framing::default();
    assert_eq!((agreed.role, agreed.mode), (Role::Initiator { rtr: None }, MpaMode::ClientServer));
    assert_eq!((agreed.send, agreed.receive, agreed.ird, agreed.ord), (plain, plain, 4, 1));
}

#[test]
fn rejection_tells_what_the_responder_said() {
    // siw-gold.pcap, frame 121. RFC 6581 §9.1: IRD and ORD are passed on for a reject too.
    let reply = reply_frame("30 02 0012 0005 0003", b"nope-not-today");
    let rejected =
        |peer| Ok(Parse::Done(Reply::Rejected { peer, private_data: Box::from(*b"nope-not-today") }));
    assert_eq!(initiator(MpaMode::PeerToPeer, TERMS).parse_reply(&reply), rejected(depths(5, 3)));
    let reply = reply_frame("20 01 000e", b"nope-not-today");
    assert_eq!(initiator(MpaMode::PeerToPeer, TERMS).parse_reply(&reply), rejected(Depths::default()));
}

#[test]
fn ord_is_at_most_the_responders_ird_and_ird_at_least_its_ord() {
    // RFC 6581 §9.1.
    let initiator = initiator(MpaMode::ClientServer, Terms { max_ird: 6, ..TERMS });
    for (fields, ird, ord) in [
        ("0003 0002", 4, 3),
        ("0008 0006", 6, 4),
        ("0000 0000", 4, 0),
        ("3fff 0006", 6, 4), // 0x3fff: ours is unchanged
        ("0002 3fff", 4, 2),
        ("3fff 3fff", 4, 4),
    ] {
        let agreed = parse_accepted(&initiator, &reply_frame(&format!("50 02 0004 {fields}"), b""));
        assert_eq!((agreed.ird, agreed.ord), (ird, ord), "{fields}");
    }
    let failed = initiator.parse_reply(&reply_frame("d0 02 0004 0008 0007", b""));
    let send = Framing { crc: true, markers: true };
    assert_eq!(failed, Err(StartupError::InsufficientIrd { need: 7, have: 6, send }));
}

#[test]
fn rtr_is_chosen_among_those_the_responder_named() {
    // RFC 6581 §9.2. Chelsio and Intel name D, siw names C.
    let terms = Terms { ord: 0, ..TERMS };
    let initiator = initiator(MpaMode::PeerToPeer, terms);
    for (fields, rtr, ord) in [
        ("8000 8000", Rtr::Write, 0),
        ("8001 8000", Rtr::Write, 1), // ours was raised to 1 in the Request
        ("8001 c000", Rtr::Write, 1),
        ("c001 c000", Rtr::Write, 1),
        ("8001 4000", Rtr::Read, 1),
        ("8000 4000", Rtr::Read, 1), // a responder that accepts a Read as RTR holds one
        ("ffff 7fff", Rtr::Read, 1),
    ] {
        let agreed = parse_accepted(&initiator, &reply_frame(&format!("50 02 0004 {fields}"), b""));
        assert_eq!((agreed.role, agreed.ord), (Role::Initiator { rtr: Some(rtr) }, ord), "{fields}");
        assert_eq!(agreed.mode, MpaMode::PeerToPeer);
    }
    for (fields, named) in [("c001 0001", RtrSet::SEND), ("8001 0001", RtrSet::empty())] {
        let failed = initiator.parse_reply(&reply_frame(&format!("50 02 0004 {fields}"), b""));
        assert_eq!(failed, Err(StartupError::NoRtr { named, send: CRC }), "{fields}");
    }
}

#[test]
fn responder_that_demands_an_rtr_gets_one_even_unasked() {
    // RFC 6581 §9.2: on an A bit in the Reply the initiator must send an RTR.
    let agreed =
        parse_accepted(&initiator(MpaMode::ClientServer, TERMS), &reply_frame("50 02 0004 8001 4001", b""));
    assert_eq!(agreed.role, Role::Initiator { rtr: Some(Rtr::Read) });
}

#[test]
fn responder_may_know_less_than_was_asked() {
    let initiator = initiator(MpaMode::PeerToPeer, TERMS);
    for (fields, mode, ord, peer) in [
        // RFC 6581 §9.2: without A there is no RTR, and B, C and D are ignored.
        ("50 02 0004 4002 c003", MpaMode::ClientServer, 2, depths(2, 3)),
        // Unenhanced Replies: our own terms apply.
        ("50 01 0000", MpaMode::Unenhanced, 4, Depths::default()),
        ("40 02 0000", MpaMode::Unenhanced, 4, Depths::default()),
    ] {
        let agreed = parse_accepted(&initiator, &reply_frame(fields, b""));
        assert_eq!((agreed.role, agreed.mode), (Role::Initiator { rtr: None }, mode), "{fields}");
        assert_eq!((agreed.ird, agreed.ord, agreed.peer), (4, ord, peer), "{fields}");
    }
}

#[test]
fn enhanced_reply_to_an_unenhanced_request_is_a_violation() {
    // RFC 6581 §10. A rejection is valid in either form.
    let initiator = initiator(MpaMode::Unenhanced, TERMS);
    assert_eq!(
        initiator.parse_reply(&reply_frame("50 02 0004 0001 0001", b"")),
        Err(StartupError::UnexpectedEnhancedReply)
    );
    let rejected = initiator.parse_reply(&reply_frame("70 02 0004 0001 0001", b""));
    assert!(matches!(rejected, Ok(Parse::Done(Reply::Rejected { .. }))));
    assert_eq!(parse_accepted(&initiator, &reply_frame("40 02 0000", b"")).mode, MpaMode::Unenhanced);
}

#[test]
fn markers_are_a_demand_on_the_other_end() {
    // RFC 5044 §7.1.1.
    for ours in [false, true] {
        for theirs in [false, true] {
            let initiator = initiator(MpaMode::PeerToPeer, Terms { markers: ours, ..SIW });
            assert_eq!(initiator.request()[16], if ours { 0x90 } else { 0x10 });
            let flags = if theirs { "90" } else { "10" };
            let agreed = parse_accepted(&initiator, &reply_frame(&format!("{flags} 02 0004 8001 8001"), b""));
            assert_eq!((agreed.send.markers, agreed.receive.markers), (theirs, ours));

            let request = request_frame(&format!("{flags} 02 0004 8001 8001"), b"");
            let (reply, agreed) =
                parse_incoming(&request).accept(Terms { markers: ours, ..SIW }, b"").unwrap();
            assert_eq!(reply[16], if ours { 0x90 } else { 0x10 });
            assert_eq!((agreed.send.markers, agreed.receive.markers), (theirs, ours));
        }
    }
}

// --- Incoming Requests ---

#[test]
fn requests_of_siw_and_the_answers_siw_gave() {
    // siw-gold.pcap, frames 11, 13 and 121; the program accepted with 4 and 4.
    let default = parse_incoming(&request_frame("10 02 0015 0003 0005", b"hello-from-client"));
    assert_eq!((default.mode(), default.peer()), (MpaMode::ClientServer, depths(3, 5)));
    assert_eq!(default.private_data(), b"hello-from-client");
    let (reply, agreed) = default.accept(SIW, b"sixteen bytes ok").unwrap();
    assert_eq!(*reply, reply_frame("10 02 0014 0005 0003", b"sixteen bytes ok"));
    assert_eq!((agreed.ird, agreed.ord, agreed.send.crc), (5, 3, false));
    assert_eq!(agreed.role, Role::Responder { rtr: RtrSet::empty() });
    assert_eq!(
        *default.reject(b"nope-not-today").unwrap(),
        reply_frame("30 02 0012 0005 0003", b"nope-not-today")
    );

    // siw-gold-p2p-crc.pcap, frames 11, 13 and 136. siw names one RTR in its answers (8003); RFC 6581 §9.2 asks for all.
    let p2p = parse_incoming(&request_frame("50 02 0015 8003 c005", b"hello-from-client"));
    let (reply, agreed) = p2p.accept(SIW, b"sixteen bytes ok").unwrap();
    assert_eq!(*reply, reply_frame("50 02 0014 8005 c003", b"sixteen bytes ok"));
    assert_eq!((agreed.ird, agreed.ord, agreed.send, agreed.receive), (5, 3, CRC, CRC));
    assert_eq!(agreed.role, Role::Responder { rtr: WRITE_READ });
    assert_eq!(
        *p2p.reject(b"nope-not-today").unwrap(),
        reply_frame("70 02 0012 8005 c003", b"nope-not-today")
    );

    // siw-rping-v1.pcap, frames 11 and 13.
    let v1 = parse_incoming(&request_frame("00 01 0000", b""));
    assert_eq!((v1.mode(), v1.peer()), (MpaMode::Unenhanced, Depths::default()));
    let (reply, agreed) = v1.accept(SIW, b"").unwrap();
    assert_eq!(*reply, reply_frame("00 01 0000", b""));
    assert_eq!((agreed.mode, agreed.ird, agreed.ord), (MpaMode::Unenhanced, 4, 4));
    assert_eq!(*v1.reject(b"no").unwrap(), reply_frame("20 01 0002", b"no"));
}

#[test]
fn revision_and_s_bit_are_echoed() {
    // RFC 6581 §10: an unenhanced Request gets an unenhanced Reply, and on revision 1 the S bit is still
    // reserved.
    for (request, reply) in [("40 02 0000", "40 02 0000"), ("50 01 0000", "40 01 0000")] {
        let (bytes, agreed) = parse_incoming(&request_frame(request, b"")).accept(TERMS, b"").unwrap();
        assert_eq!(*bytes, reply_frame(reply, b""));
        assert_eq!(agreed.mode, MpaMode::Unenhanced);
    }
}

#[test]
fn every_rtr_that_was_offered_and_is_taken_is_named() {
    // RFC 6581 §9.2.
    for (offered, named, rtr) in [
        ("8001 c001", "8004 c001", WRITE_READ),   // siw, Intel
        ("8001 4001", "8004 4001", RtrSet::READ), // Chelsio
        ("8001 8001", "8004 8001", RtrSet::WRITE),
        ("c001 c001", "8004 c001", WRITE_READ),
        ("c001 0001", "8004 8001", RtrSet::WRITE), // none in common: name one
        ("8001 0001", "8004 8001", RtrSet::WRITE),
        ("4001 c001", "0004 0001", RtrSet::empty()), // without A, the others mean nothing
    ] {
        let request = request_frame(&format!("50 02 0004 {offered}"), b"");
        let (reply, agreed) = parse_incoming(&request).accept(TERMS, b"").unwrap();
        assert_eq!(*reply, reply_frame(&format!("50 02 0004 {named}"), b""), "{offered}");
        assert_eq!(agreed.role, Role::Responder { rtr }, "{offered}");
    }
}

#[test]
fn reply_carries_the_depths_that_are_configured() {
    // RFC 6581 §9.1: IRD at least the initiator's ORD as far as the device allows, ORD at most its IRD;
    // 0x3fff is echoed.
    let terms = Terms { ird: 4, max_ird: 6, ord: 4, ..TERMS };
    for (request, reply, ird, ord) in [
        ("0002 0003", "0004 0002", 4, 2),
        ("0009 0005", "0005 0004", 5, 4),
        ("0009 0009", "0006 0004", 6, 4),
        ("0000 0000", "0004 0000", 4, 0),
        ("3fff 0005", "0005 3fff", 5, 4),
        ("0002 3fff", "3fff 0002", 4, 2),
        ("3fff 3fff", "3fff 3fff", 4, 4),
    ] {
        let request = parse_incoming(&request_frame(&format!("50 02 0004 {request}"), b""));
        let (bytes, agreed) = request.accept(terms, b"").unwrap();
        assert_eq!(*bytes, reply_frame(&format!("50 02 0004 {reply}"), b""));
        assert_eq!((agreed.ird, agreed.ord), (ird, ord), "{reply}");
    }
}

#[test]
fn a_read_as_first_message_needs_an_ird_of_one() {
    // RFC 6581 §9.1; Intel's older driver gives up on D with IRD 0. Chelsio's sends a Read on revision 1 as well.
    let none = Terms { ird: 0, max_ird: 0, ord: 0, ..TERMS };
    for (request, reply, ird) in [
        ("50 02 0004 8000 4000", "50 02 0004 8001 4000", 1),
        ("50 02 0004 8000 c000", "50 02 0004 8001 c000", 1),
        ("50 02 0004 8000 7fff", "50 02 0004 bfff 4000", 1),
        ("50 02 0004 8000 8000", "50 02 0004 8000 8000", 0),
        ("50 02 0004 0000 0000", "50 02 0004 0000 0000", 0),
        ("40 01 0000", "40 01 0000", 1),
    ] {
        let (bytes, agreed) = parse_incoming(&request_frame(request, b"")).accept(none, b"").unwrap();
        assert_eq!((bytes, agreed.ird), (reply_frame(reply, b"").into(), ird), "{request}");
    }
}

#[test]
fn nothing_may_follow_the_request() {
    // RFC 5044 §7.1.2: the initiator must wait.
    let mut bytes = request_frame("50 02 0005 8001 c001", b"x");
    bytes.extend_from_slice(b"\x00\x0e\xc1");
    assert_eq!(Incoming::parse(&bytes), Err(StartupError::DataBeforeReply(3)));
}

// --- Both ends ---

#[test]
fn depths_as_a_connection_manager_sees_them() {
    // Observed with rdma_cm over siw: client rr 3, id 5; server event rr 5, id 3, accepts 4 and 4; client
    // established rr 5, id 3; server established rr 3, id 5 (rr: responder_resources, id: initiator_depth).
    let client = initiator(MpaMode::PeerToPeer, Terms { ird: 3, ord: 5, ..TERMS });
    let event = parse_incoming(client.request());
    assert_eq!((event.peer().ord, event.peer().ird), (Some(5), Some(3)));
    let (reply, server) = event.accept(TERMS, b"").unwrap();
    let client = parse_accepted(&client, &reply);
    assert_eq!((client.ord, client.ird), (5, 3));
    assert_eq!((server.ord, server.ird), (3, 5));
}

#[test]
fn frames_are_taken_at_any_split() {
    let initiator = initiator(MpaMode::PeerToPeer, TERMS);
    let reply = reply_frame("50 02 0014 8005 c003", b"sixteen bytes ok");
    let request = request_frame("50 02 0015 8003 c005", b"hello-from-client");
    for n in 0..reply.len() {
        let need = if n < 20 { 20 } else { reply.len() };
        assert_eq!(initiator.parse_reply(&reply[..n]), Ok(Parse::Need(need)), "{n} bytes of the Reply");
    }
    for n in 0..request.len() {
        let need = if n < 20 { 20 } else { request.len() };
        assert_eq!(Incoming::parse(&request[..n]), Ok(Parse::Need(need)), "{n} bytes of the Request");
    }
    // siw's responder does not wait for the first FPDU, so its own FPDU may directly follow the Reply.
    let whole = initiator.parse_reply(&reply);
    assert!(matches!(whole, Ok(Parse::Done(Reply::Accepted { consumed: 40, .. }))));
    let glued = [&reply[..], b"\x00\x0e\xc1\x40"].concat();
    for n in reply.len()..=glued.len() {
        assert_eq!(initiator.parse_reply(&glued[..n]), whole);
    }
}

#[test]
fn malformed_frames_end_the_connection_without_an_answer() {
    // RFC 5044 §7.1.2.
    let initiator = initiator(MpaMode::PeerToPeer, TERMS);
    for (fields, violation) in [
        ("50 00 0000", Violation::Revision(0)),
        ("50 03 0000", Violation::Revision(3)),
        ("50 02 0201", Violation::PrivateDataLength(513)),
        ("50 02 0003 000000", Violation::EnhancedWordMissing(3)),
    ] {
        let malformed = StartupError::Malformed(violation);
        assert_eq!(Incoming::parse(&request_frame(fields, b"")), Err(malformed), "{fields}");
        assert_eq!(initiator.parse_reply(&reply_frame(fields, b"")), Err(malformed), "{fields}");
    }
    // Two initiators, or two responders.
    let key = |expected| StartupError::Malformed(Violation::Key { expected });
    assert_eq!(initiator.parse_reply(initiator.request()), Err(key("Reply")));
    assert_eq!(Incoming::parse(b"MPA ID Rep"), Err(key("Request")));
    // The violation is available as the source of the error.
    let source = key("Reply");
    assert!(source.source().unwrap().downcast_ref::<Violation>().is_some());
}

#[test]
fn each_failure_says_what_to_do() {
    let send = Framing { crc: true, markers: true };
    let terminate = |fault| Some((Cause::Mpa(fault), send));
    for (failure, answer, text) in [
        (
            StartupError::Malformed(Violation::Revision(7)),
            None,
            "malformed MPA startup frame: unsupported MPA revision 7: only 1 and 2 are supported",
        ),
        (
            StartupError::DataBeforeReply(3),
            None,
            "3 bytes received after the MPA Request, before the Reply was sent",
        ),
        (StartupError::UnexpectedEnhancedReply, None, "enhanced MPA Reply to an unenhanced Request"),
        (
            StartupError::InsufficientIrd { need: 7, have: 6, send },
            terminate(MpaFault::InsufficientIrd),
            "the peer's ORD of 7 exceeds the maximum IRD of 6: raise the maximum IRD or lower the peer's ORD",
        ),
        (
            StartupError::NoRtr { named: RtrSet::SEND, send },
            terminate(MpaFault::NoRtr),
            "no RTR in common (the peer accepts only an empty Send): connect in the client-server model",
        ),
        (
            StartupError::NoRtr { named: RtrSet::empty(), send },
            terminate(MpaFault::NoRtr),
            "no RTR in common (the peer accepts none): connect in the client-server model",
        ),
    ] {
        assert_eq!((failure.terminate(), failure.to_string().as_str()), (answer, text));
    }
}

#[test]
fn misuse_is_told_at_once_and_names_the_limit() {
    // RFC 6581 §9: the IRD/ORD word takes 4 of the 512 bytes.
    let long = [7; 513];
    let too_long = |len, room| Err(InvalidArgument::PrivateDataTooLong { len, room });
    let new = |mode, len: usize| Initiator::new(mode, TERMS, &long[..len]).map(|_| ());
    assert_eq!(new(MpaMode::PeerToPeer, 508), Ok(()));
    assert_eq!(new(MpaMode::PeerToPeer, 509), too_long(509, 508));
    assert_eq!(new(MpaMode::Unenhanced, 512), Ok(()));
    assert_eq!(new(MpaMode::Unenhanced, 513), too_long(513, 512));
    let request = parse_incoming(&request_frame("50 02 0004 8001 c001", b""));
    assert_eq!(request.accept(TERMS, &long[..509]).map(|_| ()), too_long(509, 508));
    assert_eq!(request.reject(&long[..509]).map(|_| ()), too_long(509, 508));
    // The call can be repeated, and the longest frame arrives.
    let (reply, _) = request.accept(TERMS, &long[..508]).unwrap();
    let answer = initiator(MpaMode::PeerToPeer, TERMS).parse_reply(&reply);
    assert!(matches!(answer, Ok(Parse::Done(Reply::Accepted { consumed: 532, .. }))));

    let deepest = Terms { ird: MAX_DEPTH, max_ird: MAX_DEPTH, ord: MAX_DEPTH, ..TERMS };
    assert!(Initiator::new(MpaMode::PeerToPeer, deepest, b"").is_ok());
    for (terms, text) in [
        (Terms { max_ird: MAX_DEPTH + 1, ..deepest }, "maximum IRD of 16383 exceeds the maximum of 16382"),
        (Terms { ird: 129, ..TERMS }, "IRD of 129 exceeds the maximum of 128"),
        (Terms { ord: MAX_DEPTH + 1, ..deepest }, "ORD of 16383 exceeds the maximum of 16382"),
    ] {
        assert_eq!(Initiator::new(MpaMode::PeerToPeer, terms, b"").unwrap_err().to_string(), text);
        assert_eq!(request.accept(terms, b"").unwrap_err().to_string(), text);
    }
    let text = "private data of 509 bytes exceeds the maximum of 508: send the rest as a message";
    assert_eq!(request.reject(&long[..509]).unwrap_err().to_string(), text);
}

/// Connects two ends, and checks the invariants of the agreed terms.
fn check_pair(mode: MpaMode, ours: Terms, theirs: Terms) {
    let (a, b) = connect(mode, ours, theirs);
    assert_eq!((a.mode, b.mode), (mode, mode));
    assert_eq!((a.send, a.receive), (b.receive, b.send));
    assert_eq!(a.send.crc, ours.crc || theirs.crc);
    assert_eq!((a.receive.markers, b.receive.markers), (ours.markers, theirs.markers));
    let at_least_one = |end: Terms, raised: bool| if raised { end.max_ird.max(1) } else { end.max_ird };
    assert!(a.ird <= ours.max_ird && b.ird <= at_least_one(theirs, mode != MpaMode::ClientServer));
    assert!(a.ird >= ours.ird && b.ird >= theirs.ird);
    let p2p = mode == MpaMode::PeerToPeer;
    assert!(a.ord <= ours.ord.max(u16::from(p2p)) && b.ord <= theirs.ord);
    match (a.role, b.role) {
        (Role::Initiator { rtr: Some(Rtr::Write) }, Role::Responder { rtr }) if p2p => {
            assert_eq!(rtr, WRITE_READ);
            assert!(b.ird >= 1);
        }
        (Role::Initiator { rtr: None }, Role::Responder { rtr }) if !p2p => assert!(rtr.is_empty()),
        other => panic!("{other:?}"),
    }
    if mode == MpaMode::Unenhanced {
        assert_eq!((a.ord, b.ord), (ours.ord, theirs.ord));
        assert_eq!((a.peer, b.peer), (Depths::default(), Depths::default()));
        return;
    }
    assert!(a.ord <= b.ird && b.ord <= a.ird, "{a:?}, {b:?}");
    // The depths are also as large as possible.
    assert_eq!(a.ord, ours.ord.max(u16::from(p2p)).min(b.ird));
    assert_eq!(b.ord, theirs.ord.min(ours.ird));
    assert_eq!(a.peer, depths(b.ird, b.ord));
    assert_eq!(b.peer, depths(ours.ird, ours.ord.max(u16::from(p2p))));
}

const SETUPS: [MpaMode; 3] = [MpaMode::PeerToPeer, MpaMode::ClientServer, MpaMode::Unenhanced];

#[test]
fn two_ends_agree_whatever_their_flags() {
    for bits in 0..16 {
        let on = |bit: u8| bits >> bit & 1 != 0;
        for mode in SETUPS {
            let ours = Terms { crc: on(0), markers: on(1), ..TERMS };
            let theirs = Terms { crc: on(2), markers: on(3), ..TERMS };
            check_pair(mode, ours, theirs);
        }
    }
}

fn depth() -> impl Strategy<Value = u16> {
    prop_oneof![0..=3u16, 0..=MAX_DEPTH, MAX_DEPTH - 1..=MAX_DEPTH]
}

fn terms() -> impl Strategy<Value = Terms> {
    (depth(), depth(), depth(), any::<bool>(), any::<bool>()).prop_map(|(one, two, ord, crc, markers)| {
        Terms { ird: one.min(two), max_ird: one.max(two), ord, crc, markers }
    })
}

fn mode() -> impl Strategy<Value = MpaMode> {
    prop::sample::select(&SETUPS)
}

/// Generates frames with a valid key and length, so that the later checks are reached.
fn well_formed(role: Frame) -> impl Strategy<Value = Vec<u8>> {
    let key = if role == Frame::Request { "MPA ID Req Frame" } else { "MPA ID Rep Frame" };
    (any::<u8>(), 0..4u8, vec(any::<u8>(), 0..40), 0..3usize).prop_map(move |(flags, revision, data, cut)| {
        let len = u16::try_from(data.len()).unwrap().to_be_bytes();
        let mut bytes = [key.as_bytes(), &[flags, revision], &len, &data].concat();
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        bytes
    })
}

/// Checks that the terms agreed by any Reply are within the limits and the request of this end.
fn check_reply(mode: MpaMode, terms: Terms, bytes: &[u8]) {
    match initiator(mode, terms).parse_reply(bytes) {
        Ok(Parse::Need(n)) => assert!(n > bytes.len() && n <= MAX_STARTUP),
        Ok(Parse::Done(Reply::Accepted { agreed, consumed, .. })) => {
            assert!(consumed <= bytes.len());
            assert!(agreed.ird <= terms.max_ird && agreed.ord <= terms.ord.max(1));
            let rtr = agreed.role == Role::Initiator { rtr: Some(Rtr::Read) };
            assert!(agreed.peer.ird.is_none_or(|ird| agreed.ord <= ird.max(u16::from(rtr))));
            assert!(agreed.peer.ord.is_none_or(|ord| ord <= agreed.ird));
        }
        Ok(Parse::Done(Reply::Rejected { .. })) => {}
        Err(failure) => drop(failure.to_string()),
    }
}

fn check_request(terms: Terms, bytes: &[u8]) {
    match Incoming::parse(bytes) {
        Ok(Parse::Need(n)) => assert!(n > bytes.len() && n <= MAX_STARTUP),
        Ok(Parse::Done(incoming)) => {
            let (reply, agreed) = incoming.accept(terms, b"yes").unwrap();
            assert!(agreed.ird <= terms.max_ird.max(1) && agreed.ord <= terms.ord);
            assert!(agreed.peer.ird.is_none_or(|ird| agreed.ord <= ird));
            for reply in [reply, incoming.reject(b"no").unwrap()] {
                let Ok(Parse::Done((reply, _))) = Startup::parse_reply(&reply) else { panic!() };
                assert_eq!(MpaMode::from_revision(reply.revision), incoming.mode());
            }
        }
        Err(failure) => assert_eq!(failure.terminate(), None),
    }
}

proptest! {
    #[test]
    fn two_ends_agree_whatever_their_terms(mode in mode(), ours in terms(), theirs in terms()) {
        check_pair(mode, ours, theirs);
    }

    #[test]
    fn any_bytes_are_a_reply_or_a_failure(
        mode in mode(),
        terms in terms(),
        bytes in prop_oneof![vec(any::<u8>(), 0..64), well_formed(Frame::Reply { rejected: false })],
    ) {
        check_reply(mode, terms, &bytes);
    }

    #[test]
    fn any_bytes_are_a_request_or_a_failure(
        terms in terms(),
        bytes in prop_oneof![vec(any::<u8>(), 0..64), well_formed(Frame::Request)],
    ) {
        check_request(terms, &bytes);
    }
}
