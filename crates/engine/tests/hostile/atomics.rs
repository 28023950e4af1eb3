//! Atomic operations (RFC 7306 §5): on memory that does not allow them, more of them than agreed, and invalid
//! responses.

use crate::common::peer::Received;
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{add, atomic, read};
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::memory::{Check, Memory, Rights, next_tag};
use ironwarp_rnic::queue::{Operation as Request, Status};
use ironwarp_testkit::mapping::{Mapping, PAGE};
use ironwarp_wire::{
    AtomicOp, AtomicRequest, AtomicResponse, Cause, Header, Operation, Protection, RemoteAddr, Tag, Tagged,
    Terminate, UntaggedBuffer,
};

/// The memory that the peer names, given the victim and the number of its queue pair.
type Named = fn(&Victim, u32) -> (Tag, u64);

/// Makes an access, and checks that it is refused without changing a byte.
fn refused(named: Named, check: Check, protection: Protection) {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let (tag, offset) = named(&victim, attacked.pair.qp().id());
    let fpdu = attacked.peer.send(&add(1, tag, offset), &[]);
    let error = attacked.assert_terminated(Cause::Protection(protection), &fpdu);
    let QpError::Remote(denied) = &*error else { panic!("{error:?}") };
    assert_eq!((denied.check, denied.tag, denied.offset, denied.len), (check, tag, offset, 8), "{denied}");
    victim.assert_untouched();
    victim.assert_survives();
}

/// Requirement M9, a to f, for atomic operations.
#[test]
fn an_atomic_operation_is_checked_before_a_bit_changes() {
    let cases: [(Named, Check, Protection); 9] = [
        (|_, _| (Tag(0xff), 0), Check::Valid, Protection::Tag),
        (|victim, _| (victim.foreign.tag, victim.foreign.addr), Check::Domain, Protection::Stream),
        (
            |victim, qp| (victim.window(&victim.open, qp + 1, Rights::REMOTE), victim.open.addr),
            Check::Stream,
            Protection::Stream,
        ),
        (|victim, _| (next_tag(victim.open.tag), victim.open.addr), Check::Instance, Protection::Tag),
        (|victim, _| (victim.open.tag, victim.open.addr - 8), Check::Range, Protection::Bounds),
        (|victim, _| (victim.open.tag, victim.open.end()), Check::Range, Protection::Bounds),
        (|victim, _| (victim.open.tag, u64::MAX - 7), Check::Wrap, Protection::Wrap),
        (|victim, _| (victim.writable.tag, victim.writable.addr), Check::Right, Protection::Access),
        (|victim, _| (victim.private.tag, victim.private.addr), Check::Right, Protection::Access),
    ];
    for (named, check, protection) in cases {
        refused(named, check, protection);
    }
}

/// The tag is deregistered between two operations: the first is executed, the second is not.
#[test]
fn an_atomic_operation_on_a_deregistered_tag() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let window = victim.window(&victim.open, attacked.pair.qp().id(), Rights::REMOTE);
    let before = word(&victim, 0);
    attacked.peer.send(&add(1, window, victim.open.addr), &[]);
    assert_eq!(answer(&mut attacked), (1, 0x1001, before));
    victim.engine.device().table().deregister(window).unwrap();
    let fpdu = attacked.peer.send(&add(2, window, victim.open.addr), &[]);
    attacked.assert_terminated(Cause::Protection(Protection::Tag), &fpdu);
    assert_eq!(word(&victim, 0), before.wrapping_add(1), "executed once");
    victim.assert_untouched_except(&[(victim.open.at, 8)]);
    victim.assert_survives();
}

/// RFC 7306 §8.2: all misaligned offsets.
#[test]
fn an_atomic_operation_on_a_word_that_is_not_aligned() {
    for skip in 1..8 {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let addr = RemoteAddr { tag: victim.open.tag, offset: victim.open.addr + skip };
        let fpdu = attacked.peer.send(&add(1, addr.tag, addr.offset), &[]);
        let error = attacked.assert_terminated(Cause::Operation(Operation::StreamCatastrophic), &fpdu);
        assert_eq!(*error, QpError::Protocol(Protocol::Misaligned { addr }));
        victim.assert_untouched();
        victim.assert_survives();
    }
}

