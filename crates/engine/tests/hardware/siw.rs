//! Behaviour of Linux siw that a live one does not show on demand: its frames and Terminates, sent as
//! captured. `xtask interop` tests the rest.

use crate::common::TIMEOUT;
use crate::common::peer::{Peer, Received};
use crate::common::victim::{Attacked as Session, RECEIVES, Victim};
use crate::session::adapter;
use ironwarp_engine::ConnectOptions;
use ironwarp_engine::config::Config;
use ironwarp_rnic::connect::MpaMode;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_testkit::path;
use ironwarp_wire::mpa::Framing;
use ironwarp_wire::{Cause, Header, Protection, RemoteAddr, Tag, TaggedBuffer, UntaggedBuffer};

const SEND: Operation = Operation::Send { invalidate: None };
const GOOD: RemoteAddr = RemoteAddr { tag: Tag(0x0009_0000), offset: 0x4000 };
const BAD: RemoteAddr = RemoteAddr { tag: Tag(0x0005_0055), offset: 0x4000 };

/// An adapter configured like siw: no CRCs, and the initiator's program sends first.
fn plain() -> Victim {
    Victim::alone(Config::default().crc(false))
}

/// siw's Reply to a Request without the peer-to-peer model, IRD and ORD 16.
fn reply() -> Vec<u8> {
    [b"MPA ID Rep Frame", &[0x10, 2, 0, 4, 0, 16, 0, 16][..]].concat()
}

/// Connects to siw, which sends these bytes as its Reply.
fn reached(adapter: &Victim, completes: Completes, says: &[u8]) -> Session {
    let (pair, cq) = adapter.queue_pair(completes, RECEIVES);
    let listener = path::listener();
    let options = ConnectOptions { mode: MpaMode::ClientServer, ..ConnectOptions::default() };
    adapter.engine.connect(&pair, listener.local_addr().unwrap(), &options).unwrap();
    let mut peer = Peer::from_stream(listener.accept().unwrap().0);
    peer.receive_startup();
    peer.send_bytes(says);
    peer.start_stream_with(Framing::default(), Framing::default());
    pair.wait_connected(TIMEOUT).unwrap();
    Session { peer, pair, cq }
}

/// Without an RTR, siw does not wait for the first message of its peer: its program's Send may be in the same
/// TCP segment as the Reply, in whole or in part.
#[test]
fn messages_that_siw_sends_with_its_reply_arrive() {
    let send =
        [&[0, 22, 0x41, 0x43][..], &[0; 4], &[0; 4], &[0, 0, 0, 1], &[0; 4], b"glue", &[0; 4]].concat();
    for glued in [send.len(), 1, 2, 19, send.len() - 1] {
        let adapter = plain();
        let says = [&reply()[..], &send[..glued]].concat();
        let mut session = reached(&adapter, Completes::WhenSent, &says);
        session.peer.send_bytes(&send[glued..]);
        let done = session.one();
        assert_eq!((done.status, done.byte_len), (Status::Success, 4), "{done:?}");
        assert_eq!(adapter.memory.read(adapter.private.at, 4), b"glue");
    }
}

/// siw builds its Reply from the Request, so it echoes reserved bits, which have no meaning.
#[test]
fn reserved_bits_that_siw_echoes_mean_nothing() {
    let adapter = plain();
    let mut says = reply();
    says[16] |= 0x0f;
    let mut session = reached(&adapter, Completes::WhenSent, &says);
    session.assert_works(1);
}

/// Reserved bits in our Reply are zero, whatever the Request has.
#[test]
fn we_do_not_echo_reserved_bits() {
    let adapter = adapter();
    let (pair, _cq) = adapter.queue_pair(Completes::WhenSent, 0);
    let mut peer = Peer::from_stream(path::dial(adapter.addr()));
    let mut request = crate::card::CXGB4.request(b"");
    request[16] |= 0x0f;
    peer.send_bytes(&request);
    crate::session::accept_in_program(&adapter, &pair, b"");
    assert_eq!(peer.receive_startup()[16] & 0x0f, 0);
}

/// A Terminate in the form of siw: the words after the header of its segment, without CRC.
fn terminate(words: &[u8]) -> Vec<u8> {
    let len = u16::try_from(18 + words.len()).unwrap().to_be_bytes();
    let mut fpdu = [&len, &[0x41, 0x47][..], &[0; 4], &[0, 0, 0, 2], &[0, 0, 0, 1], &[0; 4], words].concat();
    fpdu.resize(fpdu.len().next_multiple_of(4) + 4, 0);
    fpdu
}

