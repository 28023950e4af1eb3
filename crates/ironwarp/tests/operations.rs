//! Atomic operations, immediate data, shared receive queues, XRC, fences, retries, and the states of a queue pair.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests, with small numbers")]

use ironwarp::completion::{Opcode, Status};
use ironwarp::connection::{AcceptOptions, BringUpOptions, ConnectOptions, Gid, Remote};
use ironwarp::memory::{Access, Buffer};
use ironwarp::queue::{
    AtomicOp, Completes, IllegalTransition, PostError, QpError, Retries, State, WorkRequest,
};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::native::{ALL, CASES, Case, Completions, End, SOON, connect, pair, pair_with, pattern};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

const ACKNOWLEDGED: Case = Case { at: "127.0.0.1:0", completes: Completes::WhenAcknowledged };

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

// --- Atomic operations ---

#[test]
fn atomic_operations_return_the_old_value_and_store_the_new() {
    for case in CASES {
        let (client, server) = pair(case);
        let (here, there) = (client.region(&[0; 64], ALL), server.region(&pattern(1, 64), ALL));
        let before = there.to_vec().unwrap();
        let result = |at| here.slice(at..at + 8).unwrap();
        let addr = there.remote_addr(16).unwrap();
        let was = word(&before, 16);
        let masked = AtomicOp::CompareSwap { swap: 0xab, swap_mask: 0xff, compare: 0, compare_mask: 0 };
        client
            .qp
            .post_send_all(vec![
                WorkRequest::fetch_add(1, result(0), addr, 5),
                WorkRequest::compare_swap(2, result(8), addr, was.wrapping_add(5), 77),
                WorkRequest::compare_swap(3, result(16), addr, 1, 99),
                WorkRequest::atomic(4, result(24), addr, masked),
            ])
            .unwrap();
        client.done(Opcode::FetchAdd, 1);
        for id in 2..=4 {
            client.done(Opcode::CompareSwap, id);
        }
        let results = here.to_vec().unwrap();
        let found: Vec<_> = [0, 8, 16, 24].map(|at| word(&results, at)).into();
        assert_eq!(found, [was, was.wrapping_add(5), 77, 77]);
        let mut expected = before;
        expected[16..24].copy_from_slice(&0xab_u64.to_ne_bytes());
        assert_eq!(there.to_vec().unwrap(), expected, "and no other byte");
    }
}

/// RFC 7306 §5.4, rule 2: atomic with respect to the whole adapter. Eight connections increment the same counter.
#[test]
fn atomic_operations_of_many_connections_lose_no_update() {
    const EACH: u64 = 500;
    let server = End::new(Config::default(), Completes::WhenSent);
    let counter = server.region(&[0; 8], ALL);
    let word_addr = counter.remote_addr(0).unwrap();
    let listener = server.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let counters: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let client = End::new(Config::default(), Completes::WhenSent);
                let result = client.region(&[0; 8], ALL);
                client.qp.connect(addr, &ironwarp::connection::ConnectOptions::new()).unwrap();
                let mut last = None;
                for id in 0..EACH {
                    client
                        .qp
                        .post_send(WorkRequest::fetch_add(id, result.slice(..8).unwrap(), word_addr, 1))
                        .unwrap();
                    client.done(Opcode::FetchAdd, id);
                    let now = word(&result.to_vec().unwrap(), 0);
                    assert!(last.is_none_or(|last| last < now), "{last:?}, then {now}");
                    last = Some(now);
                }
            })
        })
        .collect();
    let qps: Vec<_> = (0..8)
        .map(|_| {
            let qp = server.domain.queue_pair(&server.cq).create().unwrap();
            let incoming = listener.accept(SOON).expect("a client connects");
            incoming.accept(&qp, &ironwarp::connection::AcceptOptions::new()).unwrap();
            qp
        })
        .collect();
    counters.into_iter().for_each(|counter| counter.join().unwrap());
    drop(qps);
    assert_eq!(word(&counter.to_vec().unwrap(), 0), 8 * EACH);
}

