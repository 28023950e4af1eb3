//! The redirection table, and the connections that it steers.

use ironwarp_engine::Engine;
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::steering::{HashKey, KEY_LEN, RedirectionTable, Tuple, toeplitz};
use ironwarp_testkit::engine::{Side, connect};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const KEY: [u8; KEY_LEN] = *b"forty bytes that this test alone knows!!";
const PAIRS: usize = 32;

fn engine() -> Arc<Engine> {
    Engine::new(Config::default().steering_key(HashKey::new(KEY))).unwrap()
}

/// Connects `PAIRS` queue pairs of two engines; returns the lanes and the addresses of both ends of each.
fn lanes(client: &Arc<Engine>, server: &Arc<Engine>) -> Vec<(usize, (SocketAddr, SocketAddr))> {
    let (near, far) = (Side::new(client, 8, 64), Side::new(server, 8, 64));
    let mut found = Vec::new();
    let pairs: Vec<_> =
        (0..PAIRS).map(|_| (near.pair(1, Completes::WhenSent), far.pair(1, Completes::WhenSent))).collect();
    for (one, other) in &pairs {
        connect((&near, one), (&far, other));
        for pair in [one, other] {
            let established = pair.wait_connected(Duration::ZERO).unwrap();
            found.push((pair.lane().unwrap(), (established.peer, established.local)));
        }
    }
    found
}

#[test]
fn a_connection_is_served_by_the_lane_that_its_addresses_hash_to() {
    let (client, server) = (engine(), engine());
    let found = lanes(&client, &server);
    for (lane, (peer, local)) in &found {
        let hash = toeplitz(&KEY, &Tuple::new(*peer, *local));
        assert_eq!(*lane, client.steering().table().lane(hash), "{peer} to {local}");
    }
    let lanes = client.steering().lanes();
    assert!(
        (0..lanes).all(|lane| found.iter().any(|(used, _)| *used == lane)),
        "all lanes are used: {found:?}"
    );
}

#[test]
fn a_changed_table_steers_the_connections_that_come_after_it() {
    let (client, server) = (engine(), engine());
    let last = client.steering().lanes() - 1;
    let mut table = RedirectionTable::spread(1);
    table.entries_mut().fill(u16::try_from(last).unwrap());
    client.steering().set_table(table.clone()).unwrap();
    assert_eq!(client.steering().table(), table);
    server.steering().set_table(RedirectionTable::spread(1)).unwrap();
    let found = lanes(&client, &server);
    let (dialled, accepted): (Vec<_>, Vec<_>) = found.chunks(2).map(|ends| (ends[0].0, ends[1].0)).unzip();
    assert_eq!(dialled, [last; PAIRS], "according to the client's table");
    assert_eq!(accepted, [0; PAIRS], "according to the server's table");
}

#[test]
fn a_table_with_a_missing_lane_is_refused() {
    let engine = engine();
    let lanes = engine.steering().lanes();
    let before = engine.steering().table();
    let refused = engine.steering().set_table(RedirectionTable::spread(lanes + 1)).unwrap_err();
    assert_eq!((refused.lane, refused.lanes), (lanes, lanes));
    assert_eq!(engine.steering().table(), before);
}

/// Otherwise a peer that knows the key could choose its ports so that all its connections are served by one
/// lane.
#[test]
fn adapters_have_keys_of_their_own() {
    let (peer, local) = ("192.0.2.1:7".parse().unwrap(), "192.0.2.2:8".parse().unwrap());
    let hash = |_| {
        let engine = Engine::new(Config::default()).unwrap();
        engine.steering().hash(peer, local)
    };
    let mut hashes: Vec<_> = (0..4).map(hash).collect();
    hashes.dedup();
    assert!(hashes.len() > 1, "{hashes:?}");
}