/// Ends the stream with a Terminate of siw, and checks its cause.
fn ends(session: &mut Session, words: &[u8], cause: Cause) {
    session.peer.send_bytes(&terminate(words));
    session.peer.finish();
    assert!(session.pair.wait_closed(TIMEOUT));
    let QpError::Terminated(terminate) = **session.pair.qp().error().unwrap() else { panic!() };
    assert_eq!(terminate.cause, cause);
}

/// siw rebuilds the header of a Read that it refuses, with its size in place of the sequence number. The
/// words of the Read are right, and identify it.
#[test]
fn the_read_that_siw_refuses_is_the_one_that_fails() {
    let adapter = plain();
    let mut session = reached(&adapter, Completes::WhenSent, &reply());
    // Choose lengths such that the size of one Read could be taken for the number of another.
    session.post(1, Operation::Read(GOOD), adapter.open.sge(0, 2));
    session.post(2, Operation::Read(BAD), adapter.open.sge(64, 1));
    session.post(3, Operation::Read(GOOD), adapter.open.sge(128, 64));
    let mut requests = Vec::new();
    while requests.len() < 3 {
        match session.peer.receive_message() {
            Received::Message(Header::ReadRequest(read), _, bytes) => requests.push((read, bytes)),
            other => panic!("{other:?}"),
        }
    }
    crate::session::send_read_response(&mut session.peer, requests[0].0.sink, &[1; 2]);
    assert_eq!(session.one().wr_id, 1);
    let mut header = requests[1].1[2..2 + 18 + 28].to_vec();
    header[10..14].copy_from_slice(&1_u32.to_be_bytes()); // the size
    let words = [&[0x10, 0x00, 0x07, 0, 0, 0][..], &header].concat();
    ends(&mut session, &words, Cause::Protection(Protection::Tag));
    let mut done = session.completions(2 + RECEIVES);
    done.retain(|it| it.opcode != ironwarp_rnic::queue::Opcode::Receive);
    let ends: Vec<_> = done.iter().map(|it| (it.wr_id, it.status)).collect();
    assert_eq!(ends, [(2, Status::RemoteAccess), (3, Status::Flushed)]);
}

/// The Terminates for a Write and a Send contain the original headers.
#[test]
fn the_write_or_the_send_that_siw_refuses_is_the_one_that_fails() {
    let cases: [(u64, [u8; 4], Cause, Status); 2] = [
        (2, [0x11, 0x00, 0x03, 0], Cause::TaggedBuffer(TaggedBuffer::Tag), Status::RemoteAccess),
        (
            3,
            [0x21, 0x02, 0x03, 0],
            Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer),
            Status::RemoteInvalidRequest,
        ),
    ];
    for (refused, control, cause, status) in cases {
        let adapter = plain();
        let mut session = reached(&adapter, Completes::WhenAcknowledged, &reply());
        session.post(1, Operation::Write(GOOD), adapter.open.sge(0, 64));
        session.post(2, Operation::Write(BAD), adapter.open.sge(0, 64));
        session.post(3, SEND, adapter.open.sge(0, 64));
        let mut received = Vec::new();
        while received.len() < 3 {
            match session.peer.receive_message() {
                Received::Message(Header::Write(_), _, bytes) => received.push(bytes[2..16].to_vec()),
                Received::Message(Header::Send(_), _, bytes) => received.push(bytes[2..20].to_vec()),
                Received::Message(..) => {}
                other => panic!("{other:?}"),
            }
        }
        let header = &received[usize::try_from(refused).unwrap() - 1];
        // siw states the length of the payload.
        ends(&mut session, &[&control[..], &[0, 64], header].concat(), cause);
        let mut done = session.completions(3 + RECEIVES);
        done.retain(|it| it.opcode != ironwarp_rnic::queue::Opcode::Receive);
        let ends: Vec<_> = done.iter().map(|it| (it.wr_id, it.status)).collect();
        let expected = (1..=3).map(|id| match id.cmp(&refused) {
            std::cmp::Ordering::Less => (id, Status::Success),
            std::cmp::Ordering::Equal => (id, status),
            std::cmp::Ordering::Greater => (id, Status::Flushed),
        });
        assert_eq!(ends, expected.collect::<Vec<_>>());
    }
}
