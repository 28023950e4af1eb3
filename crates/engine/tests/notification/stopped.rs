//! Asynchronous events, and how the adapter stops if they are not taken.

use super::{TIMEOUT, completion};
use ironwarp_engine::config::Config;
use ironwarp_engine::{ConnectOptions, Engine, QueuePairAttributes};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::{AsyncEvent, Sizes};
use ironwarp_rnic::queue::{Arm, ReceiveRequest, Sges, Status};
use std::sync::Arc;

fn engine() -> Arc<Engine> {
    Engine::new(Config::default().lanes(1)).unwrap()
}

#[test]
fn asynchronous_events_are_kept_until_taken_or_their_object_is_destroyed() {
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
    assert_eq!((events.try_next(), events.try_next()), (Some(stays_event), None));
    engine.device().raise(AsyncEvent::PortActive(1));
    let again = engine.async_events().unwrap();
    assert_eq!(again.wait(Some(TIMEOUT)), Some(AsyncEvent::PortActive(1)), "all callers share one queue");
}

#[test]
fn an_overrun_is_reported_unless_the_queue_is_destroyed() {
    let engine = engine();
    let events = engine.async_events().unwrap();
    let cq = engine.create_cq(1).unwrap();
    cq.cq().push(completion(1)).unwrap();
    cq.cq().push(completion(2)).unwrap_err();
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::CqError(cq.cq().id())));
    let other = engine.create_cq(1).unwrap();
    other.cq().push(completion(1)).unwrap();
    other.cq().push(completion(2)).unwrap_err();
    drop(other);
    assert_eq!(events.try_next(), None);
}

/// Requirement I5: the event queue grows to its maximum; then the adapter stops, reports it, and flushes
/// posted requests.
#[test]
fn an_unread_event_queue_stops_the_adapter_at_its_maximum_size() {
    let [client, server] = [(); 2].map(|()| engine());
    let listener = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let cqs = [&client, &server].map(|engine| engine.create_cq(4).unwrap());
    let domain = client.device().allocate_domain();
    let near = client.create_qp(QueuePairAttributes::new(domain, &cqs[0])).unwrap();
    let far = server.create_qp(QueuePairAttributes::new(server.device().allocate_domain(), &cqs[1])).unwrap();
    client.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
    far.qp().post_receive(ReceiveRequest { id: 7, buffers: Sges::default() }).unwrap();
    incoming.accept(&far, server.terms(None, None), &[]).unwrap();
    near.wait_connected(TIMEOUT).unwrap();

    // Until a program asks for events, equal ones count as one, so that peers cannot stop the adapter of a program
    // that never does.
    for _ in 0..2 * Sizes::default().max {
        server.device().raise(AsyncEvent::QpAccessError(1));
    }
    let queue = server.async_events().unwrap();
    let events = server.device().events();
    assert!(!events.is_stopped());
    assert_eq!([queue.try_next(), queue.try_next()], [Some(AsyncEvent::QpAccessError(1)), None]);
    let mut raised = 0;
    while !events.is_stopped() {
        server.device().raise(AsyncEvent::GidChange(1));
        raised += 1;
        assert!(raised <= 2 * Sizes::default().max, "the event queue is bounded");
    }
    assert!(raised >= Sizes::default().max, "the event queue grows to its maximum");
    assert_eq!(cqs[1].wait(Some(TIMEOUT)), Ok(true));
    let flushed = |done: ironwarp_rnic::queue::Completion| {
        assert_eq!((done.wr_id, done.status), (7, Status::Flushed));
        assert_eq!(done.cause.as_deref(), Some(&QpError::Stopped));
    };
    assert_eq!(cqs[1].poll(4, flushed), Ok(1));
    assert!(far.wait_closed(TIMEOUT));

    let taken: Vec<_> = std::iter::from_fn(|| queue.try_next()).collect();
    assert_eq!(taken.len(), raised, "none is missing, and the last one reports the overflow");
    assert!(taken[..raised - 1].iter().all(|event| *event == AsyncEvent::GidChange(1)));
    assert_eq!(taken.last(), Some(&AsyncEvent::EventQueueOverflow(0)));

    // New connections end at once.
    let late = client.create_qp(QueuePairAttributes::new(domain, &cqs[0])).unwrap();
    client.connect(&late, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
    let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
    let far = server.create_qp(QueuePairAttributes::new(server.device().allocate_domain(), &cqs[1])).unwrap();
    incoming.accept(&far, server.terms(None, None), &[]).unwrap();
    assert!(far.wait_closed(TIMEOUT));
}

/// Requirement N11: accepted requests complete or are flushed, after which no event is raised.
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
    assert_eq!((handler.try_next(), events.try_next()), (None, None));
    assert_eq!(cq.poll(1, drop), Ok(1), "completions can still be polled");
}
