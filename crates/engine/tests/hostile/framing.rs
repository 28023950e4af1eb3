//! Errors below the message layer: truncated segments, wrong lengths, CRCs, markers and reserved bits.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{AREA, RECEIVE, RECEIVES, Victim};
use crate::common::{TIMEOUT, read, segment, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_wire::{Cause, Header, MpaFault, RemoteAddr, Tag, Tagged, TaggedBuffer, Terminate, Violation};

/// RFC 5040 §4.1, RFC 5041 §4.1: reserved bits are ignored, and the stream continues.
#[test]
fn reserved_bits_are_ignored() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let at = victim.open.at;
    // DDP: four bits after T and L; RDMAP: two bits between version and opcode.
    let reserved = |segment: &mut [u8]| {
        segment[0] |= 0x3c;
        segment[1] |= 0x30;
    };
    attacked.peer.send_changed(&write(victim.open.tag, victim.open.addr), b"written", reserved);
    // A Send without Invalidate: its tag field is reserved as well.
    attacked.peer.send_changed(&send(1), b"sent", |segment| {
        reserved(segment);
        segment[2..6].fill(0xff);
    });
    let received = attacked.one();
    assert_eq!((received.status, received.byte_len), (Status::Success, 4), "{received:?}");
    attacked.peer.send_changed(&read(1, victim.open.tag, victim.open.addr, 7), &[], reserved);
    let received = attacked.peer.receive_message();
    assert!(
        matches!(received, Received::Message(Header::ReadResponse(_), payload, _) if payload == b"written")
    );
    attacked.assert_works(2);
    let inbox = victim.private.at;
    victim.assert_untouched_except(&[(at, 7), (inbox, 4), (inbox + RECEIVE, 10)]);
    victim.assert_survives();
}

/// Reserved bits are cleared in the header that a Terminate returns.
#[test]
fn reserved_bits_are_not_returned() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let header = write(victim.foreign.tag, victim.foreign.addr);
    let mut fpdu = attacked.peer.send_changed(&header, &[0xee; 8], |segment| segment[0] |= 0x3c);
    fpdu[2] &= !0x3c;
    attacked.assert_terminated(Cause::TaggedBuffer(TaggedBuffer::Stream), &fpdu);
    victim.assert_untouched();
    victim.assert_survives();
}

/// Messages are understood when they arrive byte by byte.
#[test]
fn a_slow_sender() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let (tag, addr) = (victim.open.tag, victim.open.addr);
    let mut bytes = attacked.peer.frame(&write(tag, addr), b"byte by byte");
    bytes.extend(attacked.peer.frame(&send(1), b"and so on"));
    bytes.extend(attacked.peer.frame(&read(1, tag, addr, 12), &[]));
    attacked.peer.send_slowly(&bytes, 1);
    let received = attacked.peer.receive_message();
    assert!(
        matches!(received, Received::Message(Header::ReadResponse(_), payload, _) if payload == b"byte by byte")
    );
    let received = attacked.one();
    assert_eq!((received.status, received.byte_len), (Status::Success, 9), "{received:?}");
    attacked.peer.finish();
    victim.assert_survives();
}

#[test]
fn a_slow_sender_that_is_refused() {
    for header in [write(Tag(0x0123_4500), 0x1000), read(1, Tag(0x0123_4500), 0x1000, 64)] {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let payload: &[u8] = if header.carries_payload() { &[0xee; 64] } else { &[] };
        let bytes = attacked.peer.frame(&header, payload);
        attacked.peer.send_slowly(&bytes, 1);
        let cause = match header {
            Header::Write(_) => Cause::TaggedBuffer(TaggedBuffer::Tag),
            _ => Cause::Protection(ironwarp_wire::Protection::Tag),
        };
        attacked.assert_terminated(cause, &bytes);
        victim.assert_untouched();
        victim.assert_survives();
    }
}

/// A wrong length field: if it covers part of the next FPDU, the CRC fails, and nothing is delivered.
#[test]
fn wrong_lengths() {
    for by in [-4_i32, -1, 1, 4, 100] {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let mut fpdu = attacked.peer.frame(&send(1), &[0xee; 64]);
        let length = i32::from(u16::from_be_bytes([fpdu[0], fpdu[1]])) + by;
        fpdu[..2].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        attacked.peer.send_bytes(&fpdu);
        let more = attacked.peer.frame(&send(2), &[0xee; 128]);
        attacked.peer.send_bytes(&more);
        attacked.assert_terminated(Cause::Mpa(MpaFault::Crc), &fpdu);
        // The payload may have been placed before the CRC was seen, but was not delivered.
        let inbox = victim.private.at;
        victim.assert_untouched_except(&[(inbox, RECEIVE)]);
        victim.assert_survives();
    }
}

/// Every bit of an FPDU is covered by the CRC: if any one of them is wrong, the message does not complete.
#[test]
fn a_message_with_a_wrong_bit_never_completes() {
    let victim = Victim::new();
    for bit in (0..8 * 32).step_by(11) {
        let mut attacked = victim.connect_peer();
        let mut fpdu = attacked.peer.frame(&send(1), b"12345678");
        fpdu[bit / 8] ^= 1 << (bit % 8);
        attacked.peer.send_bytes(&fpdu);
        // If the length became larger, the victim waits for more data, so close the connection.
        attacked.peer.finish();
        let (messages, _) = attacked.peer.receive_until_end();
        assert!(messages.iter().all(|(header, _)| matches!(header, Header::Terminate(_))), "bit {bit}");
        assert!(attacked.pair.wait_closed(TIMEOUT));
        // If the length became larger, the message may be too long for the receive, which is noticed before
        // the CRC.
        for completion in attacked.completions(RECEIVES) {
            assert_ne!(completion.status, Status::Success, "bit {bit}: {completion:?}");
        }
    }
    let inbox = victim.private.at;
    victim.assert_untouched_except(&[(inbox, RECEIVE)]);
    victim.assert_survives();
}

