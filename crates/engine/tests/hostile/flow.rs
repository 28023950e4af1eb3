//! Connections that end prematurely, do not end, or stall; and Terminates from the peer.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{AREA, Attacked, RECEIVES, Victim};
use crate::common::{TIMEOUT, read, resident, segment, send, write};
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_wire::{
    Cause, Header, Protection, RemoteAddr, Tag, Tagged, TaggedBuffer, Terminate, UntaggedBuffer,
};
use std::time::{Duration, Instant};

const SEND: Operation = Operation::Send { invalidate: None };
const CLOSE: Duration = Duration::from_millis(300);

fn elsewhere() -> RemoteAddr {
    RemoteAddr { tag: Tag(0x7777_7700), offset: 0x1000 }
}

fn hasty() -> Config {
    Config::default().close(CLOSE)
}

// --- Ends ---

/// FIN at every position within an FPDU. It is a clean close only between two messages.
#[test]
fn a_close_in_the_middle_of_an_fpdu() {
    let victim = Victim::new();
    let whole = victim.connect_peer().peer.frame(&send(1), b"12345678");
    for len in 0..=whole.len() {
        let mut attacked = victim.connect_peer();
        attacked.peer.send_bytes(&whole[..len]);
        attacked.peer.finish();
        attacked.assert_cut_off();
        assert!(attacked.pair.wait_closed(TIMEOUT));
        let delivered = usize::from(len == whole.len());
        for completion in attacked.completions(delivered) {
            assert_eq!((completion.status, completion.byte_len), (Status::Success, 8));
        }
        let error = attacked.error(RECEIVES - delivered);
        let clean = len == 0 || len == whole.len();
        assert_eq!(*error, if clean { QpError::Closed } else { QpError::CutShort }, "after {len} bytes");
    }
    let inbox = victim.private.at;
    victim.assert_untouched_except(&[(inbox, 8)]);
    victim.assert_survives();
}

