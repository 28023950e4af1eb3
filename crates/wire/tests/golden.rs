//! Each message compared with independent bytes: captures of Linux siw, or the figures of the RFCs where siw has no such
//! message. Every case is parsed, printed and emitted again.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::hex;
use ironwarp_wire::ddp::{DdpHeader, DdpTagged};
use ironwarp_wire::mpa::{Crc, Enhanced, MAX_STARTUP, Revision, Role, RtrSet, Startup};
use ironwarp_wire::private::{
    Capabilities, CmHeader, CmKind, DATAGRAM_LEN, Datagram, DatagramAnswer, DatagramKind, Hello, HelloKind,
    MAX_CM_HEADER, MAX_DATAGRAM_HEADER, MAX_HELLO, PortSpace, RdmaPort, ReadV2Request, ReadV2Response,
    Reason, Route, Secret, SendImmediate, Signal, Unreadable,
};
use ironwarp_wire::{
    AtomicOp, AtomicRequest, AtomicResponse, Cause, Dialect, Fpdu, Header, Immediate, ImmediateData,
    MAX_HEADER, Misuse, Offender, Parse, Protection, ReadRequest, RemoteAddr, Send, SendWord, Tag, Tagged,
    TaggedBuffer, Terminate,
};

/// Checks a header against `fpdu`, an FPDU up to its payload in hex.
fn check(header: Header, payload_len: usize, fpdu: &str, display: &str) {
    let bytes = hex(fpdu);
    let dialect = if header.is_private() { Dialect::Ironwarp } else { Dialect::Standard };
    let Ok(Parse::Done(parsed)) = Fpdu::parse(&bytes, dialect) else { panic!("failed to parse {fpdu}") };
    assert_eq!(parsed.header, header);
    assert_eq!((usize::from(parsed.header_len), usize::from(parsed.payload_len)), (bytes.len(), payload_len));
    assert_eq!(parsed.to_string(), display);
    assert_eq!(emit(&header, payload_len), bytes);
    if header.is_private() {
        assert!(
            Fpdu::parse(&bytes, Dialect::Standard).is_err(),
            "a private message is rejected by the standard dialect"
        );
    }
}

fn emit(header: &Header, payload_len: usize) -> Vec<u8> {
    let mut out = [0xee; MAX_HEADER];
    let n = header.emit(payload_len, &mut out).unwrap();
    assert_eq!(n, 2 + header.encoded_len());
    assert!(out[n..].iter().all(|byte| *byte == 0xee), "bytes after the header are untouched");
    out[..n].to_vec()
}

fn addr(tag: u32, offset: u64) -> RemoteAddr {
    RemoteAddr { tag: Tag(tag), offset }
}

#[test]
fn write() {
    check(
        Header::Write(Tagged { last: true, addr: addr(0x854d_4c00, 0x561b_cd7b_3f30) }),
        64,
        "004e c1 40 854d4c00 0000561bcd7b3f30",
        "Write, 0x854d4c00+0x561bcd7b3f30, last, 64 bytes",
    );
    check(
        Header::Write(Tagged { last: false, addr: addr(0x5e77_4d00, 0x5624_436c_3064) }),
        1428,
        "05a2 81 40 5e774d00 00005624436c3064",
        "Write, 0x5e774d00+0x5624436c3064, more, 1428 bytes",
    );
}

#[test]
fn read_request() {
    check(
        Header::ReadRequest(ReadRequest {
            msn: 1,
            sink: addr(0x4846_da00, 0x5599_220e_df30),
            len: 64,
            source: addr(0x5649_4a00, 0x561b_cd7b_3d50),
        }),
        0,
        "002e 41 41 00000000 00000001 00000001 00000000 4846da00 00005599220edf30 00000040 56494a00 0000561bcd7b3d50",
        "Read Request, msn 1, 64 bytes, source 0x56494a00+0x561bcd7b3d50, sink 0x4846da00+0x5599220edf30",
    );
}

#[test]
fn read_response() {
    check(
        Header::ReadResponse(Tagged { last: true, addr: addr(0x4846_da00, 0x5599_220e_df30) }),
        64,
        "004e c1 42 4846da00 00005599220edf30",
        "Read Response, 0x4846da00+0x5599220edf30, last, 64 bytes",
    );
}

#[test]
fn send_in_four_kinds() {
    let send = Send { msn: 2, last: true, offset: 0, solicited: false, word: SendWord::NONE };
    let invalidate = SendWord::Invalidate(Tag(0x1234_5600));
    check(
        Header::Send(Send { msn: 1, ..send }),
        16,
        "0022 41 43 00000000 00000000 00000001 00000000",
        "Send, msn 1, offset 0, last, 16 bytes",
    );
    check(
        Header::Send(Send { solicited: true, ..send }),
        41,
        "003b 41 45 00000000 00000000 00000002 00000000",
        "Send SE, msn 2, offset 0, last, 41 bytes",
    );
    check(
        Header::Send(Send { word: invalidate, last: false, ..send }),
        16,
        "0022 01 44 12345600 00000000 00000002 00000000",
        "Send, msn 2, offset 0, more, invalidate 0x12345600, 16 bytes",
    );
    check(
        Header::Send(Send { word: invalidate, solicited: true, offset: 0x590, ..send }),
        16,
        "0022 41 46 12345600 00000000 00000002 00000590",
        "Send SE, msn 2, offset 1424, last, invalidate 0x12345600, 16 bytes",
    );
}

