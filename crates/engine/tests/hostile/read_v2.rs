//! Read V2 (requirement X4), which does not reveal the sink of a Read: what a peer can try while such a Read
//! is in progress, and what it can request by one.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{AREA, Area, Attacked, RECEIVES, Victim};
use crate::common::{add, read, segment_with_immediate, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::memory::Check;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Data, Operation as Request, Status, WorkRequest};
use ironwarp_wire::private::{Capabilities, ReadV2Request, ReadV2Response, SIGNAL_TAG, Signal};
use ironwarp_wire::{
    AtomicOp, AtomicResponse, Cause, Header, Operation, Protection, ReadRequest, RemoteAddr, Tag, Tagged,
    Terminate, UntaggedBuffer, Violation,
};

const LEN: usize = 64;
/// The remote memory that the victim's Read names.
const SOURCE: RemoteAddr = RemoteAddr { tag: Tag(0x7777_7700), offset: 0x4000 };

/// A peer that has announced itself as Ironwarp.
fn kin(victim: &Victim, capabilities: Capabilities) -> Attacked {
    let mut attacked = victim.connect_peer_with(StartupSettings::default(), RECEIVES);
    attacked.peer.open_as_ironwarp(capabilities);
    attacked
}

/// Starts a Read of the victim, and returns its request as the peer received it.
fn post_read(victim: &Victim, sink: &Area) -> (Attacked, Vec<u8>) {
    let mut attacked = kin(victim, Capabilities::all());
    attacked.assert_works(1); // the signal was sent before this, so it has been received
    attacked.post(7, Request::Read(SOURCE), sink.sge(0, u32::try_from(LEN).unwrap()));
    let received = attacked.peer.receive_message();
    let Received::Message(Header::ReadV2Request(request), _, fpdu) = received else { panic!("{received:?}") };
    assert_eq!((request.msn, request.len as usize, request.source), (1, LEN, SOURCE));
    (attacked, fpdu)
}

fn response(msn: u32, offset: usize, last: bool) -> Header {
    Header::ReadV2Response(ReadV2Response { msn, last, offset: u32::try_from(offset).unwrap() })
}

fn request(msn: u32, tag: Tag, offset: u64, len: u32) -> Header {
    Header::ReadV2Request(ReadV2Request { msn, len, source: RemoteAddr { tag, offset } })
}

/// Checks that the stream ends with this cause, and the Read with this status.
fn ends(attacked: &mut Attacked, cause: Cause, fpdu: &[u8], status: Status) -> QpError {
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, fpdu));
    attacked.closed();
    let failed = attacked.failed(RECEIVES - 1);
    assert_eq!((failed.wr_id, failed.status), (7, status), "{failed:?}");
    (**failed.cause.as_ref().unwrap()).clone()
}

/// The request reveals neither the tag nor the address of the sink: a peer learns nothing that it could use
/// later.
#[test]
fn the_request_does_not_reveal_the_sink() {
    let victim = Victim::new();
    let (mut attacked, fpdu) = post_read(&victim, &victim.private);
    let contains = |bytes: &[u8]| fpdu.windows(bytes.len()).any(|window| window == bytes);
    assert!(contains(&SOURCE.tag.0.to_be_bytes()) && contains(&SOURCE.offset.to_be_bytes()));
    assert!(!contains(&victim.private.tag.0.to_be_bytes()) && !contains(&victim.private.addr.to_be_bytes()));
    attacked.peer.send(&response(1, 0, false), &[0xee; LEN / 2]);
    attacked.peer.send(&response(1, LEN / 2, true), &[0xee; LEN / 2]);
    let done = attacked.one();
    assert_eq!((done.wr_id, done.status, done.byte_len as usize), (7, Status::Success, LEN));
    assert!(victim.memory.holds_only(victim.private.at, LEN, 0xee));
    victim.assert_untouched_except(&[(victim.private.at, LEN)]);
    victim.assert_survives();
}

