//! Read V2 (requirement X4): where an answer goes is nobody's business but the requester's. What a peer tries while such a Read
//! is under way, and what it may ask for by one.

use crate::common::peer::{Heard, Way};
use crate::common::victim::{AREA, Area, Attacked, RECEIVES, Victim};
use crate::common::{add, read, write};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::{Fault, Protocol};
use ironwarp_rnic::memory::Check;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Operation as Request, Status, WorkRequest};
use ironwarp_wire::private::{Capabilities, ReadV2Request, ReadV2Response};
use ironwarp_wire::{
    AtomicOp, AtomicResponse, Cause, Header, Operation, Place, Protection, ReadRequest, Tag, Tagged,
    Terminate, UntaggedBuffer,
};

const LEN: usize = 64;
/// What the victim's Read asks its peer for.
const SOURCE: Place = Place { tag: Tag(0x7777_7700), offset: 0x4000 };

/// A peer that has shown to be one of our kind.
fn kin(victim: &Victim, capabilities: Capabilities) -> Attacked {
    let mut attacked = victim.attacked_by(Way::default(), RECEIVES);
    attacked.peer.open_as_ironwarp(capabilities);
    attacked
}

/// A Read of the victim's is under way, and its peer has the request.
fn asked(victim: &Victim, sink: &Area) -> (Attacked, Vec<u8>) {
    let mut attacked = kin(victim, Capabilities::all());
    attacked.goes_on(1); // the signal came before this, so it was seen
    attacked.post(7, Request::Read(SOURCE), sink.sge(0, u32::try_from(LEN).unwrap()));
    let heard = attacked.peer.hear_message();
    let Heard::Message(Header::ReadV2Request(request), _, fpdu) = heard else { panic!("{heard:?}") };
    assert_eq!((request.msn, request.len as usize, request.source), (1, LEN, SOURCE));
    (attacked, fpdu)
}

fn response(msn: u32, offset: usize, last: bool) -> Header {
    Header::ReadV2Response(ReadV2Response { msn, last, offset: u32::try_from(offset).unwrap() })
}

fn request(msn: u32, tag: Tag, offset: u64, len: u32) -> Header {
    Header::ReadV2Request(ReadV2Request { msn, len, source: Place { tag, offset } })
}

/// The stream ends for this, and the Read with it.
fn ends(attacked: &mut Attacked, cause: Cause, fpdu: &[u8], status: Status) -> Fault {
    assert_eq!(attacked.peer.hear_terminate(), Terminate::answer(cause, fpdu));
    attacked.closed();
    let failed = attacked.failed(RECEIVES - 1);
    assert_eq!((failed.wr_id, failed.status), (7, status), "{failed:?}");
    (**failed.cause.as_ref().unwrap()).clone()
}

/// The request tells neither the tag nor the address of the sink: there is nothing that a peer could keep and use later.
#[test]
fn the_request_does_not_tell_where_the_answer_goes() {
    let victim = Victim::new();
    let (mut attacked, fpdu) = asked(&victim, &victim.private);
    let contains = |bytes: &[u8]| fpdu.windows(bytes.len()).any(|window| window == bytes);
    assert!(contains(&SOURCE.tag.0.to_be_bytes()) && contains(&SOURCE.offset.to_be_bytes()));
    assert!(!contains(&victim.private.tag.0.to_be_bytes()) && !contains(&victim.private.addr.to_be_bytes()));
    attacked.peer.send(&response(1, 0, false), &[0xee; LEN / 2]);
    attacked.peer.send(&response(1, LEN / 2, true), &[0xee; LEN / 2]);
    let done = attacked.one();
    assert_eq!((done.wr_id, done.status, done.byte_len as usize), (7, Status::Success, LEN));
    assert!(victim.memory.holds_only(victim.private.at, LEN, 0xee));
    victim.untouched_but(&[(victim.private.at, LEN)]);
    victim.survives();
}