#[test]
fn send_for_a_shared_receive_queue_of_xrc() {
    check(
        Header::Send(Send { msn: 1, last: true, offset: 0, solicited: false, word: SendWord::Srq(0x42) }),
        16,
        "0022 41 43 00000042 00000000 00000001 00000000",
        "Send, msn 1, offset 0, last, srq 0x42, 16 bytes",
    );
}

#[test]
fn immediate() {
    let immediate = Immediate { msn: 3, solicited: false, srq: 0, data: ImmediateData::new(0xcafe_f00d) };
    assert_eq!(immediate.data.value(), 0xcafe_f00d);
    check(
        Header::Immediate(immediate),
        0,
        "001a 41 48 00000000 00000000 00000003 00000000 cafef00d 00000000",
        "Immediate, msn 3, data 0xcafef00d00000000",
    );
    check(
        Header::Immediate(Immediate { solicited: true, srq: 0x42, ..immediate }),
        0,
        "001a 41 49 00000042 00000000 00000003 00000000 cafef00d 00000000",
        "Immediate SE, msn 3, data 0xcafef00d00000000, srq 0x42",
    );
}

#[test]
fn atomic_request() {
    let target = addr(0x5e77_4d00, 0x5624_436c_3000);
    let request = AtomicRequest { msn: 7, id: 9, target, op: AtomicOp::FetchAdd { add: 5, mask: 0 } };
    check(
        Header::AtomicRequest(request),
        0,
        "0046 41 4a 00000000 00000001 00000007 00000000 00000000 00000009 5e774d00 00005624436c3000
         0000000000000005 0000000000000000 0000000000000000 ffffffffffffffff",
        "Atomic Request, msn 7, id 0x9, 0x5e774d00+0x5624436c3000, add 0x5",
    );
    let op = AtomicOp::CompareSwap { swap: 0x11, swap_mask: 0xff, compare: 0x22, compare_mask: 0xf0 };
    check(
        Header::AtomicRequest(AtomicRequest { op, ..request }),
        0,
        "0046 41 4a 00000000 00000001 00000007 00000000 00000002 00000009 5e774d00 00005624436c3000
         0000000000000011 00000000000000ff 0000000000000022 00000000000000f0",
        "Atomic Request, msn 7, id 0x9, 0x5e774d00+0x5624436c3000, if 0x22 mask 0xf0 then 0x11 mask 0xff",
    );
}

#[test]
fn atomic_response() {
    check(
        Header::AtomicResponse(AtomicResponse { msn: 1, id: 9, original: 0x1122_3344_5566_7788 }),
        0,
        "001e 41 4b 00000000 00000003 00000001 00000000 00000009 1122334455667788",
        "Atomic Response, msn 1, id 0x9, was 0x1122334455667788",
    );
}

#[test]
fn private_send_immediate() {
    let send = Send { msn: 4, last: true, offset: 0, solicited: false, word: SendWord::NONE };
    let immediate = Some(ImmediateData::new(7));
    let invalidate = SendWord::Invalidate(Tag(0x1234_5600));
    let check = |send, immediate, payload, fpdu: &str, display: &str| {
        check(Header::SendImmediate(SendImmediate { send, immediate }), payload, fpdu, display);
    };
    check(
        send,
        immediate,
        16,
        "002a 41 4f 00000000 00000000 00000004 00000000 00000007 00000000",
        "Send Immediate, msn 4, offset 0, last, data 0x0000000700000000, 16 bytes",
    );
    check(
        Send { word: invalidate, last: false, ..send },
        immediate,
        16,
        "002a 01 5f 12345600 00000000 00000004 00000000 00000007 00000000",
        "Send Immediate, msn 4, offset 0, more, invalidate 0x12345600, data 0x0000000700000000, 16 bytes",
    );
    check(
        Send { solicited: true, offset: 24, ..send },
        None,
        16,
        "0022 41 6f 00000000 00000000 00000004 00000018",
        "Send Immediate SE, msn 4, offset 24, last, 16 bytes",
    );
    check(
        Send { solicited: true, word: invalidate, ..send },
        immediate,
        0,
        "001a 41 7f 12345600 00000000 00000004 00000000 00000007 00000000",
        "Send Immediate SE, msn 4, offset 0, last, invalidate 0x12345600, data 0x0000000700000000, 0 bytes",
    );
}