/// The program has unmapped or write-protected the word: the result is an error, never a signal.
#[test]
fn an_atomic_operation_on_unmapped_memory() {
    for unmap in [true, false] {
        let victim = Victim::new();
        let memory = Mapping::new(2);
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_ATOMIC;
        let region = Memory::direct(memory.addr(0), memory.len() as u64, rights).unwrap();
        let tag = victim.engine.device().register(victim.domain, region).unwrap();
        if unmap {
            memory.unmap(PAGE, PAGE);
        } else {
            memory.protect(PAGE, PAGE);
        }
        let mut attacked = victim.connect_peer();
        attacked.peer.send(&add(1, tag, memory.addr(PAGE - 8)), &[]);
        assert_eq!(answer(&mut attacked), (1, 0x1001, 0), "the word next to it is accessible");
        let fpdu = attacked.peer.send(&add(2, tag, memory.addr(PAGE)), &[]);
        let error = attacked.assert_terminated(Cause::Protection(Protection::Unspecified), &fpdu);
        assert!(matches!(*error, QpError::Unmapped { remote: true, len: 8, .. }), "{error}");
        assert!(unmap || memory.holds_only(PAGE, PAGE, 0));
        victim.assert_untouched();
        victim.assert_survives();
    }
}

/// Requirement M11: atomic operations share the queue with Reads, and one more than agreed ends the stream.
#[test]
fn more_atomic_operations_than_agreed() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let area = victim.open;
    // Reads whose responses the peer does not receive block everything after them.
    let len = u32::try_from(AREA).unwrap();
    let mut sent = Vec::new();
    for msn in 1..20_000 {
        let header =
            if msn % 2 == 0 { add(msn, area.tag, area.addr) } else { read(msn, area.tag, area.addr, len) };
        sent.push(attacked.peer.send(&header, &[]));
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
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer);
    assert_eq!(*terminate, Terminate::for_segment(cause, &sent[msn as usize - 1]));
    attacked.closed();
    assert_eq!(*attacked.error(RECEIVES), QpError::Protocol(Protocol::ReadsExceeded { ird: 32 }));
    // Each operation that was answered was executed once; one may have been executed without an answer.
    let answered = messages.iter().filter(|(header, _)| matches!(header, Header::AtomicResponse(_))).count();
    let done = word(&victim, 0).wrapping_sub(canary(&victim));
    assert!((answered as u64..=answered as u64 + 1).contains(&done), "{done} of {answered}");
    victim.assert_untouched_except(&[(area.at, 8)]);
    victim.assert_survives();
}

