//! Peers that send more than a function has receives for: what they make the adapter keep is limited for each function,
//! and all functions together.

use super::{assert_works, function, peer_of};
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::function::{Quotas, Resource};
use ironwarp::queue::{Completes, QueuePair, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::native::{ALL, End, SOON, pattern};
use ironwarp_testkit::wait::until;
use std::collections::HashMap;
use std::time::Duration;

/// Size of a message.
const LEN: usize = 4000;
/// Number of messages of each connection.
const MESSAGES: usize = 40;
/// Number of messages that the buffers of a connection can take.
const FEW: usize = 16;
/// What one message takes at least while it waits.
const COST: u64 = LEN as u64;
/// Largest excess of one connection: what one call receives, and a segment.
const EXCESS: u64 = 80 << 10;

/// Connects more queue pairs of `peer` to `function`, and returns both ends of each.
fn connect_more(peer: &End, function: &End, count: usize) -> Vec<(QueuePair, QueuePair)> {
    connect_with(peer, function, &vec![&function.cq; count])
}

/// Connects a queue pair of `peer` to one of `function` for each of these completion queues, and returns both ends of each. Sends
/// complete as soon as the link has taken them.
fn connect_with(peer: &End, function: &End, cqs: &[&CompletionQueue]) -> Vec<(QueuePair, QueuePair)> {
    let listener = function.adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let create = |end: &End, cq: &CompletionQueue| {
        end.domain.queue_pair(cq).completes(Completes::WhenSent).create().unwrap()
    };
    let connect = |cq: &&CompletionQueue| {
        let (near, far) = (create(peer, &peer.cq), create(function, cq));
        near.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
        listener.accept(SOON).unwrap().accept(&far, &AcceptOptions::new()).unwrap();
        near.wait_connected(SOON).unwrap();
        (near, far)
    };
    cqs.iter().map(connect).collect()
}

/// The bytes of a message.
fn bytes(connection: usize, number: usize) -> Vec<u8> {
    pattern((connection * 7 + number) as u8, LEN)
}

/// Sends all messages of a connection, for which there are no receives.
fn send_all(peer: &End, qp: &QueuePair, connection: usize) {
    (0..MESSAGES).for_each(|number| send(peer, qp, (connection, number), false));
}

/// Sends a message.
fn send(peer: &End, qp: &QueuePair, (connection, number): (usize, usize), signaled: bool) {
    let source = peer.region(&bytes(connection, number), ALL);
    let request = WorkRequest::send(0, &[source.slice(..).unwrap()]);
    qp.post_send(if signaled { request } else { request.unsignaled() }).unwrap();
    std::mem::forget(source); // it may be sent late
}

/// Posts receives for all messages of these connections, and verifies every byte that arrives.
fn receive_all(function: &End, pairs: &[(usize, &QueuePair)]) {
    receive(function, &function.cq, pairs, MESSAGES);
}

/// Posts receives for the first messages of these connections, and verifies every byte that arrives. `cq` is the completion
/// queue of the connections.
fn receive(function: &End, cq: &CompletionQueue, pairs: &[(usize, &QueuePair)], count: usize) {
    let mut sinks: HashMap<_, _> = pairs
        .iter()
        .map(|(connection, qp)| {
            let sink = function.region(&vec![0; count * LEN], ALL);
            for number in 0..count {
                let slot = sink.slice(number * LEN..(number + 1) * LEN).unwrap();
                qp.post_receive(number as u64, &[slot]).unwrap();
            }
            (qp.id(), (*connection, sink, 0))
        })
        .collect();
    for _ in 0..pairs.len() * count {
        let received = cq.wait(SOON).unwrap().success().unwrap();
        let (_, _, next) = sinks.get_mut(&received.qp).unwrap();
        assert_eq!((received.wr_id, received.byte_len as usize), (*next, LEN), "in order");
        *next += 1;
    }
    for (connection, sink, _) in sinks.values() {
        let expected: Vec<u8> = (0..count).flat_map(|number| bytes(*connection, number)).collect();
        assert_eq!(sink.to_vec().unwrap(), expected);
    }
}

/// An adapter of each kind of link: TCP alone, and shared memory.
fn adapters() -> [Adapter; 2] {
    let config = Config::default().lanes(1).close(Duration::from_millis(300));
    [false, true].map(|shm| Adapter::open(config.clone().shm(shm)).unwrap())
}

/// Connections of a hostile peer park as much as they can: the function keeps what its quota allows, and a neighbour's
/// messages are parked and delivered. Later, all of the hostile ones are delivered as well.
#[test]
fn a_hostile_peer_that_parks_all_it_can_leaves_others_their_room() {
    for adapter in adapters() {
        let quota = 20 * COST;
        let (attacked, neighbour) = (
            function(&adapter, Quotas::default().parked_bytes(quota)),
            function(&adapter, Quotas::default()),
        );
        let (hostile, neighbours_peer) = (peer_of(&attacked), peer_of(&neighbour));
        let pairs = connect_more(&hostile, &attacked, 6);
        for (connection, (near, _)) in pairs.iter().enumerate() {
            send_all(&hostile, near, connection);
        }
        let parked = || attacked.adapter.used(Resource::ParkedBytes);
        until(|| parked() >= quota);

        send_all(&neighbours_peer, &neighbours_peer.qp, 100);
        until(|| neighbour.adapter.used(Resource::ParkedBytes) >= MESSAGES as u64 * COST);
        receive_all(&neighbour, &[(100, &neighbour.qp)]);
        assert_eq!(neighbour.adapter.used(Resource::ParkedBytes), 0);
        let most = quota + EXCESS * pairs.len() as u64;
        assert!(parked() <= most.min(6 * MESSAGES as u64 * COST), "{} of {most}", parked());

        let ends: Vec<_> = pairs.iter().map(|(_, far)| far).enumerate().collect();
        receive_all(&attacked, &ends);
        assert_eq!(parked(), 0);
    }
}

/// A stream that has stopped because others have taken all room goes on as soon as there is room, although its own peer
/// sends nothing more and no receive is posted to it. It has a completion queue of its own, which nobody polls or waits for
/// until then: that would drive the stream.
#[test]
fn a_stream_that_waits_for_room_goes_on_when_another_releases_some() {
    for adapter in adapters() {
        let quota = MESSAGES as u64 * COST;
        let attacked = function(&adapter, Quotas::default().parked_bytes(quota));
        let peer = peer_of(&attacked);
        let own = attacked.adapter.completion_queue(128).unwrap();
        let pairs = connect_with(&peer, &attacked, &[&attacked.cq, &own]);
        let parked = || attacked.adapter.used(Resource::ParkedBytes);
        // The first takes all room. The second keeps a little, and stops.
        send_all(&peer, &pairs[0].0, 0);
        until(|| parked() >= quota);
        let full = parked();
        (0..FEW).for_each(|number| send(&peer, &pairs[1].0, (1, number), number == FEW - 1));
        let sent = peer.cq.wait(SOON).unwrap().success().unwrap();
        assert_eq!(sent.qp, pairs[1].0.id(), "nothing more arrives");
        until(|| parked() > full);
        let kept = parked() - full;
        assert!(kept < FEW as u64 * COST, "the second has stopped: {kept}");

        receive_all(&attacked, &[(0, &pairs[0].1)]);
        until(|| parked() >= FEW as u64 * COST);
        receive(&attacked, &own, &[(1, &pairs[1].1)], FEW);
        assert_eq!(parked(), 0);
    }
}

/// A function whose parked messages exhaust its quota still serves connections that have receives, and releases what is
/// parked when a connection ends.
#[test]
fn an_exhausted_function_serves_connections_with_receives() {
    for adapter in adapters() {
        let attacked = function(&adapter, Quotas::default().parked_bytes(0));
        let peer = peer_of(&attacked);
        let pairs = connect_more(&peer, &attacked, 2);
        for (connection, (near, _)) in pairs.iter().enumerate() {
            send_all(&peer, near, connection);
        }
        until(|| attacked.adapter.used(Resource::ParkedBytes) >= 2 * COST);
        for _ in 0..100 {
            assert_works(&peer, &attacked);
        }
        let used = attacked.adapter.used(Resource::ParkedBytes);
        assert!(used <= 2 * EXCESS, "{used}");
        drop(pairs);
        until(|| attacked.adapter.used(Resource::ParkedBytes) == 0);
        assert_works(&peer, &attacked);
    }
}

/// The quotas of functions are parts of the adapter's budget, which they give back.
#[test]
fn functions_share_the_budget_of_the_adapter() {
    let adapter = Adapter::open(Config::default().parked(1000)).unwrap();
    let take = |bytes| adapter.function(Quotas::default().parked_bytes(bytes));
    let most = take(900).unwrap();
    let error = take(101).unwrap_err().to_string();
    assert!(error.starts_with("too few unassigned bytes for parked messages"), "{error}");
    let rest = take(100).unwrap();
    assert_eq!(rest.quotas().get(Resource::ParkedBytes), 100);
    drop(most);
    assert!(take(900).is_ok());
    // Without a quota, a function gets a share.
    let default = adapter.function(Quotas::default()).unwrap();
    assert_eq!(default.quotas().get(Resource::ParkedBytes), 1000 / 64);
}

/// The adapter itself keeps within what it has not given away.
#[test]
fn the_adapter_itself_has_a_budget() {
    let budget = 10 * COST;
    let config = Config::default().lanes(1).parked(usize::try_from(budget).unwrap());
    let attacked = End::new(config, Completes::WhenAcknowledged);
    let peer = peer_of(&attacked);
    let pairs = connect_more(&peer, &attacked, 4);
    for (connection, (near, _)) in pairs.iter().enumerate() {
        send_all(&peer, near, connection);
    }
    until(|| attacked.adapter.used(Resource::ParkedBytes) >= budget);
    let ends: Vec<_> = pairs.iter().map(|(_, far)| far).enumerate().collect();
    receive_all(&attacked, &ends);
    assert_eq!(attacked.adapter.used(Resource::ParkedBytes), 0);
}