#[test]
fn private_read_v2() {
    check(
        Header::ReadV2Request(ReadV2Request { msn: 2, len: 4096, source: addr(0x5649_4a00, 0x1000) }),
        0,
        "0022 41 4f 00000000 00000001 00000002 00000000 00001000 56494a00 0000000000001000",
        "Read V2 Request, msn 2, 4096 bytes, source 0x56494a00+0x1000",
    );
    check(
        Header::ReadV2Response(ReadV2Response { msn: 1, last: false, offset: 1424 }),
        16,
        "0022 01 5f 00000000 80000001 00000001 00000590",
        "Read V2 Response, msn 1, offset 1424, more, 16 bytes",
    );
}

fn tagged_offender() -> Offender {
    let addr = addr(0x5f9b_bf00, 0x557a_db14_bff6);
    let header = DdpHeader::Tagged(DdpTagged { control: 0xc1, ulp_control: 0x40, addr });
    Offender { length: Some(0x4e), header: Some(header), read: None }
}

#[test]
fn terminate() {
    let cause = Cause::TaggedBuffer(TaggedBuffer::Bounds);
    check(
        Header::Terminate(Terminate { cause, offender: tagged_offender() }),
        0,
        "0026 41 47 00000000 00000002 00000001 00000000 1101c000 004e c140 5f9bbf00 0000557adb14bff6",
        "Terminate, DDP: base or bounds violation (1/1/01), for a segment of 78 bytes: Write, \
         0x5f9bbf00+0x557adb14bff6",
    );
    check(
        Header::Terminate(Terminate { cause: Cause::LocalCatastrophic, offender: Offender::default() }),
        0,
        "0016 41 47 00000000 00000002 00000001 00000000 00000000",
        "Terminate, RDMAP: local catastrophic error (0/0/00)",
    );
}

#[test]
fn terminate_attaches_what_the_rfc_prescribes() {
    let read = hex(
        "002e 41 41 00000000 00000001 00000005 00000000 4846da00 00005599220edf30 00000040 56494a00 0000561bcd7b3d50",
    );
    // RFC 5040 figure 10: includes the Read Request, so it ends with a copy of the FPDU's front.
    let terminate = Terminate::for_segment(Cause::Protection(Protection::Access), &read);
    let expected = [hex("0046 41 47 00000000 00000002 00000001 00000000 0102e000"), read.clone()].concat();
    assert_eq!(emit(&Header::Terminate(terminate), 0), expected);
    // A DDP error returns the DDP header only.
    let terminate = Terminate::for_segment(ironwarp_wire::Violation::MessageOffset(1).cause(), &read);
    assert_eq!(
        terminate.to_string(),
        "DDP: invalid message offset (1/2/04), for a segment of 46 bytes: Read Request, queue 1, msn 5, offset 0"
    );
    let expected =
        [hex("002a 41 47 00000000 00000002 00000001 00000000 1204c000"), read[..20].to_vec()].concat();
    assert_eq!(emit(&Header::Terminate(terminate), 0), expected);
    // An MPA error includes no segment.
    let terminate =
        Terminate::for_segment(ironwarp_wire::Violation::Crc { computed: 0, received: 1 }.cause(), &read);
    assert_eq!(terminate.offender, Offender::default());
    // A Send is never mistaken for a Read Request.
    let send = hex("0022 41 44 00000009 00000000 00000001 00000000 4846da0000005599220edf30");
    assert_eq!(Terminate::for_segment(Cause::Protection(Protection::Invalidate), &send).offender.read, None);
}

#[test]
fn terminate_in_the_form_of_siw() {
    let parse = |text: &str| {
        let Ok(Parse::Done(Fpdu { header: Header::Terminate(terminate), .. })) =
            Fpdu::parse(&hex(text), Dialect::Standard)
        else {
            panic!("{text}")
        };
        terminate
    };
    // Out of bounds, with nibbles, bits and length in siw's form.
    let bounds =
        parse("0026 4147 00000000 00000002 00000001 00000000 11010300 0040 c140 5f9bbf00 0000557adb14bff6");
    assert_eq!(bounds.cause, Cause::TaggedBuffer(TaggedBuffer::Bounds));
    assert_eq!(bounds.offender, tagged_offender());
    // A bad tag in a Read Request; siw puts the length of the read where its sequence number belongs.
    let read = parse(
        "0046 4147 00000000 00000002 00000001 00000000 10000700 0000 4141 00000000 00000001 00000040 00000000
         9c333400 00005578b3e66000 00000040 5b08f800 000055b01428f000",
    );
    assert_eq!(read.cause, Cause::Protection(Protection::Tag));
    assert_eq!(read.offender.length, Some(46));
    let request = ReadRequest {
        msn: 0x40,
        sink: addr(0x9c33_3400, 0x5578_b3e6_6000),
        len: 0x40,
        source: addr(0x5b08_f800, 0x55b0_1428_f000),
    };
    assert_eq!(read.offender.read, Some(request));
    // Only the set ones of siw's three bits count.
    let length = "0026 4147 00000000 00000002 00000001 00000000 11010100 0040 c140 5f9bbf00 0000557adb14bff6";
    assert_eq!(parse(length).offender, Offender { length: Some(0x40), header: None, read: None });
    // Without a header no bit distinguishes the forms, so the one with a known cause wins, …
    let bare =
        |control: &str| parse(&format!("0016 4147 00000000 00000002 00000001 00000000 {control}")).cause;
    assert_eq!(bare("02020000"), Cause::Mpa(ironwarp_wire::MpaFault::Crc), "siw's form of 2/0/02");
    assert_eq!(bare("20020000"), Cause::Mpa(ironwarp_wire::MpaFault::Crc), "the RFC's form of 2/0/02");
    assert_eq!(bare("01000000"), Cause::Protection(Protection::Tag), "if both are known, the RFC's");
    assert_eq!(bare("10000000"), Cause::DdpCatastrophic, "if both are known, the RFC's");
    // … MPA errors of Chelsio and Intel have type 3, and an undefined cause is preserved.
    assert_eq!(bare("23020000"), Cause::Mpa(ironwarp_wire::MpaFault::Crc));
    assert_eq!(bare("5abc0000"), Cause::Other { layer: 5, kind: 0xa, code: 0xbc });
}

