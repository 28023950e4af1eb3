//! The event map in operation (requirements I6, I8, I9): which queue an event goes to, and which vector
//! becomes readable.

use super::{TIMEOUT, completion};
use ironwarp_engine::config::Config;
use ironwarp_engine::{
    AsyncEventQueue, CompletionHandler, CompletionQueue, Engine, EventFdWake, SetMapError,
};
use ironwarp_engine::{ConnectOptions, DatagramQueuePair, DatagramQueuePairAttributes, QueuePair};
use ironwarp_rnic::datagram::{AddressHandle, DatagramRequest, Destination};
use ironwarp_rnic::event::{AdminCommand, AsyncEvent, Code, EventMap, LANE_QUEUE, Route, Shape, Vector};
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::{Arm, Opcode, ReceiveRequest};
use ironwarp_rnic::steering::{HashKey, KEY_LEN, RedirectionTable, Tuple, toeplitz};
use ironwarp_testkit::engine::{SEND, Side, connect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const SHAPES: [Shape; 3] = [Shape::ByFunction, Shape::ByCode, Shape::ByQueue];

fn engine() -> Arc<Engine> {
    Engine::new(Config::default()).unwrap()
}

fn readable(vector: &EventFdWake) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(vector, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// Waits until a vector is readable, and checks that no other is.
fn wait_for_vector(vectors: &[(Vector, EventFdWake)], expected: Vector, what: &dyn Debug) {
    let (_, descriptor) = vectors.iter().find(|(vector, _)| *vector == expected).unwrap();
    let soon = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let found = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&soon)).unwrap();
    assert_eq!(found, 1, "{expected:?} is not woken: {what:?}");
    for (vector, descriptor) in vectors {
        assert_eq!(readable(descriptor), *vector == expected, "{vector:?} instead of {expected:?}: {what:?}");
    }
}

/// A completion queue that follows the map.
fn follower(engine: &Engine) -> Arc<CompletionQueue> {
    let cq = engine.create_cq(4).unwrap();
    engine.event_queues().follow_map(&cq).unwrap();
    cq
}

/// Arms the queue and adds a completion, whose event belongs to the default lane.
fn complete(cq: &CompletionQueue) {
    cq.cq().poll(4, drop).unwrap();
    assert!(!cq.arm(Arm::Next));
    cq.cq().push(completion(1)).unwrap();
}

/// Two connected queue pairs. The completion queue of the far one follows the map, and the test moves that queue pair
/// between lanes.
struct Ends {
    near: Side,
    far: Side,
    client: Arc<QueuePair>,
    server: Arc<QueuePair>,
}

impl Ends {
    fn new() -> Self {
        let config = Config::default().rebalance(0).shm(false);
        let [near, far] = [(); 2].map(|()| Side::new(&Engine::new(config.clone()).unwrap(), 8, 64));
        let (client, server) = (near.pair(4, Completes::WhenAcknowledged), far.pair(4, Completes::WhenSent));
        let changes = far.engine.channel_events().unwrap();
        connect((&near, &client), (&far, &server));
        // Until the far end is connected, its lane may change, and its event is to come.
        while changes.wait(Some(TIMEOUT)).unwrap() != AsyncEvent::ConnectionChange(server.id()) {}
        far.engine.event_queues().follow_map(&far.cq).unwrap();
        Self { near, far, client, server }
    }

    /// Moves the far queue pair to a lane.
    fn move_to(&self, lane: usize) {
        self.far.engine.steering().move_queue_pair(&self.server, lane).unwrap();
    }

    /// Arms the far completion queue, and sends it a message.
    fn send(&self) {
        self.far.receive(&self.server, 7, 0, 64);
        assert!(!self.far.cq.arm(Arm::Next));
        self.client.post_send([self.near.request(1, SEND, 64)]).unwrap();
    }

    /// Takes the event of a message from the handler of a lane, and its completions.
    fn take(&self, lane: usize) {
        let handler = self.far.engine.event_queues().lane_handler(lane).unwrap();
        assert_eq!(handler.try_next().unwrap().cq, self.far.cq.cq().id());
        self.far.succeeds(Opcode::Receive, 7);
        self.near.succeeds(Opcode::Send, 1);
    }
}

