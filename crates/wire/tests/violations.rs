//! Every rule that a single header can break: bytes that break it, the violation, and the Terminate that reports it. Each
//! is detected as soon as the offending bytes have arrived.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{Sent, hex, read, write};
use ironwarp_wire::mpa::{
    Enhanced, FpduReader, FpduWriter, Framing, MAX_HEAD, MAX_PRIVATE_DATA, MAX_STARTUP, MAX_TAIL, Revision,
    Role, Startup,
};
use ironwarp_wire::private::{Datagram, DatagramKind, Hello, HelloKind};
use ironwarp_wire::{
    Cause, Dialect, Fpdu, Header, ImmediateData, MAX_HEADER, MAX_ULPDU, Misuse, MpaFault, Operation, Parse,
    Protection, ReadRequest, RemoteAddr, Send, SendWord, Tag, Tagged, TaggedBuffer, Terminate,
    UntaggedBuffer, Violation,
};

const BODY: &str = "00000000 00000000 00000000 00000000 00000000 00000000 00000000";

/// Checks that a violation is found in the first `shows` bytes of an FPDU and not earlier, and which code reports it.
fn check(fpdu: &str, shows: usize, violation: Violation, code: (u8, u8, u8)) {
    let bytes = hex(fpdu);
    for n in 0..bytes.len() {
        let found = Fpdu::parse(&bytes[..n], Dialect::Ironwarp);
        if n < shows {
            assert!(matches!(found, Ok(Parse::Need(need)) if need > n), "{n} bytes of {fpdu}: {found:?}");
        } else {
            assert_eq!(found, Err(violation), "{n} bytes of {fpdu}");
        }
    }
    assert_eq!(violation.cause().to_wire(), code, "{violation}");
}

#[test]
fn segment_too_short_for_its_header() {
    let short = |ulpdu, header| Violation::TooShort { ulpdu, header };
    check("0000 c140 00000000", 2, short(0, 14), (2, 0, 3));
    check("000d c140 00000000", 2, short(13, 14), (2, 0, 3));
    check("000d 4143 00000000", 2, short(13, 14), (2, 0, 3));
    check("000e 4143 00000000", 3, short(14, 18), (2, 0, 3));
    check("0011 4143 00000000", 3, short(17, 18), (2, 0, 3));
    check(&format!("002d 4141 00000000 00000001 00000001 00000000 {BODY}"), 20, short(45, 46), (2, 0, 3));
    check("0019 4148 00000000 00000000 00000001 00000000 00000000", 20, short(25, 26), (2, 0, 3));
    check("0019 414f 00000000 00000000 00000001 00000000 00000000", 20, short(25, 26), (2, 0, 3));
    check("0015 4147 00000000 00000002 00000001 00000000 0000", 20, short(21, 22), (2, 0, 3));
}

#[test]
fn ddp_version() {
    check("000e c040 00000000 0000000000000000 00000000", 16, ddp_version_of(true, 0), (1, 1, 4));
    check("000e c340 00000000 0000000000000000 00000000", 16, ddp_version_of(true, 3), (1, 1, 4));
    check("0012 4243 00000000 00000000 00000001 00000000 00000000", 20, ddp_version_of(false, 2), (1, 2, 6));
}

fn ddp_version_of(tagged: bool, version: u8) -> Violation {
    Violation::DdpVersion { tagged, version }
}

#[test]
fn rdmap_version() {
    check("000e c100 00000000 0000000000000000 00000000", 16, Violation::RdmapVersion(0), (0, 2, 5));
    check(
        "0012 41c3 00000000 00000000 00000001 00000000 00000000",
        20,
        Violation::RdmapVersion(3),
        (0, 2, 5),
    );
}

#[test]
fn opcode() {
    let tagged = |opcode| Violation::Opcode { opcode, tagged: true };
    let untagged = |opcode| Violation::Opcode { opcode, tagged: false };
    for op in 0..16 {
        if op != 0 && op != 2 {
            let fpdu = format!("000e c14{op:x} 00000000 0000000000000000 00000000");
            check(&fpdu, 16, tagged(op), (0, 2, 6));
        }
        if [0, 2, 0xc, 0xd, 0xe].contains(&op) {
            let fpdu = format!("0012 414{op:x} 00000000 00000000 00000001 00000000 00000000");
            check(&fpdu, 20, untagged(op), (0, 2, 6));
        }
    }
    // Private messages on the wrong queue or with undefined bits.
    for (control, queue) in [("5f", "00000001"), ("6f", "80000001"), ("4f", "00000002"), ("4f", "80000001")] {
        let fpdu = format!("0012 41{control} 00000000 {queue} 00000001 00000000 00000000");
        check(&fpdu, 20, untagged(0xf), (0, 2, 6));
    }
}

