//! Every verb, between two adapters over loopback, with IPv4 and IPv6 and both completion modes.

use ironwarp::WaitError;
use ironwarp::completion::{Arm, Opcode, Status};
use ironwarp::memory::{Access, Buffer};
use ironwarp::queue::{PostError, QpError, State, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, Completions, SOON, pair, pattern};
use std::time::Duration;

const LONG: usize = 3 << 20;

#[test]
fn sends_of_all_lengths_arrive_whole_and_in_order() {
    for case in CASES {
        let (client, server) = pair(case);
        let lengths = [0, 1, 7, 1448, 65_535, 65_536, LONG];
        let sink = server.region(&[0; LONG], Access::LOCAL_WRITE);
        for (id, len) in (0..).zip(lengths) {
            let bytes = pattern(7, len.max(1));
            let source = client.region(&bytes, Access::LOCAL_READ);
            server.qp.post_receive(id, &[sink.slice(..len).unwrap()]).unwrap();
            client.qp.post_send(WorkRequest::send(100 + id, &[source.slice(..len).unwrap()])).unwrap();
            let received = server.done(Opcode::Receive, id);
            assert_eq!(received.byte_len as usize, len, "{case:?}");
            assert_eq!(received.qp, server.qp.id());
            assert!(sink.to_vec().unwrap()[..len] == bytes[..len], "{len} bytes, {case:?}");
            client.done(Opcode::Send, 100 + id);
        }
    }
}

#[test]
fn writes_and_reads_of_all_lengths_move_the_right_bytes() {
    for case in CASES {
        let (client, server) = pair(case);
        for len in [1, 9, 4096, 100_001, LONG] {
            let bytes = pattern(3, len);
            let (source, back) =
                (client.region(&bytes, Access::LOCAL_READ), client.region(&vec![0; len], ALL));
            let target = server.region(&vec![0; len + 2], ALL);
            let there = target.remote_addr(1).unwrap();
            client.qp.post_send(WorkRequest::write(1, &[source.slice(..len).unwrap()], there)).unwrap();
            client.done(Opcode::Write, 1);
            client.qp.post_send(WorkRequest::read(2, &[back.slice(..len).unwrap()], there)).unwrap();
            assert_eq!(client.done(Opcode::Read, 2).byte_len as usize, len);
            assert!(back.to_vec().unwrap() == bytes, "{len} bytes came back, {case:?}");
            let there = target.to_vec().unwrap();
            assert!(there[1..=len] == bytes && there[0] == 0 && there[len + 1] == 0, "{len} bytes, {case:?}");
        }
    }
}

/// RFC 5040 §5.1, §5.2: empty Writes and Reads are not checked, and may use any tag.
#[test]
fn empty_messages_of_every_kind() {
    for case in CASES {
        let (client, server) = pair(case);
        let nowhere =
            ironwarp::memory::RemoteAddr { tag: ironwarp::memory::Tag(0xdead_be00), offset: 1 << 60 };
        for id in 1..=3 {
            server.qp.post_receive(id, &[]).unwrap();
        }
        client
            .qp
            .post_send_all(vec![
                WorkRequest::send(1, &[]).into(),
                WorkRequest::write(2, &[], nowhere),
                WorkRequest::read(3, &[], nowhere),
                WorkRequest::send_inline(4, b"").solicited().into(),
                WorkRequest::write_inline(5, b"", nowhere),
                WorkRequest::send(6, &[]).fenced().into(),
            ])
            .unwrap();
        let opcodes = [Opcode::Send, Opcode::Write, Opcode::Read, Opcode::Send, Opcode::Write, Opcode::Send];
        for (id, opcode) in (1..).zip(opcodes) {
            assert_eq!(client.done(opcode, id).byte_len, 0);
        }
        for (id, solicited) in [(1, false), (2, true), (3, false)] {
            assert_eq!(server.done(Opcode::Receive, id).solicited, solicited, "{case:?}");
        }
    }
}