/// Raises one event of each function, those of a queue pair from every lane, and checks that exactly the vector that the
/// map assigns to code and lane is readable.
fn events_wake_their_vectors(ends: &Ends, map: &EventMap) {
    let engine = &ends.far.engine;
    let async_events = engine.async_events().unwrap();
    engine.event_queues().set_map(map.clone()).unwrap();
    while async_events.try_next().is_some() {}
    let all = (0..map.vectors()).map(Vector::Message).chain([Vector::Line]);
    let vectors: Vec<_> = all.map(|vector| (vector, engine.event_queues().vector(vector).unwrap())).collect();
    let check = |code, lane: usize, take: &dyn Fn()| {
        let what = (code, lane, map);
        wait_for_vector(&vectors, map.route(code, lane).vector, &what);
        take();
        assert!(!vectors.iter().any(|(_, descriptor)| readable(descriptor)), "{what:?}");
    };
    let take_async = |event| assert_eq!(async_events.try_next(), Some(event));
    for event in [AsyncEvent::EventQueueOverflow(7), AsyncEvent::PortError(1)] {
        engine.device().raise(event);
        let code = if event == AsyncEvent::PortError(1) { Code::PortError } else { Code::EventQueueOverflow };
        check(code, 0, &|| take_async(event));
    }
    for lane in (0..map.lanes()).rev() {
        ends.move_to(lane);
        ends.server.modify(State::Drained).unwrap();
        check(Code::SqDrained, lane, &|| take_async(AsyncEvent::SqDrained(ends.server.id())));
        ends.server.modify(State::ReadyToSend).unwrap();
        ends.send(); // the lane receives
        check(Code::Completion, lane, &|| ends.take(lane));
    }
}

#[test]
fn in_every_shape_an_event_wakes_the_vector_of_its_queue_and_no_other() {
    let ends = Ends::new();
    let lanes = ends.far.engine.steering().lanes();
    for shape in SHAPES {
        for vectors in [0, 1, 2, u8::try_from(lanes + 1).unwrap()] {
            events_wake_their_vectors(&ends, &EventMap::new(shape, lanes, vectors));
        }
        // All lanes have one queue for completions, and vectors of their own for both.
        let mut map = EventMap::new(shape, lanes, 9);
        for lane in 0..lanes {
            let vector = u8::try_from(lane).unwrap();
            let route = |queue, vector| Route { queue, vector: Vector::Message(vector) };
            map.assign(Code::SqDrained, lane, route(1, 8 - vector)).unwrap();
            map.assign(Code::Completion, lane, route(LANE_QUEUE, 1 + vector)).unwrap();
        }
        events_wake_their_vectors(&ends, &map);
    }
}

/// Requirement I8: not to the lane of the thread, which has none.
#[test]
fn an_event_belongs_to_the_lane_of_its_queue_pair_if_the_program_receives() {
    let ends = Ends::new();
    let engine = &ends.far.engine;
    let lanes = engine.steering().lanes();
    engine.event_queues().set_map(EventMap::new(Shape::ByFunction, lanes, 9)).unwrap();
    let handlers: Vec<_> = (0..lanes).map(|lane| engine.event_queues().lane_handler(lane).unwrap()).collect();
    for lane in (0..lanes).rev().chain(0..lanes) {
        ends.move_to(lane);
        ends.send();
        let stop = Instant::now() + TIMEOUT;
        while handlers.iter().all(|handler| handler.stats().unread == 0) {
            ends.far.cq.progress();
            assert!(Instant::now() < stop, "no event");
        }
        ends.take(lane);
    }
}

