//! Every Terminate that this adapter can send, by its layer, type and code.
//!
//! | code | tested in |
//! |---|---|
//! | 0/0 | `local_checks`, and [`local_catastrophe_when_the_completion_queue_overflows`] |
//! | 0/1/00 to 04 | `remote_checks`: Reads, and the missing right of a Write |
//! | 0/1/09 | [`invalidate`] |
//! | 0/1/ff | memory that the program has unmapped: `unmapped.rs` |
//! | 0/2/05 to 07 | here |
//! | 1/1/00 to 03 | `remote_checks`: Writes; here: Read Responses |
//! | 1/1/04 | here |
//! | 1/2/01 to 06 | here |
//! | 2/0/02, 03 | here |
//!
//! Never sent by this adapter: 0/2/08 (global catastrophe: no error of one stream affects all), 0/2/09 (the
//! RFC defines the same code as a protection error, which is used instead), 0/2/ff, 1/0/00 (nothing fails
//! within DDP alone), 2/0/01 (there is no connection left to send it on), 2/0/04 (there is no stream yet, RFC
//! 5044 §7.1.2: close). 2/0/05 and 06, for an initiator that cannot agree, are in `startups.rs`.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{AREA, Attacked, RECEIVE, RECEIVES, Victim};
use crate::common::{TIMEOUT, read, segment, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::memory::{Check, Rights};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Operation as Request, Status};
use ironwarp_wire::private::Signal;
use ironwarp_wire::{
    AtomicOp, AtomicRequest, Cause, Header, MpaFault, Operation, Protection, RemoteAddr, Send, SendWord, Tag,
    Tagged, TaggedBuffer, Terminate, UntaggedBuffer, Violation,
};
use std::sync::Arc;

/// Runs an attack after the RTR and checks that the victim ends the stream with this cause. Returns the error
/// of the queue pair.
fn ends(attack: impl FnOnce(&Victim, &mut Attacked) -> Vec<u8>, cause: Cause) -> QpError {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let fpdu = attack(&victim, &mut attacked);
    let error = attacked.assert_terminated(cause, &fpdu);
    victim.assert_untouched();
    victim.assert_survives();
    QpError::clone(&error)
}

/// Sends a modified FPDU and checks that the victim ends the stream with this cause. `change` gets the
/// segment: DDP control, RDMAP control, …
fn ends_by(header: &Header, payload: &[u8], change: impl FnOnce(&mut [u8]), cause: Cause) -> QpError {
    ends(|_, attacked| attacked.peer.send_changed(header, payload, change), cause)
}

const OPERATION_OPCODE: Cause = Cause::Operation(Operation::Opcode);

// --- RDMAP, remote protection error (RFC 5040 §4.8) ---

/// 0/1/09: a Send with Invalidate for a tag that this peer may not invalidate (requirement M12, RFC 5040
/// §5.3).
#[test]
fn invalidate() {
    type Named = fn(&Victim, u32) -> Tag;
    let named: [(Named, Check); 4] = [
        (|_, _| Tag(0xff), Check::Valid),
        (|victim, _| victim.foreign.tag, Check::Domain),
        // A region that was registered by call belongs to the program.
        (|victim, _| victim.open.tag, Check::Invalidate),
        (|victim, qp| victim.window(&victim.bindable, qp + 1, Rights::REMOTE_READ), Check::Stream),
    ];
    for (named, check) in named {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let tag = named(&victim, attacked.pair.qp().id());
        let word = SendWord::Invalidate(tag);
        let header = Header::Send(Send { msn: 1, last: true, offset: 0, solicited: false, word });
        let fpdu = attacked.peer.send(&header, &[]);
        let failed = attacked.one();
        assert_eq!((failed.wr_id, failed.status), (0, Status::LocalAccess), "{failed:?}");
        let cause = Cause::Protection(Protection::Invalidate);
        assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, &fpdu));
        attacked.closed();
        let error = attacked.error(RECEIVES - 1);
        assert!(matches!(&*error, QpError::Remote(denied) if denied.check == check), "{error}");
        for area in [&victim.open, &victim.foreign] {
            assert!(victim.engine.device().table().look_up(area.tag).expect("the entry exists").valid);
        }
        victim.assert_untouched();
        victim.assert_survives();
    }
}