/// Operations of several peers on one word: each is executed once, and no two return the same value.
#[test]
fn atomic_operations_of_many_peers_on_one_word() {
    const ROUNDS: u32 = 200;
    let victim = Victim::new();
    let (before, open) = (word(&victim, 0), victim.open);
    let peers: Vec<Attacked> = (0..4).map(|_| victim.connect_peer()).collect();
    let mut found: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = peers
            .into_iter()
            .map(|mut attacked| {
                scope.spawn(move || {
                    let one = |msn| {
                        attacked.peer.send(&add(msn, open.tag, open.addr), &[]);
                        answer(&mut attacked).2.wrapping_sub(before)
                    };
                    (1..=ROUNDS).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    found.sort_unstable();
    assert!(found.into_iter().eq(0..4 * u64::from(ROUNDS)));
    victim.assert_untouched_except(&[(open.at, 8)]);
    victim.assert_survives();
}

/// The masks determine which bits are compared and which change.
#[test]
fn a_masked_operation_changes_no_other_bit() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let (before, open) = (word(&victim, 0), victim.open);
    let (swap, swap_mask, compare_mask) = (0x1234, 0xff, 0xff00);
    let op = AtomicOp::CompareSwap { swap, swap_mask, compare: before, compare_mask };
    attacked.peer.send(&atomic(1, open.tag, open.addr, op), &[]);
    assert_eq!(answer(&mut attacked).2, before);
    assert_eq!(word(&victim, 0), before & !0xff | 0x34);
    let op = AtomicOp::CompareSwap { swap, swap_mask: u64::MAX, compare: before ^ 0x100, compare_mask };
    attacked.peer.send(&atomic(2, open.tag, open.addr, op), &[]);
    assert_eq!(answer(&mut attacked).2, before & !0xff | 0x34);
    assert_eq!(word(&victim, 0), before & !0xff | 0x34, "not equal: nothing changes");
    victim.assert_untouched_except(&[(open.at, 8)]);
    victim.assert_survives();
}

/// An invalid response to an atomic request.
type Lie = fn(&AtomicRequest) -> Header;

#[test]
fn invalid_responses_to_atomic_operations() {
    let unasked = Cause::Operation(Operation::Opcode);
    let lies: [(&str, Lie, Cause); 4] = [
        ("another identifier", |request| response(1, request.id ^ 1), unasked),
        (
            "the next number",
            |request| response(2, request.id),
            Cause::UntaggedBuffer(UntaggedBuffer::Sequence),
        ),
        ("number zero", |request| response(0, request.id), Cause::UntaggedBuffer(UntaggedBuffer::Sequence)),
        (
            "a Read Response",
            |request| Header::ReadResponse(Tagged { last: true, addr: request.target }),
            unasked,
        ),
    ];
    for (name, lie, cause) in lies {
        let victim = Victim::new();
        let mut attacked = victim.connect_peer();
        let (target, op) = (RemoteAddr::default(), AtomicOp::FetchAdd { add: 1, mask: 0 });
        attacked.post(7, Request::Atomic { target, op }, victim.private.sge(4096, 8));
        let received = attacked.peer.receive_message();
        let Received::Message(Header::AtomicRequest(request), ..) = received else { panic!("{received:?}") };
        let header = lie(&request);
        let payload = if header.carries_payload() { &[0xee; 8][..] } else { &[] };
        let fpdu = attacked.peer.send(&header, payload);
        assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(cause, &fpdu), "{name}");
        attacked.closed();
        let failed = attacked.failed(RECEIVES);
        assert_eq!((failed.wr_id, failed.status), (7, Status::BadResponse), "{name}: {failed:?}");
        victim.assert_untouched();
        victim.assert_survives();
    }
}

#[test]
fn an_atomic_response_in_place_of_a_read_response() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    attacked.post(7, Request::Read(RemoteAddr::default()), victim.private.sge(4096, 8));
    let received = attacked.peer.receive_message();
    let Received::Message(Header::ReadRequest(request), ..) = received else { panic!("{received:?}") };
    let fpdu = attacked.peer.send(&response(1, request.msn), &[]);
    let unasked = Cause::Operation(Operation::Opcode);
    assert_eq!(attacked.peer.receive_terminate(), Terminate::for_segment(unasked, &fpdu));
    attacked.closed();
    let failed = attacked.failed(RECEIVES);
    assert_eq!((failed.wr_id, failed.status), (7, Status::BadResponse), "{failed:?}");
    victim.assert_untouched();
    victim.assert_survives();
}

#[test]
fn an_atomic_response_without_a_request() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let fpdu = attacked.peer.send(&response(1, 1), &[]);
    let error = attacked.assert_terminated(Cause::Operation(Operation::Opcode), &fpdu);
    assert_eq!(*error, QpError::Protocol(Protocol::UnexpectedResponse));
    victim.assert_untouched();
    victim.assert_survives();
}

fn response(msn: u32, id: u32) -> Header {
    Header::AtomicResponse(AtomicResponse { msn, id, original: 0xeeee_eeee_eeee_eeee })
}

/// Receives the next response: its sequence number, identifier and value.
fn answer(attacked: &mut Attacked) -> (u32, u32, u64) {
    let received = attacked.peer.receive_message();
    let Received::Message(Header::AtomicResponse(answer), ..) = received else { panic!("{received:?}") };
    (answer.msn, answer.id, answer.original)
}

/// A word of the open area.
fn word(victim: &Victim, at: usize) -> u64 {
    u64::from_ne_bytes(victim.memory.read(victim.open.at + at, 8).try_into().unwrap())
}

/// The initial value of the first word of the open area.
fn canary(victim: &Victim) -> u64 {
    let canaries = ironwarp_testkit::engine::canaries(victim.open.at + 8);
    u64::from_ne_bytes(canaries[victim.open.at..].try_into().unwrap())
}