#[test]
fn private_messages_must_be_negotiated() {
    for fpdu in [
        "001a 414f 00000000 00000000 00000001 00000000 00000000 00000000",
        "0022 414f 00000000 00000001 00000001 00000000 00000000 00000000 0000000000000000",
        "0012 415f 00000000 80000001 00000001 00000000",
    ] {
        let bytes = hex(fpdu);
        assert!(matches!(Fpdu::parse(&bytes, Dialect::Ironwarp), Ok(Parse::Done(_))), "{fpdu}");
        let violation = Violation::Opcode { opcode: 0xf, tagged: false };
        assert_eq!(Fpdu::parse(&bytes, Dialect::Standard), Err(violation), "{fpdu}");
    }
}

#[test]
fn queue() {
    for (op, due) in [(1, 1), (3, 0), (4, 0), (5, 0), (6, 0), (7, 2), (8, 0), (9, 0), (0xa, 1), (0xb, 3)] {
        for queue in [0, 1, 2, 3, 4, 0x8000_0001, u32::MAX] {
            let violation = Violation::Queue { opcode: op, queue, expected: due };
            let fpdu = format!("0046 414{op:x} 00000000 {queue:08x} 00000001 00000000 {BODY} {BODY}");
            if queue != due {
                check(&fpdu, 20, violation, (1, 2, 1));
            }
        }
    }
}

#[test]
fn message_of_one_segment() {
    for (op, queue, len) in [(1, 1, 46), (8, 0, 26), (9, 0, 26), (0xa, 1, 70), (0xb, 3, 30)] {
        let fpdu = |len: u16, control: &str, offset: u32| {
            format!("{len:04x} {control}4{op:x} 00000000 {queue:08x} 00000001 {offset:08x} {BODY} {BODY}")
        };
        check(&fpdu(len, "41", 4), 20, Violation::MessageOffset(4), (1, 2, 4));
        let found = len + 1;
        check(&fpdu(found, "41", 0), 20, Violation::TooLong { expected: len, found }, (1, 2, 5));
        check(&fpdu(len, "01", 0), 20, Violation::TooLong { expected: len, found }, (1, 2, 5));
    }
    let terminate = |len: u16, control: &str, offset: u32| {
        format!("{len:04x} {control}47 00000000 00000002 00000001 {offset:08x} {BODY} {BODY}")
    };
    check(&terminate(22, "41", 1), 20, Violation::MessageOffset(1), (1, 2, 4));
    check(&terminate(71, "41", 0), 20, Violation::TooLong { expected: 70, found: 71 }, (1, 2, 5));
    check(&terminate(22, "01", 0), 20, Violation::TooLong { expected: 70, found: 71 }, (1, 2, 5));
}

#[test]
fn atomic_opcode() {
    for op in (0..16).filter(|op| ![0, 2].contains(op)) {
        let fpdu = format!("0046 414a 00000000 00000001 00000001 00000000 fffffff{op:x} {BODY} {BODY}");
        check(&fpdu, 72, Violation::AtomicOpcode(op), (0, 2, 6));
    }
}

#[test]
fn reserved_bits_are_ignored() {
    for (clean, dirty) in [
        ("000e c140 00000007 0000000000000009", "000e fd70 00000007 0000000000000009"),
        ("0012 4144 00000001 00000000 00000001 00000000", "0012 7d74 00000001 00000000 00000001 00000000"),
        (
            &format!("002e 4141 00000000 00000001 00000001 00000000 {BODY}"),
            &format!("002e 4141 ffffffff 00000001 00000001 00000000 {BODY}"),
        ),
    ] {
        let parse = |text: &str| Fpdu::parse(&hex(text), Dialect::Standard);
        assert_eq!(parse(clean), parse(dirty));
        assert!(matches!(parse(dirty), Ok(Parse::Done(_))));
    }
}

#[test]
fn longest_segment_is_accepted_though_never_sent() {
    let Ok(Parse::Done(fpdu)) = Fpdu::parse(&hex("ffff c140 00000007 0000000000000009"), Dialect::Standard)
    else {
        panic!()
    };
    assert_eq!(
        (fpdu.payload_len, fpdu.ulpdu_len(), fpdu.padding(), fpdu.total_len()),
        (65_521, 65_535, 3, 65_544)
    );
}