/// FIN between two segments of one message.
#[test]
fn a_close_in_the_middle_of_a_message() {
    let victim = Victim::new();
    let begun = Header::Write(Tagged { last: false, addr: elsewhere() });
    for header in [segment(1, 0, false), begun] {
        let mut attacked = victim.connect_peer();
        attacked.peer.send(&header, &[]);
        attacked.peer.finish();
        attacked.assert_cut_off();
        assert!(attacked.pair.wait_closed(TIMEOUT));
        assert_eq!(*attacked.error(RECEIVES), QpError::CutShort);
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// RST at many points: the queue pair notices, and all of its requests are completed.
#[test]
fn a_reset_at_any_point() {
    let victim = Victim::new();
    let (tag, addr) = (victim.open.tag, victim.open.addr);
    for len in (0..300).step_by(13) {
        let mut attacked = victim.connect_peer();
        let mut bytes = attacked.peer.frame(&write(tag, addr), &[1; 64]);
        bytes.extend(attacked.peer.frame(&send(1), &[2; 64]));
        bytes.extend(attacked.peer.frame(&read(1, tag, addr, 64), &[]));
        attacked.peer.send_bytes(&bytes[..len.min(bytes.len())]);
        attacked.post(9, Operation::Read(elsewhere()), victim.open.sge(0, 8));
        let Attacked { peer, pair, cq } = attacked;
        peer.reset();
        assert!(pair.wait_closed(TIMEOUT), "after {len} bytes");
        let (mut flushed, mut all) = (0, 0);
        while all < RECEIVES + 1 {
            assert!(cq.wait(Some(TIMEOUT)).unwrap(), "after {len} bytes");
            let count = |status| if status == Status::Flushed { 1 } else { 0 };
            all += cq.poll(8, |completion| flushed += count(completion.status)).unwrap();
        }
        assert!(flushed >= RECEIVES, "after {len} bytes: {flushed}");
        let error = pair.qp().error().cloned().expect("the stream has ended");
        assert!(matches!(*error, QpError::Lost(_)), "{error}");
    }
    let (open, inbox) = (victim.open.at, victim.private.at);
    victim.assert_untouched_except(&[(open, 64), (inbox, 64)]);
    victim.assert_survives();
}

/// RST while responses are being sent, many times: the two halves of the stream fail at the same time, in any
/// order.
#[test]
fn a_reset_under_load() {
    let victim = Victim::new();
    for round in 0..60 {
        let mut attacked = victim.connect_peer();
        let mut bytes = Vec::new();
        for msn in 1..=20 {
            let len = u32::try_from(AREA).unwrap();
            bytes.extend(attacked.peer.frame(&read(msn, victim.open.tag, victim.open.addr, len), &[]));
        }
        attacked.peer.send_bytes(&bytes);
        for id in 0..20 {
            attacked.post(id, Operation::Read(elsewhere()), victim.private.sge(4096, 64));
            attacked.post(100 + id, SEND, victim.open.sge(0, 4096));
        }
        if round % 2 == 0 {
            assert!(matches!(attacked.peer.receive_message(), Received::Message(..)));
        }
        let Attacked { peer, pair, .. } = attacked;
        peer.reset();
        assert!(pair.wait_closed(TIMEOUT), "round {round}");
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// The stream fails locally while responses arrive: nothing is placed for a Read that has failed, and nothing
/// panics.
#[test]
fn a_local_failure_under_load() {
    let victim = Victim::new();
    for round in 0..60_u32 {
        let mut attacked = victim.connect_peer();
        let len = u32::try_from(AREA).unwrap();
        attacked.post(1, Operation::Read(elsewhere()), victim.bindable.sge(0, len));
        let received = attacked.peer.receive_message();
        let Received::Message(Header::ReadRequest(request), ..) = received else { panic!("{received:?}") };
        // The response arrives in many small segments, while the program posts an invalid request.
        let mut bytes = Vec::new();
        for at in (0..len).step_by(64) {
            let addr = RemoteAddr { tag: request.sink.tag, offset: request.sink.offset + u64::from(at) };
            let answer = Header::ReadResponse(Tagged { last: at + 64 == len, addr });
            bytes.extend(attacked.peer.frame(&answer, &[0xab; 64]));
        }
        let Attacked { mut peer, pair, cq } = attacked;
        let mistake = std::thread::scope(|scope| {
            scope.spawn(|| {
                for piece in bytes.chunks(97 + round as usize) {
                    peer.send_bytes(piece);
                }
            });
            let attacked_sge = victim.foreign.sge(0, 8);
            let data = ironwarp_rnic::queue::Data::Memory(attacked_sge.into());
            pair.qp().post_send(vec![ironwarp_rnic::queue::WorkRequest::new(2, SEND, data)])
        });
        mistake.unwrap();
        peer.finish();
        peer.receive_until_end();
        assert!(pair.wait_closed(TIMEOUT), "round {round}");
        assert!(cq.wait(Some(TIMEOUT)).unwrap());
    }
    let sink = victim.bindable.at;
    victim.assert_untouched_except(&[(sink, AREA)]);
    victim.assert_survives();
}

// --- Does not end ---

/// The victim terminates the stream, and the peer neither reads the Terminate nor closes: the connection is
/// aborted after [`Config::close`].
#[test]
fn a_peer_that_ignores_the_terminate() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&send(7), &[]);
    let begin = Instant::now();
    assert!(attacked.pair.wait_closed(TIMEOUT));
    assert!(begin.elapsed() >= CLOSE / 2 && begin.elapsed() < TIMEOUT / 2, "{:?}", begin.elapsed());
    attacked.error(RECEIVES);
    victim.assert_untouched();
    victim.assert_survives();
}

/// The victim terminates the stream, and the peer keeps sending: the connection is aborted after
/// [`Config::close`].
#[test]
fn a_peer_that_keeps_sending_after_the_terminate() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&send(7), &[]);
    let begin = Instant::now();
    let garbage = vec![0xee; 1 << 16];
    while !attacked.pair.wait_closed(Duration::ZERO) {
        assert!(begin.elapsed() < TIMEOUT, "the peer keeps the connection alive");
        attacked.peer.send_bytes(&garbage);
    }
    attacked.error(RECEIVES);
    victim.assert_untouched();
    victim.assert_survives();
}

/// The program disconnects, and the peer never closes: the connection is aborted after [`Config::close`].
#[test]
fn a_peer_that_does_not_close() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.connect_peer();
    attacked.assert_works(1);
    attacked.pair.disconnect();
    assert_eq!(attacked.peer.receive_next(), Received::End);
    assert!(attacked.pair.wait_closed(TIMEOUT), "the peer keeps the connection alive");
    attacked.completions(RECEIVES - 1);
    victim.assert_survives();
}