/// The sink of a Read that is under way cannot be written by the peer, though it may have guessed all there is to know of it: before
/// the answer, and in the middle of it.
#[test]
fn the_sink_cannot_be_written_while_the_read_is_under_way() {
    const DENIED: Cause = Cause::Protection(Protection::Access);
    const UNASKED: Cause = Cause::Operation(Operation::Opcode);
    type Attack = fn(&Area) -> Header;
    let attacks: [(&str, Attack, Cause, Status); 4] = [
        // Its rights do not say that a peer may.
        ("a Write", |sink| write(sink.tag, sink.addr), DENIED, Status::Flushed),
        ("a Write behind what came", |sink| write(sink.tag, sink.addr + 8), DENIED, Status::Flushed),
        ("an atomic operation", |sink| add(1, sink.tag, sink.addr), DENIED, Status::Flushed),
        // An answer of the other kind names memory itself: nobody asked for that.
        (
            "a Read Response",
            |sink| {
                let place = Place { tag: sink.tag, offset: sink.addr };
                Header::ReadResponse(Tagged { last: true, place })
            },
            UNASKED,
            Status::BadResponse,
        ),
    ];
    for (name, attack, cause, status) in attacks {
        for came in [0, 8] {
            let victim = Victim::new();
            let sink = victim.bindable; // not for peers
            let (mut attacked, _) = asked(&victim, &sink);
            if came > 0 {
                attacked.peer.send(&response(1, 0, false), &[0xee; 8]);
            }
            let header = attack(&sink);
            let payload: &[u8] = if matches!(header, Header::AtomicRequest(_)) { &[] } else { &[0xdd; LEN] };
            let fpdu = attacked.peer.send(&header, payload);
            let fault = ends(&mut attacked, cause, &fpdu, status);
            match fault {
                Fault::Remote(denied) => assert_eq!(denied.check, Check::Right, "{name}"),
                fault => assert_eq!(fault, Fault::Protocol(Protocol::Unasked), "{name}"),
            }
            assert!(victim.memory.holds_only(sink.at, came, 0xee));
            victim.untouched_but(&[(sink.at, came), (victim.private.at, 10)]);
            victim.survives();
        }
    }
}

/// An answer must be the next one, go on where it was, and be as long as was asked for.
#[test]
fn answers_that_do_not_fit() {
    const SEQUENCE: Cause = Cause::UntaggedBuffer(UntaggedBuffer::Sequence);
    const OFFSET: Cause = Cause::UntaggedBuffer(UntaggedBuffer::Offset);
    const TOO_LONG: Cause = Cause::UntaggedBuffer(UntaggedBuffer::TooLong);
    const TOO_SHORT: Cause = Cause::Operation(Operation::StreamCatastrophic);
    let queue = 0x8000_0001;
    let length = |found: usize| Protocol::V2ResponseLength { expected: 64, found: found as u64 };
    let sequence = |found| Protocol::Sequence { queue, expected: 1, found };
    let offset = |found| Protocol::Offset { expected: 0, found };
    for (header, len, cause, rule) in [
        (response(0, 0, true), LEN, SEQUENCE, sequence(0)),
        (response(2, 0, true), LEN, SEQUENCE, sequence(2)),
        (response(1, 1, true), LEN - 1, OFFSET, offset(1)),
        (response(1, u32::MAX as usize, true), LEN, OFFSET, offset(u32::MAX)),
        (response(1, 0, true), LEN + 1, TOO_LONG, length(LEN + 1)),
        (response(1, 0, false), LEN + 1, TOO_LONG, length(LEN + 1)),
        (response(1, 0, true), LEN - 1, TOO_SHORT, length(LEN - 1)),
        (response(1, 0, true), 0, TOO_SHORT, length(0)),
    ] {
        let victim = Victim::new();
        let (mut attacked, _) = asked(&victim, &victim.bindable);
        let fpdu = attacked.peer.send(&header, &vec![0xee; len]);
        let fault = ends(&mut attacked, cause, &fpdu, Status::BadResponse);
        assert_eq!(fault, Fault::Protocol(rule), "{header}");
        victim.untouched_but(&[(victim.private.at, 10)]);
        victim.survives();
    }
}

