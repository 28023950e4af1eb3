//! Panics: a bug in the adapter, or in a callback of the program, ends only the connection being handled. The
//! neighbour on the same lane must not be affected, and no thread waits forever.

use crate::common::peer::{Received, StartupSettings};
use crate::common::victim::{Attacked, RECEIVES, Victim};
use crate::common::{TIMEOUT, send};
use ironwarp_engine::config::Config;
use ironwarp_engine::{AsyncEventQueue, ConnectionEvent, EventSink, QueuePairAttributes, QueuePairOptions};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::qp::{Receives, State};
use ironwarp_rnic::queue::{Completion, Operation, ReceiveRequest, Status};
use ironwarp_wire::Terminate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SEND: Operation = Operation::Send { invalidate: None };

/// A victim with a single lane: if it ended, the neighbour would fail, too.
fn one_lane() -> Victim {
    Victim::with(Config::default().lanes(1))
}

/// The clock of a completion queue, which is read for each completion while a queue pair is driven. Panics
/// once.
fn breaks(broke: &AtomicBool) -> u64 {
    assert!(broke.swap(true, Ordering::SeqCst), "the clock is broken");
    0
}

/// Checks that the queue pair has failed because of a bug, and that the program was notified.
fn failed(attacked: &Attacked, events: &AsyncEventQueue, doing: &str) {
    let qp = attacked.pair.qp();
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::QpFatal(qp.id())));
    assert_eq!(qp.state(), State::Error);
    let Some(QpError::Bug(bug)) = qp.error().map(|error| &**error) else { panic!("{:?}", qp.error()) };
    assert_eq!((bug.doing, &*bug.panic), (doing, "the clock is broken"));
    let text = bug.to_string();
    assert!(
        text.starts_with("bug in Ironwarp: panic while") && text.contains("the clock is broken"),
        "{text}"
    );
}

/// All completions until the connection is closed.
fn rest(attacked: &Attacked) -> Vec<Completion> {
    assert!(attacked.pair.wait_closed(TIMEOUT), "the connection was not closed");
    let mut rest = Vec::new();
    while attacked.cq.poll(16, |completion| rest.push(completion)).unwrap() > 0 {}
    rest
}

/// A lane panics while receiving: posted requests are flushed, the peer is told, and the neighbour continues.
#[test]
fn a_panic_while_a_lane_receives() {
    let victim = one_lane();
    let events = victim.engine.async_events().unwrap();
    let mut attacked = victim.connect_peer();
    attacked.cq.cq().set_clock(|| {
        static BROKE: AtomicBool = AtomicBool::new(false);
        breaks(&BROKE)
    });
    attacked.peer.send(&send(1), b"never delivered");
    // No thread polls, so the lane receives.
    failed(&attacked, &events, "receiving");
    assert_eq!(attacked.peer.receive_terminate(), Terminate::LOCAL_CATASTROPHE);
    attacked.peer.finish();
    let rest = rest(&attacked);
    assert_eq!(rest.len(), RECEIVES - 1, "one completion was lost in the panic: {rest:?}");
    assert!(rest.iter().all(|done| done.status == Status::Flushed), "{rest:?}");
    // Requests posted from now on are flushed at once.
    attacked.post(9, SEND, victim.open.sge(0, 8));
    assert_eq!((attacked.one().wr_id, attacked.pair.qp().state()), (9, State::Error));
    victim.assert_survives();
}

/// A thread of the program panics while transmitting: its call returns, and so do later calls.
#[test]
fn a_panic_while_the_program_transmits() {
    let victim = one_lane();
    let events = victim.engine.async_events().unwrap();
    let mut attacked = victim.connect_peer();
    attacked.assert_works(1); // opens the stream, so that a request is sent at once
    attacked.cq.cq().set_clock(|| {
        static BROKE: AtomicBool = AtomicBool::new(false);
        breaks(&BROKE)
    });
    attacked.post(1, SEND, victim.open.sge(0, 8));
    failed(&attacked, &events, "transmitting");
    let (_, end) = attacked.peer.receive_until_end();
    assert!(matches!(end, Received::End | Received::Reset), "{end:?}");
    attacked.peer.finish();
    let rest = rest(&attacked);
    assert_eq!(rest.len(), RECEIVES - 1, "one receive was consumed before: {rest:?}");
    assert!(rest.iter().all(|done| done.status == Status::Flushed), "{rest:?}");
    attacked.post(9, SEND, victim.open.sge(0, 8));
    assert_eq!((attacked.one().wr_id, attacked.pair.qp().state()), (9, State::Error));
    victim.assert_survives();
}

/// A callback of the program that panics when the connection ends.
#[derive(Debug, Default)]
struct Panics {
    did: AtomicBool,
}

impl EventSink<ConnectionEvent> for Panics {
    fn send(&self, event: ConnectionEvent) {
        if matches!(event.kind, ironwarp_engine::ConnectionEventKind::Ended(_)) {
            self.did.store(true, Ordering::SeqCst);
            panic!("the program's own mistake");
        }
    }
}

/// A callback of the program panics on the lane that reports the end of the connection.
#[test]
fn a_callback_that_panics() {
    let victim = one_lane();
    let callback = Arc::new(Panics::default());
    let cq = victim.engine.create_cq(64).unwrap();
    let attributes = QueuePairAttributes {
        receives: Receives::Own(RECEIVES),
        ..QueuePairAttributes::new(victim.domain, &cq)
    };
    let events = Some(Arc::<Panics>::clone(&callback) as _);
    let options = QueuePairOptions { events, ..QueuePairOptions::default() };
    let pair = victim.engine.create_qp_with(attributes, options).unwrap();
    for id in 0..RECEIVES as u64 {
        pair.qp().post_receive(ReceiveRequest { id, buffers: victim.private.sge(0, 8).into() }).unwrap();
    }
    let mut peer = victim.connected(&pair, StartupSettings::default());
    peer.open();
    peer.finish();
    let attacked = Attacked { peer, pair, cq };
    let rest = rest(&attacked);
    assert!(callback.did.load(Ordering::SeqCst));
    assert_eq!(rest.len(), RECEIVES, "{rest:?}");
    assert!(rest.iter().all(|done| done.status == Status::Flushed), "{rest:?}");
    assert_eq!(attacked.pair.qp().error().map(|error| &**error), Some(&QpError::Closed));
    victim.assert_survives();
}

/// A call that the program scheduled on a lane panics: the lane continues.
#[test]
fn a_call_that_panics() {
    let victim = one_lane();
    let mut attacked = victim.connect_peer();
    let now = std::time::Instant::now();
    victim.engine.call_at(now, || panic!("the program's own mistake")).unwrap();
    let (told, tell) = std::sync::mpsc::channel();
    victim.engine.call_at(now, move || told.send(()).unwrap()).unwrap();
    tell.recv_timeout(TIMEOUT).expect("the lane continues");
    attacked.assert_works(1);
    victim.assert_survives();
}
