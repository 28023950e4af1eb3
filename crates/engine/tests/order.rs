//! In which order a program is told what happens to a connection.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

mod common;

use common::Side;
use ironwarp_engine::{ConnectOptions, ConnectionEvent, Engine, QueuePairAttributes, Watcher, What};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::qp::Completes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
/// How long being told of the connection takes.
const SLOWLY: Duration = Duration::from_millis(200);

/// Notes what it is told. It takes its time over the connection, unless the end comes first.
#[derive(Debug, Default)]
struct Notes {
    told: Mutex<Vec<&'static str>>,
    changed: Condvar,
}

impl Watcher<ConnectionEvent> for Notes {
    fn tell(&self, event: ConnectionEvent) {
        let mut told = self.told.lock().unwrap();
        match event.what {
            What::Connected(_) => {
                told = self.changed.wait_timeout_while(told, SLOWLY, |told| told.is_empty()).unwrap().0;
                told.push("connected");
            }
            What::Ended(_) => told.push("ended"),
            what => panic!("{what:?}"),
        }
        self.changed.notify_all();
    }
}

/// The peer closes at once, and a thread of the program polls meanwhile: it finds the end only after the beginning was told.
#[test]
fn the_end_of_a_connection_is_told_after_its_beginning() {
    let side = || Side::new(&Engine::new(Config::default()).unwrap(), 64, 64);
    let (client, server) = (side(), side());
    let notes = Arc::new(Notes::default());
    let near = client.pair(16, Completes::WhenSent);
    let far = QueuePairAttributes {
        events: Some(Arc::<Notes>::clone(&notes)),
        ..QueuePairAttributes::new(server.domain, &server.cq)
    };
    let far = server.engine.create_qp(far).unwrap();
    let listener = server.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    client.engine.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(PATIENCE).unwrap();

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                server.cq.poll(1, |completion| panic!("{completion:?}")).unwrap();
            }
        });
        incoming.accept(&far, server.engine.terms(None, None), &[]).unwrap();
        near.wait_connected(PATIENCE).unwrap();
        near.disconnect();
        let told = notes.told.lock().unwrap();
        let (told, late) = notes.changed.wait_timeout_while(told, PATIENCE, |told| told.len() < 2).unwrap();
        over.store(true, Ordering::Relaxed);
        assert!(!late.timed_out(), "{told:?}");
        assert_eq!(*told, ["connected", "ended"]);
    });
    assert!(far.wait_closed(PATIENCE), "and stays closed");
}