/// Reads are executed in order, whichever of them are long enough to be sent without a copy: with and without CRCs, over
/// TCP and in shared memory.
#[test]
fn a_read_never_sees_an_older_value_than_the_read_before() {
    const LONG: usize = 40_000;
    for config in routes() {
        let (client, server) = pair_with(ACKNOWLEDGED, config.clone(), config.clone());
        let (here, there) = (client.region(&[0; LONG + 8], ALL), server.region(&[0; LONG], ALL));
        let at = there.remote_addr(0).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let numbers = (1_u64..).take_while(|_| !done.load(Ordering::Relaxed));
                numbers.for_each(|number| there.write(0, &number.to_ne_bytes()).unwrap());
            });
            for id in 0..1000 {
                let list = vec![
                    WorkRequest::read(id, &[here.slice(..LONG).unwrap()], at).unsignaled(),
                    WorkRequest::read(id, &[here.slice(LONG..).unwrap()], at),
                ];
                client.qp.post_send_all(list).unwrap();
                client.done(Opcode::Read, id);
                let bytes = here.to_vec().unwrap();
                let (first, second) = (word(&bytes, 0), word(&bytes, LONG));
                if first > second {
                    done.store(true, Ordering::Relaxed);
                    panic!("{second} after {first}, {config:?}");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

/// RFC 7306 §5.4: an atomic operation is executed after the Reads before it, however long they are.
#[test]
fn a_read_sees_the_value_before_the_atomic_operation_after_it() {
    const LONG: usize = 40_000;
    for config in routes() {
        let (client, server) = pair_with(ACKNOWLEDGED, config.clone(), config.clone());
        let (here, there) = (client.region(&[0; LONG + 8], ALL), server.region(&[0; LONG], ALL));
        let at = there.remote_addr(0).unwrap();
        for id in 0..200 {
            let list = vec![
                WorkRequest::read(id, &[here.slice(..LONG).unwrap()], at).unsignaled(),
                WorkRequest::fetch_add(id, here.slice(LONG..).unwrap(), at, 1),
            ];
            client.qp.post_send_all(list).unwrap();
            client.done(Opcode::FetchAdd, id);
            let bytes = here.to_vec().unwrap();
            assert_eq!((word(&bytes, 0), word(&bytes, LONG)), (id, id), "{config:?}");
        }
    }
}

/// All combinations of CRCs and shared memory.
fn routes() -> impl Iterator<Item = Config> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(shm, crc)| Config::default().shm(shm).crc(crc))
}

#[test]
fn an_atomic_operation_without_the_right_is_refused() {
    let (client, server) = pair(ACKNOWLEDGED);
    let here = client.region(&[0; 8], ALL);
    let there = server.region(&[7; 8], Access::all() - Access::REMOTE_ATOMIC);
    let request = WorkRequest::fetch_add(1, here.slice(..8).unwrap(), there.remote_addr(0).unwrap(), 1);
    client.qp.post_send(request).unwrap();
    client.failed(Opcode::FetchAdd, 1, Status::RemoteAccess);
    assert_eq!(there.to_vec().unwrap(), [7; 8]);
}

#[test]
fn an_atomic_result_has_eight_bytes() {
    let (client, server) = pair(ACKNOWLEDGED);
    let (here, there) = (client.region(&[0; 64], ALL), server.region(&[0; 64], ALL));
    for len in [0, 7, 9] {
        let request = WorkRequest::fetch_add(1, here.slice(..len).unwrap(), there.remote_addr(0).unwrap(), 1);
        assert_eq!(client.qp.post_send(request), Err(PostError::AtomicData { len: len as u64 }));
    }
}

// --- Immediate data ---

#[test]
fn a_write_with_immediate_reports_its_own_length() {
    for case in CASES {
        let (client, server) = pair(case);
        let (here, there) = (client.region(&pattern(3, 9000), ALL), server.region(&[0; 9000], ALL));
        for (id, len) in [0, 1, 4096, 9000].into_iter().enumerate() {
            let id = id as u64;
            server.qp.post_receive(100 + id, &[]).unwrap();
            let (from, to) = (here.slice(..len).unwrap(), there.remote_addr(0).unwrap());
            let request = WorkRequest::write_immediate(id, &[from], to, 0xfeed_0000 + len as u32);
            client.qp.post_send(request.solicited()).unwrap();
            client.done(Opcode::Write, id);
            let received = server.done(Opcode::ReceiveWrite, 100 + id);
            assert_eq!(
                (received.byte_len as usize, received.immediate),
                (len, Some(0xfeed_0000 + len as u32))
            );
            assert!(received.solicited);
            assert_eq!(there.to_vec().unwrap()[..len], pattern(3, 9000)[..len]);
        }
    }
}

