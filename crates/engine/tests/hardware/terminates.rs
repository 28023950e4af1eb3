//! How a connection ends: the Terminate in the form of RFC 5040 §4.8, which the cards use. The first byte is
//! `layer << 4 | type`, the third has M, D and R in its top bits, followed by the offending FPDU from its
//! length field on. For the MPA layer, the cards use type 3, and the RFC type 0.

use crate::card::CXGB4;
use crate::common::peer::Received;
use crate::common::victim::{Attacked as Session, RECEIVES, Victim};
use crate::common::{TIMEOUT, read, write};
use crate::session::{By, adapter, connect, connect_with, first_read, for_each_card, receive_request};
use ironwarp_engine::ConnectOptions;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_testkit::path;
use ironwarp_wire::mpa::Crc;
use ironwarp_wire::{Cause, Header, MpaFault, Protection, RemoteAddr, Tag, Terminate};

const SEND: Operation = Operation::Send { invalidate: None };
const CARD_MEMORY: RemoteAddr = RemoteAddr { tag: Tag(0x0009_0000), offset: 0x4000 };

/// A Terminate as a card sends it: control words, and the part of the offending FPDU that it copied.
fn terminate(control: [u8; 4], copied: &[u8]) -> Vec<u8> {
    let len = u16::try_from(22 + copied.len()).unwrap().to_be_bytes();
    let (queue, msn) = (2_u32.to_be_bytes(), 1_u32.to_be_bytes());
    let mut fpdu = [&len, &[0x41, 0x47][..], &[0; 4], &queue, &msn, &[0; 4], &control, copied].concat();
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = Crc::of(&fpdu).to_bytes();
    [&fpdu[..], &crc].concat()
}

/// Lets a card violate the protocol, and checks that it receives a Terminate with these control words and
/// this many bytes of its FPDU.
fn hears(control: [u8; 4], copied: usize, crime: impl Fn(&Victim, &mut Session, u32) -> Vec<u8>) {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        let fpdu = crime(&adapter, &mut session, first_read(By::Card, by));
        let Received::Message(Header::Terminate(_), _, bytes) = session.peer.receive_message() else {
            panic!("expected a Terminate")
        };
        assert_eq!(bytes, terminate(control, &fpdu[..copied]));
        assert_eq!(session.peer.receive_next(), Received::End);
        session.closed();
        session.error(RECEIVES);
    });
}

/// Length field and tagged header.
const TAGGED: usize = 2 + 14;
/// Length field, untagged header and the words of a Read Request.
const READ_REQUEST: usize = 2 + 18 + 28;

#[test]
fn a_card_that_writes_where_it_may_not_hears_of_rdmap_rights() {
    hears([0x01, 0x02, 0xc0, 0], TAGGED, |adapter, session, _| {
        session.peer.send(&write(adapter.readable.tag, adapter.readable.addr), &[0xee; 64])
    });
}

#[test]
fn a_card_that_writes_to_no_tag_hears_of_ddp() {
    hears([0x11, 0x00, 0xc0, 0], TAGGED, |adapter, session, _| {
        session.peer.send(&write(Tag(0x1234_5678), adapter.open.addr), &[0xee; 64])
    });
}

#[test]
fn a_card_that_writes_out_of_bounds_hears_of_ddp() {
    hears([0x11, 0x01, 0xc0, 0], TAGGED, |adapter, session, _| {
        session.peer.send(&write(adapter.open.tag, adapter.open.end() - 8), &[0xee; 64])
    });
}

#[test]
fn a_card_that_reads_from_no_tag_hears_of_rdmap_with_its_request() {
    hears([0x01, 0x00, 0xe0, 0], READ_REQUEST, |adapter, session, msn| {
        session.peer.send(&read(msn, Tag(0x1234_5678), adapter.open.addr, 64), &[])
    });
}

#[test]
fn a_card_that_sends_an_unknown_opcode_hears_of_rdmap_operations() {
    hears([0x02, 0x06, 0xc0, 0], 2 + 18, |_, session, _| {
        session.peer.send_changed(&crate::common::send(1), b"what", |segment| segment[1] = 0x4c)
    });
}

#[test]
fn a_card_whose_crc_is_wrong_hears_of_mpa_in_the_rfcs_form() {
    hears([0x20, 0x02, 0, 0], 0, |_, session, _| {
        let mut fpdu = session.peer.frame(&crate::common::send(1), b"bent");
        *fpdu.last_mut().unwrap() ^= 1;
        session.peer.send_bytes(&fpdu);
        fpdu
    });
}

/// Ends the stream with a Terminate from the card, and checks the cause that our adapter reports.
fn reports(session: &mut Session, control: [u8; 4], copied: &[u8], cause: Cause) -> Terminate {
    session.peer.send_bytes(&terminate(control, copied));
    session.peer.finish();
    assert!(session.pair.wait_closed(TIMEOUT));
    let QpError::Terminated(terminate) = **session.pair.qp().error().unwrap() else { panic!() };
    assert_eq!(terminate.cause, cause);
    terminate
}

