//! The redirection table, and the connections that it steers.

use ironwarp_engine::config::Config;
use ironwarp_engine::{Engine, QueuePair};
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

/// Two connected queue pairs, and the addresses of the peer and of the own end of each.
struct Ends {
    pairs: [Arc<QueuePair>; 2],
    addresses: [(SocketAddr, SocketAddr); 2],
}

impl Ends {
    fn lanes(&self) -> [usize; 2] {
        self.pairs.each_ref().map(|pair| pair.lane().unwrap())
    }
}

/// Connects `PAIRS` queue pairs of two engines.
fn connect_pairs(near: &Side, far: &Side) -> Vec<Ends> {
    let pair = |side: &Side| side.pair(1, Completes::WhenSent);
    let pairs: Vec<_> = (0..PAIRS).map(|_| [pair(near), pair(far)]).collect();
    let connected = pairs.into_iter().map(|pairs| {
        connect((near, &pairs[0]), (far, &pairs[1]));
        let established = pairs.each_ref().map(|pair| pair.wait_connected(Duration::ZERO).unwrap());
        Ends { addresses: established.map(|it| (it.peer, it.local)), pairs }
    });
    connected.collect()
}

/// Connects `PAIRS` queue pairs of two engines; returns the lanes and the addresses of both ends of each.
fn lanes(client: &Arc<Engine>, server: &Arc<Engine>) -> Vec<(usize, (SocketAddr, SocketAddr))> {
    let pairs = connect_pairs(&Side::new(client, 8, 64), &Side::new(server, 8, 64));
    pairs.iter().flat_map(|ends| ends.lanes().into_iter().zip(ends.addresses)).collect()
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

/// Requirement I7: the size of the table and the mask can be changed at run time, too.
#[test]
fn a_table_of_another_size_and_mask_steers_new_connections() {
    let (client, server) = (engine(), engine());
    let last = u16::try_from(client.steering().lanes() - 1).unwrap();
    let (near, far) = (Side::new(&client, 8, 64), Side::new(&server, 8, 64));
    let old = connect_pairs(&near, &far);
    let before: Vec<_> = old.iter().flat_map(Ends::lanes).collect();
    for size in [1, 2, 512, RedirectionTable::MAX_ENTRIES] {
        // The mask has one bit: hashes reach the first entry, and one that names the last lane.
        let highest = size / 2;
        let mut entries = vec![0; size];
        entries[highest] = last;
        let mut table = RedirectionTable::new(entries).unwrap();
        let highest = u32::try_from(highest).unwrap();
        table.set_mask(highest).unwrap();
        client.steering().set_table(table.clone()).unwrap();
        assert_eq!(client.steering().table(), table);
        for ends in connect_pairs(&near, &far) {
            let (peer, local) = ends.addresses[0];
            let upper = size == 1 || toeplitz(&KEY, &Tuple::new(peer, local)) & highest != 0;
            let expected = if upper { usize::from(last) } else { 0 };
            assert_eq!(ends.lanes()[0], expected, "{size} entries, {peer} to {local}");
        }
    }
    let after: Vec<_> = old.iter().flat_map(Ends::lanes).collect();
    assert_eq!(after, before, "old connections stay");
}

/// Requirement I7: the key can be changed at run time.
#[test]
fn a_changed_key_steers_the_connections_that_come_after_it() {
    const OTHER: [u8; KEY_LEN] = *b"another key of forty bytes, just as good";
    let (client, server) = (engine(), engine());
    let (near, far) = (Side::new(&client, 8, 64), Side::new(&server, 8, 64));
    let old = connect_pairs(&near, &far);
    let before: Vec<_> = old.iter().flat_map(Ends::lanes).collect();
    client.steering().set_key(&HashKey::new(OTHER)).unwrap();
    let new = connect_pairs(&near, &far);
    let lane = |key, (peer, local): (SocketAddr, SocketAddr)| {
        client.steering().table().lane(toeplitz(key, &Tuple::new(peer, local)))
    };
    for ends in &new {
        assert_eq!(ends.lanes(), [lane(&OTHER, ends.addresses[0]), lane(&KEY, ends.addresses[1])]);
    }
    assert!(new.iter().any(|ends| lane(&OTHER, ends.addresses[0]) != lane(&KEY, ends.addresses[0])));
    assert_eq!(old.iter().flat_map(Ends::lanes).collect::<Vec<_>>(), before, "old connections stay");
    // An empty setting generates a key.
    let hash = |engine: &Engine| engine.steering().hash(new[0].addresses[0].0, new[0].addresses[0].1);
    let known = hash(&client);
    client.steering().set_key(&HashKey::default()).unwrap();
    assert_ne!(hash(&client), known);
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