/// The peer requests much data, does not read it, and closes its direction. When it reads again, the stream
/// ends at the next message boundary, and not only after the timeout.
#[test]
fn a_close_while_a_response_is_being_sent() {
    let victim = Victim::new();
    let big = ironwarp_testkit::mapping::Mapping::new(4096);
    let rights = ironwarp_rnic::memory::Rights::REMOTE_READ;
    let memory = ironwarp_rnic::memory::Memory::direct(big.addr(0), big.len() as u64, rights).unwrap();
    let tag = victim.engine.device().register(victim.domain, memory).unwrap();
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&read(1, tag, big.addr(0), u32::try_from(big.len()).unwrap()), &[]);
    assert!(matches!(attacked.peer.receive_message(), Received::Message(Header::ReadResponse(_), ..)));
    attacked.peer.finish();
    let begin = Instant::now();
    let (messages, end) = attacked.peer.receive_until_end();
    assert_eq!(end, Received::End);
    assert!(messages.len() < 16 << 20, "the whole response was sent");
    assert!(attacked.pair.wait_closed(TIMEOUT));
    assert!(begin.elapsed() < Duration::from_secs(4), "the connection was aborted: {:?}", begin.elapsed());
    attacked.error(RECEIVES);
    victim.assert_survives();
}

/// A responder answers an empty Read with endless payload. Linux siw may answer with a message of its own,
/// which is discarded; but no message is longer than 2 GiB, and counting its bytes must not overflow.
#[test]
fn an_endless_response_to_an_empty_read() {
    let victim = Victim::with(Config::default().crc(false));
    let (pair, cq) = victim.queue_pair(Completes::WhenAcknowledged, 0);
    let mut peer = victim.connected(&pair, StartupSettings { crc: false, ..StartupSettings::default() });
    peer.open();
    let mut attacked = Attacked { peer, pair, cq };
    attacked.post(7, SEND, victim.open.sge(0, 8));
    assert!(matches!(attacked.peer.receive_next(), Received::Message(Header::Send(_), ..)));
    let asked = attacked.peer.receive_next();
    let Received::Message(Header::ReadRequest(asked), ..) = asked else { panic!("{asked:?}") };
    assert_eq!(asked.len, 0);
    let payload = vec![0xee; 64_000];
    let limit = (1 << 31) / payload.len() as u64;
    for n in 0..=limit {
        let addr = RemoteAddr { offset: asked.sink.offset + n * payload.len() as u64, ..asked.sink };
        attacked.peer.send(&Header::ReadResponse(Tagged { last: false, addr }), &payload);
        assert!(n == limit || attacked.pair.qp().error().is_none(), "the stream ended before the limit");
    }
    let terminate = attacked.peer.receive_terminate();
    assert_eq!(terminate.cause, Cause::TaggedBuffer(TaggedBuffer::Bounds));
    let found = (limit + 1) * payload.len() as u64;
    assert_eq!(*attacked.error(1), QpError::Protocol(Protocol::ResponseLength { expected: 0, found }));
    attacked.closed();
    victim.assert_untouched();
    victim.assert_survives();
}

// --- Stalls ---