/// Immediate Data belongs to the Write directly before it (RFC 7306 §6), and to no other one.
#[test]
fn an_empty_write_with_immediate_does_not_report_an_earlier_write() {
    for case in CASES {
        let (client, server) = pair(case);
        let there = server.region(&[0; 64], ALL);
        let to = there.remote_addr(0).unwrap();
        server.qp.post_receive(1, &[]).unwrap();
        client.qp.post_send(WorkRequest::write_inline(2, &[7; 64], to)).unwrap();
        client.qp.post_send(WorkRequest::write_immediate(3, &[], to, 9)).unwrap();
        let received = server.done(Opcode::ReceiveWrite, 1);
        assert_eq!((received.byte_len, received.immediate), (0, Some(9)), "{case:?}");
        assert_eq!(there.to_vec().unwrap(), [7; 64]);
        client.done(Opcode::Write, 2);
        client.done(Opcode::Write, 3);
    }
}

#[test]
fn a_send_with_immediate_carries_both() {
    for case in CASES {
        let (client, server) = pair(case);
        let sent = pattern(9, 200_000);
        let (here, there) = (client.region(&sent, ALL), server.region(&[0; 200_000], ALL));
        for (id, len) in [0, 1, 7, 200_000].into_iter().enumerate() {
            let id = id as u64;
            server.qp.post_receive(100 + id, &[there.slice(..200_000).unwrap()]).unwrap();
            let request = WorkRequest::send(id, &[here.slice(..len).unwrap()]).immediate(7 + len as u32);
            client.qp.post_send(request).unwrap();
            client.done(Opcode::Send, id);
            let received = server.done(Opcode::Receive, 100 + id);
            assert_eq!((received.byte_len as usize, received.immediate), (len, Some(7 + len as u32)));
            assert_eq!(there.to_vec().unwrap()[..len], sent[..len]);
        }
    }
}

/// Requirement X8: all four kinds.
#[test]
fn a_send_with_immediate_may_solicit_and_invalidate() {
    for (solicits, invalidates) in [(false, false), (true, false), (false, true), (true, true)] {
        let (client, server) = pair(ACKNOWLEDGED);
        let region = server.domain.allocate_region(vec![Buffer::new(64).unwrap()]).unwrap();
        server.qp.post_send(WorkRequest::register(1, &region, ALL)).unwrap();
        server.done(Opcode::Register, 1);
        let tag = region.tag();
        server.qp.post_receive(2, &[]).unwrap();
        let mut request = WorkRequest::send(3, &[]).immediate(9);
        if solicits {
            request = request.solicited();
        }
        if invalidates {
            request = request.invalidate(tag);
        }
        client.qp.post_send(request).unwrap();
        client.done(Opcode::Send, 3);
        let received = server.done(Opcode::Receive, 2);
        let invalidated = invalidates.then_some(tag);
        assert_eq!(
            (received.immediate, received.solicited, received.invalidated),
            (Some(9), solicits, invalidated)
        );
        let write = WorkRequest::write_inline(4, &[7; 8], region.remote_addr(0).unwrap());
        client.qp.post_send(write).unwrap();
        if invalidates {
            client.failed(Opcode::Write, 4, Status::RemoteAccess);
        } else {
            client.done(Opcode::Write, 4);
        }
    }
}

#[test]
fn a_send_with_immediate_to_a_foreign_peer_is_a_local_error() {
    refuses_immediate(&Config::default().private(false));
}

