//! Traffic over a connection, whichever end made it.

use crate::card::{Card, IRDMA};
use crate::common::peer::{Peer, Received};
use crate::common::victim::{AREA, Attacked as Session, RECEIVES, Victim};
use crate::common::{immediate, write};
use crate::session::{
    By, adapter, connect, connect_to_card, connect_with, fetch, first_read, for_each_card, receive_rtr,
    send_read_response, talk,
};
use ironwarp_engine::ConnectOptions;
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Opcode, Operation, Status, WorkRequest};
use ironwarp_testkit::mapping::{Mapping, PAGE};
use ironwarp_testkit::path;
use ironwarp_wire::mpa::Crc;
use ironwarp_wire::{Cause, Header, MpaFault, RemoteAddr, Tag};

const SEND: Operation = Operation::Send { invalidate: None };
/// Memory of the card.
const CARD_MEMORY: RemoteAddr = RemoteAddr { tag: Tag(0x0009_0000), offset: 0x4000 };

/// Receives all segments of one message: their FPDUs, and their payload in one piece.
fn receive_segments(peer: &mut Peer) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (mut fpdus, mut data) = (Vec::new(), Vec::new());
    loop {
        match peer.receive_message() {
            Received::Message(header, payload, bytes) => {
                data.extend(payload);
                fpdus.push(bytes);
                let last = match header {
                    Header::Write(it) | Header::ReadResponse(it) => it.last,
                    Header::Send(it) => it.last,
                    _ => true,
                };
                if last {
                    return (fpdus, data);
                }
            }
            other => panic!("expected a message, got {other:?}"),
        }
    }
}

/// When a card has to reassemble FPDUs, as after a loss, irdma accepts none that is larger than a TCP segment
/// of the path. Tests all kinds of messages with segments, in both roles.
#[test]
fn no_fpdu_of_ours_is_larger_than_a_segment_of_the_path() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        let len = u32::try_from(AREA).unwrap();
        let all = adapter.memory.read(adapter.readable.at, AREA);
        let source = RemoteAddr { tag: adapter.readable.tag, offset: adapter.readable.addr };
        for kind in 0..3 {
            match kind {
                0 => session.post(kind, Operation::Write(CARD_MEMORY), adapter.readable.sge(0, len)),
                1 => session.post(kind, SEND, adapter.readable.sge(0, len)),
                _ => fetch(&mut session, first_read(By::Card, by), source, len),
            }
            let (fpdus, data) = receive_segments(&mut session.peer);
            assert!(data == all, "the bytes of message {kind}");
            let segment = usize::try_from(path::ETHERNET).unwrap();
            let longest = fpdus.iter().map(Vec::len).max().unwrap();
            // TCP may need 12 bytes of a segment for timestamps; the rest is used, up to the padding.
            assert!((segment - 16..=segment).contains(&longest), "message {kind}: {longest} bytes");
        }
        let done = session.completions(2);
        assert!(done.iter().all(|it| it.status == Status::Success), "{done:?}");
    });
}

/// A card may send FPDUs of any length up to its segment size, and offload engines may merge segments: every
/// length and position in a segment must work. The length field allows 65,535.
#[test]
fn an_fpdu_of_a_card_is_taken_whatever_its_length_and_place_in_a_segment() {
    const MAX_PAYLOAD: usize = 65_535 - 14;
    for_each_card(|card, by| {
        let adapter = adapter();
        let memory = Mapping::new(17);
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let region = Memory::direct(memory.addr(0), (17 * PAGE) as u64, rights).unwrap();
        let tag = adapter.engine.device().register(adapter.domain, region).unwrap();
        let mut session = connect(&adapter, card, by);
        let data: Vec<u8> = (0..MAX_PAYLOAD).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let mut bytes = Vec::new();
        let mut at = 0;
        for len in [1, 2, 3, 1427, 1428, 1429, MAX_PAYLOAD - 4290] {
            bytes.extend(write_fpdu(tag, memory.addr(at), &data[at..at + len]));
            at += len;
        }
        assert_eq!(at, MAX_PAYLOAD);
        session.peer.send_slowly(&bytes, 1459);
        session.assert_works(1);
        assert!(memory.read(0, MAX_PAYLOAD) == data, "the bytes of many FPDUs");
        memory.write(0, &[0; MAX_PAYLOAD]);
        session.peer.send_slowly(&write_fpdu(tag, memory.addr(0), &data), 1459);
        session.assert_works(2);
        assert!(memory.read(0, MAX_PAYLOAD) == data, "the bytes of the largest FPDU");
    });
}

/// Builds a Write of one segment by hand: this project's own code sends no more than RFC 5044 §4.5 allows.
fn write_fpdu(tag: Tag, to: u64, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(14 + payload.len()).unwrap().to_be_bytes();
    let mut fpdu = [&len, &[0xc1, 0x40][..], &tag.0.to_be_bytes(), &to.to_be_bytes(), payload].concat();
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = Crc::of(&fpdu).to_bytes();
    [&fpdu[..], &crc].concat()
}