// --- RDMAP, remote operation error ---

/// 0/2/05: RFC 5040 §4.1.
#[test]
fn rdmap_version() {
    for version in [0, 2, 3] {
        let change = |segment: &mut [u8]| segment[1] = segment[1] & 0x3f | version << 6;
        let error = ends_by(&send(1), b"hello", change, Cause::Operation(Operation::Version));
        assert_eq!(error, QpError::Violation(Violation::RdmapVersion(version)));
    }
}

/// 0/2/06: opcodes that are reserved, or that belong to the other kind of segment (RFC 5040 §4.1).
#[test]
fn reserved_opcodes() {
    for opcode in [0x0, 0x2, 0xc, 0xd, 0xe, 0xf] {
        let change = |segment: &mut [u8]| segment[1] = segment[1] & 0xf0 | opcode;
        let error = ends_by(&send(1), b"hello", change, OPERATION_OPCODE);
        assert_eq!(error, QpError::Violation(Violation::Opcode { opcode, tagged: false }));
    }
    for opcode in [0x1, 0x3, 0x7, 0x8, 0xa, 0xc, 0xf] {
        let change = |segment: &mut [u8]| segment[1] = segment[1] & 0xf0 | opcode;
        let error = ends_by(&write(Tag(1), 1), b"hello", change, OPERATION_OPCODE);
        assert_eq!(error, QpError::Violation(Violation::Opcode { opcode, tagged: true }));
    }
}

/// 0/2/06: a Read Response while no Read is outstanding.
#[test]
fn unsolicited_read_response() {
    let error = ends(
        |victim, attacked| {
            let addr = RemoteAddr { tag: victim.open.tag, offset: victim.open.addr };
            attacked.peer.send(&Header::ReadResponse(Tagged { last: true, addr }), &[0xee; 64])
        },
        OPERATION_OPCODE,
    );
    assert_eq!(error, QpError::Protocol(Protocol::UnexpectedResponse));
}

/// 0/2/07: an atomic operation on a misaligned word (RFC 7306 §8.2). 0/1/02: on memory that does not allow
/// it.
#[test]
fn invalid_atomic_operations() {
    let atomic = |tag: Tag, offset: u64| {
        let target = RemoteAddr { tag, offset };
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        Header::AtomicRequest(AtomicRequest { msn: 1, id: 1, target, op })
    };
    let misaligned = Cause::Operation(Operation::StreamCatastrophic);
    let open = |victim: &Victim| atomic(victim.open.tag, victim.open.addr + 4);
    let error = ends(|victim, attacked| attacked.peer.send(&open(victim), &[]), misaligned);
    assert!(matches!(error, QpError::Protocol(Protocol::Misaligned { .. })), "{error}");
    let denied = Cause::Protection(Protection::Access);
    let writable = |victim: &Victim| atomic(victim.writable.tag, victim.writable.addr);
    let error = ends(|victim, attacked| attacked.peer.send(&writable(victim), &[]), denied);
    assert!(matches!(error, QpError::Remote(denied) if denied.check == Check::Right), "{error}");
}

/// 0/2/07: a message starts in the middle of another (RFC 5041 §5.1).
#[test]
fn interleaved_messages() {
    let cause = Cause::Operation(Operation::StreamCatastrophic);
    let first: [(&str, Header); 2] = [("Send", segment(1, 0, false)), ("Write", write_begins())];
    for (name, header) in first {
        for second in [write(Tag(0x1234_5600), 0), read(1, Tag(0x1234_5600), 0, 8)] {
            let victim = Victim::new();
            let mut attacked = victim.connect_peer();
            attacked.peer.send(&header, &[]);
            let fpdu = attacked.peer.send(&second, &[]);
            let error = attacked.assert_terminated(cause, &fpdu);
            assert_eq!(*error, QpError::Protocol(Protocol::Interleaved), "{name}");
            victim.assert_untouched();
            victim.assert_survives();
        }
    }
    let error = ends(
        |_, attacked| {
            attacked.peer.send(&write_begins(), &[]);
            attacked.peer.send(&send(1), b"hello")
        },
        cause,
    );
    assert_eq!(error, QpError::Protocol(Protocol::Interleaved));
}

