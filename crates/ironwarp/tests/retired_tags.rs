//! Tags are used once (requirement M4): an index that has had 256 tags is retired, and a window or region that has used
//! up its index goes on with another.

use ironwarp::Config;
use ironwarp::completion::{Opcode, Status};
use ironwarp::memory::{Access, Buffer, RemoteAddr};
use ironwarp::queue::WorkRequest;
use ironwarp_testkit::native::{ALL, CASES, Completions, pair, pair_with, pattern};
use std::collections::HashSet;

/// The peer keeps the first tag, and tries it when its index would have had all 256 instances, and more often.
#[test]
fn a_tag_that_the_peer_has_kept_is_refused_after_a_thousand_registrations() {
    let few = Config::default().tags(1);
    let (client, server) = pair_with(CASES[1], Config::default(), few);
    let first = server.region(b"secret", ALL).remote_addr(0).unwrap();
    let mut tags = HashSet::from([first.tag]);
    for _ in 0..1000 {
        let region = server.region(b"public", ALL);
        assert!(tags.insert(region.tag()), "{} came back", region.tag());
    }
    let usage = server.adapter.tag_usage();
    assert_eq!((usage.entries, usage.retired, usage.indices), (0, 3, (1 << 24) - 2));
    assert!(usage.bytes < 1 << 20, "{} bytes", usage.bytes);
    let region = server.region(b"public", ALL);
    let sink = client.region(&[0; 6], ALL);
    let read = |id, addr| WorkRequest::read(id, &[sink.slice(..6).unwrap()], addr);
    client.qp.post_send(read(1, region.remote_addr(0).unwrap())).unwrap();
    client.done(Opcode::Read, 1);
    assert_eq!(sink.to_vec().unwrap(), b"public");
    client.qp.post_send(read(2, first)).unwrap();
    client.failed(Opcode::Read, 2, Status::RemoteAccess);
}

#[test]
fn a_window_is_bound_a_thousand_times_and_has_a_new_tag_each_time() {
    let (client, server) = pair(CASES[1]);
    let bytes = pattern(1, 1000);
    let region = server.region(&bytes, Access::LOCAL_READ | Access::BIND);
    let window = server.domain.window().unwrap();
    let first = window.remote_addr(0);
    let mut tags = HashSet::from([window.tag()]);
    let sink = client.region(&[0; 10], ALL);
    // In lists, so that tags are computed before the requests that assign them are executed.
    for round in 0..10 {
        let bindings = (0..100).map(|n| {
            let range = n * 10..(n + 1) * 10;
            let bind = WorkRequest::bind(n as u64, &window, &region, range, Access::REMOTE_READ).unwrap();
            if n == 99 { bind } else { bind.unsignaled() }
        });
        let bindings: Vec<_> = bindings.collect();
        for bind in bindings {
            let next = window.next_tag();
            server.qp.post_send(bind).unwrap();
            assert!(window.tag() == next && tags.insert(next), "{next} came back in round {round}");
        }
        server.done(Opcode::Bind, 99);
        let read = WorkRequest::read(1, &[sink.slice(..10).unwrap()], window.remote_addr(0));
        client.qp.post_send(read).unwrap();
        client.done(Opcode::Read, 1);
        assert_eq!(sink.to_vec().unwrap(), bytes[990..]);
    }
    assert_eq!(server.adapter.tag_usage().retired, 3);
    client.qp.post_send(WorkRequest::read(2, &[sink.slice(..10).unwrap()], first)).unwrap();
    client.failed(Opcode::Read, 2, Status::RemoteAccess);
    drop(window);
    drop(region);
    assert_eq!(server.adapter.tag_usage().entries, 0, "no index stays reserved");
}

/// In lists of a registration, a Send with the tag, and an invalidation.
#[test]
fn a_fast_region_is_registered_a_thousand_times_and_has_a_new_tag_each_time() {
    let (client, server) = pair(CASES[1]);
    let region = server.domain.allocate_region([Buffer::copy_of(b"hello").unwrap()]).unwrap();
    let note = client.region(&[0; 4], ALL);
    let sink = client.region(&[0; 5], ALL);
    let mut tags = HashSet::new();
    let mut old: Option<RemoteAddr> = None;
    for round in 0..1000 {
        let tag = region.next_tag();
        assert!(tags.insert(tag), "{tag} came back after {round} registrations");
        client.qp.post_receive(1, &[note.slice(..4).unwrap()]).unwrap();
        let list = [
            WorkRequest::register(2, &region, Access::LOCAL_READ | Access::REMOTE_READ).unsignaled(),
            WorkRequest::send_inline(3, &tag.0.to_be_bytes()).unsignaled().into(),
        ];
        server.qp.post_send_all(list).unwrap();
        client.done(Opcode::Receive, 1);
        assert_eq!(note.to_vec().unwrap(), region.tag().0.to_be_bytes());
        old.get_or_insert(region.remote_addr(0).unwrap());
        if round % 50 == 0 || round == 256 {
            sink.fill(0).unwrap();
            let addr = region.remote_addr(0).unwrap();
            client.qp.post_send(WorkRequest::read(4, &[sink.slice(..5).unwrap()], addr)).unwrap();
            client.done(Opcode::Read, 4);
            assert_eq!(sink.to_vec().unwrap(), b"hello");
        }
        server.qp.post_send(WorkRequest::invalidate_region(5, &region)).unwrap();
        server.done(Opcode::Invalidate, 5);
    }
    assert_eq!(server.adapter.tag_usage().retired, 3);
    server.qp.post_send(WorkRequest::register(6, &region, Access::REMOTE_READ)).unwrap();
    server.done(Opcode::Register, 6);
    let old = old.expect("registered");
    client.qp.post_send(WorkRequest::read(7, &[sink.slice(..5).unwrap()], old)).unwrap();
    client.failed(Opcode::Read, 7, Status::RemoteAccess);
}