/// The peer cannot write to the sink of a Read in progress, even if it has guessed its tag and address:
/// neither before the response, nor in the middle of it.
#[test]
fn the_sink_cannot_be_written_while_the_read_is_under_way() {
    const DENIED: Cause = Cause::Protection(Protection::Access);
    const UNASKED: Cause = Cause::Operation(Operation::Opcode);
    type Attack = fn(&Area) -> Header;
    let attacks: [(&str, Attack, Cause, Status); 4] = [
        // The sink is not remotely writable.
        ("a Write", |sink| write(sink.tag, sink.addr), DENIED, Status::Flushed),
        ("a Write after what has arrived", |sink| write(sink.tag, sink.addr + 8), DENIED, Status::Flushed),
        ("an atomic operation", |sink| add(1, sink.tag, sink.addr), DENIED, Status::Flushed),
        // A Read Response, which names memory itself, was not requested.
        (
            "a Read Response",
            |sink| {
                let addr = RemoteAddr { tag: sink.tag, offset: sink.addr };
                Header::ReadResponse(Tagged { last: true, addr })
            },
            UNASKED,
            Status::BadResponse,
        ),
    ];
    for (name, attack, cause, status) in attacks {
        for came in [0, 8] {
            let victim = Victim::new();
            let sink = victim.bindable; // not accessible to peers
            let (mut attacked, _) = post_read(&victim, &sink);
            if came > 0 {
                attacked.peer.send(&response(1, 0, false), &[0xee; 8]);
            }
            let header = attack(&sink);
            let payload: &[u8] = if matches!(header, Header::AtomicRequest(_)) { &[] } else { &[0xdd; LEN] };
            let fpdu = attacked.peer.send(&header, payload);
            let error = ends(&mut attacked, cause, &fpdu, status);
            match error {
                QpError::Remote(denied) => assert_eq!(denied.check, Check::Right, "{name}"),
                error => assert_eq!(error, QpError::Protocol(Protocol::UnexpectedResponse), "{name}"),
            }
            assert!(victim.memory.holds_only(sink.at, came, 0xee));
            victim.assert_untouched_except(&[(sink.at, came), (victim.private.at, 10)]);
            victim.assert_survives();
        }
    }
}

/// A response must be the next one due, continue where the last segment ended, and have the requested length.
#[test]
fn responses_of_another_sequence_offset_or_length() {
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
        let (mut attacked, _) = post_read(&victim, &victim.bindable);
        let fpdu = attacked.peer.send(&header, &vec![0xee; len]);
        let error = ends(&mut attacked, cause, &fpdu, Status::BadResponse);
        assert_eq!(error, QpError::Protocol(rule), "{header}");
        victim.assert_untouched_except(&[(victim.private.at, 10)]);
        victim.assert_survives();
    }
}

/// 0/2/06: a response without a request, after one that was complete, and to a Read that was sent in the
/// other form.
#[test]
fn responses_without_a_request() {
    let cause = Cause::Operation(Operation::Opcode);
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all());
    let fpdu = attacked.peer.send(&response(1, 0, true), &[0xee; 8]);
    assert_eq!(*attacked.assert_terminated(cause, &fpdu), QpError::Protocol(Protocol::UnexpectedResponse));
    victim.assert_untouched();
    victim.assert_survives();

    let victim = Victim::new();
    let (mut attacked, _) = post_read(&victim, &victim.bindable);
    attacked.peer.send(&response(1, 0, true), &[0xee; LEN]);
    assert_eq!(attacked.one().status, Status::Success);
    let fpdu = attacked.peer.send(&response(2, 0, true), &[0xdd; LEN]);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, &fpdu));
    attacked.closed();
    assert_eq!(*attacked.error(RECEIVES - 1), QpError::Protocol(Protocol::UnexpectedResponse));
    assert!(victim.memory.holds_only(victim.bindable.at, LEN, 0xee));
    victim.assert_survives();

    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all() - Capabilities::READ_V2);
    attacked.assert_works(1);
    attacked.post(7, Request::Read(SOURCE), victim.bindable.sge(0, 64));
    assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::ReadRequest(_), ..)));
    let fpdu = attacked.peer.send(&response(1, 0, true), &[0xee; LEN]);
    let error = ends(&mut attacked, cause, &fpdu, Status::BadResponse);
    assert_eq!(error, QpError::Protocol(Protocol::UnexpectedResponse));
    victim.assert_untouched_except(&[(victim.private.at, 10)]);
    victim.assert_survives();
}

// --- The victim is asked ---

/// A Read V2 may access whatever a Read may, and is answered in order with all other requests.
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
    attacked.peer.send_bytes(&burst);
    let mut answers = Vec::new();
    while answers.len() < questions.len() {
        let Received::Message(header, payload, _) = attacked.peer.receive_message() else {
            panic!("{answers:?}")
        };
        answers.push((header, payload));
    }
    let v2 = |msn| response(msn, 0, true);
    assert_eq!(answers[0], (v2(1), before[..64].to_vec()));
    assert!(matches!(answers[1].0, Header::ReadResponse(_)) && answers[1].1 == before[64..128]);
    assert_eq!(answers[2], (v2(2), vec![]));
    let original = u64::from_ne_bytes(before[1024..1032].try_into().unwrap());
    assert_eq!(answers[3].0, Header::AtomicResponse(AtomicResponse { msn: 1, id: 0x1004, original }));
    assert_eq!(answers[4], (v2(3), victim.memory.read(at + 128, AREA - 128)));
    attacked.assert_works(1);
    victim.assert_survives();
}

