//! Connections that end where they should not, do not end where they should, or stand still; and the peer's own Terminate.

use crate::common::peer::{Heard, Peer, Way};
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{PATIENCE, read, resident, segment, send, write};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::{Fault, Protocol};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_wire::private::Capabilities;
use ironwarp_wire::{Cause, Header, Place, Protection, Tag, Tagged, TaggedBuffer, Terminate, UntaggedBuffer};
use std::time::{Duration, Instant};

const SEND: Operation = Operation::Send { invalidate: None };
const CLOSE: Duration = Duration::from_millis(300);

fn elsewhere() -> Place {
    Place { tag: Tag(0x7777_7700), offset: 0x1000 }
}

fn hasty() -> Config {
    Config { close: CLOSE, ..Config::default() }
}

// --- Ends ---

/// FIN at every place within an FPDU. It is a close only between two messages.
#[test]
fn a_close_in_the_middle_of_an_fpdu() {
    let victim = Victim::new();
    let whole = victim.attacked().peer.frame(&send(1), b"12345678");
    for len in 0..=whole.len() {
        let mut attacked = victim.attacked();
        attacked.peer.raw(&whole[..len]);
        attacked.peer.finish();
        attacked.cut_off();
        assert!(attacked.pair.wait_closed(PATIENCE));
        let delivered = usize::from(len == whole.len());
        for completion in attacked.completions(delivered) {
            assert_eq!((completion.status, completion.byte_len), (Status::Success, 8));
        }
        let fault = attacked.fault(RECEIVES - delivered);
        let clean = len == 0 || len == whole.len();
        assert_eq!(*fault, if clean { Fault::Closed } else { Fault::CutShort }, "after {len} bytes");
    }
    let inbox = victim.private.at;
    victim.untouched_but(&[(inbox, 8)]);
    victim.survives();
}

/// FIN between two segments of one message.
#[test]
fn a_close_in_the_middle_of_a_message() {
    let victim = Victim::new();
    let begun = Header::Write(Tagged { last: false, place: elsewhere() });
    for header in [segment(1, 0, false), begun] {
        let mut attacked = victim.attacked();
        attacked.peer.send(&header, &[]);
        attacked.peer.finish();
        attacked.cut_off();
        assert!(attacked.pair.wait_closed(PATIENCE));
        assert_eq!(*attacked.fault(RECEIVES), Fault::CutShort);
    }
    victim.untouched();
    victim.survives();
}

/// RST at many points: the queue pair learns of it, and all it had comes back.
#[test]
fn a_reset_at_any_point() {
    let victim = Victim::new();
    let (tag, addr) = (victim.open.tag, victim.open.addr);
    for len in (0..300).step_by(13) {
        let mut attacked = victim.attacked();
        let mut bytes = attacked.peer.frame(&write(tag, addr), &[1; 64]);
        bytes.extend(attacked.peer.frame(&send(1), &[2; 64]));
        bytes.extend(attacked.peer.frame(&read(1, tag, addr, 64), &[]));
        attacked.peer.raw(&bytes[..len.min(bytes.len())]);
        attacked.post(9, Operation::Read(elsewhere()), victim.open.sge(0, 8));
        let Attacked { peer, pair, cq } = attacked;
        peer.reset();
        assert!(pair.wait_closed(PATIENCE), "after {len} bytes");
        let (mut flushed, mut all) = (0, 0);
        while all < RECEIVES + 1 {
            assert!(cq.wait(Some(PATIENCE)).unwrap(), "after {len} bytes");
            let count = |status| if status == Status::Flushed { 1 } else { 0 };
            all += cq.poll(8, |completion| flushed += count(completion.status)).unwrap();
        }
        assert!(flushed >= RECEIVES, "after {len} bytes: {flushed}");
        let fault = pair.qp().fault().cloned().expect("it is over");
        assert!(matches!(*fault, Fault::Lost(_)), "{fault}");
    }
    let (open, inbox) = (victim.open.at, victim.private.at);
    victim.untouched_but(&[(open, 64), (inbox, 64)]);
    victim.survives();
}

/// RST while answers are on their way, many times: the two halves of the stream fail at once, in any order.
#[test]
fn a_reset_under_load() {
    let victim = Victim::new();
    for round in 0..60 {
        let mut attacked = victim.attacked();
        let mut bytes = Vec::new();
        for msn in 1..=20 {
            let len = u32::try_from(AREA).unwrap();
            bytes.extend(attacked.peer.frame(&read(msn, victim.open.tag, victim.open.addr, len), &[]));
        }
        attacked.peer.raw(&bytes);
        for id in 0..20 {
            attacked.post(id, Operation::Read(elsewhere()), victim.private.sge(4096, 64));
            attacked.post(100 + id, SEND, victim.open.sge(0, 4096));
        }
        if round % 2 == 0 {
            assert!(matches!(attacked.peer.hear_message(), Heard::Message(..)));
        }
        let Attacked { peer, pair, .. } = attacked;
        peer.reset();
        assert!(pair.wait_closed(PATIENCE), "round {round}");
    }
    victim.untouched();
    victim.survives();
}

