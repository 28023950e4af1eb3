//! The conversations of the sample: every message, every cause of a Terminate, every kind of startup.

use super::conversation::{Packing, Sample, Turn};
use crate::{Encoder, OwnedStartup};
use ironwarp_wire::mpa::{Enhanced, Framing, NOT_NEGOTIATED, Revision, Role, RtrSet};
use ironwarp_wire::private::{
    Capabilities, Hello, HelloKind, ReadV2Request, ReadV2Response, SendImmediate, Signal,
};
use ironwarp_wire::{
    AtomicOp, AtomicRequest, AtomicResponse, Cause, Header, Immediate, ImmediateData, MpaFault, Operation,
    Protection, ReadRequest, RemoteAddr, Send, SendWord, Tag, Tagged, TaggedBuffer, Terminate,
    UntaggedBuffer,
};
use std::net::SocketAddr;

type Fpdu = (Header, Vec<u8>);

/// Payload per segment of a message with several. Not a multiple of four, and more than a marker interval.
const SEGMENT: usize = 1406;
/// Maximum payload of an FPDU that may be sent.
const LARGE: usize = 64_768 - 14;

const ADDR: RemoteAddr = RemoteAddr { tag: Tag(0x5e77_4d00), offset: 0x5624_436c_3000 };
const SINK: RemoteAddr = RemoteAddr { tag: Tag(0x6670_9d00), offset: 0x555e_d3fd_d000 };
const INVALIDATE: SendWord = SendWord::Invalidate(Tag(0x0bad_cafe));

/// Returns all conversations in the order in which they are written.
pub fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for packing in [Packing::Single, Packing::Pieces, Packing::Packed, Packing::Split] {
        for (crc, markers) in [(true, false), (false, false), (true, true), (false, true)] {
            // With markers, Wireshark's decoder expects at most one FPDU per TCP segment.
            if markers && matches!(packing, Packing::Packed | Packing::Split) {
                continue;
            }
            let name = format!("every message, {packing:?}, CRC {crc}, markers {markers}");
            let (mut request, mut reply) = startups();
            (request.crc, request.markers, reply.markers) = (crc, markers, markers);
            samples
                .push(Sample { packing, ..sample(samples.len(), name, (request, reply), every_message()) });
        }
    }
    for (number, (cause, offender)) in terminates().into_iter().enumerate() {
        let (mut request, mut reply) = startups();
        reply.crc = true; // either side can enable it
        (request.markers, reply.markers) = (number % 3 == 2, number % 3 == 2);
        let name = format!("Terminate, {cause}");
        samples.push(sample(samples.len(), name, (request, reply), terminate_turns(cause, offender)));
    }
    for (name, startups, turns) in startup_kinds() {
        samples.push(sample(samples.len(), name.to_owned(), startups, turns));
    }
    samples
}

/// Creates a sample between ports of its own, alternating between IPv4 and IPv6.
fn sample(number: usize, name: String, startups: (OwnedStartup, OwnedStartup), turns: Vec<Turn>) -> Sample {
    let (request, reply) = startups;
    let [a, b] = if number.is_multiple_of(2) {
        [[192, 0, 2, 1], [192, 0, 2, 2]].map(Into::into)
    } else {
        [[0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]].map(Into::into)
    };
    let port = 40_000 + u16::try_from(number).unwrap_or(0);
    let (initiator, responder) = (SocketAddr::new(a, port), SocketAddr::new(b, 7174));
    Sample { name, initiator, responder, request, reply, turns, packing: Packing::Single }
}

/// Returns the startup frames of a peer-to-peer connection with revision 2.
fn startups() -> (OwnedStartup, OwnedStartup) {
    let enhanced = |ird, ord, rtr| Revision::Two(Some(Enhanced { ird, ord, rtr: Some(rtr) }));
    let request = OwnedStartup {
        role: Role::Request,
        markers: false,
        crc: false,
        revision: enhanced(16, 32, RtrSet::WRITE | RtrSet::READ),
        private_data: b"hello-from-client".to_vec(),
    };
    let reply = OwnedStartup {
        role: Role::Reply { rejected: false },
        revision: enhanced(32, 16, RtrSet::WRITE),
        private_data: Vec::new(),
        ..request.clone()
    };
    (request, reply)
}

