//! Forked children of a process with connections in shared memory.

use super::common::{End, SHARED, TCP, TIMEOUT, begin_sharing, ends, greet, rings_mapped, shared_ends};
use super::stream::{Place, stream_between};
use ironwarp_engine::WaitError;
use ironwarp_engine::config::Config;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Arm, Operation, ReceiveRequest, Sges};
use ironwarp_testkit::child;
use ironwarp_testkit::fork::in_forked_child;
use ironwarp_testkit::wait::until;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PLACE: Place = Place { at: 0, slots: 8, max: 100_000 };

/// Panics if this process, a child, has memory or sockets of the adapter.
fn assert_nothing_inherited() {
    assert_eq!(rings_mapped(), 0, "the child has the mapping");
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = std::fs::read_link(&path) else { continue }; // the descriptor of this loop
        let name = target.to_string_lossy().into_owned();
        assert!(!name.contains("ironwarp-ring") && !name.contains("eventpoll"), "{name}");
        let is_socket = std::fs::metadata(&path).is_ok_and(|file| file.file_type().is_socket());
        // The test runner may have given this process sockets as its standard streams.
        let is_standard = path.file_name().is_some_and(|name| ["0", "1", "2"].iter().any(|it| name == *it));
        assert!(!is_socket || is_standard, "{name}");
    }
}

#[test]
fn children_forked_under_load_have_neither_mapping_nor_descriptors() {
    if !child::in_child("forks::children_forked_under_load_have_neither_mapping_nor_descriptors") {
        return;
    }
    let (client, server) =
        shared_ends(&Config::default().shm(true), Completes::WhenAcknowledged, PLACE.len());
    assert_eq!(rings_mapped(), 2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..20).for_each(|_| {
                in_forked_child(|| {
                    assert_nothing_inherited();
                    // Threads of the parent may have held any lock at the fork.
                    assert_eq!((client.cq.poll(16, drop), server.cq.poll(16, drop)), (Ok(0), Ok(0)));
                });
            });
            done.store(true, Ordering::Relaxed);
        });
        stream_between(&client, &server, PLACE, |sent| sent < 200 || !done.load(Ordering::Relaxed));
    });
    assert_eq!((client.routes(), server.routes()), (SHARED, SHARED));
}

/// A child that polls the completion queues of its parent gets nothing, whatever threads of the parent had locked at the fork.
#[test]
fn a_child_that_polls_gets_no_signal() {
    if !child::in_child("forks::a_child_that_polls_gets_no_signal") {
        return;
    }
    let (client, server) = shared_ends(&Config::default().shm(true), Completes::WhenSent, PLACE.len());
    let touch = |end: &End| {
        assert_eq!(end.cq.poll(16, drop), Ok(0));
        assert_eq!(end.cq.wait(Some(Duration::from_millis(10))), Err(WaitError::Inherited));
        assert!(!end.cq.arm(Arm::Next));
    };
    for end in [&client, &server] {
        in_forked_child(|| touch(end));
    }
    // Nothing of what the child did has reached the peer.
    stream_between(&client, &server, PLACE, |sent| sent < 100);
    assert_eq!((client.routes(), server.routes()), (SHARED, SHARED));
}

/// A child that posts to the queue pairs of its parent gets an error, and closing them there does not affect the parent.
#[test]
fn a_child_that_posts_gets_an_error() {
    if !child::in_child("forks::a_child_that_posts_gets_an_error") {
        return;
    }
    for shm in [true, false] {
        let (client, server) = ends(&Config::default().shm(shm), Completes::WhenSent, PLACE.len());
        let expected = if shm { SHARED } else { TCP };
        greet(&client, &server);
        until(|| client.routes() == expected && server.routes() == expected);
        let touch = |end: &End| {
            let send = end.request(1, Operation::Send { invalidate: None }, 0, PLACE.max);
            assert_eq!(end.pair.post_send([send]), Err(PostError::Inherited));
            let receive = ReceiveRequest { id: 1, buffers: Sges::default() };
            assert_eq!(end.pair.post_receive(receive), Err(PostError::Inherited));
            end.pair.disconnect();
            assert_eq!(end.cq.poll(16, drop), Ok(0));
        };
        for end in [&client, &server] {
            in_forked_child(|| touch(end));
        }
        stream_between(&client, &server, PLACE, |sent| sent < 100);
        assert_eq!((client.routes(), server.routes()), (expected, expected));
    }
}

/// A child opens an adapter of its own, and shares memory with its parent's peer.
#[test]
fn the_parent_goes_on_after_a_child_has_ended() {
    if !child::in_child("forks::the_parent_goes_on_after_a_child_has_ended") {
        return;
    }
    let (client, server) = shared_ends(&Config::default().shm(true), Completes::WhenSent, PLACE.len());
    for _ in 0..5 {
        in_forked_child(|| {
            let (client, server) = ends(&Config::default().shm(true), Completes::WhenSent, PLACE.len());
            begin_sharing(&client, &server);
            client.pair.disconnect();
            server.pair.disconnect();
            assert!(client.pair.wait_closed(TIMEOUT));
        });
        begin_sharing(&client, &server);
    }
    stream_between(&client, &server, PLACE, |sent| sent < 100);
}
