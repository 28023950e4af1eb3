//! Panics: a mistake of the adapter, or of a callback of its program, ends the connection that it was busy with. The neighbour, on the
//! same lane, must not notice, and no thread waits forever.

use crate::common::peer::{Heard, Way};
use crate::common::victim::{Attacked, RECEIVES, Victim};
use crate::common::{PATIENCE, send};
use ironwarp_engine::{AsyncEventQueue, ConnectionEvent, QueuePairAttributes, Watcher};
use ironwarp_rnic::bug::Bug;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::qp::{Receives, State};
use ironwarp_rnic::queue::{Completion, Operation, ReceiveRequest, Status};
use ironwarp_wire::Terminate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SEND: Operation = Operation::Send { invalidate: None };

/// One lane for all: whoever ends it ends the neighbour.
fn one_lane() -> Victim {
    Victim::with(Config { lanes: 1, ..Config::default() })
}

/// The clock of a completion queue, which is read for each completion, in the middle of driving a queue pair. It panics once.
fn breaks(broke: &AtomicBool) -> u64 {
    assert!(broke.swap(true, Ordering::SeqCst), "the clock is broken");
    0
}

/// The queue pair is over for a bug, of which the program hears.
fn failed(attacked: &Attacked, events: &AsyncEventQueue, doing: &str) {
    let qp = attacked.pair.qp();
    assert_eq!(events.wait(Some(PATIENCE)), Some(AsyncEvent::QpFatal(qp.id())));
    assert_eq!(qp.state(), State::Error);
    let Some(Fault::Bug(bug)) = qp.fault().map(|fault| &**fault) else { panic!("{:?}", qp.fault()) };
    assert_eq!(*bug, Bug { doing: doing.to_owned().leak(), panic: "the clock is broken".into() });
    let text = bug.to_string();
    assert!(
        text.starts_with("a bug in Ironwarp: it panicked while") && text.contains("the clock is broken"),
        "{text}"
    );
}

/// All completions that come until the connection is closed.
fn rest(attacked: &Attacked) -> Vec<Completion> {
    assert!(attacked.pair.wait_closed(PATIENCE), "the connection stays");
    let mut rest = Vec::new();
    while attacked.cq.poll(16, |completion| rest.push(completion)).unwrap() > 0 {}
    rest
}

/// A lane receives, and panics. What was posted comes back, the peer is told, the neighbour goes on.
#[test]
fn a_panic_while_a_lane_receives() {
    let victim = one_lane();
    let events = victim.engine.async_events().unwrap();
    let mut attacked = victim.attacked();
    attacked.cq.cq().set_clock(|| {
        static BROKE: AtomicBool = AtomicBool::new(false);
        breaks(&BROKE)
    });
    attacked.peer.send(&send(1), b"never delivered");
    // Nobody polls, so it is the lane that receives.
    failed(&attacked, &events, "receiving");
    assert_eq!(attacked.peer.hear_terminate(), Terminate::LOCAL_CATASTROPHE);
    attacked.peer.finish();
    let rest = rest(&attacked);
    assert_eq!(rest.len(), RECEIVES - 1, "one completion was lost in the panic: {rest:?}");
    assert!(rest.iter().all(|done| done.status == Status::Flushed), "{rest:?}");
    // What is posted from now on is flushed at once.
    attacked.post(9, SEND, victim.open.sge(0, 8));
    assert_eq!((attacked.one().wr_id, attacked.pair.qp().state()), (9, State::Error));
    victim.survives();
}

/// The thread of the program posts, transmits, and panics: the call returns, and the next ones do.
#[test]
fn a_panic_while_the_program_transmits() {
    let victim = one_lane();
    let events = victim.engine.async_events().unwrap();
    let mut attacked = victim.attacked();
    attacked.goes_on(1); // so that the stream is open, and a request leaves at once
    attacked.cq.cq().set_clock(|| {
        static BROKE: AtomicBool = AtomicBool::new(false);
        breaks(&BROKE)
    });
    attacked.post(1, SEND, victim.open.sge(0, 8));
    failed(&attacked, &events, "transmitting");
    let (_, end) = attacked.peer.hear_out();
    assert!(matches!(end, Heard::End | Heard::Reset), "{end:?}");
    attacked.peer.finish();
    let rest = rest(&attacked);
    assert_eq!(rest.len(), RECEIVES - 1, "one receive was used up before: {rest:?}");
    assert!(rest.iter().all(|done| done.status == Status::Flushed), "{rest:?}");
    attacked.post(9, SEND, victim.open.sge(0, 8));
    assert_eq!((attacked.one().wr_id, attacked.pair.qp().state()), (9, State::Error));
    victim.survives();
}

/// A callback of the program, which makes a mistake at the end.
#[derive(Debug, Default)]
struct Panics {
    did: AtomicBool,
}

impl Watcher<ConnectionEvent> for Panics {
    fn tell(&self, event: ConnectionEvent) {
        if matches!(event.what, ironwarp_engine::What::Ended(_)) {
            self.did.store(true, Ordering::SeqCst);
            panic!("the program's own mistake");
        }
    }
}

/// A callback of the program panics on the lane that tells it of the end.
#[test]
fn a_callback_that_panics() {
    let victim = one_lane();
    let callback = Arc::new(Panics::default());
    let cq = victim.engine.create_cq(64).unwrap();
    let pair = victim.engine.create_qp(QueuePairAttributes {
        receives: Receives::Own(RECEIVES),
        events: Some(Arc::<Panics>::clone(&callback)),
        ..QueuePairAttributes::new(victim.domain, &cq)
    });
    let pair = pair.unwrap();
    for id in 0..RECEIVES as u64 {
        pair.qp().post_receive(ReceiveRequest { id, buffers: victim.private.sge(0, 8).into() }).unwrap();
    }
    let mut peer = victim.connected(&pair, Way::default());
    peer.open();
    peer.finish();
    let attacked = Attacked { peer, pair, cq };
    let rest = rest(&attacked);
    assert!(callback.did.load(Ordering::SeqCst));
    assert_eq!(rest.len(), RECEIVES, "{rest:?}");
    assert!(rest.iter().all(|done| done.status == Status::Flushed), "{rest:?}");
    assert_eq!(attacked.pair.qp().fault().map(|fault| &**fault), Some(&Fault::Closed));
    victim.survives();
}

/// What the program asked a lane to call panics: the lane goes on.
#[test]
fn a_call_that_panics() {
    let victim = one_lane();
    let mut attacked = victim.attacked();
    let now = std::time::Instant::now();
    victim.engine.call_at(now, || panic!("the program's own mistake")).unwrap();
    let (told, tell) = std::sync::mpsc::channel();
    victim.engine.call_at(now, move || told.send(()).unwrap()).unwrap();
    tell.recv_timeout(PATIENCE).expect("the lane goes on");
    attacked.goes_on(1);
    victim.survives();
}
