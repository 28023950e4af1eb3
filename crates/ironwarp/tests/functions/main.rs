//! Functions of an adapter (requirement X1), attacked by peers, by programs and by each other.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests, with small numbers")]

mod closing;
mod isolation;
mod numbers;
mod parking;
mod quotas;

use ironwarp::function::Quotas;
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::native::{ALL, Completions, End, connect, pattern};
use std::time::Duration;

/// Returns an adapter with few threads, so that functions share them.
fn adapter() -> Adapter {
    Adapter::open(Config::default().lanes(1)).unwrap()
}

/// Creates a function with a queue pair.
fn function(adapter: &Adapter, quotas: Quotas) -> End {
    End::of(adapter.function(quotas).unwrap(), Completes::WhenAcknowledged)
}

/// Connects a peer with an adapter of its own to a function. At its end, it does not wait long for what it has sent.
fn peer_of(function: &End) -> End {
    let config = Config::default().lanes(1).close(Duration::from_millis(300));
    let peer = End::new(config, Completes::WhenAcknowledged);
    connect(&peer, function, "127.0.0.1:0".parse().unwrap());
    peer
}

/// Sends a message from `peer` to `function`, and verifies every byte.
fn assert_works(peer: &End, function: &End) {
    let bytes = pattern(7, 5000);
    let (source, sink) = (peer.region(&bytes, ALL), function.region(&[0; 5000], ALL));
    function.qp.post_receive(77, &[sink.slice(..).unwrap()]).unwrap();
    let send = WorkRequest::send(78, &[source.slice(..).unwrap()]);
    peer.qp.post_send(send).unwrap();
    assert_eq!(peer.next().success().unwrap().wr_id, 78);
    assert_eq!(function.next().success().unwrap().wr_id, 77);
    assert_eq!(sink.to_vec().unwrap(), bytes);
}