fn write_begins() -> Header {
    Header::Write(Tagged { last: false, addr: RemoteAddr { tag: Tag(0x1111_1100), offset: 0 } })
}

/// 0/2/07: an acknowledgement of more than was sent.
#[test]
fn forged_acknowledgement() {
    let error = ends(
        |_, attacked| attacked.peer.send(&Signal::Acknowledged(1).to_header(), &[]),
        Cause::Operation(Operation::StreamCatastrophic),
    );
    assert_eq!(error, QpError::Protocol(Protocol::Acknowledged { sent: 0, found: 1 }));
}

// --- DDP, tagged buffer error (RFC 5041 §7.2) ---

/// 1/1/04: RFC 5041 §4.1.
#[test]
fn ddp_version_of_a_tagged_segment() {
    for version in [0, 2, 3] {
        let change = |segment: &mut [u8]| segment[0] = segment[0] & 0xfc | version;
        let cause = Cause::TaggedBuffer(TaggedBuffer::Version);
        let error = ends_by(&write(Tag(1), 1), b"hello", change, cause);
        assert_eq!(error, QpError::Violation(Violation::DdpVersion { tagged: true, version }));
    }
}

/// 1/1/00 and 1/1/01: a Read Response for another address, or of another length, than requested.
#[test]
fn read_responses_for_another_place_or_length() {
    type Bend = fn(RemoteAddr) -> (RemoteAddr, usize, bool);
    const LEN: usize = 64;
    let bent: [(&str, Bend, TaggedBuffer); 5] = [
        (
            "another tag",
            |sink| (RemoteAddr { tag: Tag(sink.tag.0 ^ 1), ..sink }, LEN, true),
            TaggedBuffer::Tag,
        ),
        ("before", |sink| (RemoteAddr { offset: sink.offset - 1, ..sink }, LEN, true), TaggedBuffer::Bounds),
        ("behind", |sink| (RemoteAddr { offset: sink.offset + 1, ..sink }, LEN, true), TaggedBuffer::Bounds),
        ("too long", |sink| (sink, LEN + 1, true), TaggedBuffer::Bounds),
        ("too short", |sink| (sink, LEN - 1, true), TaggedBuffer::Bounds),
    ];
    for (name, bend, code) in bent {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let elsewhere = RemoteAddr { tag: Tag(0x7777_7700), offset: 0 };
        attacked.post(7, Request::Read(elsewhere), victim.open.sge(0, 64));
        let received = attacked.peer.receive_message();
        let Received::Message(Header::ReadRequest(request), ..) = received else { panic!("{received:?}") };
        let (addr, len, last) = bend(request.sink);
        let fpdu = attacked.peer.send(&Header::ReadResponse(Tagged { last, addr }), &vec![0xee; len]);
        assert_eq!(
            attacked.peer.receive_terminate(),
            Terminate::for_segment(Cause::TaggedBuffer(code), &fpdu),
            "{name}"
        );
        attacked.closed();
        let failed = attacked.failed(RECEIVES);
        // Only the request that the response belongs to fails with a bad response.
        assert_eq!((failed.wr_id, failed.status), (7, Status::BadResponse), "{name}: {failed:?}");
        victim.assert_untouched();
        victim.assert_survives();
    }
}

// --- DDP, untagged buffer error ---

