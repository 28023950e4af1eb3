//! Injected faults on connections in shared memory.

use super::common::{SHARED, assert_flushed, drain, ends, shared_ends};
use super::stream::{Messages, Place, Stream, stream_between};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::wait::until;
use std::time::Duration;

const PLACE: Place = Place { at: 0, slots: 8, max: 200_000 };

fn config(faults: &str, seed: u64) -> Config {
    Config::default().shm(true).faults(faults.parse().unwrap()).seed(seed)
}

/// Streams with faults that end no connection. Everything arrives.
fn stream_with(faults: &str) {
    for (seed, completes) in [(1, Completes::WhenSent), (2, Completes::WhenAcknowledged)] {
        let (client, server) = shared_ends(&config(faults, seed), completes, PLACE.len());
        stream_between(&client, &server, PLACE, |sent| sent < 200);
        assert_eq!((client.routes(), server.routes()), (SHARED, SHARED));
        let injected = client.host.engine.device().faults().unwrap().report();
        assert!(format!("{injected:?}").contains(char::is_numeric), "{injected:?}");
    }
}

#[test]
fn split_transfers_arrive() {
    stream_with("split=0.5");
}

#[test]
fn delayed_transfers_arrive() {
    stream_with("delay=20us..2ms@0.03");
}

#[test]
fn stalled_connections_go_on() {
    stream_with("stall=1ms..5ms@0.01");
}

#[test]
fn all_faults_together_lose_nothing() {
    stream_with("split=0.3,delay=20us..1ms@0.02,stall=2ms@0.005,no-receive@0.05");
}

/// The connection is reset in the middle of a transfer: both ends notice, and what was received before is right.
#[test]
fn a_cut_connection_ends_at_both_ends() {
    for seed in 1..=20 {
        let config = config("cut@0.004,split=0.1", seed);
        let (client, server) = ends(&config, Completes::WhenAcknowledged, PLACE.len());
        std::thread::scope(|scope| {
            for (end, own, others) in [(&client, 1, 2), (&server, 2, 1)] {
                let messages = |seed| Messages { seed, max: PLACE.max };
                scope.spawn(move || {
                    let failed =
                        Stream::new(end, PLACE, messages(own), messages(others)).run(|_| true).unwrap_err();
                    assert_flushed(&failed, &drain(end, Duration::from_millis(50)));
                });
            }
        });
        until(|| client.pair.wait_closed(Duration::ZERO) && server.pair.wait_closed(Duration::ZERO));
    }
}