/// Requirement M1: scatter/gather lists; requirement M3: one tag for separate buffers.
#[test]
fn lists_gather_and_scatter() {
    for case in CASES {
        let (client, server) = pair(case);
        let bytes = pattern(9, 30_000);
        let source = client.region(&bytes, Access::LOCAL_READ);
        let list = [(0, 10_000), (10_000, 1), (10_001, 0), (10_001, 19_999)];
        let list = list.map(|(at, len)| source.slice(at..at + len).unwrap());
        let buffers = [5, 8192, 100_000].map(|len| Buffer::new(len).unwrap());
        let target = server.domain.register_list(buffers, ALL).unwrap();
        assert_eq!(target.len(), 108_197);

        client.qp.post_send(WorkRequest::write(1, &list, target.remote_addr(3).unwrap())).unwrap();
        client.done(Opcode::Write, 1);
        let parts =
            [target.slice(50_000..50_000 + 1).unwrap(), target.slice(60_000..60_000 + 29_999).unwrap()];
        server.qp.post_receive(7, &parts).unwrap();
        client.qp.post_send(WorkRequest::send(2, &list)).unwrap();
        server.done(Opcode::Receive, 7);
        client.done(Opcode::Send, 2);

        let found = target.to_vec().unwrap();
        assert!(found[3..30_003] == bytes, "the Write, across three buffers");
        assert!(
            found[50_000] == bytes[0] && found[60_000..89_999] == bytes[1..],
            "the Send, across two parts"
        );
        let back = client.region(&[0; 30_000], Access::LOCAL_WRITE);
        let sinks = [back.slice(29_990..29_990 + 10).unwrap(), back.slice(..29_990).unwrap()];
        client.qp.post_send(WorkRequest::read(3, &sinks, target.remote_addr(3).unwrap())).unwrap();
        client.done(Opcode::Read, 3);
        assert!(
            back.to_vec().unwrap() == [&bytes[10..], &bytes[..10]].concat(),
            "the Read, across two parts"
        );
    }
}

/// Requirement X5: the caller may reuse the bytes at once, and they need no registration.
#[test]
fn inline_data_is_copied_when_the_request_is_made() {
    let (client, server) = pair(CASES[1]);
    let target = server.region(&[0; 64], ALL);
    let mut bytes = *b"first";
    let request = WorkRequest::write_inline(1, &bytes, target.remote_addr(8).unwrap());
    bytes = *b"other";
    client.qp.post_send(request).unwrap();
    client.done(Opcode::Write, 1);
    assert_eq!(&target.to_vec().unwrap()[8..13], b"first");
    assert_eq!(&bytes, b"other");
}

/// Requirement X5: data of any length goes to the queue with its request, which needs no other memory. Many requests are
/// outstanding at a time, so that each has memory of its own.
#[test]
fn inline_data_of_any_length_is_posted_with_its_request() {
    const AT_ONCE: usize = 64;
    for case in CASES {
        let (client, server) = pair(case);
        let (inbox, target) = (server.region(&[0; 6000], ALL), server.region(&[0; 300 * AT_ONCE], ALL));
        for len in [0, 1, 29, 30, 31, 64, 200, 255, 256, 257, 300] {
            target.fill(0).unwrap();
            let mut bytes = Vec::new();
            for number in 0..AT_ONCE {
                bytes = pattern(u8::try_from(number).unwrap(), len);
                let to = target.remote_addr(number * len).unwrap();
                client.qp.post_inline(WorkRequest::write(number as u64, &[], to), &bytes).unwrap();
            }
            (0..AT_ONCE as u64).for_each(|id| drop(client.done(Opcode::Write, id)));
            server.qp.post_receive(1, &[inbox.slice(..).unwrap()]).unwrap();
            client.qp.post_inline(WorkRequest::send(2, &[]).solicited(), &bytes).unwrap();
            client.done(Opcode::Send, 2);
            let received = server.done(Opcode::Receive, 1);
            assert_eq!((received.byte_len as usize, received.solicited), (len, true));
            assert_eq!(inbox.to_vec().unwrap()[..len], bytes);
            let written = target.to_vec().unwrap();
            for number in 0..AT_ONCE {
                let expected = pattern(u8::try_from(number).unwrap(), len);
                assert!(written[number * len..][..len] == expected, "{len} bytes of request {number}");
            }
        }
        // Long data works as well.
        let long = pattern(7, 6000);
        client.qp.post_inline(WorkRequest::write(3, &[], inbox.remote_addr(0).unwrap()), &long).unwrap();
        client.done(Opcode::Write, 3);
        server.qp.post_receive(4, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(5, &[])).unwrap();
        server.done(Opcode::Receive, 4);
        client.done(Opcode::Send, 5);
        assert!(inbox.to_vec().unwrap() == long);

        let read = WorkRequest::read(6, &[], inbox.remote_addr(0).unwrap());
        assert_eq!(client.qp.post_inline(read, b"a sink"), Err(PostError::InlineRead));
    }
}