/// Both cards request CRCs, which then apply to both ends (RFC 5044 §7.1.1): an adapter of ours that is
/// configured without CRCs sends valid ones, and checks theirs.
#[test]
fn a_card_that_wants_crcs_gets_them_though_we_do_not() {
    for_each_card(|card, by| {
        let adapter = Victim::alone(Config::default().crc(false));
        let mut session = connect(&adapter, card, by);
        talk(&adapter, &mut session, 1);
        let mut fpdu = session.peer.frame(&crate::common::send(2), b"bent");
        *fpdu.last_mut().unwrap() ^= 1;
        session.peer.send_bytes(&fpdu);
        assert_eq!(session.peer.receive_terminate().cause, Cause::Mpa(MpaFault::Crc));
    });
}

/// RFC 7306 §6: a Write, then Immediate Data of eight bytes. cxgb4 has the 32 bits of verbs in the first
/// four, the rest zero.
#[test]
fn a_write_with_immediate_is_a_write_and_immediate_data_as_cxgb4_has_them() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        let data = Data::Memory(adapter.readable.sge(0, 8).into());
        let mut request = WorkRequest::new(1, Operation::Write(CARD_MEMORY), data);
        request.immediate = Some(0x0102_0304);
        session.pair.qp().post_send(vec![request]).unwrap();
        let Received::Message(header, payload, _) = session.peer.receive_message() else { panic!() };
        assert_eq!((header, payload.len()), (write(CARD_MEMORY.tag, CARD_MEMORY.offset), 8));
        let Received::Message(_, _, bytes) = session.peer.receive_message() else { panic!() };
        let msn = 1_u32.to_be_bytes();
        let expected = [&[0, 26, 0x41, 0x48][..], &[0; 4], &[0; 4], &msn, &[0; 4], &[1, 2, 3, 4], &[0; 4]];
        assert_eq!(bytes[..28], expected.concat());
        assert_eq!(session.one().wr_id, 1);
    });
}

#[test]
fn a_write_with_immediate_of_a_card_tells_our_program() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        session.peer.send(&write(adapter.open.tag, adapter.open.addr), &[0xee; 8]);
        session.peer.send(&immediate(1, 0x0102_0304), &[]);
        let done = session.one();
        assert_eq!((done.opcode, done.status, done.byte_len), (Opcode::ReceiveWrite, Status::Success, 8));
        assert_eq!(done.immediate, Some(0x0102_0304));
        assert_eq!(adapter.memory.read(adapter.open.at, 8), [0xee; 8]);
    });
}

/// No RFC defines a Send with Immediate, and no card supports it on iWARP. It is an error of the program, and
/// nothing of it is sent.
#[test]
fn a_send_with_immediate_is_never_sent_to_a_card() {
    for_each_card(|card, by| {
        let adapter = adapter();
        let mut session = connect(&adapter, card, by);
        let mut request = WorkRequest::new(1, SEND, Data::Memory(adapter.readable.sge(0, 8).into()));
        request.immediate = Some(7);
        session.pair.qp().post_send(vec![request]).unwrap();
        let mut received = session.peer.receive_message();
        // The adapter may first send an empty Read, to find out whether the peer is Ironwarp.
        while let Received::Message(Header::ReadRequest(read), ..) = received {
            assert_eq!(read.len, 0);
            send_read_response(&mut session.peer, read.sink, &[]);
            received = session.peer.receive_message();
        }
        let Received::Message(Header::Terminate(terminate), ..) = received else { panic!("{received:?}") };
        assert_eq!(terminate.cause, Cause::LocalCatastrophic);
        let failed = session.failed(RECEIVES);
        assert_eq!((failed.wr_id, failed.status), (1, Status::LocalQpOperation), "{failed:?}");
        assert_eq!(**failed.cause.as_ref().unwrap(), QpError::NoImmediate);
    });
}