/// 1/2/01: each opcode has its queue (RFC 5040 §4.1).
#[test]
fn queue_number() {
    for (header, queue) in [(send(1), 1), (send(1), 2), (send(1), 0x8000_0001), (read(1, Tag(1), 0, 8), 0)] {
        let change = |segment: &mut [u8]| segment[6..10].copy_from_slice(&u32::to_be_bytes(queue));
        let error = ends_by(&header, &[], change, Cause::UntaggedBuffer(UntaggedBuffer::Queue));
        assert!(matches!(error, QpError::Violation(Violation::Queue { queue: found, .. }) if found == queue));
    }
}

/// 1/2/02: no receive is posted, and the adapter is configured not to wait.
#[test]
fn no_receive_in_strict_mode() {
    let victim = Victim::with(Config::default().strict_receive(true));
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), 0);
    attacked.peer.open();
    let fpdu = attacked.peer.send(&send(1), b"hello");
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, &fpdu));
    attacked.closed();
    assert_eq!(*attacked.error(0), QpError::Protocol(Protocol::NoReceive));
    victim.assert_untouched();
    victim.assert_survives();
}

/// 1/2/02: more Reads than agreed (requirement M11). The peer does not read the responses, so they pile up.
#[test]
fn more_reads_than_agreed() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let ird = u32::from(victim.engine.config().ird);
    // A thousand times as many responses as the kernel's buffers hold.
    let area = victim.open;
    let mut sent = Vec::new();
    for msn in 1..20_000 {
        sent.push(attacked.peer.send(&read(msn, area.tag, area.addr, u32::try_from(AREA).unwrap()), &[]));
        if attacked.pair.qp().error().is_some() {
            break;
        }
    }
    let (messages, _) = attacked.peer.receive_until_end();
    let Some((Header::Terminate(terminate), _)) = messages.last() else { panic!("no Terminate") };
    let msn = match terminate.offender.header {
        Some(ironwarp_wire::ddp::DdpHeader::Untagged(header)) => header.msn,
        other => panic!("{other:?}"),
    };
    assert!(msn > ird, "{msn}");
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer);
    assert_eq!(*terminate, Terminate::for_segment(cause, &sent[msn as usize - 1]));
    attacked.closed();
    assert_eq!(*attacked.error(RECEIVES), QpError::Protocol(Protocol::ReadsExceeded { ird: 32 }));
    victim.assert_untouched();
    victim.assert_survives();
}

/// 1/2/03: RFC 5041 §5.2.
#[test]
fn message_sequence_number() {
    for (header, queue, found) in
        [(send(0), 0, 0), (send(2), 0, 2), (send(u32::MAX), 0, u32::MAX), (read(2, Tag(1), 0, 8), 1, 2)]
    {
        let error = ends(
            |_, attacked| attacked.peer.send(&header, &[]),
            Cause::UntaggedBuffer(UntaggedBuffer::Sequence),
        );
        assert_eq!(error, QpError::Protocol(Protocol::Sequence { queue, expected: 1, found }));
    }
}

/// 1/2/04: the segments of a message must be contiguous (RFC 5041 §5.2).
#[test]
fn message_offset() {
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::Offset);
    let error = ends(|_, attacked| attacked.peer.send(&segment(1, 4, true), b"hello"), cause);
    assert_eq!(error, QpError::Protocol(Protocol::Offset { expected: 0, found: 4 }));
    for found in [0, 4, 6, u32::MAX] {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        attacked.peer.send(&segment(1, 0, false), b"hello");
        let fpdu = attacked.peer.send(&segment(1, found, true), b"hello");
        let error = attacked.assert_terminated(cause, &fpdu);
        assert_eq!(*error, QpError::Protocol(Protocol::Offset { expected: 5, found }));
        victim.assert_untouched_except(&[(victim.private.at, 5)]);
        victim.assert_survives();
    }
    let change = |segment: &mut [u8]| segment[17] = 1;
    let error = ends_by(&read(1, Tag(1), 0, 8), &[], change, cause);
    assert_eq!(error, QpError::Violation(Violation::MessageOffset(1)));
}