/// 0/2/06: an answer, and nobody asked; also behind one that was complete, and for a Read that asked in the other way.
#[test]
fn answers_that_nobody_asked_for() {
    let cause = Cause::Operation(Operation::Opcode);
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all());
    let fpdu = attacked.peer.send(&response(1, 0, true), &[0xee; 8]);
    assert_eq!(*attacked.terminated_for(cause, &fpdu), Fault::Protocol(Protocol::Unasked));
    victim.untouched();
    victim.survives();

    let victim = Victim::new();
    let (mut attacked, _) = asked(&victim, &victim.bindable);
    attacked.peer.send(&response(1, 0, true), &[0xee; LEN]);
    assert_eq!(attacked.one().status, Status::Success);
    let fpdu = attacked.peer.send(&response(2, 0, true), &[0xdd; LEN]);
    assert_eq!(attacked.peer.hear_terminate(), Terminate::answer(cause, &fpdu));
    attacked.closed();
    assert_eq!(*attacked.fault(RECEIVES - 1), Fault::Protocol(Protocol::Unasked));
    assert!(victim.memory.holds_only(victim.bindable.at, LEN, 0xee));
    victim.survives();

    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all() - Capabilities::READ_V2);
    attacked.goes_on(1);
    attacked.post(7, Request::Read(SOURCE), victim.bindable.sge(0, 64));
    assert!(matches!(attacked.peer.hear_message(), Heard::Message(Header::ReadRequest(_), ..)));
    let fpdu = attacked.peer.send(&response(1, 0, true), &[0xee; LEN]);
    let fault = ends(&mut attacked, cause, &fpdu, Status::BadResponse);
    assert_eq!(fault, Fault::Protocol(Protocol::Unasked));
    victim.untouched_but(&[(victim.private.at, 10)]);
    victim.survives();
}

// --- The victim is asked ---

/// What a Read V2 may ask for is what a Read may, and it is answered in order with all other questions.
#[test]
fn requests_are_answered_in_order() {
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all());
    let Area { tag, addr, at } = victim.open;
    let questions = [
        request(1, tag, addr, 64),
        read(2, tag, addr + 64, 64),
        request(3, tag, addr, 0),
        add(4, tag, addr + 1024),
        request(5, tag, addr + 128, u32::try_from(AREA).unwrap() - 128),
    ];
    let burst: Vec<u8> = questions.iter().flat_map(|header| attacked.peer.frame(header, &[])).collect();
    let before = victim.memory.read(at, AREA);
    attacked.peer.raw(&burst);
    let mut answers = Vec::new();
    while answers.len() < questions.len() {
        let Heard::Message(header, payload, _) = attacked.peer.hear_message() else { panic!("{answers:?}") };
        answers.push((header, payload));
    }
    let v2 = |msn| response(msn, 0, true);
    assert_eq!(answers[0], (v2(1), before[..64].to_vec()));
    assert!(matches!(answers[1].0, Header::ReadResponse(_)) && answers[1].1 == before[64..128]);
    assert_eq!(answers[2], (v2(2), vec![]));
    let original = u64::from_ne_bytes(before[1024..1032].try_into().unwrap());
    assert_eq!(answers[3].0, Header::AtomicResponse(AtomicResponse { msn: 1, id: 0x1004, original }));
    assert_eq!(answers[4], (v2(3), victim.memory.read(at + 128, AREA - 128)));
    attacked.goes_on(1);
    victim.survives();
}