fn one_send(framing: Framing) -> Vec<u8> {
    let header = Header::Send(Send { msn: 1, last: true, offset: 0, solicited: false, word: SendWord::NONE });
    write(framing, &[Sent { header, payload: vec![0x5a; 1001] }])
}

#[test]
fn crc_covers_every_bit() {
    let framing = Framing { crc: true, markers: false };
    let stream = one_send(framing);
    for bit in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match read(framing, Dialect::Standard, false, [&damaged[..]]) {
            Ok((segments, reader)) => {
                assert!(segments.is_empty() && !reader.is_at_boundary(), "bit {bit} was not detected");
                assert!(bit < 16, "only a changed length can make the reader wait for more");
            }
            Err(Violation::Crc { .. }) => {}
            Err(other) => assert!(bit < 20 * 8, "{other} at bit {bit}"),
        }
    }
    let mut damaged = stream.clone();
    damaged[500] ^= 1;
    let violation = read(framing, Dialect::Standard, false, [&damaged[..]]).unwrap_err();
    assert_eq!(violation.cause(), Cause::Mpa(MpaFault::Crc));
    assert!(
        read(Framing::default(), Dialect::Standard, false, [&damaged[..]]).is_ok(),
        "the CRC is not checked if CRCs are off"
    );
}

#[test]
fn marker_points_to_its_fpdu() {
    let framing = Framing { crc: false, markers: true };
    let stream = one_send(framing);
    assert_eq!(
        (&stream[..4], &stream[512..516], &stream[1024..1028]),
        (&hex("00000000")[..], &hex("000001fc")[..], &hex("000003fc")[..])
    );
    for (at, expected) in [(0, 0), (512, 508), (1024, 1020)] {
        let mut damaged = stream.clone();
        damaged[at + 3] ^= 0x04;
        let found = expected ^ 4;
        let violation = read(framing, Dialect::Standard, false, [&damaged[..]]).unwrap_err();
        assert_eq!(violation, Violation::Marker { expected, found });
        assert_eq!(violation.cause(), Cause::Mpa(MpaFault::Length));
        // The two low bits are reserved (RFC 5044 §4.3), and so are the first sixteen (§4.2).
        damaged[at + 3] ^= 0x07;
        damaged[at + 1] ^= 0xff;
        assert!(read(framing, Dialect::Standard, false, [&damaged[..]]).is_ok());
    }
}

#[test]
fn nothing_is_delivered_after_a_violation() {
    let framing = Framing { crc: true, markers: false };
    let (mut damaged, good) = (one_send(framing), one_send(framing));
    damaged[100] ^= 1;
    let mut reader = FpduReader::new(framing);
    let stream = [damaged, good].concat();
    let mut input = &stream[..];
    let first =
        std::iter::repeat_with(|| reader.next(&mut input, Dialect::Standard)).find_map(Result::err).unwrap();
    for _ in 0..10 {
        assert_eq!(reader.next(&mut input, Dialect::Standard), Err(first));
    }
    assert!(!reader.is_at_boundary());
    assert_eq!(reader.run_len(), 0);
}

#[test]
fn whole_fpdus_are_checked_like_pieces() {
    let framing = Framing { crc: true, markers: false };
    let mut reader = FpduReader::new(framing);
    let good = one_send(framing);
    let mut damaged = good.clone();
    damaged[100] ^= 1;
    let mut input = &damaged[..];
    let violation = reader.take_whole(&mut input, Dialect::Standard).unwrap_err();
    assert_eq!(violation.cause(), Cause::Mpa(MpaFault::Crc));
    assert_eq!(input.len(), damaged.len(), "input was consumed");
    assert_eq!(
        reader.take_whole(&mut &good[..], Dialect::Standard),
        Ok(None),
        "nothing is delivered after a violation"
    );
    assert_eq!(reader.next(&mut &good[..], Dialect::Standard), Err(violation));
    // An invalid header is reported by `next`.
    let mut reader = FpduReader::new(framing);
    let mut input = &hex("000e c040 00000000 0000000000000000 00000000")[..];
    assert_eq!(reader.take_whole(&mut input, Dialect::Standard), Ok(None));
    assert_eq!(reader.next(&mut input, Dialect::Standard), Err(ddp_version_of(true, 0)));
    // `whole` does not apply in the middle of an FPDU, nor with markers.
    let mut reader = FpduReader::new(framing);
    assert_eq!(reader.next(&mut &good[..1], Dialect::Standard), Ok(None));
    assert_eq!(reader.take_whole(&mut &good[..], Dialect::Standard), Ok(None));
    let marked = Framing { crc: true, markers: true };
    let mut reader = FpduReader::new(marked);
    assert_eq!(reader.take_whole(&mut &one_send(marked)[..], Dialect::Standard), Ok(None));
}