/// Requirement I7: the hash of each datagram's addresses selects the lane that its event belongs to.
#[test]
fn the_event_of_a_datagram_belongs_to_the_lane_that_its_addresses_hash_to() {
    const KEY: [u8; KEY_LEN] = *b"forty bytes that this test alone knows!!";
    const SENDERS: usize = 16;
    let engine = Engine::new(Config::default().steering_key(HashKey::new(KEY))).unwrap();
    let lanes = engine.steering().lanes();
    engine.event_queues().set_map(EventMap::new(Shape::ByFunction, lanes, 9)).unwrap();
    let [near, far] = [(); 2].map(|()| Side::new(&engine, 64, 128));
    engine.event_queues().follow_map(&far.cq).unwrap();
    let local = IpAddr::from([127, 0, 0, 1]);
    let pair = |side: &Side| {
        let attributes = DatagramQueuePairAttributes::new(side.domain, &side.cq);
        let udp = engine.bind_datagram_port(Some(&[local])).unwrap();
        let pair = engine.create_datagram_qp(&attributes, udp).unwrap();
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            pair.qp().modify(state).unwrap();
        }
        pair
    };
    let end = |pair: &DatagramQueuePair| SocketAddr::new(local, u16::try_from(pair.id() >> 8).unwrap());
    let vectors: Vec<_> = (0..9)
        .map(Vector::Message)
        .map(|vector| (vector, engine.event_queues().vector(vector).unwrap()))
        .collect();
    let receiver = pair(&far);
    let senders: Vec<_> = (0..SENDERS).map(|_| pair(&near)).collect();
    let mut used = BTreeSet::new();
    for sender in &senders {
        let hash = toeplitz(&KEY, &Tuple::new(end(sender), end(&receiver)));
        let lane = engine.steering().table().lane(hash);
        used.insert(lane);
        receiver.qp().post_receive(ReceiveRequest { id: 3, buffers: far.sge(0, 128).into() }).unwrap();
        assert!(!far.cq.arm(Arm::Next));
        let address = AddressHandle::new(local.into(), local.into());
        let destination = Destination { address, qpn: receiver.id(), qkey: 0 };
        let request = near.request(1, SEND, 64);
        sender.qp().post_send(vec![DatagramRequest { request, destination }]).unwrap();
        near.succeeds(Opcode::Send, 1);
        let route = engine.event_queues().map().route(Code::Completion, lane);
        wait_for_vector(&vectors, route.vector, &lane);
        let handler = engine.event_queues().lane_handler(lane).unwrap();
        assert_eq!(handler.try_next().unwrap().cq, far.cq.cq().id());
        far.succeeds(Opcode::Receive, 3);
    }
    assert_eq!(used.len(), lanes, "all lanes are used");
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

/// Requirement I6: both by function and by processor.
#[test]
fn each_lane_may_have_its_own_queue_for_asynchronous_and_for_channel_events() {
    let ends = Ends::new();
    let engine = &ends.far.engine;
    let lanes = engine.steering().lanes();
    let (all, channel) = (engine.async_events().unwrap(), engine.channel_events().unwrap());
    assert_eq!((all.number(), channel.number()), (None, Some(2)));
    let queues = |_| [(); 2].map(|()| engine.create_event_queue().unwrap());
    let queues: Vec<_> = (0..lanes).map(queues).collect();
    let drains_to = |lane: usize, queue: &AsyncEventQueue| {
        ends.move_to(lane);
        ends.server.modify(State::Drained).unwrap();
        assert_eq!(queue.wait(Some(TIMEOUT)), Some(AsyncEvent::SqDrained(ends.server.id())), "lane {lane}");
        // Not before: a queue pair that goes on before it is drained raises no event.
        ends.server.modify(State::ReadyToSend).unwrap();
    };
    for shape in SHAPES {
        let mut map = EventMap::new(shape, lanes, 0);
        for (lane, queues) in queues.iter().enumerate() {
            for (code, queue) in [Code::SqDrained, Code::ConnectionChange].into_iter().zip(queues) {
                let route = Route { queue: queue.number().unwrap(), vector: Vector::Line };
                map.assign(code, lane, route).unwrap();
            }
        }
        engine.event_queues().set_map(map).unwrap();
        // Administrative commands have no lane, so that they belong to the default one.
        let report = AsyncEvent::AdminCommand(AdminCommand::SetEventMap);
        let commands = if shape == Shape::ByCode { &all } else { &queues[0][0] };
        assert_eq!(commands.try_next(), Some(report), "{shape:?}");
        for lane in 0..lanes {
            drains_to(lane, &queues[lane][0]);
            assert!(queues.iter().flatten().all(|queue| queue.try_next().is_none()));
        }
        // A new connection, which the redirection table assigns to the last lane.
        let mut table = RedirectionTable::spread(1);
        table.entries_mut().fill(u16::try_from(lanes - 1).unwrap());
        engine.steering().set_table(table).unwrap();
        let report = AsyncEvent::AdminCommand(AdminCommand::SetRedirectionTable);
        assert_eq!(commands.try_next(), Some(report), "{shape:?}");
        let (near, far) = (ends.near.pair(1, Completes::WhenSent), ends.far.pair(1, Completes::WhenSent));
        connect((&ends.near, &near), (&ends.far, &far));
        let own = &queues[lanes - 1][1];
        let mut events = Vec::new();
        while !events.contains(&AsyncEvent::ConnectionChange(far.id())) {
            events.push(own.wait(Some(TIMEOUT)).unwrap());
        }
        let requests = if shape == Shape::ByCode { &channel } else { own };
        events.extend(requests.try_next());
        assert_eq!(events.len(), 2, "{shape:?} {events:?}");
        assert!(matches!(
            events[..],
            [AsyncEvent::ConnectionRequest(_), _] | [_, AsyncEvent::ConnectionRequest(_)]
        ));
        assert!(all.try_next().is_none() && channel.try_next().is_none(), "{shape:?}");
    }
    // Queues that the program has dropped: their events go to the default queues.
    engine.event_queues().set_map(EventMap::new(Shape::ByFunction, lanes, 0)).unwrap();
    while all.try_next().is_some() {}
    let mut map = EventMap::new(Shape::ByFunction, lanes, 0);
    let number = queues[0][0].number().unwrap();
    map.assign(Code::SqDrained, 0, Route { queue: number, vector: Vector::Line }).unwrap();
    engine.event_queues().set_map(map.clone()).unwrap();
    drop(queues);
    drains_to(0, &all);
    let refused = engine.event_queues().set_map(map).unwrap_err();
    assert!(matches!(refused, SetMapError::NoSuchQueue(queue) if queue == number), "{refused}");
}