/// A response with a wrong CRC does not complete its Read.
#[test]
fn an_answer_with_a_wrong_crc_never_completes() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    attacked.post(
        7,
        Operation::Read(RemoteAddr { tag: Tag(0x7777_7700), offset: 0 }),
        victim.open.sge(0, 64),
    );
    let received = attacked.peer.receive_message();
    let Received::Message(Header::ReadRequest(request), ..) = received else { panic!("{received:?}") };
    let answer = Header::ReadResponse(Tagged { last: true, addr: request.sink });
    let mut fpdu = attacked.peer.frame(&answer, &[0xee; 64]);
    *fpdu.last_mut().unwrap() ^= 0x80;
    attacked.peer.send_bytes(&fpdu);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(Cause::Mpa(MpaFault::Crc), &fpdu));
    let failed = attacked.failed(RECEIVES);
    assert_eq!(failed.wr_id, 7);
    assert_ne!(failed.status, Status::Success);
    attacked.closed();
    victim.assert_untouched_except(&[(victim.open.at, 64)]);
    victim.assert_survives();
}

/// With markers, messages of all lengths are understood; without the agreed markers, the stream is refused.
#[test]
fn missing_markers() {
    let victim = Victim::new();
    let mut attacked =
        victim.connect_peer_with(StartupSettings { markers: true, ..StartupSettings::default() }, RECEIVES);
    attacked.peer.open();
    for len in [0, 100, 1000, 9000] {
        let data = vec![u8::try_from(len % 251).unwrap(); len];
        attacked.peer.send(&write(victim.open.tag, victim.open.addr), &data);
    }
    attacked.assert_works(1);
    assert_eq!(victim.memory.read(victim.open.at, 9000), [u8::try_from(9000 % 251).unwrap(); 9000]);
    // No markers from here on: payload is read in place of the next one.
    let mut plain = victim.connect_peer_with(StartupSettings::default(), 0).peer;
    let fpdu = plain.frame(&write(victim.open.tag, victim.open.addr), &[0xee; 2000]);
    attacked.peer.send_bytes(&fpdu);
    assert_eq!(
        attacked.peer.receive_terminate(),
        Terminate::for_segment(Cause::Mpa(MpaFault::Length), &fpdu)
    );
    attacked.closed();
    let error = attacked.error(RECEIVES - 1);
    assert!(matches!(&*error, QpError::Violation(Violation::Marker { .. })), "{error}");
    victim.assert_survives();
}

/// The first FPDU is invalid: a responder sends nothing before it has received a valid one (RFC 5044 §7.1.2),
/// so it closes.
#[test]
fn garbage_after_the_startup() {
    let victim = Victim::new();
    for garbage in
        [&[0xff; 64][..], &[0; 64], b"GET / HTTP/1.1\r\nHost: victim\r\n\r\n0123456789012345678901234"]
    {
        let mut attacked = victim.connect_peer_with(StartupSettings::default(), RECEIVES);
        attacked.peer.send_bytes(garbage);
        attacked.peer.finish();
        attacked.assert_cut_off();
        assert!(attacked.pair.wait_closed(TIMEOUT));
        let error = attacked.error(RECEIVES);
        assert!(matches!(&*error, QpError::Violation(_) | QpError::CutShort), "{error}");
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// Various garbage in the middle of a stream: it ends the stream and moves nothing. The bytes are
/// pseudo-random, so that a failure is reproducible.
#[test]
fn garbage_in_the_middle() {
    let victim = Victim::new();
    let mut state = 0x1234_5678_9abc_def1_u64;
    for _ in 0..60 {
        let mut attacked = victim.connect_peer();
        let garbage: Vec<u8> = (0..300)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect();
        attacked.peer.send_bytes(&garbage);
        attacked.peer.finish();
        attacked.peer.receive_until_end();
        assert!(attacked.pair.wait_closed(TIMEOUT));
        assert!(attacked.pair.qp().error().is_some());
        attacked.error(RECEIVES);
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// Without CRCs, large payload is placed directly, and no byte of what follows it is.
#[test]
fn large_payload_without_crc_ends_where_it_ends() {
    let victim = Victim::with(Config::default().crc(false));
    let mut attacked =
        victim.connect_peer_with(StartupSettings { crc: false, ..StartupSettings::default() }, RECEIVES);
    attacked.peer.open();
    let (area, begin) = (victim.open, 100);
    let header =
        Header::Write(Tagged { last: true, addr: RemoteAddr { tag: area.tag, offset: area.addr + 100 } });
    // Too small to be placed directly, and split up by the socket.
    for len in [AREA - begin, AREA - begin - 1] {
        let fpdu = attacked.peer.frame(&header, &vec![0xee; len]);
        attacked.peer.send_slowly(&fpdu, 5000);
    }
    attacked.assert_works(1);
    let inbox = victim.private.at;
    victim.assert_untouched_except(&[(area.at + begin, AREA - begin), (inbox, 10)]);
    victim.assert_survives();
}

/// The segments of two messages on one queue are interleaved.
#[test]
fn a_send_that_begins_in_another() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&segment(1, 0, false), b"first");
    let fpdu = attacked.peer.send(&segment(2, 0, true), b"second");
    let cause = Cause::UntaggedBuffer(ironwarp_wire::UntaggedBuffer::Sequence);
    attacked.assert_terminated(cause, &fpdu);
    let inbox = victim.private.at;
    victim.assert_untouched_except(&[(inbox, 5)]);
    victim.assert_survives();
}
