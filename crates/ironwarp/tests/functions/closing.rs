//! Closing a function, or the adapter with all of its functions.

use super::{adapter, assert_works, function, peer_of};
use ironwarp::completion::Status;
use ironwarp::connection::ConnectOptions;
use ironwarp::function::Quotas;
use ironwarp::queue::{PostError, WorkRequest};
use ironwarp::{Shutdown, WaitError};
use ironwarp_testkit::native::{ALL, Completions, End, SOON, pattern};
use ironwarp_testkit::wait::until;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Size of a message.
const LEN: usize = 20_000;

/// Sends messages from `peer` to `function` until `stop`, and verifies every byte. Counts them.
fn transfer(peer: &End, function: &End, stop: &AtomicBool, count: &AtomicU64) {
    let (source, sink) = (peer.region(&[0; LEN], ALL), function.region(&[0; LEN], ALL));
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let bytes = pattern(round as u8, LEN);
        source.write(0, &bytes).unwrap();
        function.qp.post_receive(round, &[sink.slice(..).unwrap()]).unwrap();
        peer.qp.post_send(WorkRequest::send(round, &[source.slice(..).unwrap()])).unwrap();
        assert_eq!(peer.next().success().unwrap().wr_id, round);
        let received = function.next().success().unwrap();
        assert_eq!((received.wr_id, received.byte_len as usize), (round, LEN));
        assert_eq!(sink.to_vec().unwrap(), bytes);
        round += 1;
        count.store(round, Ordering::Relaxed);
    }
}

/// Functions come, transfer and are closed in every way, while another one transfers on the same lane.
#[test]
fn closing_a_function_under_load_leaves_others_alone() {
    let adapter = adapter();
    let survivor = function(&adapter, Quotas::default());
    let survivors_peer = peer_of(&survivor);
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let load = scope.spawn(|| transfer(&survivors_peer, &survivor, &stop, &count));
        for round in 0..12 {
            let closed = function(&adapter, Quotas::default());
            let peer = peer_of(&closed);
            // Half of the messages find no receive; the other direction is busy, too.
            let memory = closed.region(&pattern(1, LEN), ALL);
            for id in 0..8 {
                peer.qp.post_send(WorkRequest::send_inline(id, &[7; 30])).unwrap();
                closed.qp.post_receive(100 + id, &[memory.slice(..30).unwrap()]).unwrap();
                peer.qp.post_receive(id, &[]).unwrap();
                closed.qp.post_send(WorkRequest::send(200 + id, &[memory.slice(..0).unwrap()])).unwrap();
            }
            let before = count.load(Ordering::Relaxed);
            match round % 3 {
                0 => closed.adapter.shutdown(Shutdown::Flush),
                1 => closed.adapter.shutdown(Shutdown::Drain(SOON)),
                _ => drop(closed.adapter.clone()),
            }
            if round % 3 != 2 {
                assert_closed(&closed, 16);
            }
            drop((closed, memory));
            until(|| count.load(Ordering::Relaxed) > before + 2);
            assert!(!load.is_finished(), "the survivor failed");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_works(&survivors_peer, &survivor);
}

/// Asserts that a function was shut down: each of its `posted` requests has one completion, and everything is refused.
fn assert_closed(closed: &End, posted: usize) {
    let completions: Vec<_> = std::iter::from_fn(|| closed.cq.poll_one().unwrap()).collect();
    assert_eq!(completions.len(), posted, "{completions:?}");
    let mut ids: Vec<_> = completions.iter().map(|it| it.wr_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), posted);
    assert!(completions.iter().all(|it| matches!(it.status, Status::Success | Status::Flushed)));
    assert_eq!(closed.qp.post_send(WorkRequest::send(1, &[])), Err(PostError::ShutDown));
    assert_eq!(closed.qp.post_receive(1, &[]), Err(PostError::ShutDown));
    assert_eq!(closed.adapter.completion_queue(8).unwrap_err().kind(), ErrorKind::NotConnected);
    assert!(matches!(closed.cq.wait(SOON), Err(WaitError::Stopped)));
}

/// What was posted before a drain arrives, although the adapter stays open.
#[test]
fn a_function_that_drains_sends_everything() {
    let adapter = adapter();
    let closed = function(&adapter, Quotas::default());
    let peer = peer_of(&closed);
    let bytes = pattern(3, 1 << 20);
    let (source, sink) = (closed.region(&bytes, ALL), peer.region(&vec![0; 1 << 20], ALL));
    closed
        .qp
        .post_send(WorkRequest::write(1, &[source.slice(..).unwrap()], sink.remote_addr(0).unwrap()))
        .unwrap();
    closed.adapter.shutdown(Shutdown::Drain(SOON));
    assert_eq!(closed.cq.poll_one().unwrap().unwrap().status, Status::Success);
    assert!(closed.qp.wait_closed(SOON) && peer.qp.wait_closed(SOON));
    assert_eq!(sink.to_vec().unwrap(), bytes);
}

/// Listeners and threads that wait end with their function, and those of another one stay.
#[test]
fn listeners_and_waiting_threads_end_with_their_function() {
    let adapter = adapter();
    let (closed, other) = (function(&adapter, Quotas::default()), function(&adapter, Quotas::default()));
    let listen = |end: &End| end.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (listener, others) = (listen(&closed), listen(&other));
    let at = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(None).map(drop));
        let waiting = scope.spawn(|| closed.cq.wait(None).map(drop));
        closed.adapter.shutdown(Shutdown::Drain(Duration::ZERO));
        assert!(matches!(accepting.join().unwrap(), Err(WaitError::Stopped)));
        assert!(matches!(waiting.join().unwrap(), Err(WaitError::Stopped)));
    });
    assert!(std::net::TcpStream::connect(at).is_err(), "the listener is closed");
    let peer = End::new(Default::default(), ironwarp::queue::Completes::WhenAcknowledged);
    peer.qp.start_connect(others.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    others.accept(SOON).unwrap().accept(&other.qp, &Default::default()).unwrap();
    peer.qp.wait_connected(SOON).unwrap();
    assert_works(&peer, &other);
}

/// The adapter ends with all of its functions, in use or not.
#[test]
fn closing_the_adapter_ends_all_functions() {
    for how in [Shutdown::Flush, Shutdown::Drain(SOON)] {
        let adapter = adapter();
        let functions = [function(&adapter, Quotas::default()), function(&adapter, Quotas::default())];
        let peers = functions.each_ref().map(peer_of);
        for (end, peer) in functions.iter().zip(&peers) {
            assert_works(peer, end);
            end.qp.post_receive(1, &[]).unwrap();
        }
        let events = functions.each_ref().map(|end| end.adapter.async_events().unwrap());
        thread::scope(|scope| {
            let waiting = events.each_ref().map(|events| scope.spawn(|| events.wait(None)));
            adapter.shutdown(how);
            for thread in waiting {
                assert!(thread.join().unwrap().is_err());
            }
        });
        functions.iter().for_each(|end| assert_closed(end, 1));
        assert_eq!(adapter.function(Quotas::default()).unwrap_err().kind(), ErrorKind::NotConnected);
    }
}

/// The adapter's own handle is dropped first: its functions keep it open.
#[test]
fn functions_keep_their_adapter_open() {
    let adapter = adapter();
    let kept = function(&adapter, Quotas::default());
    drop(adapter);
    let peer = peer_of(&kept);
    assert_works(&peer, &kept);
}