/// The stream fails at this end while the peer's answers come in: nothing is placed for a Read that is gone, and nothing panics.
#[test]
fn a_failure_here_under_load() {
    let victim = Victim::new();
    for round in 0..60_u32 {
        let mut attacked = victim.attacked();
        let len = u32::try_from(AREA).unwrap();
        attacked.post(1, Operation::Read(elsewhere()), victim.bindable.sge(0, len));
        let heard = attacked.peer.hear_message();
        let Heard::Message(Header::ReadRequest(request), ..) = heard else { panic!("{heard:?}") };
        // The answer comes in many small segments, while the program makes a mistake.
        let mut bytes = Vec::new();
        for at in (0..len).step_by(64) {
            let place = Place { tag: request.sink.tag, offset: request.sink.offset + u64::from(at) };
            let answer = Header::ReadResponse(Tagged { last: at + 64 == len, place });
            bytes.extend(attacked.peer.frame(&answer, &[0xab; 64]));
        }
        let Attacked { mut peer, pair, cq } = attacked;
        let mistake = std::thread::scope(|scope| {
            scope.spawn(|| {
                for piece in bytes.chunks(97 + round as usize) {
                    peer.raw(piece);
                }
            });
            let attacked_sge = victim.foreign.sge(0, 8);
            let data = ironwarp_rnic::queue::Data::Memory(attacked_sge.into());
            pair.qp().post_send(vec![ironwarp_rnic::queue::WorkRequest::new(2, SEND, data)])
        });
        mistake.unwrap();
        peer.finish();
        peer.hear_out();
        assert!(pair.wait_closed(PATIENCE), "round {round}");
        assert!(cq.wait(Some(PATIENCE)).unwrap());
    }
    let sink = victim.bindable.at;
    victim.untouched_but(&[(sink, AREA)]);
    victim.survives();
}

// --- Does not end ---

/// The victim terminates, and the peer neither reads that nor closes: it is cut after [`Config::close`].
#[test]
fn a_peer_that_ignores_the_terminate() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.attacked();
    attacked.peer.send(&send(7), &[]);
    let begin = Instant::now();
    assert!(attacked.pair.wait_closed(PATIENCE));
    assert!(begin.elapsed() >= CLOSE / 2 && begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    attacked.fault(RECEIVES);
    victim.untouched();
    victim.survives();
}

/// The victim terminates, and the peer sends on for ever: the same.
#[test]
fn a_peer_that_talks_over_the_terminate() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.attacked();
    attacked.peer.send(&send(7), &[]);
    let begin = Instant::now();
    let garbage = vec![0xee; 1 << 16];
    while !attacked.pair.wait_closed(Duration::ZERO) {
        assert!(begin.elapsed() < PATIENCE, "the peer keeps the connection alive");
        attacked.peer.raw(&garbage);
    }
    attacked.fault(RECEIVES);
    victim.untouched();
    victim.survives();
}

/// The program disconnects, and the peer never closes: it is cut after [`Config::close`].
#[test]
fn a_peer_that_does_not_close() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.attacked();
    attacked.goes_on(1);
    attacked.pair.disconnect();
    assert_eq!(attacked.peer.hear(), Heard::End);
    assert!(attacked.pair.wait_closed(PATIENCE), "the peer keeps the connection alive");
    attacked.completions(RECEIVES - 1);
    victim.survives();
}

/// The peer asks for much, reads nothing, and closes its direction: once it reads again, it finds the end of the stream at the
/// next boundary, and not only when the victim loses its patience.
#[test]
fn a_close_while_an_answer_is_on_its_way() {
    let victim = Victim::new();
    let big = crate::common::mapping::Mapping::new(4096);
    let rights = ironwarp_rnic::memory::Rights::REMOTE_READ;
    let memory = ironwarp_rnic::memory::Memory::direct(big.addr(0), big.len() as u64, rights).unwrap();
    let tag = victim.engine.device().register(victim.domain, memory).unwrap();
    let mut attacked = victim.attacked();
    attacked.peer.send(&read(1, tag, big.addr(0), u32::try_from(big.len()).unwrap()), &[]);
    assert!(matches!(attacked.peer.hear_message(), Heard::Message(Header::ReadResponse(_), ..)));
    attacked.peer.finish();
    let begin = Instant::now();
    let (messages, end) = attacked.peer.hear_out();
    assert_eq!(end, Heard::End);
    assert!(messages.len() < 16 << 20, "it has all been read");
    assert!(attacked.pair.wait_closed(PATIENCE));
    assert!(begin.elapsed() < Duration::from_secs(4), "it was cut: {:?}", begin.elapsed());
    attacked.fault(RECEIVES);
    victim.survives();
}

