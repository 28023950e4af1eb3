//! The event map in operation (requirements I6, I8, I9): which queue an event goes to, and which vector
//! becomes readable.

use super::{TIMEOUT, completion};
use ironwarp_engine::EventFdWake;
use ironwarp_engine::config::Config;
use ironwarp_engine::{CompletionHandler, CompletionQueue, Engine, SetMapError};
use ironwarp_rnic::event::{AsyncEvent, Code, EventMap, LANE_QUEUE, Route, Shape, Vector};
use ironwarp_rnic::queue::Arm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SHAPES: [Shape; 3] = [Shape::ByFunction, Shape::ByCode, Shape::ByQueue];

fn engine() -> Arc<Engine> {
    Engine::new(Config::default()).unwrap()
}

fn readable(vector: &EventFdWake) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(vector, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// A completion queue that follows the map for this lane.
fn follower(engine: &Engine, lane: usize) -> Arc<CompletionQueue> {
    let cq = engine.create_cq(4).unwrap();
    engine.event_queues().follow_map(&cq, lane).unwrap();
    cq
}

/// Arms the queue and adds a completion.
fn complete(cq: &CompletionQueue) {
    cq.cq().poll(4, drop).unwrap();
    assert!(!cq.arm(Arm::Next));
    cq.cq().push(completion(1)).unwrap();
}

/// Raises one event of each function, and checks that exactly the vectors that the map assigns to it are
/// readable.
fn events_wake_their_vectors(engine: &Engine, map: &EventMap) {
    engine.event_queues().set_map(map.clone()).unwrap();
    let async_events = engine.async_events().unwrap();
    let last = map.lanes() - 1;
    let (cq, handler) = (follower(engine, last), engine.event_queues().lane_handler(last).unwrap());
    let take = || assert!(handler.try_next().is_some());
    let take_async = |event| assert_eq!(async_events.try_next(), Some(event));
    let of_adapter = AsyncEvent::EventQueueOverflow(7);
    type Case<'c> = (Code, &'c dyn Fn(), &'c dyn Fn());
    let cases: [Case<'_>; 4] = [
        (Code::EventQueueOverflow, &|| engine.device().raise(of_adapter), &|| take_async(of_adapter)),
        (Code::PortError, &|| engine.device().raise(AsyncEvent::PortError(1)), &|| {
            take_async(AsyncEvent::PortError(1));
        }),
        (Code::SqDrained, &|| engine.device().raise(AsyncEvent::SqDrained(5)), &|| {
            take_async(AsyncEvent::SqDrained(5));
        }),
        (Code::Completion, &|| complete(&cq), &take),
    ];
    let all = (0..map.vectors()).map(Vector::Message).chain([Vector::Line]);
    let vectors: Vec<_> = all.map(|vector| (vector, engine.event_queues().vector(vector).unwrap())).collect();
    for (code, raise, take) in cases {
        raise();
        let route = map.route(code, if code == Code::Completion { last } else { 0 });
        let expected = map.vectors_of(route.queue);
        assert!(expected.contains(&route.vector));
        for (vector, descriptor) in &vectors {
            assert_eq!(readable(descriptor), expected.contains(vector), "{code:?} {vector:?} {map:?}");
        }
        take();
        assert!(!vectors.iter().any(|(_, descriptor)| readable(descriptor)), "{code:?} {map:?}");
    }
    engine.event_queues().leave_map(&cq, None);
}

#[test]
fn in_every_shape_an_event_wakes_the_vector_of_its_queue_and_no_other() {
    let engine = engine();
    let lanes = engine.steering().lanes();
    for shape in SHAPES {
        for vectors in [0, 1, 2, u8::try_from(lanes + 1).unwrap()] {
            events_wake_their_vectors(&engine, &EventMap::new(shape, lanes, vectors));
        }
        let mut map = EventMap::new(shape, lanes, 9);
        let route = |queue, vector| Route { queue, vector: Vector::Message(vector) };
        map.assign(Code::SqDrained, 0, route(1, 8)).unwrap();
        map.assign(Code::Completion, lanes - 1, route(LANE_QUEUE, 7)).unwrap();
        events_wake_their_vectors(&engine, &map);
    }
}

#[test]
fn events_of_the_adapter_come_before_those_of_its_objects() {
    let engine = engine();
    let events = engine.async_events().unwrap();
    for event in [AsyncEvent::QpFatal(3), AsyncEvent::EventQueueOverflow(9), AsyncEvent::PortError(1)] {
        engine.device().raise(event);
    }
    let taken: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    assert_eq!(taken, [AsyncEvent::EventQueueOverflow(9), AsyncEvent::PortError(1), AsyncEvent::QpFatal(3)]);
}

/// A map that sends the completions of lane 0 to this handler.
fn leading_to(engine: &Engine, handler: &CompletionHandler) -> EventMap {
    let mut map = EventMap::new(Shape::ByFunction, engine.steering().lanes(), 1);
    let route = Route { queue: handler.id().event_queue().unwrap(), vector: Vector::Message(0) };
    map.assign(Code::Completion, 0, route).unwrap();
    map
}

/// Requirement I9: each time that it is armed, the queue raises one event, at one of the handlers between
/// which the map alternates.
#[test]
fn changing_the_map_neither_loses_nor_repeats_events() {
    let engine = engine();
    let handlers = [engine.event_queues().lane_handler(0).unwrap(), engine.create_handler().unwrap()];
    let maps = [&handlers[0], &handlers[1]].map(|handler| leading_to(&engine, handler));
    let vector = engine.event_queues().vector(Vector::Message(0)).unwrap();
    let cq = follower(&engine, 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                maps.iter().for_each(|map| engine.event_queues().set_map(map.clone()).unwrap());
            }
        });
        for round in 0..20_000 {
            complete(&cq);
            // The event is at one of them, or moves between them.
            let events = std::iter::repeat_with(|| handlers.iter().find_map(|handler| handler.try_next()));
            let event = events.take(1_000_000).flatten().next();
            assert!(event.is_some_and(|event| event.cq == cq.cq().id()), "round {round}: {event:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(handlers.iter().all(|handler| handler.try_next().is_none()), "no event is raised twice");
    assert!(!readable(&vector));
    complete(&cq);
    assert!(readable(&vector));
    let there = handlers.iter().filter(|handler| handler.wait(Some(TIMEOUT / 1000)).is_some()).count();
    assert_eq!(there, 1);
}

#[test]
fn a_map_to_a_missing_lane_or_queue_is_refused() {
    let engine = engine();
    let lanes = engine.steering().lanes();
    let before = engine.event_queues().map();
    let refused = engine.event_queues().set_map(EventMap::new(Shape::ByCode, lanes + 1, 1)).unwrap_err();
    assert!(matches!(refused, SetMapError::Lanes { .. }), "{refused}");
    let gone = engine.create_handler().unwrap();
    let map = leading_to(&engine, &gone);
    let number = gone.id().0;
    drop(gone);
    let refused = engine.event_queues().set_map(map).unwrap_err();
    assert!(matches!(refused, SetMapError::NoSuchQueue(queue) if u64::from(queue) == number), "{refused}");
    assert_eq!(engine.event_queues().map(), before);
}