/// The checks of a Read (requirement M9), the order of the stream, and the depth that was agreed (requirement M11).
#[test]
fn requests_that_are_refused() {
    let protection = |code| Cause::Protection(code);
    type Ask = fn(&Victim) -> Header;
    let denied: [(Ask, Cause, Check); 5] = [
        (|_| request(1, Tag(0xff), 0, 8), protection(Protection::Tag), Check::Valid),
        (|it| request(1, it.private.tag, it.private.addr, 8), protection(Protection::Access), Check::Right),
        (|it| request(1, it.writable.tag, it.writable.addr, 8), protection(Protection::Access), Check::Right),
        (|it| request(1, it.open.tag, it.open.end() - 7, 8), protection(Protection::Bounds), Check::Range),
        (|it| request(1, it.foreign.tag, it.foreign.addr, 8), protection(Protection::Stream), Check::Domain),
    ];
    for (ask, cause, check) in denied {
        let victim = Victim::new();
        let mut attacked = kin(&victim, Capabilities::all());
        let fpdu = attacked.peer.send(&ask(&victim), &[]);
        let fault = attacked.terminated_for(cause, &fpdu);
        assert!(matches!(&*fault, Fault::Remote(denied) if denied.check == check), "{fault}");
        victim.untouched();
        victim.survives();
    }
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all());
    let fpdu = attacked.peer.send(&request(2, victim.open.tag, victim.open.addr, 8), &[]);
    let fault = attacked.terminated_for(Cause::UntaggedBuffer(UntaggedBuffer::Sequence), &fpdu);
    assert_eq!(*fault, Fault::Protocol(Protocol::Sequence { queue: 1, expected: 1, found: 2 }));
    victim.survives();
}

/// 1/2/02: both kinds of Reads count against one depth.
#[test]
fn more_reads_of_both_kinds_than_agreed() {
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all());
    let (area, len) = (victim.open, u32::try_from(AREA).unwrap());
    for msn in 1..20_000 {
        let header = if msn % 2 == 0 {
            request(msn, area.tag, area.addr, len)
        } else {
            read(msn, area.tag, area.addr, len)
        };
        attacked.peer.send(&header, &[]);
        if attacked.pair.qp().fault().is_some() {
            break;
        }
    }
    let (messages, _) = attacked.peer.hear_out();
    let Some((Header::Terminate(terminate), _)) = messages.last() else { panic!("no Terminate") };
    assert_eq!(terminate.cause, Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer));
    attacked.closed();
    assert_eq!(*attacked.fault(RECEIVES), Fault::Protocol(Protocol::ReadsExceeded { ird: 32 }));
    victim.untouched();
    victim.survives();
}

// --- Who is spoken to like this ---