fn check_startup(startup: Startup<'_>, text: &str, display: &str) {
    let bytes = hex(text);
    let parsed = match startup.role {
        Role::Request => Startup::parse_request(&bytes),
        Role::Reply { .. } => Startup::parse_reply(&bytes),
    };
    assert_eq!(parsed, Ok(Parse::Done((startup, bytes.len()))));
    assert_eq!(startup.to_string(), display);
    let mut out = [0; MAX_STARTUP];
    assert_eq!(startup.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out[..bytes.len()], bytes);
    for n in 0..bytes.len() {
        let short = match startup.role {
            Role::Request => Startup::parse_request(&bytes[..n]),
            Role::Reply { .. } => Startup::parse_reply(&bytes[..n]),
        };
        assert_eq!(short, Ok(Parse::Need(if n < 20 { 20 } else { bytes.len() })), "{n} bytes of it");
    }
}

#[test]
fn startup_frames() {
    let enhanced = |ird, ord, rtr| Revision::Two(Some(Enhanced { ird, ord, rtr }));
    let request = Startup {
        role: Role::Request,
        markers: false,
        crc: false,
        revision: enhanced(1, 1, None),
        private_data: b"",
    };
    check_startup(
        request,
        r#""MPA ID Req Frame" 10 02 0004 0001 0001"#,
        "MPA Request, revision 2, IRD 1, ORD 1, 0 bytes of private data",
    );
    check_startup(
        Startup {
            crc: true,
            revision: enhanced(3, 5, Some(RtrSet::WRITE | RtrSet::READ)),
            private_data: b"hello-from-client",
            ..request
        },
        r#""MPA ID Req Frame" 50 02 0015 8003 c005 "hello-from-client""#,
        "MPA Request, revision 2, IRD 3, ORD 5, peer-to-peer, RTR Write Read, CRC, 17 bytes of private data",
    );
    check_startup(
        Startup {
            role: Role::Reply { rejected: true },
            revision: enhanced(5, 3, None),
            private_data: b"nope-not-today",
            ..request
        },
        r#""MPA ID Rep Frame" 30 02 0012 0005 0003 "nope-not-today""#,
        "MPA Reply REJECTED, revision 2, IRD 5, ORD 3, 14 bytes of private data",
    );
    check_startup(
        Startup { role: Role::Reply { rejected: false }, markers: true, revision: Revision::One, ..request },
        r#""MPA ID Rep Frame" 80 01 0000"#,
        "MPA Reply, revision 1, markers, 0 bytes of private data",
    );
    check_startup(
        Startup { revision: Revision::Two(None), private_data: b"x", ..request },
        r#""MPA ID Req Frame" 00 02 0001 "x""#,
        "MPA Request, revision 2, 1 byte of private data",
    );
    check_startup(
        Startup { revision: enhanced(0x3fff, 0x3fff, Some(RtrSet::all())), ..request },
        r#""MPA ID Req Frame" 10 02 0004 ffff ffff"#,
        "MPA Request, revision 2, IRD 16383, ORD 16383, peer-to-peer, RTR Send Write Read, 0 bytes of private data",
    );
}