/// The setting disables Send with Immediate, and nothing else, whichever end has it.
#[test]
fn a_send_with_immediate_that_a_setting_disables_is_a_local_error() {
    let without = Config::default().send_immediate(false);
    refuses_immediate(&without);
    for (ours, theirs) in [(Config::default(), without.clone()), (without, Config::default())] {
        let (client, server) = pair_with(ACKNOWLEDGED, ours, theirs);
        let there = server.region(&[0; 100], ALL);
        let to = there.remote_addr(0).unwrap();
        server.qp.post_receive(1, &[]).unwrap();
        server.qp.post_receive(2, &[there.slice(50..100).unwrap()]).unwrap();
        let here = client.region(&pattern(6, 50), ALL);
        client.qp.post_send(WorkRequest::write_immediate(3, &[here.slice(..50).unwrap()], to, 5)).unwrap();
        client.qp.post_send(WorkRequest::send_inline(4, &pattern(7, 50))).unwrap();
        client.done(Opcode::Write, 3);
        assert_eq!(server.done(Opcode::ReceiveWrite, 1).immediate, Some(5));
        client.done(Opcode::Send, 4);
        server.done(Opcode::Receive, 2);
        assert_eq!(there.to_vec().unwrap(), [pattern(6, 50), pattern(7, 50)].concat());
    }
}

/// Checks that a Send with Immediate is a local error if one end has this configuration, and the other the default.
fn refuses_immediate(without: &Config) {
    for (ours, theirs) in [(Config::default(), without.clone()), (without.clone(), Config::default())] {
        let (client, server) = pair_with(ACKNOWLEDGED, ours, theirs);
        server.qp.post_receive(1, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(2, &[]).immediate(9)).unwrap();
        let failed = client.failed(Opcode::Send, 2, Status::LocalQpOperation);
        assert_eq!(*failed.cause.unwrap(), QpError::NoImmediate);
        server.failed(Opcode::Receive, 1, Status::Flushed);
    }
}

#[test]
fn a_write_with_immediate_reaches_a_foreign_peer() {
    let plain = Config::default().private(false);
    let (client, server) = pair_with(ACKNOWLEDGED, plain.clone(), plain);
    let (here, there) = (client.region(&pattern(4, 100), ALL), server.region(&[0; 100], ALL));
    server.qp.post_receive(1, &[]).unwrap();
    let to = there.remote_addr(0).unwrap();
    client.qp.post_send(WorkRequest::write_immediate(2, &[here.slice(..100).unwrap()], to, 5)).unwrap();
    client.done(Opcode::Write, 2);
    let received = server.done(Opcode::ReceiveWrite, 1);
    assert_eq!((received.byte_len, received.immediate), (100, Some(5)));
    assert_eq!(there.to_vec().unwrap(), pattern(4, 100));
}

// --- Read V2 ---

