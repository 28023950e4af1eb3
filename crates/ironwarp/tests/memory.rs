//! Memory regions and windows: remote access, and its end.

use ironwarp::Config;
use ironwarp::completion::{Opcode, Status};
use ironwarp::memory::{
    Access, AccessError, Buffer, Check, DeregisterError, MemoryRegion, RegisterError, RemoteAddr, Sge,
};
use ironwarp::queue::{Completes, PostError, QpError, State, WorkRequest};
use ironwarp_testkit::native::{ALL, CASES, Completions, End, pair, pattern};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// Every offset and length within a few words: the surrounding bytes must not change.
#[test]
fn reads_and_writes_are_exact_to_the_byte() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let one = end.region(&[0; 40], ALL);
    let several = [1, 6, 9, 24].map(|len| Buffer::new(len).unwrap());
    let several = end.domain.register_list(several, ALL).unwrap();
    for region in [&one, &several] {
        for at in 0..=40 {
            for len in 0..=40 - at {
                region.fill(0xaa).unwrap();
                let bytes = pattern(1, len);
                region.write(at, &bytes).unwrap();
                let mut expected = [0xaa; 40];
                expected[at..at + len].copy_from_slice(&bytes);
                assert_eq!(region.to_vec().unwrap(), expected, "{len} bytes at {at}");
                let mut back = vec![0; len];
                region.read(at, &mut back).unwrap();
                assert_eq!(back, bytes);
            }
        }
        let error = AccessError::OutOfBounds { at: 39, len: 2, size: 40 };
        assert_eq!(region.write(39, &[0; 2]).unwrap_err(), error);
        assert_eq!(region.read(39, &mut [0; 2]).unwrap_err(), error);
        assert_eq!(region.slice(39..41).unwrap_err(), error);
        assert!(region.remote_addr(40).is_ok() && region.remote_addr(41).is_err());
        assert!(region.read(usize::MAX, &mut [0; 2]).is_err());
    }
}

/// Two threads write the two halves of one word, and neither reverts the other's bytes.
#[test]
fn concurrent_writes_to_one_word_keep_each_others_bytes() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let region = end.region(&[0; 8], ALL);
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for at in [0, 4] {
            let (region, together) = (&region, &together);
            scope.spawn(move || {
                together.wait();
                for round in 0..200_000_u32 {
                    region.write(at, &round.to_ne_bytes()).unwrap();
                    let mut found = [0; 4];
                    region.read(at, &mut found).unwrap();
                    assert_eq!(u32::from_ne_bytes(found), round, "no other thread writes at {at}");
                }
            });
        }
    });
}