/// A fenced Send is sent only after the earlier Read has completed: the peer may then change the memory.
#[test]
fn a_fence_waits_for_reads() {
    for case in CASES {
        let (client, server) = pair(case);
        let before = pattern(1, LONG);
        let source = server.region(&before, ALL);
        let sink = client.region(&vec![0; LONG], ALL);
        server.qp.post_receive(9, &[]).unwrap();
        client
            .qp
            .post_send_all(vec![
                WorkRequest::read(1, &[sink.slice(..LONG).unwrap()], source.remote_addr(0).unwrap()),
                WorkRequest::send(2, &[]).fenced().into(),
            ])
            .unwrap();
        server.done(Opcode::Receive, 9);
        source.fill(0xff).unwrap();
        client.done(Opcode::Read, 1);
        client.done(Opcode::Send, 2);
        assert!(sink.to_vec().unwrap() == before, "{case:?}");
    }
}

/// Requirement N8: only a solicited message or an error wakes a program that waits for solicited messages.
#[test]
fn only_a_solicited_send_raises_the_event() {
    let (client, server) = pair(CASES[0]);
    for id in 1..=3 {
        server.qp.post_receive(id, &[]).unwrap();
    }
    assert!(!server.cq.arm(Arm::Solicited), "no message yet");
    client.qp.post_send(WorkRequest::send(1, &[])).unwrap();
    server.done(Opcode::Receive, 1);
    assert!(!server.cq.take_event(), "not solicited");
    assert!(!server.cq.arm(Arm::Solicited));
    client.qp.post_send(WorkRequest::send(2, &[]).solicited()).unwrap();
    wait_readable(&server.cq);
    assert!(server.cq.take_event() && !server.cq.take_event(), "one event for one arming");
    assert!(server.done(Opcode::Receive, 2).solicited);

    assert!(!server.cq.arm(Arm::Solicited));
    client.qp.disconnect();
    wait_readable(&server.cq);
    server.failed(Opcode::Receive, 3, Status::Flushed);
}

/// Requirement N8, the race: `arm` reports completions that arrived before.
#[test]
fn arming_reports_earlier_completions() {
    let (client, server) = pair(CASES[0]);
    server.qp.post_receive(1, &[]).unwrap();
    server.qp.post_receive(2, &[]).unwrap();
    client.qp.post_send(WorkRequest::send(1, &[])).unwrap();
    client.qp.post_send(WorkRequest::send(2, &[])).unwrap();
    server.done(Opcode::Receive, 1);
    while !server.cq.arm(Arm::Next) {}
    server.done(Opcode::Receive, 2);
}

/// Failures are always reported.
#[test]
fn unsignaled_requests_are_silent_unless_they_fail() {
    let (client, server) = pair(CASES[1]);
    let target = server.region(&[0; 8], ALL);
    let there = target.remote_addr(0).unwrap();
    client.qp.post_send(WorkRequest::write_inline(1, b"a", there).unsignaled()).unwrap();
    client.qp.post_send(WorkRequest::write_inline(2, b"b", there)).unwrap();
    client.done(Opcode::Write, 2);
    let beyond = ironwarp::memory::RemoteAddr { offset: 8, ..there };
    client.qp.post_send(WorkRequest::write_inline(3, b"c", beyond).unsignaled()).unwrap();
    client.failed(Opcode::Write, 3, Status::RemoteAccess);
    assert_eq!(&target.to_vec().unwrap()[..2], b"b\0");
}