/// All that a queue pair sends for requests of every kind but a Send with Immediate, which fails: the peer answers each question as
/// the RFC has it.
fn hear_all(attacked: &mut Attacked, victim: &Victim) -> Vec<Vec<u8>> {
    let (sge, place) = (|len| victim.open.sge(0, len), SOURCE);
    let atomic = Request::Atomic { target: place, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
    let immediate = |id, operation| {
        let request = WorkRequest::new(id, operation, Data::Memory(sge(64).into()));
        WorkRequest { immediate: Some(9), ..request }
    };
    attacked.post(1, Request::Read(place), sge(64));
    attacked.post(2, Request::Send { invalidate: None }, sge(64));
    attacked.post(3, Request::Send { invalidate: Some(place.tag) }, sge(64));
    attacked.post(4, Request::Write(place), sge(64));
    attacked.post(5, Request::Read(place), sge(0));
    attacked.post(6, atomic, sge(8));
    attacked.post(7, Request::Read(place), sge(40_000_u32.min(u32::try_from(AREA).unwrap())));
    attacked.pair.qp().post_send(vec![immediate(8, Request::Write(place))]).unwrap();
    // Where requests complete by acknowledgement, an empty Read is the last that is heard.
    let probed = attacked.pair.qp().attributes().completes == Completes::WhenAcknowledged;
    let (mut heard, mut told) = (Vec::new(), false);
    loop {
        let Heard::Message(header, _, fpdu) = attacked.peer.hear() else { panic!("{heard:?}") };
        heard.push(fpdu);
        let last = matches!(header, Header::ReadRequest(_)) && told;
        match header {
            Header::ReadRequest(ReadRequest { sink, len, .. }) => {
                let header = Header::ReadResponse(Tagged { last: true, place: sink });
                attacked.peer.send(&header, &vec![0xee; len as usize]);
            }
            Header::AtomicRequest(request) => {
                let id = request.id;
                let header = Header::AtomicResponse(AtomicResponse { msn: 1, id, original: 5 });
                attacked.peer.send(&header, &[]);
            }
            Header::Immediate(_) => told = true,
            _ => {}
        }
        if last || (told && !probed) {
            break;
        }
    }
    let done = attacked.completions(8);
    assert!(done.iter().all(|it| it.status == Status::Success), "{done:?}");
    // And one that nobody but an Ironwarp would understand.
    attacked.pair.qp().post_send(vec![immediate(9, Request::Send { invalidate: None })]).unwrap();
    let failed = attacked.failed(RECEIVES);
    assert_eq!((failed.wr_id, failed.status), (9, Status::LocalQpOperation), "{failed:?}");
    while let Heard::Message(_, _, fpdu) = attacked.peer.hear() {
        heard.push(fpdu);
    }
    heard
}

fn is_private(fpdu: &[u8]) -> bool {
    fpdu[3] & 0x0f == 0x0f
}

/// An empty Write to a tag that only we would name (docs/wire.md).
fn is_signal(fpdu: &[u8]) -> bool {
    fpdu[3] & 0x0f == 0 && fpdu[4..8] == *b"IRWP"
}

/// A peer that gives no signal, or is an Ironwarp that does not offer it, never sees a private message, in either role and whatever is
/// asked of the adapter.
#[test]
fn nobody_else_ever_sees_a_private_message() {
    for dials in [false, true] {
        for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
            let victim = Victim::new();
            let mut attacked = if dials {
                victim.dials(completes, Way::default())
            } else {
                let (pair, cq) = victim.queue_pair(completes, RECEIVES);
                let peer = victim.connected(&pair, Way::default());
                Attacked { peer, pair, cq }
            };
            attacked.peer.open();
            let heard = hear_all(&mut attacked, &victim);
            assert!(heard.len() > 8 && !heard.iter().any(|fpdu| is_private(fpdu)), "{heard:x?}");
            victim.survives();
        }
    }
    // One of our kind that offers nothing.
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::empty());
    let heard = hear_all(&mut attacked, &victim);
    assert!(!heard.iter().any(|fpdu| is_private(fpdu)), "{heard:x?}");
    victim.survives();
}

/// One setting turns all of it off: no signal, and nothing private to one who gave the signal and offers all; nothing private of its
/// is understood.
#[test]
fn one_setting_turns_all_private_messages_off() {
    for dials in [false, true] {
        let victim = Victim::with(Config { private: false, ..Config::default() });
        let mut attacked = if dials {
            victim.dials(Completes::WhenSent, Way::default())
        } else {
            victim.attacked_by(Way::default(), RECEIVES)
        };
        attacked.peer.open_as_ironwarp(Capabilities::all());
        let heard = hear_all(&mut attacked, &victim);
        assert!(!heard.iter().any(|fpdu| is_private(fpdu)), "{heard:x?}");
        assert!(!heard.iter().any(|fpdu| is_signal(fpdu)), "{heard:x?}");
        victim.survives();
    }
    let victim = Victim::with(Config { private: false, ..Config::default() });
    let mut attacked = kin(&victim, Capabilities::all());
    let fpdu = attacked.peer.send(&request(1, victim.open.tag, victim.open.addr, 8), &[]);
    let fault = attacked.terminated_for(Cause::Operation(Operation::Opcode), &fpdu);
    assert!(matches!(*fault, Fault::Violation(_)), "{fault}");
    victim.untouched();
    victim.survives();
}