#[test]
fn signals() {
    let capabilities = Capabilities::ACKNOWLEDGE | Capabilities::READ_V2;
    for (signal, fpdu, display) in [
        (
            Signal::Capabilities(capabilities.with_rnr_timer(12)),
            "000e c1 40 49525750 0102 0009 00 60 5750",
            "Signal, version 2, capabilities 0x0009, RNR timer 12",
        ),
        (
            Signal::Acknowledged(0x12_3456_7890),
            "000e c1 40 49525750 0200001234567890",
            "Signal, 78187493520 messages acknowledged",
        ),
        (
            Signal::NotReady(6),
            "000e c1 40 49525750 0300000000000006",
            "Signal, message 7 waits for a receive",
        ),
        (
            Signal::Offer { part: 2, data: [1, 2, 3, 4, 5, 0xff] },
            "000e c1 40 49525750 04 02 0102030405ff",
            "Signal, offer of shared memory, part 3 of 4",
        ),
        (Signal::Switch(Route::Tcp), "000e c1 40 49525750 8500000000000000", "Signal, switch to TCP"),
        (
            Signal::Switch(Route::SharedMemory),
            "000e c1 40 49525750 8500000000000001",
            "Signal, switch to shared memory",
        ),
        (Signal::Leave, "000e c1 40 49525750 0500000000000000", "Signal, leave shared memory"),
        (Signal::Left, "000e c1 40 49525750 0600000000000000", "Signal, shared memory was left"),
        (Signal::Unknown(7), "000e c1 40 49525750 0700000000000000", "Signal of unknown kind 0x07"),
    ] {
        assert_eq!(emit(&signal.to_header(), 0), hex(fpdu));
        let Header::Write(Tagged { last: true, addr }) = signal.to_header() else { panic!() };
        assert_eq!(Signal::parse(addr), Some(Ok(signal)));
        assert_eq!(signal.to_string(), display);
    }
    for (what, addr) in [
        ("a different tag", addr(0x4952_5751, 0x0102_0009_0000_5750)),
        ("a different check", addr(0x4952_5750, 0x0102_0009_0000_5751)),
        ("siw's Write RTR", addr(1, 0)),
    ] {
        assert_eq!(Signal::parse(addr), None, "{what}");
    }
    let word = |word| Signal::parse(addr(0x4952_5750, word));
    for (what, found, why) in [
        ("version 1", word(0x0101_0009_5741_5250), Unreadable::Version(1)),
        ("version 3", word(0x0103_0009_0000_5750), Unreadable::Version(3)),
        ("a must-understand bit", word(0x0102_0009_8000_5750), Unreadable::Bits(0x80)),
        ("a must-understand kind", word(0x8400_0000_0000_0000), Unreadable::Extension(0x84)),
    ] {
        assert_eq!(found, Some(Err(why)), "{what}");
    }
    assert_eq!(word(0x85ff_ffff_ffff_fffe), Some(Ok(Signal::Switch(Route::Tcp))), "bits 55–1 are ignored");
    assert_eq!(word(0x05ff_ffff_ffff_ffff), Some(Ok(Signal::Leave)), "bits 55–0 are ignored");
    assert_eq!(word(0x06ff_ffff_ffff_ffff), Some(Ok(Signal::Left)), "bits 55–0 are ignored");
    assert_eq!(word(0x0102_0040_0000_5750), Some(Ok(Signal::Capabilities(Capabilities::LEAVE))));
    let may_be_ignored = word(0x0102_0401_0007_5750);
    assert_eq!(may_be_ignored, Some(Ok(Signal::Capabilities(Capabilities::ACKNOWLEDGE))));
    assert_eq!(Capabilities::all().with_rnr_timer(3).rnr_timer(), 3);
}