/// Requirement X4: a Read needs no remote access to its sink, so it is one request. Standard iWARP has to grant and
/// revoke access, which takes three.
#[test]
fn a_read_needs_no_registration_of_its_sink() {
    let (client, server) = pair(ACKNOWLEDGED);
    let there = server.region(&pattern(5, 1000), ALL);
    let from = there.remote_addr(0).unwrap();

    let sink = client.region(&[0; 1000], Access::LOCAL_WRITE);
    client.qp.post_send(WorkRequest::read(1, &[sink.slice(..1000).unwrap()], from)).unwrap();
    client.done(Opcode::Read, 1);
    assert_eq!(sink.to_vec().unwrap(), pattern(5, 1000));

    let granted = client.domain.allocate_region(vec![Buffer::new(1000).unwrap()]).unwrap();
    let register = WorkRequest::register(2, &granted, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    client.qp.post_send(register).unwrap();
    let read = WorkRequest::read(3, &[granted.slice(..1000).unwrap()], from);
    // Not before the response arrives, or it would be refused.
    let invalidate = WorkRequest::invalidate_region(4, &granted).fenced();
    client.qp.post_send_all(vec![read, invalidate]).unwrap();
    client.done(Opcode::Register, 2);
    client.done(Opcode::Read, 3);
    client.done(Opcode::Invalidate, 4);
    assert_eq!(granted.to_vec().unwrap(), pattern(5, 1000));
}

// --- Shared receive queues ---

#[test]
fn queue_pairs_share_receives() {
    let server = End::new(Config::default(), Completes::WhenSent);
    let srq = server.domain.shared_receive_queue(8);
    let buffers = server.region(&[0; 800], ALL);
    let (one, other) = (
        End::new(Config::default(), Completes::WhenAcknowledged),
        End::new(Config::default(), Completes::WhenAcknowledged),
    );
    let shared: Vec<_> = [&one, &other]
        .map(|client| {
            let qp = server.domain.queue_pair(&server.cq).srq(&srq).create().unwrap();
            assert_eq!(qp.post_receive(1, &[]), Err(PostError::NoReceiveQueue));
            let end = End {
                qp,
                cq: server.cq.clone(),
                domain: server.domain.clone(),
                adapter: server.adapter.clone(),
            };
            connect(client, &end, "127.0.0.1:0".parse().unwrap());
            end
        })
        .into();
    // Both messages wait for a receive, and each gets one.
    one.qp.post_send(WorkRequest::send_inline(1, &pattern(1, 100))).unwrap();
    other.qp.post_send(WorkRequest::send_inline(2, &pattern(2, 100))).unwrap();
    for id in 0..2 {
        srq.post_receive(id, &[buffers.slice(100 * id as usize..100 * id as usize + 100).unwrap()]).unwrap();
    }
    one.done(Opcode::Send, 1);
    other.done(Opcode::Send, 2);
    for _ in 0..2 {
        let received = server.next();
        assert_eq!((received.status, received.byte_len), (Status::Success, 100));
        let seed = 1 + shared.iter().position(|end| end.qp.id() == received.qp).unwrap() as u8;
        let at = 100 * received.wr_id as usize;
        assert_eq!(buffers.to_vec().unwrap()[at..at + 100], pattern(seed, 100));
    }
    assert_eq!(srq.query().posted, 0);
}

#[test]
fn an_xrc_message_uses_a_receive_of_the_addressed_queue() {
    let (client, server) = (
        End::new(Config::default(), Completes::WhenAcknowledged),
        End::new(Config::default(), Completes::WhenAcknowledged),
    );
    let xrc = server.adapter.xrc_domain();
    let queues: Vec<_> = (0..2)
        .map(|_| {
            let cq = server.adapter.completion_queue(8).unwrap();
            (server.domain.xrc_receive_queue(&xrc, &cq, 8), cq)
        })
        .collect();
    let qp = server.domain.queue_pair(&server.cq).xrc_target(&xrc).create().unwrap();
    let target =
        End { qp, cq: server.cq.clone(), domain: server.domain.clone(), adapter: server.adapter.clone() };
    connect(&client, &target, "127.0.0.1:0".parse().unwrap());
    let buffers = server.region(&[0; 200], ALL);
    for (i, (srq, _)) in queues.iter().enumerate() {
        srq.post_receive(i as u64, &[buffers.slice(100 * i..100 * i + 100).unwrap()]).unwrap();
    }
    let message = |id: u64, number| WorkRequest::send_inline(id, &pattern(id as u8, 100)).to_srq(number);
    client.qp.post_send(message(1, queues[1].0.id())).unwrap();
    client.qp.post_send(message(0, queues[0].0.id())).unwrap();
    for id in [1, 0] {
        client.done(Opcode::Send, id);
        let received = queues[id as usize].1.wait(SOON).unwrap();
        assert_eq!((received.wr_id, received.byte_len, received.qp), (id, 100, target.qp.id()));
        let at = 100 * id as usize;
        assert_eq!(buffers.to_vec().unwrap()[at..at + 100], pattern(id as u8, 100));
    }
    // The connection can also access memory.
    let there = server.region(&[0; 8], ALL);
    client.qp.post_send(WorkRequest::write_inline(5, &[9; 8], there.remote_addr(0).unwrap())).unwrap();
    client.done(Opcode::Write, 5);
    assert_eq!(there.to_vec().unwrap(), [9; 8]);
    // A queue that does not exist.
    client.qp.post_send(message(7, 0x00ff_ffff)).unwrap();
    client.failed(Opcode::Send, 7, Status::RemoteInvalidRequest);
}

// --- Rights of a queue pair ---

#[test]
fn a_queue_pair_restricts_remote_operations() {
    type Post = fn(&End, ironwarp::memory::Sge, ironwarp::memory::RemoteAddr) -> Opcode;
    let requests: [(&str, Access, Post); 3] = [
        ("write", Access::REMOTE_WRITE, |end, sge, addr| {
            end.qp.post_send(WorkRequest::write(1, &[sge], addr)).unwrap();
            Opcode::Write
        }),
        ("read", Access::REMOTE_READ, |end, sge, addr| {
            end.qp.post_send(WorkRequest::read(1, &[sge], addr)).unwrap();
            Opcode::Read
        }),
        ("atomic", Access::REMOTE_ATOMIC, |end, sge, addr| {
            end.qp.post_send(WorkRequest::fetch_add(1, sge, addr, 1)).unwrap();
            Opcode::FetchAdd
        }),
    ];
    for (name, right, post) in requests {
        for allowed in [true, false] {
            let (client, server) = pair(ACKNOWLEDGED);
            server.qp.set_access(if allowed { right } else { ALL - right });
            let (here, there) = (client.region(&[1; 8], ALL), server.region(&[2; 8], ALL));
            let opcode = post(&client, here.slice(..8).unwrap(), there.remote_addr(0).unwrap());
            if allowed {
                client.done(opcode, 1);
            } else {
                let failed = client.failed(opcode, 1, Status::RemoteAccess);
                assert_eq!(there.to_vec().unwrap(), [2; 8], "{name}: {}", failed.cause.unwrap());
            }
        }
    }
}

// --- States ---

#[test]
fn a_drained_queue_starts_no_request() {
    let (client, server) = pair(ACKNOWLEDGED);
    let there = server.region(&[0; 8], ALL);
    client.qp.set_state(State::Drained).unwrap();
    client.qp.post_send(WorkRequest::write_inline(1, &[1; 8], there.remote_addr(0).unwrap())).unwrap();
    // The other direction is not affected.
    server.qp.post_send(WorkRequest::send_inline(2, b"still here")).unwrap();
    let received = client.region(&[0; 10], ALL);
    client.qp.post_receive(3, &[received.slice(..10).unwrap()]).unwrap();
    client.done(Opcode::Receive, 3);
    server.done(Opcode::Send, 2);
    assert_eq!(there.to_vec().unwrap(), [0; 8]);
    client.qp.set_state(State::ReadyToSend).unwrap();
    client.done(Opcode::Write, 1);
    assert_eq!(there.to_vec().unwrap(), [1; 8]);
}

#[test]
fn the_error_state_flushes_everything_in_order() {
    let (client, server) = pair(ACKNOWLEDGED);
    for id in 0..3 {
        client.qp.post_receive(10 + id, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(id, &[])).unwrap(); // the peer has no receive
    }
    client.qp.set_state(State::Error).unwrap();
    let done: Vec<_> = (0..6).map(|_| client.next()).collect();
    assert!(done.iter().all(|done| done.status == Status::Flushed), "{done:?}");
    let ids =
        |opcode| done.iter().filter(|done| done.opcode == opcode).map(|done| done.wr_id).collect::<Vec<_>>();
    assert_eq!((ids(Opcode::Send), ids(Opcode::Receive)), (vec![0, 1, 2], vec![10, 11, 12]));
    // Requests posted now are flushed as well.
    client.qp.post_send(WorkRequest::send(20, &[])).unwrap();
    client.qp.post_receive(21, &[]).unwrap();
    client.failed(Opcode::Send, 20, Status::Flushed);
    client.failed(Opcode::Receive, 21, Status::Flushed);
    drop(server);
}

#[test]
fn a_reset_queue_pair_can_connect_again() {
    let (client, server) = pair(ACKNOWLEDGED);
    let id = client.qp.id();
    let there = server.region(&[0; 8], ALL);
    client.qp.post_receive(1, &[]).unwrap();
    client.qp.post_send(WorkRequest::write_inline(2, &[1; 8], there.remote_addr(0).unwrap())).unwrap();
    client.cq.wait(SOON).unwrap();
    client.qp.post_send(WorkRequest::send(3, &[])).unwrap(); // waits for a receive
    client.qp.set_state(State::Reset).unwrap();
    assert!(client.cq.poll_one().unwrap().is_none(), "no completion is left");
    assert_eq!((client.qp.id(), client.qp.state()), (id, State::Init));
    // Connect again, to another peer.
    let other = End::new(Config::default(), Completes::WhenAcknowledged);
    connect(&client, &other, "127.0.0.1:0".parse().unwrap());
    let there = other.region(&[0; 8], ALL);
    client.qp.post_send(WorkRequest::write_inline(4, &[4; 8], there.remote_addr(0).unwrap())).unwrap();
    client.done(Opcode::Write, 4);
    assert_eq!(there.to_vec().unwrap(), [4; 8]);
}

#[test]
fn illegal_transitions_change_nothing() {
    let (client, server) = pair(ACKNOWLEDGED);
    for to in [State::Init, State::ReadyToReceive, State::SendError] {
        let from = State::ReadyToSend;
        assert_eq!(client.qp.set_state(to), Err(IllegalTransition { from, to }));
    }
    let there = server.region(&[0; 8], ALL);
    client.qp.post_send(WorkRequest::write_inline(1, &[1; 8], there.remote_addr(0).unwrap())).unwrap();
    client.done(Opcode::Write, 1);
}

// --- The right status on the right request ---

/// Between Ironwarp ends the status is exact: of several Writes to the same address, the refused one fails.
#[test]
fn the_refused_write_is_the_one_that_fails() {
    let (client, server) = pair(ACKNOWLEDGED);
    let (there, small) = (server.region(&[0; 64], ALL), server.region(&[0; 8], ALL));
    let good = there.remote_addr(0).unwrap();
    let bad = ironwarp::memory::RemoteAddr { offset: 60, ..good };
    let write = |id: u64, addr| WorkRequest::write_inline(id, &[id as u8; 8], addr);
    client.qp.post_send_all(vec![write(1, good), write(2, bad), write(3, bad), write(4, good)]).unwrap();
    client.done(Opcode::Write, 1);
    client.failed(Opcode::Write, 2, Status::RemoteAccess);
    client.failed(Opcode::Write, 3, Status::Flushed);
    client.failed(Opcode::Write, 4, Status::Flushed);
    assert_eq!(there.to_vec().unwrap()[..8], [1; 8]);
    assert_eq!(small.to_vec().unwrap(), [0; 8]);
}

#[test]
fn a_fence_waits_for_atomic_operations() {
    let (client, server) = pair(ACKNOWLEDGED);
    let (here, there) = (client.region(&[0; 8], ALL), server.region(&7_u64.to_ne_bytes(), ALL));
    let (result, addr) = (here.slice(..8).unwrap(), there.remote_addr(0).unwrap());
    let echo = server.region(&[0; 8], ALL);
    // The Send carries the result of the atomic operation, which requires a fence.
    server.qp.post_receive(9, &[echo.slice(..8).unwrap()]).unwrap();
    client
        .qp
        .post_send_all(vec![
            WorkRequest::fetch_add(1, result, addr, 1),
            WorkRequest::send(2, &[result]).fenced().into(),
        ])
        .unwrap();
    client.done(Opcode::FetchAdd, 1);
    client.done(Opcode::Send, 2);
    server.done(Opcode::Receive, 9);
    assert_eq!(word(&echo.to_vec().unwrap(), 0), 7);
}

// --- Retries ---

/// A sender with a limited number of retries gives up if the peer posts no receive: the Send fails, earlier requests
/// succeed, and later ones are flushed.
#[test]
fn rnr_retries_are_limited() {
    let (client, server) = (
        End::new(Config::default(), Completes::WhenAcknowledged),
        End::new(Config::default(), Completes::WhenAcknowledged),
    );
    client.qp.set_retries(Retries::default().rnr_retry(2));
    server.qp.set_retries(Retries::default().rnr_timer(20)); // 10.24 ms
    connect(&client, &server, "127.0.0.1:0".parse().unwrap());
    let there = server.region(&[0; 8], ALL);
    let addr = there.remote_addr(0).unwrap();
    let began = std::time::Instant::now();
    client
        .qp
        .post_send_all(vec![
            WorkRequest::write_inline(1, &[1; 8], addr),
            WorkRequest::send(2, &[]).into(),
            WorkRequest::write_inline(3, &[3; 8], addr),
        ])
        .unwrap();
    client.done(Opcode::Write, 1);
    let failed = client.failed(Opcode::Send, 2, Status::RnrRetryExceeded);
    assert!(began.elapsed() >= 2 * std::time::Duration::from_micros(10_240));
    assert_eq!(*failed.cause.unwrap(), QpError::NotReady);
    client.failed(Opcode::Write, 3, Status::Flushed);
    assert_eq!(there.to_vec().unwrap(), [1; 8]);
}

#[test]
fn a_receive_posted_during_rnr_retries_succeeds() {
    let (client, server) = (
        End::new(Config::default(), Completes::WhenAcknowledged),
        End::new(Config::default(), Completes::WhenAcknowledged),
    );
    client.qp.set_retries(Retries::default().rnr_retry(6));
    connect(&client, &server, "127.0.0.1:0".parse().unwrap()); // 6 times 0.66 s
    client.qp.post_send(WorkRequest::send(1, &[])).unwrap();
    assert_eq!(
        client.cq.wait(std::time::Duration::from_millis(50)).unwrap_err(),
        ironwarp::WaitError::TimedOut
    );
    server.qp.post_receive(2, &[]).unwrap();
    client.done(Opcode::Send, 1);
    server.done(Opcode::Receive, 2);
}

/// Requirement N10: a query also returns the completion handlers.
#[test]
fn a_query_returns_completion_handlers() {
    let (client, _server) = pair(ACKNOWLEDGED);
    let handler = client.adapter.completion_handler().unwrap();
    client.cq.set_handler(&handler);
    assert_eq!(client.qp.query().handlers, [Some(handler.id()); 2]);
    client.cq.set_handler(None);
    assert_eq!(client.qp.query().handlers, [None; 2]);
}

/// Requirement N10: a query returns the local and the remote port of a connection, with either address family, over TCP and
/// in shared memory.
#[test]
fn a_query_returns_the_ports_of_a_connection() {
    for (case, shm) in CASES.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let config = Config::default().shm(shm);
        let (client, server) = (End::new(config.clone(), case.completes), End::new(config, case.completes));
        let unconnected = client.qp.query();
        assert_eq!((unconnected.local, unconnected.remote), (None, None));

        let listener = server.adapter.listen(case.at.parse().unwrap()).unwrap();
        client.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
        let incoming = listener.accept(SOON).unwrap();
        let (at, from) = (listener.local_addr().unwrap(), incoming.peer_addr());
        incoming.accept(&server.qp, &AcceptOptions::new()).unwrap();
        client.qp.wait_connected(SOON).unwrap();
        let check = || {
            let (near, far) = (client.qp.query(), server.qp.query());
            assert_eq!((near.local, near.remote), (Some(from), Some(at)));
            assert_eq!((far.local, far.remote), (Some(at), Some(from)));
        };
        check();
        server.qp.post_receive(1, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(2, &[])).unwrap();
        server.done(Opcode::Receive, 1);
        check();
        client.qp.disconnect();
        assert!(client.qp.wait_closed(SOON) && server.qp.wait_closed(SOON));
        check();
        client.qp.set_state(State::Reset).unwrap();
        assert_eq!((client.qp.query().local, client.qp.query().remote), (None, None));
    }
}

