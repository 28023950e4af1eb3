//! Asynchronous events, and the adapter that stops because nobody takes them.

use super::{PATIENCE, completion};
use ironwarp_engine::{ConnectOptions, Engine, QueuePairAttributes};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::{AsyncEvent, Sizes};
use ironwarp_rnic::queue::{Arm, ReceiveRequest, Sges, Status};
use std::sync::Arc;

fn engine() -> Arc<Engine> {
    Engine::new(Config { lanes: 1, ..Config::default() }).unwrap()
}

#[test]
fn asynchronous_events_wait_for_whoever_asks_and_go_with_their_object() {
    let engine = engine();
    let attributes = |engine: &Engine| {
        QueuePairAttributes::new(engine.device().allocate_domain(), &engine.create_cq(1).unwrap())
    };
    let (stays, goes) =
        (engine.create_qp(attributes(&engine)).unwrap(), engine.create_qp(attributes(&engine)).unwrap());
    let (stays_event, goes_event) = (AsyncEvent::QpFatal(stays.id()), AsyncEvent::SqDrained(goes.id()));
    let events = engine.async_events().unwrap();
    for event in [goes_event, stays_event, goes_event] {
        engine.device().raise(event);
    }
    drop(goes);
    assert_eq!((events.next(), events.next()), (Some(stays_event), None));
    engine.device().raise(AsyncEvent::PortActive(1));
    let again = engine.async_events().unwrap();
    assert_eq!(again.wait(Some(PATIENCE)), Some(AsyncEvent::PortActive(1)), "one queue for all who ask");
}

#[test]
fn an_overrun_is_told_until_the_queue_is_gone() {
    let engine = engine();
    let events = engine.async_events().unwrap();
    let cq = engine.create_cq(1).unwrap();
    cq.cq().push(completion(1)).unwrap();
    cq.cq().push(completion(2)).unwrap_err();
    assert_eq!(events.wait(Some(PATIENCE)), Some(AsyncEvent::CqError(cq.cq().id())));
    let other = engine.create_cq(1).unwrap();
    other.cq().push(completion(1)).unwrap();
    other.cq().push(completion(2)).unwrap_err();
    drop(other);
    assert_eq!(events.next(), None);
}

/// Requirement I5: the event queue grows to its bound, and then the adapter stops, says so, and flushes what was posted.
#[test]
fn an_event_queue_that_nobody_reads_stops_the_adapter_at_its_bound() {
    let [client, server] = [(); 2].map(|()| engine());
    let listener = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let cqs = [&client, &server].map(|engine| engine.create_cq(4).unwrap());
    let domain = client.device().allocate_domain();
    let near = client.create_qp(QueuePairAttributes::new(domain, &cqs[0])).unwrap();
    let far = server.create_qp(QueuePairAttributes::new(server.device().allocate_domain(), &cqs[1])).unwrap();
    client.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
    far.qp().post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
    incoming.accept(&far, server.terms(None, None), &[]).unwrap();
    near.wait_connected(PATIENCE).unwrap();

    // A program that never asked for events loses nothing by them, so peers cannot stop its adapter.
    for _ in 0..2 * Sizes::default().most {
        server.device().raise(AsyncEvent::QpAccessError(1));
    }
    let queue = server.async_events().unwrap();
    let events = server.device().events();
    assert!(!events.is_stopped());
    assert_eq!(queue.next(), None);
    let mut raised = 0;
    while !events.is_stopped() {
        server.device().raise(AsyncEvent::GidChange(1));
        raised += 1;
        assert!(raised <= 2 * Sizes::default().most, "it is bounded");
    }
    assert!(raised >= Sizes::default().most, "and grows before it gives up");
    assert_eq!(cqs[1].wait(Some(PATIENCE)), Ok(true));
    let flushed = |done: ironwarp_rnic::queue::Completion| {
        assert_eq!((done.wr_id, done.status), (7, Status::Flushed));
        assert_eq!(done.cause.as_deref(), Some(&Fault::Stopped));
    };
    assert_eq!(cqs[1].poll(4, flushed), Ok(1));
    assert!(far.wait_closed(PATIENCE));

    let taken: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
    assert_eq!(taken.len(), raised, "not one is missing, and the last is about the queue itself");
    assert!(taken[..raised - 1].iter().all(|event| *event == AsyncEvent::GidChange(1)));
    assert_eq!(taken.last(), Some(&AsyncEvent::EventQueueOverflow(0)));

    // What begins now ends at once.
    let late = client.create_qp(QueuePairAttributes::new(domain, &cqs[0])).unwrap();
    client.connect(&late, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(Some(PATIENCE)).unwrap();
    let far = server.create_qp(QueuePairAttributes::new(server.device().allocate_domain(), &cqs[1])).unwrap();
    incoming.accept(&far, server.terms(None, None), &[]).unwrap();
    assert!(far.wait_closed(PATIENCE));
}

/// Requirement N11: what was accepted completes or flushes, then no event is raised any more.
#[test]
fn after_the_shutdown_of_the_adapter_no_event_is_raised() {
    let engine = engine();
    let handler = engine.create_handler().unwrap();
    let cq = engine.create_cq(4).unwrap();
    cq.set_handler(Some(&handler));
    assert!(!cq.arm(Arm::Next));
    let device = Arc::clone(engine.device());
    let events = engine.async_events().unwrap();
    drop(engine);
    cq.cq().push(completion(1)).unwrap();
    device.raise(AsyncEvent::DeviceFatal);
    assert_eq!((handler.next(), events.next()), (None, None));
    assert_eq!(cq.poll(1, drop), Ok(1), "completions are there to be polled");
}
