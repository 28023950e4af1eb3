//! Unit tests of the event map: every shape, with enough vectors, too few, one and none.

use super::*;

const SHAPES: [Shape; 3] = [Shape::ByFunction, Shape::ByCode, Shape::ByQueue];
const LANES: usize = 4;

#[test]
fn in_every_shape_an_event_goes_to_the_queue_of_its_function_and_lane() {
    for (shape, vectors) in SHAPES.iter().flat_map(|shape| [0, 1, 3, 5].map(|vectors| (*shape, vectors))) {
        let map = EventMap::new(shape, LANES, vectors);
        for (code, lane) in Code::ALL.iter().flat_map(|code| (0..LANES).map(move |lane| (*code, lane))) {
            let expected = match code.function() {
                Function::Global | Function::Management => 0,
                Function::Rdma => 1,
                Function::Channel => 2,
                Function::Completion => LANE_QUEUE + u16::try_from(lane).unwrap(),
            };
            assert_eq!(map.route(code, lane).queue, expected, "{shape:?} {vectors} {code:?} {lane}");
        }
    }
    assert_eq!(Code::DeviceFatal.function(), Function::Global);
    assert_eq!(Code::PortError.function(), Function::Management);
    assert_eq!(Code::CqError.function(), Function::Rdma);
    assert_eq!(Code::AdminCommand.function(), Function::Rdma);
    assert_eq!(Code::ConnectionRequest.function(), Function::Channel);
}

/// Returns the vectors of completion events, lane by lane, and of all other events.
fn vectors(map: &EventMap) -> (Vec<Vector>, Vec<Vector>) {
    let completions = (0..LANES).map(|lane| map.route(Code::Completion, lane).vector).collect();
    let others = Code::ALL.iter().filter(|code| **code != Code::Completion);
    let mut others: Vec<_> = others.map(|code| map.route(*code, 0).vector).collect();
    others.dedup();
    (completions, others)
}

#[test]
fn fewer_vectors_than_wished_for_are_shared_down_to_one_and_to_none() {
    use Vector::{Line, Message};
    for shape in SHAPES {
        let of = |count| vectors(&EventMap::new(shape, LANES, count));
        assert_eq!(of(5), ([1, 2, 3, 4].map(Message).to_vec(), vec![Message(0)]), "{shape:?}");
        assert_eq!(of(3), ([1, 2, 1, 2].map(Message).to_vec(), vec![Message(0)]), "{shape:?}");
        assert_eq!(of(1), ([0; LANES].map(Message).to_vec(), vec![Message(0)]), "{shape:?}");
        assert_eq!(of(0), ([Line; LANES].to_vec(), vec![Line]), "{shape:?}");
    }
}

#[test]
fn a_row_is_a_function_or_a_code_or_a_queue() {
    let route = Route { queue: ASYNC_QUEUE, vector: Vector::Message(3) };
    for shape in SHAPES {
        let mut map = EventMap::new(shape, LANES, 5);
        map.assign(Code::QpFatal, 0, route).unwrap();
        assert_eq!(map.route(Code::QpFatal, 0), route, "{shape:?}");
        let vector = |code, lane| map.route(code, lane).vector;
        let (other_code, other_lane) = (vector(Code::CqError, 0), vector(Code::QpFatal, 1));
        let (new, usual) = (Vector::Message(3), Vector::Message(0));
        let expected = match shape {
            Shape::ByFunction => (new, usual),
            Shape::ByCode => (usual, usual),
            Shape::ByQueue => (new, new),
        };
        assert_eq!((other_code, other_lane), expected, "{shape:?}");
        assert_eq!(vector(Code::DeviceFatal, 0), usual, "{shape:?}");
    }
}

#[test]
fn asynchronous_and_channel_events_of_a_lane_can_go_to_queues_of_the_program() {
    for shape in SHAPES {
        let mut map = EventMap::new(shape, LANES, 5);
        let route = |queue, vector| Route { queue, vector: Vector::Message(vector) };
        let own = PROGRAM_QUEUES.start;
        map.assign(Code::QpFatal, 2, route(own, 3)).unwrap();
        map.assign(Code::ConnectionRequest, 2, route(own + 1, 4)).unwrap();
        assert_eq!(map.route(Code::QpFatal, 2), route(own, 3), "{shape:?}");
        assert_eq!(map.route(Code::ConnectionRequest, 2), route(own + 1, 4), "{shape:?}");
        assert_eq!(map.route(Code::QpFatal, 1), route(1, 0), "{shape:?}: other lanes");
        assert_eq!(map.route(Code::ConnectionRequest, 1), route(2, 0), "{shape:?}: other lanes");
        let other_code = if shape == Shape::ByCode { route(1, 0) } else { route(own, 3) };
        assert_eq!(map.route(Code::SqDrained, 2), other_code, "{shape:?}");
        let wrong = |queue| Err(MapError::WrongQueue { queue });
        for (code, queue) in [
            (Code::QpFatal, 2),
            (Code::QpFatal, 7),
            (Code::ConnectionRequest, 1),
            (Code::ConnectionRequest, LANE_QUEUE),
            (Code::Completion, own),
            (Code::PortError, own),
            (Code::DeviceFatal, own),
            (Code::QpFatal, PROGRAM_QUEUES.end),
        ] {
            assert_eq!(map.assign(code, 2, route(queue, 0)), wrong(queue), "{shape:?} {code:?}");
        }
    }
}

#[test]
fn completions_of_a_lane_can_go_to_any_queue_but_the_first_two() {
    for shape in SHAPES {
        let mut map = EventMap::new(shape, LANES, 2);
        let line = |queue| Route { queue, vector: Vector::Line };
        map.assign(Code::Completion, 3, line(7)).unwrap();
        let vector = |queue, lane| map.vector(queue, Code::Completion, lane);
        assert_eq!((map.route(Code::Completion, 3), vector(7, 3)), (line(7), Some(Vector::Line)));
        assert_eq!(vector(LANE_QUEUE + 3, 3), None, "no event goes there any more");
        assert_eq!(vector(LANE_QUEUE, 0), Some(Vector::Message(1)));
        let before = map.clone();
        let wrong = |queue| Err(MapError::WrongQueue { queue });
        assert_eq!(map.assign(Code::Completion, 0, line(1)), wrong(1));
        assert_eq!(map.assign(Code::DeviceFatal, 0, line(1)), wrong(1));
        assert_eq!(map.assign(Code::QpFatal, 0, line(0)), wrong(0));
        let vector = Route { queue: 0, vector: Vector::Message(2) };
        let refused = MapError::NoSuchVector { vector: 2, vectors: 2 };
        assert_eq!(map.assign(Code::DeviceFatal, 0, vector), Err(refused));
        let refused = MapError::NoSuchLane { lane: LANES, lanes: LANES };
        assert_eq!(map.assign(Code::Completion, LANES, line(7)), Err(refused));
        assert_eq!(map, before, "a refused entry changes nothing");
    }
}
