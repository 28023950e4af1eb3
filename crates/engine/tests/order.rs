//! The order of connection events.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{
    ConnectOptions, ConnectionEvent, ConnectionEventKind, Engine, EventSink, QueuePairAttributes,
    QueuePairOptions,
};
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::engine::Side;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the program takes to handle the event that reports the connection.
const SLOWLY: Duration = Duration::from_millis(200);

/// Records events. Handles the connection event slowly, unless the end is reported first.
#[derive(Debug, Default)]
struct Notes {
    events: Mutex<Vec<&'static str>>,
    changed: Condvar,
}

impl EventSink<ConnectionEvent> for Notes {
    fn send(&self, event: ConnectionEvent) {
        let mut events = self.events.lock().unwrap();
        match event.kind {
            ConnectionEventKind::Connected(_) => {
                events =
                    self.changed.wait_timeout_while(events, SLOWLY, |events| events.is_empty()).unwrap().0;
                events.push("connected");
            }
            ConnectionEventKind::Ended(_) => events.push("ended"),
            what => panic!("{what:?}"),
        }
        self.changed.notify_all();
    }
}

/// The peer closes at once while a thread of the program polls. That thread must not report the end before
/// the connection was reported.
#[test]
fn the_end_of_a_connection_is_reported_after_its_beginning() {
    let side = || Side::new(&Engine::new(Config::default()).unwrap(), 64, 64);
    let (client, server) = (side(), side());
    let notes = Arc::new(Notes::default());
    let near = client.pair(16, Completes::WhenSent);
    let events = Some(Arc::<Notes>::clone(&notes) as _);
    let options = QueuePairOptions { events, ..QueuePairOptions::default() };
    let attributes = QueuePairAttributes::new(server.domain, &server.cq);
    let far = server.engine.create_qp_with(attributes, options).unwrap();
    let listener = server.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    client.engine.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(TIMEOUT).unwrap();

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                server.cq.poll(1, |completion| panic!("{completion:?}")).unwrap();
            }
        });
        incoming.accept(&far, server.engine.terms(None, None), &[]).unwrap();
        near.wait_connected(TIMEOUT).unwrap();
        near.disconnect();
        let events = notes.events.lock().unwrap();
        let (events, late) =
            notes.changed.wait_timeout_while(events, TIMEOUT, |events| events.len() < 2).unwrap();
        over.store(true, Ordering::Relaxed);
        assert!(!late.timed_out(), "{events:?}");
        assert_eq!(*events, ["connected", "ended"]);
    });
    assert!(far.wait_closed(TIMEOUT), "the connection stays closed");
}
