//! Requirement N9: whose completion is written, and in which order. The adapter checks that the queue pair still exists,
//! decides on the event, makes the completion visible, and then raises the event.

use super::TIMEOUT;
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes};
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::qp::{Receives, State};
use ironwarp_rnic::queue::{Arm, Cq, Data, Operation, ReceiveRequest, Sges, Status, WorkRequest};
use ironwarp_testkit::wait::until;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

/// Number of messages that arrive while a queue pair ends.
const MESSAGES: u64 = 256;

fn engine() -> Arc<Engine> {
    Engine::new(Config::default().lanes(1).shm(false)).unwrap()
}

fn create(engine: &Engine, cq: &Arc<CompletionQueue>) -> Arc<QueuePair> {
    let domain = engine.device().allocate_domain();
    let depth = usize::try_from(MESSAGES).unwrap();
    let attributes = QueuePairAttributes {
        send_depth: depth,
        receives: Receives::Own(depth),
        ..QueuePairAttributes::new(domain, cq)
    };
    engine.create_qp(attributes).unwrap()
}

/// Connects two queue pairs, of which `far` has receives posted.
fn connect((near_engine, near): (&Engine, &Arc<QueuePair>), (far_engine, far): (&Engine, &Arc<QueuePair>)) {
    for id in 0..MESSAGES {
        far.post_receive(ReceiveRequest { id, buffers: Sges::default() }).unwrap();
    }
    let listener = far_engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    near_engine.connect(near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(TIMEOUT).unwrap();
    incoming.accept(far, far_engine.terms(None, None), &[]).unwrap();
    near.wait_connected(TIMEOUT).unwrap();
}

fn send(pair: &QueuePair, count: u64) {
    let send = |id| WorkRequest::new(id, Operation::Send { invalidate: None }, Data::Memory(Sges::default()));
    let _ = (0..count).try_for_each(|id| pair.post_send([send(id)])); // refused once the peer has closed
}

/// While a lane completes receives, the program destroys or resets their queue pair. After that has returned, the queue
/// has no completion of it, and gets none: its number may soon belong to another queue pair.
#[test]
fn a_queue_pair_writes_no_completion_of_an_earlier_life() {
    const ROUNDS: u64 = 100;
    let (near, far) = (engine(), engine());
    for round in 0..ROUNDS {
        let (near_cq, far_cq) = (near.create_cq(1024).unwrap(), far.create_cq(1024).unwrap());
        let (sender, receiver) = (create(&near, &near_cq), create(&far, &far_cq));
        connect((&near, &sender), (&far, &receiver));
        thread::scope(|scope| {
            scope.spawn(|| send(&sender, MESSAGES));
            let some = usize::try_from(round % 100).unwrap() + 1;
            // Without a poll: only the lane receives.
            while far_cq.cq().len() < some {
                thread::yield_now();
            }
            match round % 2 {
                0 => receiver.retire(),
                _ => receiver.modify(State::Reset).unwrap(),
            }
        });
        sender.disconnect();
        assert!(sender.wait_closed(TIMEOUT));
        drop(receiver);
        assert_eq!(far_cq.cq().len(), 0, "round {round}");
    }
}

/// Checks, when the event is raised, that the completion is visible.
#[derive(Debug)]
struct Observer {
    cq: Weak<Cq>,
    raised: Arc<AtomicUsize>,
    visible: Arc<AtomicUsize>,
}

impl Wake for Observer {
    fn signal(&self) {
        self.visible.fetch_add(self.cq.upgrade().unwrap().len(), Ordering::SeqCst);
        self.raised.fetch_add(1, Ordering::SeqCst); // last: the test waits for it
    }

    fn consume(&self) {}
}

/// A queue pair that was destroyed takes no part: its messages and flushed receives neither use up the event that the
/// program asked for, nor raise it. The next completion of another queue pair does, and is visible by then.
#[test]
fn identity_comes_before_the_event_and_the_completion_before_both() {
    let (near, far) = (engine(), engine());
    let (near_cq, far_cq) = (near.create_cq(1024).unwrap(), far.create_cq(1024).unwrap());
    let [gone, stays] = [(); 2].map(|()| {
        let (sender, receiver) = (create(&near, &near_cq), create(&far, &far_cq));
        connect((&near, &sender), (&far, &receiver));
        (sender, receiver)
    });
    let (raised, visible) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let observer = Observer {
        cq: Arc::downgrade(far_cq.cq()),
        raised: Arc::clone(&raised),
        visible: Arc::clone(&visible),
    };
    let handler = far.device().create_handler(Box::new(observer)).unwrap();
    far_cq.cq().set_handler(Some(Arc::clone(&handler)));
    assert!(!far_cq.arm(Arm::Next));

    gone.1.qp().retire();
    send(&gone.0, MESSAGES);
    gone.0.disconnect();
    assert!(gone.0.wait_closed(TIMEOUT) && gone.1.wait_closed(TIMEOUT), "its receives are flushed");
    assert!(far_cq.cq().is_empty() && far_cq.cq().is_armed(), "neither completion nor event");
    assert_eq!((raised.load(Ordering::SeqCst), handler.try_next()), (0, None));

    send(&stays.0, 1);
    until(|| raised.load(Ordering::SeqCst) > 0);
    assert_eq!((raised.load(Ordering::SeqCst), visible.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(handler.try_next().map(|event| event.cq), Some(far_cq.cq().id()));
    let mut found = Vec::new();
    far_cq
        .cq()
        .poll(8, |completion| found.push((completion.qp, completion.wr_id, completion.status)))
        .unwrap();
    assert_eq!(found, [(stays.1.id(), 0, Status::Success)]);
}