/// 1/2/05: a Send that is longer than the receive, in one segment or in several.
#[test]
fn message_too_long() {
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::TooLong);
    let whole = |attacked: &mut Attacked| attacked.peer.send(&send(1), &[0xee; RECEIVE + 1]);
    let parts = |attacked: &mut Attacked| {
        attacked.peer.send(&segment(1, 0, false), &[0xee; RECEIVE]);
        attacked.peer.send(&segment(1, u32::try_from(RECEIVE).unwrap(), true), &[0xee; 1])
    };
    for attack in [&whole as &dyn Fn(&mut Attacked) -> Vec<u8>, &parts] {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let fpdu = attack(&mut attacked);
        let failed = attacked.one();
        assert_eq!((failed.wr_id, failed.status), (0, Status::LocalLength), "{failed:?}");
        assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, &fpdu));
        attacked.closed();
        let (room, found) = (RECEIVE as u64, RECEIVE as u64 + 1);
        assert_eq!(*attacked.error(RECEIVES - 1), QpError::Protocol(Protocol::TooLong { room, found }));
        victim.assert_untouched_except(&[(victim.private.at, RECEIVE)]);
        victim.assert_survives();
    }
}

/// 1/2/05: a Read Request with trailing data, or one that announces another segment.
#[test]
fn request_of_fixed_length_that_is_longer() {
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::TooLong);
    let error = ends_by(&read(1, Tag(1), 0, 8), &[], |segment| segment[0] &= !0x40, cause);
    assert!(matches!(error, QpError::Violation(Violation::TooLong { .. })), "{error}");
    let error = ends(
        |_, attacked| {
            let mut fpdu = attacked.peer.frame(&read(1, Tag(1), 0, 8), &[]);
            fpdu.splice(48.., [0xee; 4]);
            fpdu[1] += 4;
            let crc = ironwarp_wire::mpa::Crc::of(&fpdu).to_bytes();
            fpdu.extend(crc);
            attacked.peer.send_bytes(&fpdu);
            fpdu
        },
        cause,
    );
    assert_eq!(error, QpError::Violation(Violation::TooLong { expected: 46, found: 50 }));
}

/// 1/2/06: RFC 5041 §4.1.
#[test]
fn ddp_version_of_an_untagged_segment() {
    for version in [0, 2, 3] {
        let change = |segment: &mut [u8]| segment[0] = segment[0] & 0xfc | version;
        let cause = Cause::UntaggedBuffer(UntaggedBuffer::Version);
        let error = ends_by(&send(1), b"hello", change, cause);
        assert_eq!(error, QpError::Violation(Violation::DdpVersion { tagged: false, version }));
    }
}

// --- MPA (RFC 5044 §8) ---

/// 2/0/02: RFC 5044 §4.4. An otherwise valid message is not delivered.
#[test]
fn crc() {
    let error = ends(
        |_, attacked| {
            let mut fpdu = attacked.peer.frame(&send(1), b"hello");
            *fpdu.last_mut().unwrap() ^= 1;
            attacked.peer.send_bytes(&fpdu);
            fpdu
        },
        Cause::Mpa(MpaFault::Crc),
    );
    assert!(matches!(error, QpError::Violation(Violation::Crc { .. })), "{error}");
}

/// 2/0/03: a segment that is shorter than its header.
#[test]
fn segment_shorter_than_its_header() {
    for (header, ulpdu) in [(write(Tag(1), 0), 13), (send(1), 17), (read(1, Tag(1), 0, 8), 45), (send(1), 0)]
    {
        let error = ends(
            |_, attacked| {
                let mut fpdu = attacked.peer.frame(&header, &[]);
                fpdu[..2].copy_from_slice(&u16::to_be_bytes(ulpdu));
                attacked.peer.send_bytes(&fpdu);
                fpdu
            },
            Cause::Mpa(MpaFault::Length),
        );
        assert!(matches!(error, QpError::Violation(Violation::TooShort { .. })), "{error}");
    }
}