/// A peer that never reads: its Reads are answered as far as the kernel's buffers allow, and memory does not
/// grow.
#[test]
fn a_peer_that_never_reads() {
    let victim = Victim::new();
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut attacked = victim.connect_peer();
        for msn in 1..=32 {
            let len = u32::try_from(AREA).unwrap();
            attacked.peer.send(&read(msn, victim.open.tag, victim.open.addr, len), &[]);
        }
        // The victim's own messages stall, too.
        for id in 0..32 {
            attacked.post(id, SEND, victim.open.sge(0, u32::try_from(AREA).unwrap()));
        }
        idle.push(attacked);
    }
    let rounds = victim.rounds();
    let deadline = Instant::now() + TIMEOUT;
    while victim.rounds() < rounds + 20 {
        assert!(Instant::now() < deadline, "the neighbour is blocked by peers that do not read");
        std::thread::yield_now();
    }
    // The adapter keeps only a partly sent FPDU for each, and the buffers that it lends to threads.
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "the victim grew by {grown} bytes");
    for attacked in &idle {
        assert_eq!(attacked.pair.qp().error(), None);
    }
    // When the peer reads again, everything arrives.
    let mut attacked = idle.remove(0);
    let mut answered = 0;
    while answered < 32 * AREA {
        match attacked.peer.receive_message() {
            Received::Message(Header::ReadResponse(_), payload, _) => answered += payload.len(),
            Received::Message(Header::Send(_), ..) => {}
            other => panic!("{other:?}"),
        }
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// A peer that never reads violates the protocol: the Terminate cannot be sent, and the connection is aborted
/// in time.
#[test]
fn a_peer_that_never_reads_and_breaks_a_rule() {
    let victim = Victim::with(hasty());
    let mut attacked = victim.connect_peer();
    for msn in 1..=32 {
        let len = u32::try_from(AREA).unwrap();
        attacked.peer.send(&read(msn, victim.open.tag, victim.open.addr, len), &[]);
    }
    for id in 0..60 {
        attacked.post(id, SEND, victim.open.sge(0, u32::try_from(AREA).unwrap()));
    }
    attacked.peer.send(&send(99), &[]);
    assert!(attacked.pair.wait_closed(TIMEOUT), "the connection was not aborted");
    assert!(attacked.pair.qp().error().is_some());
    victim.assert_untouched();
    victim.assert_survives();
}

// --- The peer's Terminate ---

/// A stream with two Writes and two Sends that the peer has not acknowledged.
fn four_requests(victim: &Victim) -> (Attacked, Vec<Header>) {
    let mut attacked = victim.connect_acknowledging_peer(0);
    let far = RemoteAddr { offset: 0x9000, ..elsewhere() };
    for (id, operation) in
        [Operation::Write(elsewhere()), SEND, Operation::Write(far), SEND].into_iter().enumerate()
    {
        attacked.post(id as u64, operation, victim.open.sge(0, 8));
    }
    let mut headers = Vec::new();
    for _ in 0..4 {
        let received = attacked.peer.receive_message();
        let Received::Message(header, ..) = received else { panic!("{received:?}") };
        headers.push(header);
    }
    (attacked, headers)
}

/// Converts a Terminate to the form of Linux siw: the first byte and the header bits are swapped, and only
/// payload is counted.
fn siw(words: &mut [u8]) {
    words[0] = words[0].rotate_left(4);
    words[2] = words[2].reverse_bits();
    let length = u16::from_be_bytes([words[4], words[5]]);
    let header = if words[6] & 0x80 == 0 { 18 } else { 14 };
    words[4..6].copy_from_slice(&(length - header).to_be_bytes());
}

/// The peer refuses one of four requests: those before it succeed, it fails, and those after it are flushed.
/// With Terminates in the form of the RFC, and of siw.
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
            let terminate = Terminate::for_segment(cause, &bytes[..n]);
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
                    assert!(
                        matches!(said, Some(QpError::Terminated(said)) if said.cause == cause),
                        "{said:?}"
                    );
                }
            }
            // A Terminate is not answered: the stream is closed.
            attacked.assert_cut_off();
            attacked.closed();
            assert_eq!(*attacked.error(0), QpError::Terminated(terminate));
            victim.assert_untouched();
            victim.assert_survives();
        }
    }
}

/// A Terminate that names a message that was not sent, or none, ends the stream without blaming a request.
#[test]
fn a_terminate_that_names_no_request() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    attacked.peer.send(&Header::Terminate(Terminate::LOCAL_CATASTROPHE), &[]);
    attacked.assert_cut_off();
    attacked.closed();
    assert_eq!(*attacked.error(RECEIVES), QpError::Terminated(Terminate::LOCAL_CATASTROPHE));
    let (mut attacked, _) = four_requests(&victim);
    let mut bytes = [0; ironwarp_wire::MAX_HEADER];
    let n = send(77).emit(8, &mut bytes).unwrap();
    let cause = Cause::UntaggedBuffer(UntaggedBuffer::Sequence);
    attacked.peer.send(&Header::Terminate(Terminate::for_segment(cause, &bytes[..n])), &[]);
    for completion in attacked.completions(4) {
        assert_eq!(completion.status, Status::Flushed, "{completion:?}");
    }
    victim.assert_untouched();
    victim.assert_survives();
}

/// Messages after a Terminate are ignored.
#[test]
fn messages_after_a_terminate() {
    let victim = Victim::new();
    let mut attacked = victim.connect_peer();
    let mut bytes = attacked.peer.frame(&Header::Terminate(Terminate::LOCAL_CATASTROPHE), &[]);
    bytes.extend(attacked.peer.frame(&write(victim.open.tag, victim.open.addr), &[0xee; 64]));
    bytes.extend(attacked.peer.frame(&send(1), &[0xee; 64]));
    attacked.peer.send_bytes(&bytes);
    attacked.assert_cut_off();
    attacked.closed();
    attacked.error(RECEIVES);
    victim.assert_untouched();
    victim.assert_survives();
}