/// A responder that answers an empty Read with payload, and does not end. Linux siw may answer it with a message of its own, which is
/// thrown away; but no message is longer than 2 GiB, and this one used to count its bytes until that overflowed.
#[test]
fn an_answer_to_an_empty_read_that_does_not_end() {
    let victim = Victim::with(Config { crc: false, ..Config::default() });
    let (pair, cq) = victim.queue_pair(Completes::WhenAcknowledged, 0);
    let mut peer = victim.connected(&pair, Way { crc: false, ..Way::default() });
    peer.open();
    let mut attacked = Attacked { peer, pair, cq };
    attacked.post(7, SEND, victim.open.sge(0, 8));
    assert!(matches!(attacked.peer.hear(), Heard::Message(Header::Send(_), ..)));
    let asked = attacked.peer.hear();
    let Heard::Message(Header::ReadRequest(asked), ..) = asked else { panic!("{asked:?}") };
    assert_eq!(asked.len, 0);
    let payload = vec![0xee; 64_000];
    let limit = (1 << 31) / payload.len() as u64;
    for n in 0..=limit {
        let place = Place { offset: asked.sink.offset + n * payload.len() as u64, ..asked.sink };
        attacked.peer.send(&Header::ReadResponse(Tagged { last: false, place }), &payload);
        assert!(n == limit || attacked.pair.qp().fault().is_none(), "ended before the limit");
    }
    let terminate = attacked.peer.hear_terminate();
    assert_eq!(terminate.cause, Cause::TaggedBuffer(TaggedBuffer::Bounds));
    let found = (limit + 1) * payload.len() as u64;
    assert_eq!(*attacked.fault(1), Fault::Protocol(Protocol::ResponseLength { expected: 0, found }));
    attacked.closed();
    victim.untouched();
    victim.survives();
}

// --- Stands still ---

/// A peer that never reads: its Reads are answered as far as the kernel's buffers go, and nothing grows.
#[test]
fn a_peer_that_never_reads() {
    let victim = Victim::new();
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut attacked = victim.attacked();
        for msn in 1..=32 {
            let len = u32::try_from(AREA).unwrap();
            attacked.peer.send(&read(msn, victim.open.tag, victim.open.addr, len), &[]);
        }
        // The victim's own messages stand still, too.
        for id in 0..32 {
            attacked.post(id, SEND, victim.open.sge(0, u32::try_from(AREA).unwrap()));
        }
        idle.push(attacked);
    }
    let rounds = victim.rounds();
    let deadline = Instant::now() + PATIENCE;
    while victim.rounds() < rounds + 20 {
        assert!(Instant::now() < deadline, "the neighbour waits for peers that do not read");
        std::thread::yield_now();
    }
    // An FPDU that was cut is all that the adapter keeps of each, and the buffers that it lends to threads.
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "the victim grew by {grown} bytes");
    for attacked in &idle {
        assert_eq!(attacked.pair.qp().fault(), None);
    }
    // When it reads again, all is there.
    let mut attacked = idle.remove(0);
    let mut answered = 0;
    while answered < 32 * AREA {
        match attacked.peer.hear_message() {
            Heard::Message(Header::ReadResponse(_), payload, _) => answered += payload.len(),
            Heard::Message(Header::Send(_), ..) => {}
            other => panic!("{other:?}"),
        }
    }
    victim.untouched();
    victim.survives();
}

/// A peer that never reads, and breaks a rule: the Terminate cannot leave, and the connection is cut in time.
#[test]
fn a_peer_that_never_reads_and_breaks_a_rule() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.attacked();
    for msn in 1..=32 {
        let len = u32::try_from(AREA).unwrap();
        attacked.peer.send(&read(msn, victim.open.tag, victim.open.addr, len), &[]);
    }
    for id in 0..60 {
        attacked.post(id, SEND, victim.open.sge(0, u32::try_from(AREA).unwrap()));
    }
    attacked.peer.send(&send(99), &[]);
    assert!(attacked.pair.wait_closed(PATIENCE), "the connection is not cut");
    assert!(attacked.pair.qp().fault().is_some());
    victim.untouched();
    victim.survives();
}

// --- The peer's Terminate ---