/// Requirement N10, for queue pairs that are connected manually.
#[test]
fn a_query_returns_the_ports_of_a_manual_connection() {
    for at in ["127.0.0.1", "::1"] {
        let gid: Gid = at.parse().unwrap();
        let ends = [(); 2].map(|()| {
            let adapter = Adapter::open(Config::default()).unwrap();
            let cq = adapter.completion_queue(16).unwrap();
            let domain = adapter.protection_domain();
            let qp = domain.queue_pair(&cq).manual().create().unwrap();
            End { qp, cq, domain, adapter }
        });
        for (here, there) in [(0, 1), (1, 0)] {
            assert_eq!(ends[here].qp.query().remote, None);
            let remote = Remote { gid, qpn: ends[there].qp.id() };
            ends[here].qp.bring_up(remote, &BringUpOptions::new().gid(gid)).unwrap();
        }
        ends.iter().for_each(|end| drop(end.qp.wait_connected(SOON).unwrap()));
        let [one, other] = ends.each_ref().map(|end| end.qp.query());
        assert_eq!((one.local, one.remote), (other.remote, other.local));
        let (local, remote) = (one.local.unwrap(), one.remote.unwrap());
        assert_eq!([local.ip(), remote.ip()], [at.parse::<IpAddr>().unwrap(); 2]);
        // One end has dialled the port that is part of the other's number.
        let port = |end: &End| u16::try_from(end.qp.id() >> 8).unwrap();
        assert!(local.port() == port(&ends[0]) || remote.port() == port(&ends[1]), "{local} {remote}");
        assert_ne!(local, remote);
    }
}