#[test]
fn hello() {
    let hello = Hello::new(HelloKind::Dial, 0x0f_a001, 0xff_fffe);
    let bytes = hex(r#""IRWH" 02 05 0000 0000 01 00 000fa001 00fffffe"#);
    assert_eq!(hello.emit().unwrap()[..], bytes);
    assert_eq!(Hello::parse(&bytes), Ok(hello));
    assert_eq!(hello.to_string(), "Hello, from 0xfffffe to 0x0fa001");
    let all = Hello {
        dialler_nonce: Some([0x11; 16]),
        acceptor_nonce: Some([0x22; 16]),
        proof: Some([0x33; 16]),
        receive_psn: Some(0xab_cdef),
        send_psn: Some(7),
        ..hello
    };
    let bytes = hex(r#""IRWH" 02 18 0000 0000 01 00 000fa001 00fffffe 0103abcdef000000 0203000007000000
        8110 11111111111111111111111111111111 0000 8210 22222222222222222222222222222222 0000
        8310 33333333333333333333333333333333 0000"#);
    assert_eq!(all.emit().unwrap()[..], bytes);
    assert_eq!(Hello::parse(&bytes), Ok(all));
    assert_eq!(all.to_string(), "Hello, from 0xfffffe to 0x0fa001, RQ PSN 0xabcdef, SQ PSN 0x7, proof");
    let longest = Hello { kind: HelloKind::Refusal(Reason::Busy), ..all };
    assert_eq!(longest.emit().unwrap().len(), MAX_HELLO);
    for (reason, code) in Reason::ALL.into_iter().zip(1..) {
        let refusal = Hello { kind: HelloKind::Refusal(reason), ..hello };
        let bytes = [hex(r#""IRWH" 02 06 0000 0000 04 00 000fa001 00fffffe 8401"#), vec![code, 0]].concat();
        assert_eq!(refusal.emit().unwrap()[..], bytes, "{reason}");
        assert_eq!(Hello::parse(&bytes), Ok(refusal));
    }
}

#[test]
fn unreadable_hellos() {
    for (what, text, why) in [
        ("a different magic", r#""IRWI" 02 05 0000 0000 01 00 000fa001 00fffffe"#, Unreadable::Foreign),
        ("version 1", r#""IRWH" 01 000000 000fa001 00fffffe"#, Unreadable::Version(1)),
        ("version 3", r#""IRWH" 03 05 0000 0000 01 00 000fa001 00fffffe"#, Unreadable::Version(3)),
        ("no version", r#""IRWH""#, Unreadable::Malformed),
        ("a must bit", r#""IRWH" 02 05 0100 0000 01 00 000fa001 00fffffe"#, Unreadable::Bits(0x100)),
        ("a kind", r#""IRWH" 02 05 0000 0000 09 00 000fa001 00fffffe"#, Unreadable::Extension(9)),
        ("25 bits", r#""IRWH" 02 05 0000 0000 01 00 010fa001 00fffffe"#, Unreadable::Malformed),
        ("25 bits", r#""IRWH" 02 05 0000 0000 01 00 000fa001 01fffffe"#, Unreadable::Malformed),
        ("too short", r#""IRWH" 02 05 0000 0000 01 00 000fa001 00ffff"#, Unreadable::Malformed),
        ("too short a header", r#""IRWH" 02 04 0000 0000 01 00 000fa001 00fffffe"#, Unreadable::Malformed),
        ("too long a header", r#""IRWH" 02 06 0000 0000 01 00 000fa001 00fffffe"#, Unreadable::Malformed),
        ("trailing bytes", r#""IRWH" 02 05 0000 0000 01 00 000fa001 00fffffe 00"#, Unreadable::Malformed),
        (
            "an extension beyond the header",
            r#""IRWH" 02 06 0000 0000 01 00 000fa001 00fffffe 7f030000"#,
            Unreadable::Malformed,
        ),
        (
            "an extension without length",
            r#""IRWH" 02 06 0000 0000 01 00 000fa001 00fffffe 0000007f"#,
            Unreadable::Malformed,
        ),
        (
            "a short nonce",
            r#""IRWH" 02 06 0000 0000 01 00 000fa001 00fffffe 81020000"#,
            Unreadable::Malformed,
        ),
        (
            "an extension that must be understood",
            r#""IRWH" 02 06 0000 0000 01 00 000fa001 00fffffe ff020000"#,
            Unreadable::Extension(0xff),
        ),
    ] {
        assert_eq!(Hello::parse(&hex(text)), Err(why), "{what}");
    }
    let ignored = hex(r#""IRWH" 02 06 0000 ffff 01 ff 000fa001 00fffffe 7f020000"#);
    assert_eq!(Hello::parse(&ignored), Ok(Hello::new(HelloKind::Dial, 0x0f_a001, 0xff_fffe)));
    assert_eq!(
        Unreadable::Version(1).to_string(),
        "the peer uses version 1 of Ironwarp's private protocol, this end uses 2: run the same release on both ends"
    );
}

#[test]
fn cm_header() {
    let header = CmHeader {
        qkey: 0x11ee7,
        status: 3,
        retry_count: 5,
        srq: true,
        ..CmHeader::new(CmKind::Lookup, 0xb2_deff)
    };
    let bytes = hex(r#""IRWC" 02 07 0000 0003 02 00 00b2deff 00011ee7 00000003 05 07 0000"#);
    assert_eq!(header.emit()[..], bytes);
    assert_eq!(CmHeader::parse(&[&bytes[..], b"after"].concat()), Ok((header, &b"after"[..])));
    let secret = Some(Secret([0x5a; 16]));
    let port = Some(RdmaPort { space: PortSpace::Datagram, number: 6379 });
    let header = CmHeader { secret, keeps_secret: true, port, ..CmHeader::new(CmKind::Pair, 7) };
    let bytes = hex(r#""IRWC" 02 0e 0000 0005 01 00 00000007 00000000 00000000 07 07 0000
        0110 5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a 0000  8004 18eb 02 00 0000"#);
    assert_eq!(header.emit()[..], bytes);
    assert_eq!((CmHeader::parse(&bytes), bytes.len()), (Ok((header, &[][..])), MAX_CM_HEADER));
    let shown = "CM, queue pair 0x000007, RDMA port 6379 (datagram), with a secret, secret stored";
    assert_eq!(header.to_string(), shown);
    assert!(!format!("{header:?}").contains("5a"), "Debug output contains the secret");
    for (what, text, why) in [
        ("private data of a program", "\"anything\"", Unreadable::Foreign),
        ("version 1", r#""IRWC" 01 01 0707 00000007 00000000 00000000 01000000"#, Unreadable::Version(1)),
        (
            "a kind",
            r#""IRWC" 02 07 0000 0000 08 00 00000007 00000000 00000000 07070000"#,
            Unreadable::Extension(8),
        ),
        (
            "an unknown port space",
            r#""IRWC" 02 09 0000 0000 05 00 00000000 00000000 00000000 07070000 8004 18eb 03 00 0000"#,
            Unreadable::Extension(0x80),
        ),
    ] {
        assert_eq!(CmHeader::parse(&hex(text)), Err(why), "{what}");
    }
}

#[test]
fn cm_headers_for_an_rdma_port() {
    let port = RdmaPort { space: PortSpace::Stream, number: 6379 };
    for (number, kind, shown) in [
        (4, CmKind::Port, "CM, connection, RDMA port 6379"),
        (5, CmKind::Probe, "CM, probe, RDMA port 6379"),
        (6, CmKind::Listening, "CM, listening, RDMA port 6379"),
        (7, CmKind::NotListening, "CM, not listening, RDMA port 6379"),
    ] {
        let mut bytes =
            hex(r#""IRWC" 02 09 0000 0001 00 00 00000000 00000000 00000000 0707 0000 8004 18eb 01 00 0000"#);
        bytes[10] = number;
        let header = CmHeader::for_port(kind, port);
        assert_eq!(header.emit()[..], bytes);
        assert_eq!(CmHeader::parse(&[&bytes[..], b"after"].concat()), Ok((header, &b"after"[..])));
        assert_eq!(header.to_string(), shown);
    }
}

/// Both ends compute the candidates, so they must never change.
#[test]
fn candidates_of_an_rdma_port() {
    let of = |number| RdmaPort { space: PortSpace::Stream, number }.candidates().collect::<Vec<_>>();
    assert_eq!(of(1), [61441, 62465, 63489, 64513]);
    assert_eq!(of(6379), [63723, 64747, 61675, 62699]);
    assert_eq!(of(6379 + 1024), [64747, 61675, 62699, 63723], "the same ones in a different order");
    assert_eq!(of(61441), [62465, 63489, 64513], "a port is not its own candidate");
    assert_eq!(of(65535), [62463, 63487, 64511]);
    for number in 1..u16::MAX {
        let (own, next) = (of(number), of(number + 1));
        assert!(
            own.iter().all(|port| (61440..=65535).contains(port) && *port != number && !next.contains(port))
        );
    }
}

/// A datagram of `DATAGRAM`, up to its sequence number and payload length.
const DATAGRAM_FRONT: &str =
    r#""IRWD" 02 0c 0001 0001 01 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde 40 000000"#;
const DATAGRAM: Datagram = Datagram {
    kind: DatagramKind::Message,
    destination: 0x0f_a0ff,
    source: 0x10_02ff,
    qkey: 0x1122_3344,
    sequence: 12_345_678,
    solicited: true,
    immediate: Some(0xcafe_f00d),
    hop_limit: 64,
    traffic_class: 0xb8,
    flow_label: 0xa_bcde,
    service_level: 3,
};

#[test]
fn datagram() {
    let datagram = DATAGRAM;
    // The CRC was computed by another program.
    let bytes = hex(&format!(r#"{DATAGRAM_FRONT} 01 0a 00bc614e 0007 8f7fe3ba "payload""#));
    assert_eq!(datagram.emit(b"payload").unwrap()[..], bytes[..DATAGRAM_LEN]);
    assert_eq!(Datagram::parse(&bytes), Ok((datagram, &b"payload"[..])));
    assert_eq!(
        datagram.to_string(),
        "Datagram SE, from 0x1002ff to 0x0fa0ff, qkey 0x11223344, sequence 12345678, data 0xcafef00d"
    );
    let plain = Datagram { solicited: false, immediate: None, ..datagram };
    assert_eq!(plain.emit(b"").unwrap()[6..10], [0; 4]);
    assert_eq!(Datagram::parse(&plain.emit(b"").unwrap()), Ok((plain, &[][..])));
    // Unknown extensions before and after the cell, and unknown may-ignore bits.
    let extended =
        hex(r#""IRWD" 02 0e 0001 fff1 01 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde 40 000000
           0202abcd 01 0a 00bc614e 0001 c67abf05 00000000 "x""#);
    assert_eq!(Datagram::parse(&extended), Ok((datagram, &b"x"[..])));
    for (what, text, why) in [
        ("cut", r#""IRWD" 02 09 0001 0001 01 00 000fa0ff 001002ff 11223344"#, Unreadable::Malformed),
        (
            "version 1",
            r#""IRWD" 01 03 40 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde"#,
            Unreadable::Version(1),
        ),
        (
            "a must bit",
            r#""IRWD" 02 09 0003 0001 01 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde 40 000000"#,
            Unreadable::Bits(2),
        ),
        (
            "a kind",
            r#""IRWD" 02 09 0001 0001 70 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde 40 000000"#,
            Unreadable::Extension(0x70),
        ),
        (
            "no cell",
            r#""IRWD" 02 09 0001 0001 01 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde 40 000000"#,
            Unreadable::Unchecked,
        ),
        (
            "a short cell",
            r#""IRWD" 02 0b 0001 0001 01 00 000fa0ff 001002ff 11223344 cafef00d 3b8abcde 40 000000 01 06 00bc614e 0000"#,
            Unreadable::Malformed,
        ),
    ] {
        assert_eq!(Datagram::parse(&hex(text)), Err(why), "{what}");
    }
    let mut wide = datagram.emit(b"").unwrap().to_vec();
    wide[12] = 1;
    assert_eq!(Datagram::parse(&reseal(wide)), Err(Unreadable::Malformed), "destination of 25 bits");
    let empty = datagram.emit(b"").unwrap();
    let mut longest = [&empty[..], &[0; MAX_DATAGRAM_HEADER - DATAGRAM_LEN]].concat();
    longest[5] = u8::try_from(MAX_DATAGRAM_HEADER / 4).unwrap();
    longest = reseal(longest);
    assert_eq!(Datagram::parse(&longest), Ok((datagram, &[][..])));
    longest.extend([0; 4]);
    longest[5] += 1;
    assert_eq!(Datagram::parse(&reseal(longest)), Err(Unreadable::Malformed), "too many extensions");
    assert_eq!(datagram.emit(&[0; 65_536]).map(|_| ()), Err(Misuse::DatagramTooLong(65_536)));
}

/// The datagrams of a session. Answers are no longer than what they answer. The CRCs were computed by another program.
#[test]
fn datagrams_of_a_session() {
    let session = 0x0102_0304_0506_0708;
    let (open, challenge) =
        (DatagramKind::Open { session, cookie: 0 }, DatagramKind::Challenge { session, cookie: 0xc00c1e });
    let answer = |answer| DatagramKind::Answer { session, answer };
    let kinds = [
        (
            DatagramKind::Acknowledged { session },
            2,
            "31bfddb4",
            "Acknowledged Datagram of session 0x102030405060708",
        ),
        (open, 3, "f95c7ad9", "Open session 0x102030405060708 with cookie 0x0"),
        (challenge, 4, "9987d090", "Challenge for session 0x102030405060708: cookie 0xc00c1e"),
        (answer(DatagramAnswer::Opened), 5, "4aec4071", "Answer of session 0x102030405060708: opened"),
        (answer(DatagramAnswer::Placed), 6, "784e70b1", "Answer of session 0x102030405060708: placed"),
        (answer(DatagramAnswer::NotReady), 7, "962f60f1", "Answer of session 0x102030405060708: not ready"),
        (answer(DatagramAnswer::Rejected), 8, "7f9ea63f", "Answer of session 0x102030405060708: rejected"),
        (answer(DatagramAnswer::Unknown), 9, "91ffb67f", "Answer of session 0x102030405060708: unknown"),
    ];
    for (kind, number, crc, shown) in kinds {
        let (words, cookie) = match kind {
            DatagramKind::Open { .. } => ("12", "8108 0000000000000000 0000"),
            DatagramKind::Challenge { .. } => ("12", "8108 0000000000c00c1e 0000"),
            _ => ("0f", ""),
        };
        let bytes = hex(&format!(
            r#""IRWD" 02 {words} 0000 0000 0{number} 00 000fa0ff 001002ff 11223344 00000000 00000000 40 000000
               01 0a 00000009 0000 {crc} 8008 0102030405060708 0000 {cookie}"#
        ));
        let header = Datagram {
            kind,
            sequence: 9,
            solicited: false,
            immediate: None,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
            ..DATAGRAM
        };
        assert_eq!(header.emit(b"").unwrap()[..], bytes, "{shown}");
        assert_eq!(Datagram::parse(&bytes), Ok((header, &[][..])), "{shown}");
        assert_eq!(
            header.to_string(),
            format!("{shown}, from 0x1002ff to 0x0fa0ff, qkey 0x11223344, sequence 9")
        );
        assert_eq!(kind.header_len(), bytes.len(), "{shown}");
        assert!(
            bytes.len() <= if number < 5 { open.header_len() } else { kinds[0].0.header_len() },
            "{shown}"
        );
        // Without its session, the datagram is refused.
        let mut without = bytes.clone();
        without[48..60].fill(0);
        assert_eq!(Datagram::parse(&reseal(without)), Err(Unreadable::Malformed), "{shown}");
    }
}

/// Corrects the CRC of a datagram, whose first extension is the cell.
fn reseal(mut datagram: Vec<u8>) -> Vec<u8> {
    let mut crc = Crc::of(&datagram[..44]);
    crc.update(&datagram[48..]);
    datagram[44..48].copy_from_slice(&crc.to_bytes());
    datagram
}

/// Requirement P3: the CRC covers every bit of header and payload, and the length every byte.
#[test]
fn a_damaged_datagram_is_refused() {
    let bytes = [&DATAGRAM.emit(b"payload").unwrap()[..], b"payload"].concat();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Datagram::parse(&damaged).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Datagram::parse(&bytes[..len]).is_err(), "the first {len} bytes");
    }
    let lengthened = [&bytes[..], &[0]].concat();
    assert_eq!(Datagram::parse(&lengthened), Err(Unreadable::Damaged));
    assert_eq!(Datagram::parse(&reseal(lengthened)), Err(Unreadable::Damaged), "longer than it states");
}