/// 2/0/03: a marker that does not point to the start of its FPDU (RFC 5044 §4.3).
#[test]
fn marker() {
    let victim = Victim::new();
    let mut attacked =
        victim.connect_peer_with(StartupSettings { markers: true, ..StartupSettings::default() }, RECEIVES);
    // The first bytes of the stream are a marker.
    let mut fpdu = attacked.peer.frame(&write(Tag(0), 0), &[]);
    attacked.peer.send_bytes(&fpdu);
    attacked.assert_works(1);
    fpdu = attacked.peer.frame(&write(victim.open.tag, victim.open.addr), &[0xee; 600]);
    // The FPDU begins at byte 24 + 36 of the stream, counting markers, so the next marker is at 512.
    let at = 512 - 60;
    assert_eq!(fpdu[at..at + 2], [0, 0], "expected a marker here");
    fpdu[at + 3] ^= 4;
    attacked.peer.send_bytes(&fpdu);
    assert_eq!(
        attacked.peer.receive_terminate(),
        Terminate::for_segment(Cause::Mpa(MpaFault::Length), &fpdu)
    );
    attacked.closed();
    let error = attacked.error(RECEIVES - 1);
    assert!(matches!(&*error, QpError::Violation(Violation::Marker { .. })), "{error}");
    // Payload before the marker was placed, where the peer may write; the message was never delivered.
    let (open, inbox) = (victim.open.at, victim.private.at);
    victim.assert_untouched_except(&[(open, 600), (inbox, 10)]);
    victim.assert_survives();
}

// --- RDMAP, local catastrophic error ---

/// 0/0: a completion is lost (requirement I5), so the stream ends.
#[test]
fn local_catastrophe_when_the_completion_queue_overflows() {
    let victim = Victim::new();
    let small = victim.engine.create_cq(2).unwrap();
    let pair = victim.queue_pair_on(&small, Completes::WhenSent, RECEIVES);
    let mut peer = victim.connected(&pair, StartupSettings::default());
    peer.open();
    for msn in 1..=3 {
        peer.send(&send(msn), &[]);
    }
    assert_eq!(peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    peer.finish();
    assert!(pair.wait_closed(TIMEOUT));
    let error = pair.qp().error().cloned().expect("the stream is over");
    assert_eq!(*error, QpError::Overrun(small.cq().id()));
    victim.assert_untouched();
    victim.assert_survives();
}

// --- A Terminate from the peer ---

/// Linux siw may report a protection error for an empty Read if it has just sent something inline, and ends
/// the stream. The messages before the Read are nevertheless known to have arrived.
#[test]
fn an_error_for_an_empty_read_acknowledges_the_messages_before_it() {
    for (complaint, status) in [
        (Cause::Protection(Protection::Tag), Status::Success),
        (Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer), Status::Flushed), // does not show what has arrived
    ] {
        let victim = Victim::new();
        let (pair, cq) = victim.queue_pair(Completes::WhenAcknowledged, 0);
        let mut peer = victim.connected(&pair, StartupSettings::default());
        peer.open();
        let mut attacked = Attacked { peer, pair, cq };
        attacked.post(7, Request::Send { invalidate: None }, victim.open.sge(0, 8));
        let sent = attacked.peer.receive_next();
        assert!(matches!(sent, Received::Message(Header::Send(_), ..)), "{sent:?}");
        let request = attacked.peer.receive_next();
        assert!(
            matches!(request, Received::Message(Header::ReadRequest(read), ..) if read.len == 0),
            "{request:?}"
        );
        // As siw does: the length of what it sent in place of the sequence number.
        let blamed = attacked.peer.frame(&read(16, Tag(0), 0, 16), &[]);
        attacked.peer.send(&Header::Terminate(Terminate::for_segment(complaint, &blamed)), &[]);
        let completion = attacked.one();
        assert_eq!((completion.wr_id, completion.status), (7, status), "{complaint:?}: {completion:?}");
        let error = Arc::clone(attacked.pair.qp().error().expect("the stream is over"));
        assert!(matches!(*error, QpError::Terminated(_)), "{error}");
        victim.assert_survives();
    }
}