type Exchange = (&'static str, (OwnedStartup, OwnedStartup), Vec<Turn>);

/// Returns the startup frames of every kind of connection.
fn startup_kinds() -> Vec<Exchange> {
    let (request, reply) = startups();
    let with = |revision: Revision, private_data: &[u8]| {
        let change = |startup: &OwnedStartup| OwnedStartup {
            revision,
            private_data: private_data.to_vec(),
            crc: true,
            ..startup.clone()
        };
        (change(&request), change(&reply))
    };
    let hello = Hello {
        dialler_nonce: Some([0x17; 16]),
        receive_psn: Some(0x65_4321),
        ..Hello::new(HelloKind::Dial, 0x12_3456, 0xab_cdef)
    };
    let hello = hello.emit().map(|bytes| bytes.to_vec()).unwrap_or_default();
    let plain = Revision::Two(Some(Enhanced { ird: NOT_NEGOTIATED, ord: 0, rtr: None }));
    let mut rejected = with(plain, b"nope-not-today");
    rejected.1.role = Role::Reply { rejected: true };
    let talk =
        || vec![from_initiator(vec![(send(1), pattern(40))]), from_responder(vec![(send(1), pattern(3))])];
    vec![
        ("hello in the private data", with(startups().0.revision, &hello), talk()),
        ("revision 1", with(Revision::One, b"private"), talk()),
        ("revision 2 without the IRD/ORD word", with(Revision::Two(None), &[]), talk()),
        ("maximum private data", with(plain, &pattern(508)), talk()),
        ("rejected", rejected, Vec::new()),
    ]
}

/// Returns turns that together contain every message.
fn every_message() -> Vec<Turn> {
    let capabilities = Signal::Capabilities(Capabilities::all()).to_header();
    let mut first = vec![(capabilities, Vec::new())];
    first.extend(writes());
    first.extend(sends());
    first.extend(immediates());
    let mut answers =
        vec![(capabilities, Vec::new()), (Signal::Acknowledged(0x12_3456_789a).to_header(), Vec::new())];
    answers.extend(responses());
    vec![
        from_initiator(first),
        from_initiator(requests()),
        from_responder(answers),
        from_initiator(wrapping_sends()),
    ]
}

/// Returns RDMA Writes of one segment and of several.
fn writes() -> Vec<Fpdu> {
    let mut fpdus: Vec<_> = (0..8).map(|len| (Header::Write(tagged(ADDR, 0, true)), pattern(len))).collect();
    fpdus.extend(split_message(3000, |offset, last| Header::Write(tagged(ADDR, offset.into(), last))));
    fpdus.push((Header::Write(tagged(ADDR, 0, true)), pattern(LARGE)));
    fpdus
}

/// Returns every kind of Send.
fn sends() -> Vec<Fpdu> {
    let mut fpdus = Vec::new();
    let kinds = [(false, SendWord::NONE), (false, INVALIDATE), (true, SendWord::NONE), (true, INVALIDATE)];
    let srq = [(false, SendWord::Srq(0x1234)), (true, SendWord::Srq(u32::MAX))];
    for (msn, (solicited, word)) in (1..).step_by(4).zip(kinds.into_iter().chain(srq)) {
        let header = |msn, offset, last| Header::Send(Send { msn, last, offset, solicited, word });
        fpdus.push((header(msn, 0, true), Vec::new()));
        fpdus.push((header(msn + 1, 0, true), pattern(40)));
        fpdus.push((header(msn + 2, 0, true), pattern(41)));
        fpdus.extend(split_message(3000, |offset, last| header(msn + 3, offset, last)));
    }
    fpdus
}

/// Returns messages with immediate data.
fn immediates() -> Vec<Fpdu> {
    let mut fpdus = Vec::new();
    for (msn, solicited, srq) in [(25, false, 0), (26, true, 0), (27, false, 0x1234)] {
        let data = ImmediateData::new(0xfeed_f00d);
        fpdus.push((Header::Immediate(Immediate { msn, solicited, srq, data }), Vec::new()));
    }
    let kinds = [(false, SendWord::NONE), (false, INVALIDATE), (true, SendWord::NONE), (true, INVALIDATE)];
    for (msn, (solicited, word)) in (28..).step_by(2).zip(kinds) {
        fpdus.push((send_immediate(Send { msn, last: true, offset: 0, solicited, word }), Vec::new()));
        // Immediate data counts as the first eight bytes of the message.
        let header = |offset, last| {
            let offset = if offset == 0 { 0 } else { offset + 8 };
            send_immediate(Send { msn: msn + 1, last, offset, solicited, word })
        };
        fpdus.extend(split_message(3000, header));
    }
    fpdus
}

/// Returns Read and Atomic Requests.
fn requests() -> Vec<Fpdu> {
    let read = |msn, len| Header::ReadRequest(ReadRequest { msn, sink: SINK, len, source: ADDR });
    let read_v2 = |msn, len| Header::ReadV2Request(ReadV2Request { msn, len, source: ADDR });
    let atomic = |msn, id, op| Header::AtomicRequest(AtomicRequest { msn, id, target: ADDR, op });
    let add = AtomicOp::FetchAdd { add: 0x0102_0304_0506_0708, mask: 0x8000_0000_0000_0000 };
    let swap = AtomicOp::CompareSwap {
        swap: 0x1111_2222_3333_4444,
        swap_mask: 0xffff_0000_ffff_0000,
        compare: 0x5555_6666_7777_8888,
        compare_mask: 0x00ff_00ff_00ff_00ff,
    };
    let headers = [
        read(1, 64),
        read(2, 0),
        read(3, 3000),
        read_v2(4, 3000),
        read_v2(5, 0),
        atomic(6, 0xa0, add),
        atomic(7, 0xa1, swap),
        read(8, u32::MAX),
    ];
    headers.map(|header| (header, Vec::new())).to_vec()
}

/// Returns the responses to `requests`.
fn responses() -> Vec<Fpdu> {
    let read = |offset: u32, last| Header::ReadResponse(tagged(SINK, offset.into(), last));
    let v2 = |msn| move |offset, last| Header::ReadV2Response(ReadV2Response { msn, last, offset });
    let atomic = |msn, id, original| Header::AtomicResponse(AtomicResponse { msn, id, original });
    let mut fpdus = vec![(read(0, true), pattern(64)), (read(0, true), Vec::new())];
    fpdus.extend(split_message(3000, read));
    fpdus.extend(split_message(3000, v2(1)));
    fpdus.push((v2(2)(0, true), Vec::new()));
    fpdus.push((atomic(1, 0xa0, 0x0123_4567_89ab_cdef), Vec::new()));
    fpdus.push((atomic(2, 0xa1, u64::MAX), Vec::new()));
    fpdus
}

/// Returns Sends whose message sequence number wraps.
fn wrapping_sends() -> Vec<Fpdu> {
    [u32::MAX, 0].map(|msn| (send(msn), pattern(16))).to_vec()
}

/// Returns every cause, with a segment that may have caused it.
fn terminates() -> Vec<(Cause, Fpdu)> {
    let read =
        || (Header::ReadRequest(ReadRequest { msn: 1, sink: SINK, len: 64, source: ADDR }), Vec::new());
    let write = || (Header::Write(tagged(ADDR, 0x1000, true)), pattern(100));
    let send = || (send(1), pattern(1100));
    let of = |causes: Vec<Cause>, offender: &dyn Fn() -> Fpdu| {
        causes.into_iter().map(|cause| (cause, offender())).collect::<Vec<_>>()
    };
    let protection = || Protection::ALL.iter().copied().map(Cause::Protection).collect::<Vec<_>>();
    [
        of(protection(), &read),
        of(protection(), &write),
        of(vec![Cause::Protection(Protection::Invalidate)], &send),
        of(Operation::ALL.iter().copied().map(Cause::Operation).collect(), &send),
        of(TaggedBuffer::ALL.iter().copied().map(Cause::TaggedBuffer).collect(), &write),
        of(UntaggedBuffer::ALL.iter().copied().map(Cause::UntaggedBuffer).collect(), &send),
        of(MpaFault::ALL.iter().copied().map(Cause::Mpa).collect(), &write),
        of(vec![Cause::LocalCatastrophic, Cause::DdpCatastrophic], &send),
    ]
    .concat()
}

/// Returns turns in which the initiator sends the offending segment, and the responder answers with a Terminate.
fn terminate_turns(cause: Cause, offender: Fpdu) -> Vec<Turn> {
    // The Terminate contains a copy of the FPDU without markers.
    let plain = Encoder::new(Framing::default()).fpdu(&offender.0, &offender.1).unwrap_or_default();
    let terminate = Header::Terminate(Terminate::for_segment(cause, &plain));
    vec![from_initiator(vec![offender]), from_responder(vec![(terminate, Vec::new())])]
}

/// Returns a turn of the initiator.
fn from_initiator(fpdus: Vec<Fpdu>) -> Turn {
    Turn { from_initiator: true, fpdus }
}

/// Returns a turn of the responder.
fn from_responder(fpdus: Vec<Fpdu>) -> Turn {
    Turn { from_initiator: false, fpdus }
}

/// Splits a message of `len` bytes into segments.
fn split_message(len: usize, header: impl Fn(u32, bool) -> Header) -> Vec<Fpdu> {
    let whole = pattern(len);
    let mut offset = 0;
    let segments = whole.chunks(SEGMENT).map(|payload| {
        let begin = offset;
        offset += payload.len();
        (header(u32::try_from(begin).unwrap_or(u32::MAX), offset == len), payload.to_vec())
    });
    segments.collect()
}

/// Returns the tagged header of a segment at `offset` bytes after `start`.
fn tagged(start: RemoteAddr, offset: u64, last: bool) -> Tagged {
    Tagged { last, addr: RemoteAddr { offset: start.offset + offset, ..start } }
}

/// Returns the header of a Send of one segment.
fn send(msn: u32) -> Header {
    Header::Send(Send { msn, last: true, offset: 0, solicited: false, word: SendWord::NONE })
}

/// Returns the header of a Send with Immediate.
fn send_immediate(send: Send) -> Header {
    let immediate = (send.offset == 0).then_some(ImmediateData::new(0xfeed_f00d));
    Header::SendImmediate(SendImmediate { send, immediate })
}

/// Returns bytes whose period is not a power of two, so that misplaced data is detected.
fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}