/// Requests that do not fit the queue are refused, and none of the list is posted.
#[test]
fn lists_that_do_not_fit_are_refused_as_a_whole() {
    let (client, server) = pair(CASES[0]);
    let region = client.region(&[0; 64], ALL);
    let list = [region.slice(..1).unwrap(); 17];
    let error = client.qp.post_send(WorkRequest::send(1, &list)).unwrap_err();
    assert_eq!(error, PostError::TooManySges { have: 17, limit: 16 });
    let flood = (0..129).map(|id| WorkRequest::send(id, &[]));
    assert_eq!(client.qp.post_send_all(flood).unwrap_err(), PostError::Full { capacity: 128 });
    for id in 0..128 {
        server.qp.post_receive(id, &[]).unwrap();
    }
    assert_eq!(server.qp.post_receive(128, &[]).unwrap_err(), PostError::Full { capacity: 128 });
    client.qp.post_send(WorkRequest::send(5, &[])).unwrap();
    client.done(Opcode::Send, 5);
    server.done(Opcode::Receive, 0);
}

/// Received messages are acknowledged, even if the receiver closes as soon as it has them.
#[test]
fn closing_acknowledges_what_was_received() {
    for _ in 0..100 {
        let (client, server) = pair(CASES[1]);
        server.qp.post_receive(1, &[]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                server.done(Opcode::Receive, 1);
                drop(server);
            });
            client.qp.post_send(WorkRequest::send(2, &[])).unwrap();
            client.done(Opcode::Send, 2);
        });
    }
}

/// Requests posted before a disconnect are sent; requests of the peer are flushed.
#[test]
fn disconnecting_and_dropping_lose_nothing() {
    for case in CASES {
        for dropped in [false, true] {
            let (client, server) = pair(case);
            let bytes = pattern(5, LONG);
            let sink = server.region(&vec![0; LONG], Access::LOCAL_WRITE);
            server.qp.post_receive(1, &[sink.slice(..LONG).unwrap()]).unwrap();
            server.qp.post_receive(2, &[]).unwrap();
            client.qp.post_send(WorkRequest::send_inline(1, &bytes)).unwrap();
            if dropped {
                drop(client);
            } else {
                client.qp.disconnect();
            }
            server.done(Opcode::Receive, 1);
            assert!(sink.to_vec().unwrap() == bytes, "{case:?}");
            let flushed = server.failed(Opcode::Receive, 2, Status::Flushed);
            assert_eq!(flushed.cause.as_deref(), Some(&QpError::Closed), "{case:?}, dropped {dropped}");
            assert!(server.qp.wait_closed(SOON));
            assert_eq!(server.qp.state(), State::Error);
        }
    }
}

/// Requirement P2: acknowledged Writes complete when the peer has placed them, or with the peer's error; the others
/// when they are sent.
#[test]
fn completions_follow_the_requested_mode() {
    let (client, server) = pair(CASES[1]);
    let target = server.region(&[0; 1 << 16], ALL);
    for seed in 0..20 {
        let bytes = pattern(seed, 1 << 16);
        client.qp.post_send(WorkRequest::write_inline(1, &bytes, target.remote_addr(0).unwrap())).unwrap();
        client.done(Opcode::Write, 1);
        assert!(target.to_vec().unwrap() == bytes, "placed before it completes");
    }
    // The peer has no receive: the Send is not delivered, so it does not complete.
    client.qp.post_send(WorkRequest::send(2, &[])).unwrap();
    assert_eq!(
        client.cq.wait(Duration::from_millis(50)).unwrap_err(),
        WaitError::TimedOut,
        "not delivered yet"
    );
    server.qp.post_receive(3, &[]).unwrap();
    server.done(Opcode::Receive, 3);
    client.done(Opcode::Send, 2);

    let (client, server) = pair(CASES[0]);
    client.qp.post_send(WorkRequest::send(4, &[])).unwrap();
    client.done(Opcode::Send, 4);
    server.qp.post_receive(5, &[]).unwrap();
    server.done(Opcode::Receive, 5);
}

fn wait_readable(fd: &impl std::os::fd::AsFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec::try_from(SOON).expect("a short time");
    let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).expect("poll");
    assert_eq!(ready, 1, "the descriptor becomes readable");
}