/// cxgb4 and irdma report errors of MPA as type 3.
#[test]
fn an_mpa_error_of_type_3_is_one_of_mpa() {
    let codes =
        [(2, MpaFault::Crc), (3, MpaFault::Length), (6, MpaFault::InsufficientIrd), (7, MpaFault::NoRtr)];
    for (code, error) in codes {
        for_each_card(|card, by| {
            let adapter = adapter();
            let mut session = connect(&adapter, card, by);
            reports(&mut session, [0x23, code, 0, 0], &[], Cause::Mpa(error));
            session.error(RECEIVES);
        });
    }
}

/// The Terminate of a card names the request: the Read that it refuses is the one that fails.
#[test]
fn the_read_that_a_card_refuses_is_the_one_that_fails() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        session.post(1, Operation::Read(CARD_MEMORY), adapter.open.sge(0, 64));
        session.post(2, Operation::Read(RemoteAddr { tag: Tag(5), ..CARD_MEMORY }), adapter.open.sge(64, 64));
        let Received::Message(Header::ReadRequest(good), ..) = session.peer.receive_message() else {
            panic!()
        };
        let Received::Message(Header::ReadRequest(_), _, bad) = session.peer.receive_message() else {
            panic!()
        };
        crate::session::send_read_response(&mut session.peer, good.sink, &[1; 64]);
        assert_eq!(session.one().wr_id, 1);
        let cause = Cause::Protection(Protection::Tag);
        let told = reports(&mut session, [0x01, 0x00, 0xe0, 0], &bad[..READ_REQUEST], cause);
        assert_eq!(told.offender.length, Some(46));
        assert_eq!(told.offender.read.unwrap().source, RemoteAddr { tag: Tag(5), ..CARD_MEMORY });
        let failed = session.failed(RECEIVES);
        assert_eq!((failed.wr_id, failed.status), (2, Status::RemoteAccess), "{failed:?}");
        assert!(matches!(failed.cause.as_deref(), Some(QpError::Terminated(_))), "{failed:?}");
    });
}

/// The Write that a card refuses is the one that fails, if requests complete when the card has received them.
/// Cards report a missing right, not a wrong tag.
#[test]
fn the_write_that_a_card_refuses_is_the_one_that_fails() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect_with(&adapter, card, by, Completes::WhenAcknowledged);
        let bad = RemoteAddr { tag: Tag(5), ..CARD_MEMORY };
        session.post(1, Operation::Write(CARD_MEMORY), adapter.open.sge(0, 64));
        session.post(2, Operation::Write(bad), adapter.open.sge(0, 64));
        session.post(3, SEND, adapter.open.sge(0, 64));
        let mut refused = None;
        while refused.is_none() {
            match session.peer.receive_message() {
                Received::Message(Header::Write(it), _, bytes) if it.addr == bad => refused = Some(bytes),
                Received::Message(..) => {}
                other => panic!("{other:?}"),
            }
        }
        let cause = Cause::Protection(Protection::Access);
        let told = reports(&mut session, [0x01, 0x02, 0xc0, 0], &refused.unwrap()[..TAGGED], cause);
        assert_eq!(told.offender.length, Some(14 + 64));
        let mut done = session.completions(3 + RECEIVES);
        done.retain(|it| it.opcode != ironwarp_rnic::queue::Opcode::Receive);
        let ends: Vec<_> = done.iter().map(|it| (it.wr_id, it.status)).collect();
        assert_eq!(ends, [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::Flushed)]);
    });
}

/// cxgb4 sends a Terminate after a Reply that does not name its RTR, and the program gets the error. Our
/// Replies never cause it: see `cxgb4_is_answered_with_the_read_as_rtr_and_nothing_else`.
#[test]
fn cxgb4_that_does_not_find_its_rtr_is_understood() {
    let adapter = adapter();
    let mut session = connect(&adapter, &CXGB4, By::Card);
    reports(&mut session, [0x23, 7, 0, 0], &[], Cause::Mpa(MpaFault::NoRtr));
    session.error(RECEIVES);
}

/// A card that has no RTR in common with us gets a Terminate in the form of the RFC, and nothing else (RFC
/// 6581 §8).
#[test]
fn a_card_that_wants_an_empty_send_as_rtr_is_told_that_there_is_none() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let listener = path::listener();
    adapter.engine.connect(&pair, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let (mut peer, request) = receive_request(&listener, &CXGB4);
    let mut reply = CXGB4.reply(&request.unwrap(), b"");
    (reply[20], reply[22]) = (0xc0, 0);
    peer.send_bytes(&reply);
    peer.start_stream(crate::common::peer::StartupSettings::default());
    let Received::Message(_, _, bytes) = peer.receive_next() else { panic!("expected a Terminate") };
    assert_eq!(bytes, terminate([0x20, 7, 0, 0], &[]));
    assert_eq!(peer.receive_next(), Received::End);
    pair.wait_connected(TIMEOUT).unwrap_err();
}