/// The checks of a Read (requirement M9), the sequence of the stream, and the agreed depth (requirement M11).
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
        let error = attacked.assert_terminated(cause, &fpdu);
        assert!(matches!(&*error, QpError::Remote(denied) if denied.check == check), "{error}");
        victim.assert_untouched();
        victim.assert_survives();
    }
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::all());
    let fpdu = attacked.peer.send(&request(2, victim.open.tag, victim.open.addr, 8), &[]);
    let error = attacked.assert_terminated(Cause::UntaggedBuffer(UntaggedBuffer::Sequence), &fpdu);
    assert_eq!(*error, QpError::Protocol(Protocol::Sequence { queue: 1, expected: 1, found: 2 }));
    victim.assert_survives();
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
        if attacked.pair.qp().error().is_some() {
            break;
        }
    }
    let (messages, _) = attacked.peer.receive_until_end();
    let Some((Header::Terminate(terminate), _)) = messages.last() else { panic!("no Terminate") };
    assert_eq!(terminate.cause, Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer));
    attacked.closed();
    assert_eq!(*attacked.error(RECEIVES), QpError::Protocol(Protocol::ReadsExceeded { ird: 32 }));
    victim.assert_untouched();
    victim.assert_survives();
}

// --- Which peers receive private messages ---

/// Records everything that a queue pair sends for requests of every kind, ending with a Send with Immediate,
/// which fails. The peer answers each request as the RFC specifies.
fn receive_all(attacked: &mut Attacked, victim: &Victim) -> Vec<Vec<u8>> {
    let (sge, addr) = (|len| victim.open.sge(0, len), SOURCE);
    let atomic = Request::Atomic { target: addr, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
    let immediate = |id, operation| {
        let request = WorkRequest::new(id, operation, Data::Memory(sge(64).into()));
        WorkRequest { immediate: Some(9), ..request }
    };
    attacked.post(1, Request::Read(addr), sge(64));
    attacked.post(2, Request::Send { invalidate: None }, sge(64));
    attacked.post(3, Request::Send { invalidate: Some(addr.tag) }, sge(64));
    attacked.post(4, Request::Write(addr), sge(64));
    attacked.post(5, Request::Read(addr), sge(0));
    attacked.post(6, atomic, sge(8));
    attacked.post(7, Request::Read(addr), sge(40_000_u32.min(u32::try_from(AREA).unwrap())));
    attacked.pair.qp().post_send(vec![immediate(8, Request::Write(addr))]).unwrap();
    // If requests complete by acknowledgement, the last message is an empty Read.
    let probed = attacked.pair.qp().attributes().completes == Completes::WhenAcknowledged;
    let (mut received, mut has_immediate) = (Vec::new(), false);
    loop {
        let Received::Message(header, _, fpdu) = attacked.peer.receive_next() else { panic!("{received:?}") };
        received.push(fpdu);
        let last = matches!(header, Header::ReadRequest(_)) && has_immediate;
        match header {
            Header::ReadRequest(ReadRequest { sink, len, .. }) => {
                let header = Header::ReadResponse(Tagged { last: true, addr: sink });
                attacked.peer.send(&header, &vec![0xee; len as usize]);
            }
            Header::AtomicRequest(request) => {
                let id = request.id;
                let header = Header::AtomicResponse(AtomicResponse { msn: 1, id, original: 5 });
                attacked.peer.send(&header, &[]);
            }
            Header::Immediate(_) => has_immediate = true,
            _ => {}
        }
        if last || (has_immediate && !probed) {
            break;
        }
    }
    let done = attacked.completions(8);
    assert!(done.iter().all(|it| it.status == Status::Success), "{done:?}");
    // Finally a request that only an Ironwarp peer would understand.
    attacked.pair.qp().post_send(vec![immediate(9, Request::Send { invalidate: None })]).unwrap();
    let failed = attacked.failed(RECEIVES);
    assert_eq!((failed.wr_id, failed.status), (9, Status::LocalQpOperation), "{failed:?}");
    while let Received::Message(_, _, fpdu) = attacked.peer.receive_next() {
        received.push(fpdu);
    }
    received
}

fn is_private(fpdu: &[u8]) -> bool {
    fpdu[3] & 0x0f == 0x0f
}

/// Whether this is an empty Write to the tag of signals (docs/wire.md).
fn is_signal(fpdu: &[u8]) -> bool {
    fpdu[3] & 0x0f == 0 && fpdu[4..8] == *b"IRWP"
}

/// A peer that sends no signal, or is an Ironwarp that does not support private messages, never receives one,
/// in either role and whatever the program requests.
#[test]
fn only_ironwarp_peers_receive_private_messages() {
    for dials in [false, true] {
        for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
            let victim = Victim::new();
            let mut attacked = if dials {
                victim.dial_peer(completes, StartupSettings::default())
            } else {
                let (pair, cq) = victim.queue_pair(completes, RECEIVES);
                let peer = victim.connected(&pair, StartupSettings::default());
                Attacked { peer, pair, cq }
            };
            attacked.peer.open();
            let received = receive_all(&mut attacked, &victim);
            assert!(received.len() > 8 && !received.iter().any(|fpdu| is_private(fpdu)), "{received:x?}");
            victim.assert_survives();
        }
    }
    // An Ironwarp peer without any capabilities.
    let victim = Victim::new();
    let mut attacked = kin(&victim, Capabilities::empty());
    let received = receive_all(&mut attacked, &victim);
    assert!(!received.iter().any(|fpdu| is_private(fpdu)), "{received:x?}");
    victim.assert_survives();
}