#[test]
fn invalid_registrations_are_refused() {
    let end = End::new(Config::default(), Completes::WhenSent);
    let empty = end.domain.register(Buffer::new(0).unwrap(), ALL).unwrap_err();
    assert_eq!(empty.to_string(), "cannot register memory of length zero");
    assert!(end.domain.register_list(Vec::new(), ALL).is_err());
    let rights = end.domain.register(Buffer::new(8).unwrap(), Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(rights, RegisterError::Rights(Access::REMOTE_WRITE));
    assert!(Buffer::new(usize::MAX).is_err());
    assert!(Buffer::new(isize::MAX as usize - 4096).is_err());
}

/// Requirement M9, a to f: each failed check ends the stream with the peer's error, and no memory is accessed.
#[test]
fn peers_access_only_permitted_memory() {
    type Wrong = fn(&MemoryRegion, &MemoryRegion) -> RemoteAddr;
    let rows: [(&str, bool, Check, Wrong); 7] = [
        ("no such tag", true, Check::Valid, |_, _| RemoteAddr {
            tag: ironwarp::memory::Tag(0xff),
            offset: 0,
        }),
        ("the instance is older", true, Check::Instance, |region, _| RemoteAddr {
            tag: ironwarp::memory::Tag(region.tag().0 ^ 1),
            offset: 0,
        }),
        ("the domain is another", true, Check::Domain, |_, foreign| foreign.remote_addr(0).unwrap()),
        ("one byte too far", true, Check::Range, |region, _| region.remote_addr(57).unwrap()),
        ("the range wraps", true, Check::Wrap, |region, _| RemoteAddr {
            offset: u64::MAX - 3,
            ..region.remote_addr(0).unwrap()
        }),
        ("no right to write", true, Check::Right, |region, _| region.remote_addr(0).unwrap()),
        ("no right to read", false, Check::Right, |region, _| region.remote_addr(0).unwrap()),
    ];
    for (why, write, check, wrong) in rows {
        let (client, server) = pair(CASES[1]);
        let access = if check == Check::Right { Access::LOCAL_WRITE } else { ALL };
        let region = server.region(&[1; 64], access);
        let foreign = server.adapter.protection_domain().register(Buffer::new(64).unwrap(), ALL).unwrap();
        let mine = client.region(&[2; 8], ALL);
        let (slice, addr) = (mine.slice(..8).unwrap(), wrong(&region, &foreign));
        let request =
            if write { WorkRequest::write(1, &[slice], addr) } else { WorkRequest::read(1, &[slice], addr) };
        client.qp.post_send(request).unwrap();

        let opcode = if write { Opcode::Write } else { Opcode::Read };
        let failed = client.failed(opcode, 1, Status::RemoteAccess);
        assert!(matches!(failed.cause.as_deref(), Some(QpError::Terminated(_))), "{why}: {failed:?}");
        assert!(server.qp.wait_closed(ironwarp_testkit::native::SOON));
        let error = server.qp.error().unwrap();
        assert!(matches!(&error, QpError::Remote(denied) if denied.check == check), "{why}: {error}");
        assert_eq!(region.to_vec().unwrap(), [1; 64], "{why}");
        assert_eq!(foreign.to_vec().unwrap(), [0; 64], "{why}");
        assert_eq!(mine.to_vec().unwrap(), [2; 8], "{why}");
    }
}

/// Requirement M8: local memory of a request is checked before anything is sent.
#[test]
fn local_memory_is_checked() {
    type Wrong = fn(&MemoryRegion) -> Sge;
    let rows: [(&str, Check, Wrong); 3] = [
        ("no such tag", Check::Valid, |region| Sge {
            tag: ironwarp::memory::Tag(0xff),
            ..region.slice(..8).unwrap()
        }),
        ("one byte too far", Check::Range, |region| Sge { addr: 57, ..region.slice(..8).unwrap() }),
        ("no right to read", Check::Right, |region| region.slice(..8).unwrap()),
    ];
    for (why, check, wrong) in rows {
        let (client, server) = pair(CASES[0]);
        let access = if check == Check::Right { Access::LOCAL_WRITE } else { ALL };
        let (mine, theirs) = (client.region(&[2; 64], access), server.region(&[1; 8], ALL));
        client.qp.post_send(WorkRequest::write(1, &[wrong(&mine)], theirs.remote_addr(0).unwrap())).unwrap();
        let failed = client.failed(Opcode::Write, 1, Status::LocalProtection);
        assert!(
            matches!(failed.cause.as_deref(), Some(QpError::Local(denied)) if denied.check == check),
            "{why}"
        );
        assert_eq!(client.qp.state(), State::Error);
        assert_eq!(theirs.to_vec().unwrap(), [1; 8], "{why}");
    }
}

/// Requirement M4: after deregistration returns, the peer cannot access the memory any more, even in the middle of a
/// Write.
#[test]
fn deregistration_is_final() {
    let (client, server) = pair(CASES[0]);
    let target = server.region(&vec![0; 8 << 20], ALL);
    let keeper = target.share(Access::LOCAL_READ).unwrap();
    let addr = target.remote_addr(0).unwrap();
    let bytes = pattern(1, 8 << 20);
    client.qp.post_send(WorkRequest::write_inline(1, &bytes, addr)).unwrap();
    // Part of it is in flight, or placed.
    while keeper_byte(&keeper) == 0 {}
    target.deregister().unwrap();
    let after = keeper.to_vec().unwrap();
    // If all of it was already placed, this one is refused.
    client.qp.post_send(WorkRequest::write_inline(2, &[0; 64], addr)).unwrap();
    assert!(server.qp.wait_closed(ironwarp_testkit::native::SOON), "the stream ends");
    assert!(keeper.to_vec().unwrap() == after, "no byte changed");
}

fn keeper_byte(region: &MemoryRegion) -> u8 {
    let mut byte = [0];
    region.read(1, &mut byte).expect("inside");
    byte[0]
}

/// Requirement M5: regions that share memory have their own tags and rights.
#[test]
fn shared_regions_are_deregistered_one_by_one() {
    let (client, server) = pair(CASES[1]);
    let writable = server.region(&[0; 8], ALL);
    let readable = writable.share(Access::REMOTE_READ).unwrap();
    assert_ne!(writable.tag(), readable.tag());
    client.qp.post_send(WorkRequest::write_inline(1, b"together", writable.remote_addr(0).unwrap())).unwrap();
    client.done(Opcode::Write, 1);
    drop(writable);
    let sink = client.region(&[0; 8], ALL);
    client
        .qp
        .post_send(WorkRequest::read(2, &[sink.slice(..8).unwrap()], readable.remote_addr(0).unwrap()))
        .unwrap();
    client.done(Opcode::Read, 2);
    assert_eq!(sink.to_vec().unwrap(), b"together");
    client.qp.post_send(WorkRequest::write_inline(3, b"x", readable.remote_addr(0).unwrap())).unwrap();
    client.failed(Opcode::Write, 3, Status::RemoteAccess);
}

/// Requirement M3: a window opens a part of a region. Each binding has a new tag, and the old one is invalid.
#[test]
fn windows_open_and_close() {
    let (client, server) = pair(CASES[1]);
    let region = server.region(b"0123456789", Access::LOCAL_READ | Access::LOCAL_WRITE | Access::BIND);
    let window = server.domain.window().unwrap();
    let unbound = window.tag();
    let bind =
        |id, at, len| WorkRequest::bind(id, &window, &region, at..at + len, Access::REMOTE_READ).unwrap();
    assert!(WorkRequest::bind(0, &window, &region, 8..11, Access::REMOTE_READ).is_err(), "beyond the region");

    let next = window.next_tag();
    server.qp.post_send(bind(1, 2, 3)).unwrap();
    server.done(Opcode::Bind, 1);
    assert!(window.tag() == next && next != unbound);
    let first = window.remote_addr(0);
    let sink = client.region(&[0; 10], ALL);
    let read = |id, len, addr| WorkRequest::read(id, &[sink.slice(..len).unwrap()], addr);
    client.qp.post_send(read(2, 3, first)).unwrap();
    client.done(Opcode::Read, 2);
    assert_eq!(&sink.to_vec().unwrap()[..3], b"234");

    // A request that is not posted, or refused, changes nothing.
    let _ = bind(9, 0, 1);
    let flood = (0..129).map(|id| bind(id, 0, 1));
    assert_eq!(server.qp.post_send_all(flood).unwrap_err(), PostError::Full { capacity: 128 });
    assert_eq!(window.remote_addr(0), first);
    server.qp.post_send(bind(3, 7, 2)).unwrap();
    server.done(Opcode::Bind, 3);
    client.qp.post_send(read(4, 2, window.remote_addr(0))).unwrap();
    client.done(Opcode::Read, 4);
    assert_eq!(&sink.to_vec().unwrap()[..2], b"78");
    client.qp.post_send(read(5, 2, first)).unwrap();
    client.failed(Opcode::Read, 5, Status::RemoteAccess);
}

/// Requirement M12: the peer invalidates its own window, and the completion reports that.
#[test]
fn a_send_with_invalidate_closes_a_window() {
    for case in CASES {
        let (client, server) = pair(case);
        let region = server.region(&[1; 64], Access::LOCAL_READ | Access::BIND);
        let window = server.domain.window().unwrap();
        server
            .qp
            .post_send(WorkRequest::bind(1, &window, &region, ..64, Access::REMOTE_READ).unwrap())
            .unwrap();
        server.done(Opcode::Bind, 1);
        server.qp.post_receive(2, &[]).unwrap();
        client.qp.post_send(WorkRequest::send(3, &[]).invalidate(window.tag()).solicited()).unwrap();
        let received = server.done(Opcode::Receive, 2);
        assert_eq!((received.invalidated, received.solicited), (Some(window.tag()), true));
        client.done(Opcode::Send, 3);
        let sink = client.region(&[0; 8], ALL);
        client
            .qp
            .post_send(WorkRequest::read(4, &[sink.slice(..8).unwrap()], window.remote_addr(0)))
            .unwrap();
        client.failed(Opcode::Read, 4, Status::RemoteAccess);
    }
}

/// A region is not specific to one peer, so no peer may invalidate it (RFC 5040 §5.2).
#[test]
fn a_peer_cannot_invalidate_a_region() {
    let (client, server) = pair(CASES[0]);
    let region = server.region(&[1; 8], ALL);
    server.qp.post_receive(1, &[]).unwrap();
    client.qp.post_send(WorkRequest::send(2, &[]).invalidate(region.tag())).unwrap();
    let failed = server.failed(Opcode::Receive, 1, Status::LocalAccess);
    assert!(
        matches!(failed.cause.as_deref(), Some(QpError::Remote(it)) if it.check == Check::Invalidate),
        "{failed:?}"
    );
}

/// Requirement M9: with strict windows, peers can access windows only.
#[test]
fn strict_windows_deny_access_to_regions() {
    let strict = Config::default().strict_windows(true);
    let (client, server) = ironwarp_testkit::native::pair_with(CASES[1], Config::default(), strict);
    let region = server.region(b"hello", ALL);
    let window = server.domain.window().unwrap();
    server.qp.post_send(WorkRequest::bind(1, &window, &region, ..5, Access::REMOTE_READ).unwrap()).unwrap();
    server.done(Opcode::Bind, 1);
    let sink = client.region(&[0; 5], ALL);
    client.qp.post_send(WorkRequest::read(2, &[sink.slice(..5).unwrap()], window.remote_addr(0))).unwrap();
    client.done(Opcode::Read, 2);
    assert_eq!(sink.to_vec().unwrap(), b"hello");
    client
        .qp
        .post_send(WorkRequest::read(3, &[sink.slice(..5).unwrap()], region.remote_addr(0).unwrap()))
        .unwrap();
    client.failed(Opcode::Read, 3, Status::RemoteAccess);
}

/// A dropped region stays registered while a window is bound to it, and its memory is freed with the window.
#[test]
fn a_dropped_region_stays_while_a_window_is_bound() {
    let (client, server) = pair(CASES[1]);
    let region = server.region(b"hello", Access::LOCAL_READ | Access::BIND);
    let tag = region.tag();
    let window = server.domain.window().unwrap();
    server.qp.post_send(WorkRequest::bind(1, &window, &region, ..5, Access::REMOTE_READ).unwrap()).unwrap();
    server.done(Opcode::Bind, 1);
    assert_eq!(region.deregister().unwrap_err(), DeregisterError::Busy { tag, windows: 1 });
    let sink = client.region(&[0; 5], ALL);
    client.qp.post_send(WorkRequest::read(2, &[sink.slice(..5).unwrap()], window.remote_addr(0))).unwrap();
    client.done(Opcode::Read, 2);
    assert_eq!(sink.to_vec().unwrap(), b"hello", "the memory is still registered");
}

/// The table entry of such a region is released with its last window.
#[test]
fn a_dropped_region_is_released_with_its_last_window() {
    let few = Config::default().tags(2);
    let (_client, server) = ironwarp_testkit::native::pair_with(CASES[0], Config::default(), few);
    let region = server.region(&[0; 8], Access::LOCAL_READ | Access::BIND);
    let window = server.domain.window().unwrap();
    server.qp.post_send(WorkRequest::bind(1, &window, &region, ..8, Access::REMOTE_READ).unwrap()).unwrap();
    server.done(Opcode::Bind, 1);
    drop(region);
    assert!(server.domain.register(Buffer::new(1).unwrap(), ALL).is_err(), "both entries are in use");
    drop(window);
    assert!(fills_up(&server, 2), "both entries are free");
}

/// Returns whether the table has room for exactly this number of regions.
fn fills_up(end: &End, count: usize) -> bool {
    let regions: Vec<_> =
        (0..count).map(|_| end.domain.register(Buffer::new(1).expect("a byte"), ALL)).collect();
    regions.iter().all(Result::is_ok) && end.domain.register(Buffer::new(1).expect("a byte"), ALL).is_err()
}

/// Requirements M6 and M12: registered, announced and used by requests of one list; invalidated by the peer; used
/// again.
#[test]
fn registration_by_work_request_in_one_list_with_the_send_that_uses_it() {
    for case in CASES {
        let (client, server) = pair(case);
        let bytes = pattern(4, 5000);
        let parts = [&bytes[..1000], &bytes[1000..]].map(|part| Buffer::copy_of(part).unwrap());
        let region = server.domain.allocate_region(parts).unwrap();
        let note = client.region(&[0; 4], ALL);
        let sink = client.region(&[0; 5000], ALL);
        for round in 0..3 {
            client.qp.post_receive(round, &[note.slice(..4).unwrap()]).unwrap();
            let tag = region.next_tag();
            server
                .qp
                .post_send_all(vec![
                    WorkRequest::register(10, &region, Access::LOCAL_READ | Access::REMOTE_READ),
                    WorkRequest::send_inline(11, &tag.0.to_be_bytes()).into(),
                ])
                .unwrap();
            client.done(Opcode::Receive, round);
            server.done(Opcode::Register, 10);
            server.done(Opcode::Send, 11);
            assert_eq!(note.to_vec().unwrap(), region.tag().0.to_be_bytes());

            let read = WorkRequest::read(20, &[sink.slice(..5000).unwrap()], region.remote_addr(0).unwrap());
            client.qp.post_send(read).unwrap();
            client.done(Opcode::Read, 20);
            assert!(sink.to_vec().unwrap() == bytes);
            sink.fill(0).unwrap();
            if round == 1 {
                server.qp.post_send(WorkRequest::invalidate_region(30, &region)).unwrap();
                server.done(Opcode::Invalidate, 30);
            } else {
                server.qp.post_receive(31, &[]).unwrap();
                client.qp.post_send(WorkRequest::send(32, &[]).invalidate(tag)).unwrap();
                assert_eq!(server.done(Opcode::Receive, 31).invalidated, Some(tag));
                client.done(Opcode::Send, 32);
            }
        }
        let read = WorkRequest::read(40, &[sink.slice(..1).unwrap()], region.remote_addr(0).unwrap());
        client.qp.post_send(read).unwrap();
        client.failed(Opcode::Read, 40, Status::RemoteAccess);
    }
}

/// A posted registration that is not executed yet keeps the memory alive, even if the region is dropped.
#[test]
fn a_posted_registration_keeps_its_memory() {
    let (client, server) = pair(CASES[0]);
    let big = server.region(&vec![7; 4 << 20], ALL);
    let sink = client.region(&vec![0; 4 << 20], ALL);
    let region = client.domain.allocate_region(vec![Buffer::new(1 << 20).unwrap()]).unwrap();
    let read = WorkRequest::read(1, &[sink.slice(..4 << 20).unwrap()], big.remote_addr(0).unwrap());
    client.qp.post_send_all(vec![read, WorkRequest::register(2, &region, ALL).fenced()]).unwrap();
    drop(region);
    client.done(Opcode::Read, 1);
    // The tag is invalid by now: the request fails.
    let completion = client.next();
    assert_eq!((completion.opcode, completion.wr_id), (Opcode::Register, 2));
}

/// Tags and entries are reused: thousands of registrations fit a table of few entries.
#[test]
fn table_entries_are_reused() {
    let end = End::new(Config::default().tags(4), Completes::WhenSent);
    for _ in 0..2000 {
        let region = end.region(&[0; 8], ALL);
        let shared = region.share(ALL).unwrap();
        let window = end.domain.window().unwrap();
        let fast = end.domain.allocate_region(vec![Buffer::new(8).unwrap()]).unwrap();
        drop((window, region, fast, shared));
    }
    assert!(fills_up(&end, 4));
}

/// Peers write while the program reads and writes the same bytes: values are old or new, and nothing else.
#[test]
fn memory_may_be_used_while_a_peer_writes_it() {
    let (client, server) = pair(CASES[0]);
    let target = server.region(&[0x11; 4096], ALL);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let bytes = target.to_vec().unwrap();
                assert!(bytes.iter().all(|byte| [0x11, 0x22, 0x33].contains(byte)));
                target.write(100, &[0x33; 1000]).unwrap();
            }
        });
        for _ in 0..200 {
            let addr = target.remote_addr(0).unwrap();
            client.qp.post_send(WorkRequest::write_inline(1, &[0x22; 4096], addr)).unwrap();
            client.done(Opcode::Write, 1);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