/// Everything that our program can request of a card is sent as defined by RFC 5040 and RFC 7306: no opcode
/// above 9, no reserved bits, version 1, queues 0 and 1, no markers, and a valid CRC. The only private part
/// is the address of an empty Write, which receivers must ignore (RFC 5041 §5.2).
#[test]
fn everything_sent_to_a_card_is_standard() {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        for_each_card(|card, by| {
            let adapter = adapter();
            let mut session = connect_with(&adapter, card, by, completes);
            let memory = || Data::Memory(adapter.open.sge(0, 3000).into());
            let invalidate = Operation::Send { invalidate: Some(Tag(0x77)) };
            let mut requests: Vec<_> = [
                SEND,
                SEND,
                invalidate,
                Operation::Write(CARD_MEMORY),
                Operation::Write(CARD_MEMORY),
                Operation::Read(CARD_MEMORY),
            ]
            .into_iter()
            .zip(1..)
            .map(|(operation, id)| WorkRequest::new(id, operation, memory()))
            .collect();
            requests[1].solicited = true;
            requests[4].immediate = Some(7);
            let all = requests.len();
            session.pair.qp().post_send(requests).unwrap();
            let mut opcodes = Vec::new();
            loop {
                let Received::Message(header, _, bytes) = session.peer.receive_next() else {
                    panic!("{opcodes:?}")
                };
                opcodes.push(is_standard(&bytes));
                if let Header::ReadRequest(read) = header {
                    assert_eq!(
                        read.len, 3000,
                        "no other Read is needed: the response shows that everything has arrived"
                    );
                    send_read_response(&mut session.peer, read.sink, &[9; 3000]);
                    break;
                }
            }
            let done = session.completions(all);
            assert!(done.iter().all(|it| it.status == Status::Success), "{done:?}");
            assert!([0, 1, 3, 4, 5, 8].iter().all(|it| opcodes.contains(it)), "{opcodes:?}");
        });
    }
}

/// Checks that an FPDU is standard, and returns its opcode.
fn is_standard(fpdu: &[u8]) -> u8 {
    let (ddp, rdmap) = (fpdu[2], fpdu[3]);
    assert_eq!(ddp & 0x3f, 1, "reserved bits and version of DDP: {fpdu:02x?}");
    assert_eq!(rdmap & 0xf0, 0x40, "version and reserved bits of RDMAP: {fpdu:02x?}");
    let opcode = rdmap & 0xf;
    assert!(opcode <= 9, "{fpdu:02x?}");
    assert_eq!(ddp & 0x80 != 0, [0, 2].contains(&opcode), "tagged or not: {fpdu:02x?}");
    if ddp & 0x80 == 0 {
        assert_eq!(fpdu[8..12], u32::from(opcode == 1).to_be_bytes(), "the queue: {fpdu:02x?}");
        let word = if [4, 6].contains(&opcode) { 0x77_u32 } else { 0 };
        assert_eq!(fpdu[4..8], word.to_be_bytes(), "the word for the tag: {fpdu:02x?}");
    }
    opcode
}

/// irdma requests markers where it processes segments in any order. It then gets them, in either role and in
/// long FPDUs, and we still get none.
#[test]
fn irdma_that_asks_for_markers_gets_them() {
    let card = Card { markers: true, ..IRDMA };
    for by in [By::Us, By::Card] {
        let adapter = adapter();
        let mut session = connect(&adapter, &card, by);
        session.post(1, Operation::Write(CARD_MEMORY), adapter.readable.sge(0, 8000));
        let (fpdus, data) = receive_segments(&mut session.peer);
        assert!(data == adapter.memory.read(adapter.readable.at, 8000));
        assert!(fpdus.iter().all(|it| it.len() <= usize::try_from(path::ETHERNET).unwrap()));
        // Bytes that are not payload, length, header or CRC; some may be padding.
        let without = fpdus.len() * (2 + 14 + 4) + data.len();
        let markers = fpdus.iter().map(Vec::len).sum::<usize>() - without;
        assert!((4 * 15..=4 * 18).contains(&markers), "{markers} bytes of markers in {}", data.len());
        assert_eq!(session.one().wr_id, 1);
        session.assert_works(1);
    }
}

/// Receivers must not check the tags of an empty message, but siw's authors expect that some card treats tag
/// 0 as special; siw, cxgb4 and irdma all use a nonzero tag. So do we: in the RTR, in the Read that checks
/// whether everything has arrived, and in a program's own Writes.
#[test]
fn no_empty_message_of_ours_names_tag_0() {
    for private in [true, false] {
        let adapter = Victim::alone(Config::default().private(private));
        let (pair, cq) = adapter.queue_pair(Completes::WhenAcknowledged, RECEIVES);
        let (peer, _) = connect_to_card(&adapter.engine, &pair, &IRDMA, &ConnectOptions::default());
        let mut session = Session { peer, pair, cq };
        let rtr = receive_rtr(&mut session.peer);
        assert!(rtr.sink.tag != Tag(0) && rtr.source.tag != Tag(0), "{rtr:?}");
        session.post(1, Operation::Write(CARD_MEMORY), adapter.open.sge(0, 0));
        let mut asked = false;
        while !asked {
            match session.peer.receive_next() {
                Received::Message(Header::Write(write), ..) => assert_ne!(write.addr.tag, Tag(0)),
                Received::Message(Header::ReadRequest(read), ..) => {
                    assert!(read.sink.tag != Tag(0) && read.source.tag != Tag(0), "{read:?}");
                    send_read_response(&mut session.peer, read.sink, &[]);
                    asked = true;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(session.one().wr_id, 1);
    }
}