#[test]
fn startup_frames() {
    let check = |text: &str, shows: usize, violation: Violation| {
        let bytes = hex(text);
        for n in 0..bytes.len() {
            let found = Startup::parse_request(&bytes[..n]);
            if n < shows {
                assert!(matches!(found, Ok(Parse::Need(need)) if need > n), "{n} bytes of {text}");
            } else {
                assert_eq!(found, Err(violation), "{n} bytes of {text}");
            }
        }
        assert_eq!(violation.cause(), Cause::Mpa(MpaFault::Startup));
    };
    let key = Violation::Key { expected: "Request" };
    check(r#""GET / HTTP/1.1" 0d0a"#, 1, key);
    check(r#""MPA ID Rep Frame" 10 02 0004 0001 0001"#, 10, key);
    check(r#""MPA ID Req FramE" 10 02 0004 0001 0001"#, 16, key);
    check(r#""MPA ID Req Frame" 10 00 0004 0001 0001"#, 20, Violation::Revision(0));
    check(r#""MPA ID Req Frame" 10 03 0004 0001 0001"#, 20, Violation::Revision(3));
    check(r#""MPA ID Req Frame" 00 02 0201 0001 0001"#, 20, Violation::PrivateDataLength(513));
    check(r#""MPA ID Req Frame" 10 02 0003 0001 01"#, 20, Violation::EnhancedWordMissing(3));
    let reply = hex(r#""MPA ID Req Frame" 10 02 0004 0001 0001"#);
    assert_eq!(Startup::parse_reply(&reply), Err(Violation::Key { expected: "Reply" }));
}

#[test]
fn startup_bits_without_meaning_are_ignored() {
    let parse = |text: &str| {
        let bytes = hex(text);
        let Ok(Parse::Done((startup, n))) = Startup::parse_request(&bytes) else { panic!("{text}") };
        assert_eq!(n, bytes.len());
        (startup.role, startup.markers, startup.crc, startup.revision, startup.private_data.to_vec())
    };
    // Reserved flags, and R in a Request.
    assert_eq!(
        parse(r#""MPA ID Req Frame" 3f 02 0004 0001 0001"#),
        parse(r#""MPA ID Req Frame" 10 02 0004 0001 0001"#)
    );
    // B, C and D without A.
    assert_eq!(
        parse(r#""MPA ID Req Frame" 10 02 0004 4001 c001"#),
        parse(r#""MPA ID Req Frame" 10 02 0004 0001 0001"#)
    );
    // S in revision 1: what follows is private data of the program.
    let (_, _, _, revision, private_data) = parse(r#""MPA ID Req Frame" 10 01 0004 0001 0001"#);
    assert_eq!((revision, private_data), (Revision::One, hex("0001 0001")));
}

#[test]
fn terminate_codes_match_the_rfcs_and_round_trip() {
    let mut causes = vec![Cause::LocalCatastrophic, Cause::DdpCatastrophic];
    causes.extend(Protection::ALL.iter().copied().map(Cause::Protection));
    causes.extend(Operation::ALL.iter().copied().map(Cause::Operation));
    causes.extend(TaggedBuffer::ALL.iter().copied().map(Cause::TaggedBuffer));
    causes.extend(UntaggedBuffer::ALL.iter().copied().map(Cause::UntaggedBuffer));
    causes.extend(MpaFault::ALL.iter().copied().map(Cause::Mpa));
    let table: Vec<_> = causes.iter().map(|cause| cause.to_wire()).collect();
    let rfc = [
        (0, 0, &[0][..]),
        (1, 0, &[0]),
        (0, 1, &[0, 1, 2, 3, 4, 9, 0xff]),
        (0, 2, &[5, 6, 7, 8, 9, 0xff]),
        (1, 1, &[0, 1, 2, 3, 4]),
        (1, 2, &[1, 2, 3, 4, 5, 6]),
        (2, 0, &[1, 2, 3, 4, 5, 6, 7]),
    ];
    let expected: Vec<_> =
        rfc.iter().flat_map(|(layer, kind, codes)| codes.iter().map(|code| (*layer, *kind, *code))).collect();
    assert_eq!(table, expected);
    for (cause, (layer, kind, code)) in causes.iter().zip(table) {
        assert_eq!(Cause::from_wire(layer, kind, code), *cause);
    }
    for layer in 0..16 {
        for kind in 0..16 {
            for code in 0..=255 {
                let cause = Cause::from_wire(layer, kind, code);
                let known = causes.contains(&cause);
                assert_eq!(known, !matches!(cause, Cause::Other { .. }));
                match (layer, kind) {
                    (0, 0) => assert_eq!(cause, Cause::LocalCatastrophic, "the code is ignored"),
                    (2, 3) if known => assert_eq!(cause.to_wire(), (2, 0, code)),
                    _ => assert_eq!(cause.to_wire(), (layer, kind, code)),
                }
            }
        }
    }
    for (cause, text) in [
        (Cause::Operation(Operation::Opcode), "RDMAP: unexpected opcode (0/2/06)"),
        (Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer), "DDP: no buffer for this message (1/2/02)"),
        (Cause::Mpa(MpaFault::Crc), "MPA: CRC mismatch (2/0/02)"),
        (Cause::Other { layer: 9, kind: 1, code: 2 }, "unknown layer: unknown error (9/1/02)"),
    ] {
        assert_eq!(cause.to_string(), text);
    }
}

#[test]
fn terminate_includes_what_rfc_5040_figure_10_prescribes() {
    for (cause, segment, read) in [
        (Cause::LocalCatastrophic, false, false),
        (Cause::Protection(Protection::Tag), true, true),
        (Cause::Operation(Operation::Opcode), true, false),
        (Cause::DdpCatastrophic, true, false),
        (Cause::TaggedBuffer(TaggedBuffer::Tag), true, false),
        (Cause::UntaggedBuffer(UntaggedBuffer::Queue), true, false),
        (Cause::Mpa(MpaFault::Crc), false, false),
        (Cause::Other { layer: 9, kind: 9, code: 9 }, false, false),
    ] {
        assert_eq!((cause.names_segment(), cause.names_read_request()), (segment, read), "{cause}");
    }
}

#[test]
fn truncated_terminate_keeps_its_cause() {
    let whole = hex("1101c000 004e c140 5f9bbf00 0000557adb14bff6");
    for n in 4..=whole.len() {
        let len = u8::try_from(18 + n).unwrap();
        let fpdu = [&[0, len][..], &hex("4147 00000000 00000002 00000001 00000000"), &whole[..n]].concat();
        let Ok(Parse::Done(Fpdu { header: Header::Terminate(terminate), payload_len: 0, .. })) =
            Fpdu::parse(&fpdu, Dialect::Standard)
        else {
            panic!("{n} bytes")
        };
        assert_eq!(terminate.cause, Cause::TaggedBuffer(TaggedBuffer::Bounds));
        assert_eq!(terminate.offender.length.is_some(), n >= 6);
        assert_eq!(terminate.offender.header.is_some(), n == whole.len());
    }
    // A field whose bit is clear is ignored.
    let fpdu = hex(&format!(
        "0046 4147 00000000 00000002 00000001 00000000 0102c000 002e 4141 00000000 00000001 00000005 00000000 {BODY}"
    ));
    let Ok(Parse::Done(Fpdu { header: Header::Terminate(terminate), .. })) =
        Fpdu::parse(&fpdu, Dialect::Standard)
    else {
        panic!()
    };
    assert!(terminate.offender.header.is_some() && terminate.offender.read.is_none());
}

#[test]
fn misuse_is_rejected() {
    let write = Header::Write(Tagged { last: true, addr: RemoteAddr { tag: Tag(1), offset: 0 } });
    let addr = RemoteAddr::default();
    let read = Header::ReadRequest(ReadRequest { msn: 1, sink: addr, len: 0, source: addr });
    let mut out = [0; MAX_HEADER];
    assert_eq!(write.emit(MAX_ULPDU - 14, &mut out), Ok(16));
    assert_eq!(write.emit(MAX_ULPDU - 13, &mut out), Err(Misuse::SegmentTooLong(MAX_ULPDU + 1)));
    assert_eq!(write.emit(usize::MAX, &mut out), Err(Misuse::SegmentTooLong(usize::MAX)));
    assert_eq!(read.emit(1, &mut out), Err(Misuse::PayloadNotAllowed(1)));

    let mut writer = FpduWriter::new(Framing { crc: true, markers: false });
    writer.open(&write, 3, &mut [0; MAX_HEAD]).unwrap();
    writer.cover(b"ab");
    assert_eq!(writer.close(&mut [0; MAX_TAIL]), Err(Misuse::PayloadMissing(1)));
    writer.cover(b"cde"); // the excess is ignored
    assert_eq!(writer.close(&mut [0; MAX_TAIL]), Ok(5));

    let writer = FpduWriter::new(Framing { crc: true, markers: true });
    assert_eq!(writer.write_whole(&write, b"", &mut [0; 100]), Err(Misuse::Markers));
    let writer = FpduWriter::new(Framing { crc: true, markers: false });
    let (have, need) = (MAX_HEADER - 1, MAX_HEADER);
    assert_eq!(
        writer.write_whole(&write, b"", &mut [0; MAX_HEADER - 1]),
        Err(Misuse::BufferTooShort { have, need })
    );
    let (have, need) = (119, 120);
    assert_eq!(
        writer.write_whole(&write, &[0; 98], &mut [0; 119]),
        Err(Misuse::BufferTooShort { have, need })
    );
    assert_eq!(writer.write_whole(&write, &[0; 98], &mut [0; 120]), Ok(120));
    assert_eq!(writer.write_whole(&read, b"x", &mut [0; 120]), Err(Misuse::PayloadNotAllowed(1)));

    let data = [0; MAX_PRIVATE_DATA + 1];
    let mut out = [0; MAX_STARTUP];
    let startup = |revision, private_data| Startup {
        role: Role::Request,
        markers: false,
        crc: true,
        revision,
        private_data,
    };
    let enhanced = |ird, ord| Revision::Two(Some(Enhanced { ird, ord, rtr: None }));
    assert_eq!(startup(Revision::One, &data[..512]).emit(&mut out), Ok(MAX_STARTUP));
    let too_long = |len, room| Err(Misuse::PrivateDataTooLong { len, room });
    assert_eq!(startup(Revision::One, &data).emit(&mut out), too_long(513, 512));
    assert_eq!(startup(enhanced(1, 1), &data[..508]).emit(&mut out), Ok(MAX_STARTUP));
    assert_eq!(startup(enhanced(1, 1), &data[..509]).emit(&mut out), too_long(509, 508));
    assert_eq!(startup(enhanced(0x4000, 1), b"").emit(&mut out), Err(Misuse::DepthTooLarge(0x4000)));
    assert_eq!(startup(enhanced(1, 0x4000), b"").emit(&mut out), Err(Misuse::DepthTooLarge(0x4000)));
    let short = Misuse::BufferTooShort { have: 23, need: 24 };
    assert_eq!(startup(enhanced(1, 1), b"").emit(&mut out[..23]), Err(short));

    let qpn = Err(Misuse::QueuePairNumber(1 << 24));
    assert_eq!(Hello::new(HelloKind::Dial, 1 << 24, 0).emit().map(|_| ()), qpn);
    assert_eq!(Hello::new(HelloKind::Dial, 0, 1 << 24).emit().map(|_| ()), qpn);
    let datagram = Datagram {
        kind: DatagramKind::Message,
        destination: 0,
        source: 0,
        qkey: 0,
        sequence: 0,
        solicited: false,
        immediate: Some(ImmediateData::default().value()),
        hop_limit: 0,
        traffic_class: 0,
        flow_label: 0,
        service_level: 0,
    };
    assert_eq!(Datagram { destination: 1 << 24, ..datagram }.emit(b"").map(|_| ()), qpn);
    assert_eq!(Datagram { source: 1 << 24, ..datagram }.emit(b"").map(|_| ()), qpn);
}

#[test]
fn terminate_of_a_truncated_fpdu() {
    for fpdu in [&b""[..], b"\x00", b"\x00\x2e", b"\x00\x2e\x41"] {
        let terminate = Terminate::for_segment(Cause::Operation(Operation::Opcode), fpdu);
        assert_eq!(terminate.offender.header, None);
        assert_eq!(terminate.offender.length.is_some(), fpdu.len() >= 2);
    }
}