/// Requirement I6: channel events are those of the connection manager.
#[test]
fn requests_and_changes_of_connections_are_channel_events() {
    let [near, far] = [(); 2].map(|()| Side::new(&engine(), 8, 64));
    let (asynchronous, events) = (far.engine.async_events().unwrap(), far.engine.channel_events().unwrap());
    let listener = far.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let (client, server) = (near.pair(1, Completes::WhenSent), far.pair(1, Completes::WhenSent));
    near.engine.connect(&client, at, &ConnectOptions::default()).unwrap();
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::ConnectionRequest(at.port().into())));
    let incoming = listener.incoming().try_next().expect("the request is there when its event is");
    assert!(events.try_next().is_none());
    incoming.accept(&server, far.engine.terms(None, None), &[]).unwrap();
    let changed = AsyncEvent::ConnectionChange(server.id());
    assert_eq!(events.wait(Some(TIMEOUT)), Some(changed));
    client.wait_connected(TIMEOUT).unwrap();
    client.disconnect();
    assert_eq!(events.wait(Some(TIMEOUT)), Some(changed), "disconnected");
    assert!(asynchronous.try_next().is_none(), "they have a queue of their own");
    // Nothing is written while no queue is open.
    drop(events);
    let other = far.pair(1, Completes::WhenSent);
    connect((&near, &near.pair(1, Completes::WhenSent)), (&far, &other));
    assert!(far.engine.channel_events().unwrap().try_next().is_none());
    assert!(asynchronous.try_next().is_none());
}

/// Requirement I6: administrative commands are reported with the events of RDMA objects.
#[test]
fn a_change_of_a_table_is_reported() {
    let engine = engine();
    let lanes = engine.steering().lanes();
    let events = engine.async_events().unwrap();
    engine.event_queues().set_map(EventMap::new(Shape::ByQueue, lanes, 1)).unwrap();
    engine.steering().set_table(RedirectionTable::spread(lanes)).unwrap();
    engine.steering().set_key(&HashKey::default()).unwrap();
    assert!(engine.steering().set_table(RedirectionTable::spread(lanes + 1)).is_err(), "nothing changes");
    let taken: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    let commands = [AdminCommand::SetEventMap, AdminCommand::SetRedirectionTable, AdminCommand::SetHashKey];
    assert_eq!(taken, commands.map(AsyncEvent::AdminCommand));
    let [global, asynchronous] = engine.device().events().stats();
    assert_eq!((global.written, asynchronous.written), (0, 3), "they are in queue 1");
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
    let cq = follower(&engine);
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