/// Two Writes and two Sends that the peer has not acknowledged.
fn four_requests(victim: &Victim) -> (Attacked, Vec<Header>) {
    let (pair, cq) = victim.queue_pair(Completes::WhenAcknowledged, 0);
    let mut peer: Peer = victim.connected(&pair, Way::default());
    peer.open_as_ironwarp(Capabilities::ACKNOWLEDGE);
    let mut attacked = Attacked { peer, pair, cq };
    let far = Place { offset: 0x9000, ..elsewhere() };
    for (id, operation) in
        [Operation::Write(elsewhere()), SEND, Operation::Write(far), SEND].into_iter().enumerate()
    {
        attacked.post(id as u64, operation, victim.open.sge(0, 8));
    }
    let mut headers = Vec::new();
    for _ in 0..4 {
        let heard = attacked.peer.hear_message();
        let Heard::Message(header, ..) = heard else { panic!("{heard:?}") };
        headers.push(header);
    }
    (attacked, headers)
}

/// The first byte, code and header bits of a Terminate swapped, and only payload counted, as Linux siw does it.
fn siw(words: &mut [u8]) {
    words[0] = words[0].rotate_left(4);
    words[2] = words[2].reverse_bits();
    let length = u16::from_be_bytes([words[4], words[5]]);
    let header = if words[6] & 0x80 == 0 { 18 } else { 14 };
    words[4..6].copy_from_slice(&(length - header).to_be_bytes());
}

/// The peer refuses one of four requests: those before it were delivered, it fails, those behind it are flushed. In the
/// RFC's form, and in siw's.
#[test]
fn a_terminate_blames_the_right_request() {
    let refused = [
        (0, Cause::TaggedBuffer(TaggedBuffer::Bounds), Status::RemoteAccess),
        (1, Cause::UntaggedBuffer(UntaggedBuffer::TooLong), Status::RemoteInvalidRequest),
        (2, Cause::Protection(Protection::Access), Status::RemoteAccess),
        (3, Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer), Status::RemoteInvalidRequest),
    ];
    for (blamed, cause, status) in refused {
        for swapped in [false, true] {
            let victim = Victim::new();
            let (mut attacked, headers) = four_requests(&victim);
            let mut bytes = [0; ironwarp_wire::MAX_HEADER];
            let n = headers[blamed].emit(8, &mut bytes).unwrap();
            let terminate = Terminate::answer(cause, &bytes[..n]);
            let change = |segment: &mut [u8]| {
                if swapped {
                    siw(&mut segment[18..]);
                }
            };
            attacked.peer.send_changed(&Header::Terminate(terminate), &[], change);
            for (id, completion) in attacked.completions(4).iter().enumerate() {
                let due = match id {
                    _ if id < blamed => Status::Success,
                    _ if id == blamed => status,
                    _ => Status::Flushed,
                };
                assert_eq!(
                    (completion.wr_id, completion.status),
                    (id as u64, due),
                    "{blamed}: {completion:?}"
                );
                if due != Status::Success {
                    let said = completion.cause.as_deref();
                    assert!(matches!(said, Some(Fault::Terminated(said)) if said.cause == cause), "{said:?}");
                }
            }
            // A Terminate is not answered: the stream is closed.
            attacked.cut_off();
            attacked.closed();
            assert_eq!(*attacked.fault(0), Fault::Terminated(terminate));
            victim.untouched();
            victim.survives();
        }
    }
}

/// A Terminate that blames nothing that was sent, or nothing at all, ends the stream and blames no request wrongly.
#[test]
fn a_terminate_out_of_the_blue() {
    let victim = Victim::new();
    let mut attacked = victim.attacked();
    attacked.peer.send(&Header::Terminate(Terminate::LOCAL_CATASTROPHE), &[]);
    attacked.cut_off();
    attacked.closed();
    assert_eq!(*attacked.fault(RECEIVES), Fault::Terminated(Terminate::LOCAL_CATASTROPHE));
    let (mut attacked, _) = four_requests(&victim);
    let mut bytes = [0; ironwarp_wire::MAX_HEADER];
    let n = send(77).emit(8, &mut bytes).unwrap();
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::Sequence);
    attacked.peer.send(&Header::Terminate(Terminate::answer(cause, &bytes[..n])), &[]);
    for completion in attacked.completions(4) {
        assert_eq!(completion.status, Status::Flushed, "{completion:?}");
    }
    victim.untouched();
    victim.survives();
}

/// Messages behind the peer's Terminate are not looked at.
#[test]
fn messages_behind_a_terminate() {
    let victim = Victim::new();
    let mut attacked = victim.attacked();
    let mut bytes = attacked.peer.frame(&Header::Terminate(Terminate::LOCAL_CATASTROPHE), &[]);
    bytes.extend(attacked.peer.frame(&write(victim.open.tag, victim.open.addr), &[0xee; 64]));
    bytes.extend(attacked.peer.frame(&send(1), &[0xee; 64]));
    attacked.peer.raw(&bytes);
    attacked.cut_off();
    attacked.closed();
    attacked.fault(RECEIVES);
    victim.untouched();
    victim.survives();
}