/// One setting disables all private messages: no signal is sent, nothing private is sent to a peer that
/// announces all capabilities, and no private message is understood.
#[test]
fn one_setting_disables_all_private_messages() {
    for dials in [false, true] {
        let victim = Victim::with(Config::default().private(false));
        let mut attacked = if dials {
            victim.dial_peer(Completes::WhenSent, StartupSettings::default())
        } else {
            victim.connect_peer_with(StartupSettings::default(), RECEIVES)
        };
        attacked.peer.open_as_ironwarp(Capabilities::all());
        let received = receive_all(&mut attacked, &victim);
        assert!(!received.iter().any(|fpdu| is_private(fpdu)), "{received:x?}");
        assert!(!received.iter().any(|fpdu| is_signal(fpdu)), "{received:x?}");
        victim.assert_survives();
    }
    let victim = Victim::with(Config::default().private(false));
    let mut attacked = kin(&victim, Capabilities::all());
    let fpdu = attacked.peer.send(&request(1, victim.open.tag, victim.open.addr, 8), &[]);
    let error = attacked.assert_terminated(Cause::Operation(Operation::Opcode), &fpdu);
    assert!(matches!(*error, QpError::Violation(_)), "{error}");
    victim.assert_untouched();
    victim.assert_survives();
}

/// Each private message has a setting of its own, and so has shared memory. With all of them off, the signal announces
/// neither, and neither message is sent to a peer that announces all capabilities.
#[test]
fn settings_disable_single_private_messages() {
    let victim = Victim::with(Config::default().read_v2(false).send_immediate(false).shm(false));
    let mut attacked = kin(&victim, Capabilities::all());
    let received = receive_all(&mut attacked, &victim);
    assert!(!received.iter().any(|fpdu| is_private(fpdu)), "{received:x?}");
    let signal = received.iter().find(|fpdu| is_signal(fpdu)).expect("the other extensions are offered");
    let addr = RemoteAddr { tag: SIGNAL_TAG, offset: u64::from_be_bytes(signal[8..16].try_into().unwrap()) };
    let Some(Ok(Signal::Capabilities(offered))) = Signal::parse(addr) else { panic!("{signal:x?}") };
    assert_eq!(offered, Capabilities::ACKNOWLEDGE | Capabilities::LARGE_FPDU);
    victim.assert_survives();
}

/// A private message that a setting disables is not understood; the other one is.
#[test]
fn a_disabled_private_message_is_refused() {
    let read = |victim: &Victim| request(1, victim.open.tag, victim.open.addr, 8);
    let opcode = Cause::Operation(Operation::Opcode);
    let violation = QpError::Violation(Violation::Opcode { opcode: 0xf, tagged: false });

    let victim = Victim::with(Config::default().read_v2(false));
    let mut attacked = kin(&victim, Capabilities::all());
    attacked.peer.send(&segment_with_immediate(1, 0, true), b"hello");
    let done = attacked.one();
    assert_eq!((done.byte_len, done.immediate), (5, Some(0x1111_1111)));
    let fpdu = attacked.peer.send(&read(&victim), &[]);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(opcode, &fpdu));
    attacked.closed();
    assert_eq!(*attacked.error(RECEIVES - 1), violation);
    victim.assert_untouched_except(&[(victim.private.at, 5)]);
    victim.assert_survives();

    // With and without a receive, for which the message must not wait.
    for receives in [RECEIVES, 0] {
        let victim = Victim::with(Config::default().send_immediate(false));
        let mut attacked = victim.connect_peer_with(StartupSettings::default(), receives);
        attacked.peer.open_as_ironwarp(Capabilities::all());
        let expected = victim.memory.read(victim.open.at, 8);
        attacked.peer.send(&read(&victim), &[]);
        let received = attacked.peer.receive_message();
        let Received::Message(header, payload, _) = received else { panic!("{received:?}") };
        assert_eq!((header, payload), (response(1, 0, true), expected));
        let fpdu = attacked.peer.send(&segment_with_immediate(1, 0, true), b"hello");
        assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(opcode, &fpdu));
        attacked.closed();
        assert_eq!(*attacked.error(receives), violation);
        victim.assert_untouched();
        victim.assert_survives();
    }
}
