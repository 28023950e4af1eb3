//! States, sizes and moderation of event queues, with real connections (requirements I2, I3, I10).

use super::{TIMEOUT, completion};
use ironwarp_engine::config::Config;
use ironwarp_engine::{AsyncEventQueue, Engine};
use ironwarp_rnic::event::{AsyncEvent, EventMap, QueueState, ResizeQueueError, Shape, Sizes};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Arm, Opcode, Operation, Status};
use ironwarp_testkit::engine::{SEND, Side, connect};
use ironwarp_wire::RemoteAddr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn engine() -> Arc<Engine> {
    Engine::new(Config::default().lanes(2)).unwrap()
}

fn readable(descriptor: &impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// Requirement I2: an event for an undefined queue would stop the adapter. Messages arrive, and at last the connection
/// ends, while the completion queue moves between handlers that are new, of lanes, or none, the map changes, and event
/// queues are resized.
#[test]
fn no_peer_and_no_switch_reaches_an_undefined_event_queue() {
    const MESSAGES: u16 = 2000;
    const LEN: u32 = 8;
    let [client, server] = [(); 2].map(|()| engine());
    let mut near = Side::new(&client, 16, LEN as usize);
    let far = Side::new(&server, usize::from(MESSAGES) + 1, usize::from(MESSAGES) * LEN as usize);
    let pattern = b"an event";
    near.memory.copy_from_slice(pattern);
    let (near_pair, far_pair) = (
        near.pair(16, Completes::WhenAcknowledged),
        far.pair(usize::from(MESSAGES) + 1, Completes::WhenAcknowledged),
    );
    connect((&near, &near_pair), (&far, &far_pair));
    for id in 0..=u64::from(MESSAGES) {
        far.receive(&far_pair, id, id.min(u64::from(MESSAGES) - 1) * u64::from(LEN), LEN);
    }
    let (over, queues) = (AtomicBool::new(false), server.event_queues());
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..u64::from(MESSAGES) {
                near_pair.post_send([near.request(id, SEND, LEN)]).unwrap();
                near.succeeds(Opcode::Send, id);
            }
        });
        scope.spawn(|| {
            let lanes = server.steering().lanes();
            for step in (0..).take_while(|_| !over.load(Ordering::Relaxed)) {
                let handler = server.create_handler().unwrap();
                assert_eq!(handler.stats().state, QueueState::Undefined);
                match step % 6 {
                    0 => queues.leave_map(&far.cq, Some(&handler)),
                    1 => queues.follow_map(&far.cq).unwrap(),
                    2 => queues.leave_map(&far.cq, None),
                    3 => {
                        handler.resize(2 + step % 9).unwrap();
                        far.cq.set_handler(Some(&handler));
                        handler.resize(2 + step % 5).unwrap();
                    }
                    4 => {
                        let shape = [Shape::ByFunction, Shape::ByCode, Shape::ByQueue][step / 6 % 3];
                        queues.set_map(EventMap::new(shape, lanes, 2)).unwrap();
                    }
                    _ => queues.lane_handler(step % lanes).unwrap().resize(2 + step % 7).unwrap(),
                }
            }
        });
        let mut next = 0;
        while next < u64::from(MESSAGES) && !server.device().events().is_stopped() {
            let _ = far.cq.arm(Arm::Next);
            let check = |completion: ironwarp_rnic::queue::Completion| {
                assert_eq!((completion.wr_id, completion.status), (next, Status::Success));
                next += 1;
            };
            far.cq.poll(16, check).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(!server.device().events().is_stopped(), "an event reached an undefined event queue");
    for message in far.memory.chunks(LEN as usize) {
        assert_eq!(message, pattern);
    }
    // The last receive is flushed, and its event is the first of a new handler.
    let last = server.create_handler().unwrap();
    queues.leave_map(&far.cq, Some(&last));
    assert!(!far.cq.arm(Arm::Next));
    drop((near_pair, near, client));
    assert_eq!(last.wait(Some(TIMEOUT)).map(|event| event.cq), Some(far.cq.cq().id()));
    assert!(!server.device().events().is_stopped());
}

/// Requirement I10: the peer makes a queue pair fail before the program asks for events.
#[test]
fn a_failure_before_the_program_asks_for_events_is_reported_to_it() {
    let [client, server] = [(); 2].map(|()| engine());
    let (near, far) = (Side::new(&client, 4, 8), Side::new(&server, 4, 8));
    let pairs = [&near, &far].map(|side| side.pair(4, Completes::WhenAcknowledged));
    connect((&near, &pairs[0]), (&far, &pairs[1]));
    let beyond = RemoteAddr { offset: far.remote_addr().offset + 8, ..far.remote_addr() };
    pairs[0].post_send([near.request(1, Operation::Write(beyond), 8)]).unwrap();
    assert!(pairs[1].wait_closed(TIMEOUT));
    let events = server.async_events().unwrap();
    assert_eq!(events.wait(Some(TIMEOUT)), Some(AsyncEvent::QpAccessError(pairs[1].id())));
}

/// Requirement I10: the program decides when to be woken again, and does not have to for `wait`.
#[test]
fn a_program_polls_a_handler_and_is_woken_after_it_arms() {
    let engine = engine();
    let (handler, cq) = (engine.create_handler().unwrap(), engine.create_cq(8).unwrap());
    cq.set_handler(Some(&handler));
    let complete = || {
        let _ = cq.arm(Arm::Next);
        cq.cq().push(completion(1)).unwrap();
        assert_eq!(cq.poll(1, drop), Ok(1));
    };
    complete();
    assert!(readable(&*handler));
    assert!(handler.poll_one().is_some() && handler.poll_one().is_none() && !readable(&*handler));
    complete();
    assert!(!readable(&*handler) && handler.try_next().is_none(), "not armed");
    assert_eq!(handler.stats().wakes, 1);
    handler.arm();
    assert!(readable(&*handler) && handler.try_next().is_some() && !readable(&*handler));
    assert!(handler.poll_one().is_none());
    complete();
    assert!(handler.wait(Some(TIMEOUT)).is_some(), "it arms before it sleeps");
}

/// Requirement I3: the driver resizes an event queue. Its size is bounded.
#[test]
fn a_handler_is_resized_with_events_in_it() {
    let engine = engine();
    let handler = engine.create_handler().unwrap();
    let queues: Vec<_> = (0..200).map(|_| engine.create_cq(1).unwrap()).collect();
    for (number, cq) in queues.iter().enumerate() {
        cq.set_handler(Some(&handler));
        assert!(!cq.arm(Arm::Next));
        cq.cq().push(completion(1)).unwrap();
        handler.resize(2 + number % 17).unwrap();
    }
    let max = Sizes::default().max;
    for size in [0, 1, max + 1] {
        assert_eq!(handler.resize(size), Err(ResizeQueueError::Size { size, max }));
    }
    let stats = handler.stats();
    assert_eq!((stats.size, stats.unread, stats.wakes), (2 + 199 % 17, 200, 1));
    for cq in &queues {
        assert_eq!(handler.try_next().map(|event| event.cq), Some(cq.cq().id()), "in order");
    }
    assert!(handler.try_next().is_none() && !readable(&*handler));
}

/// Requirement I10: asynchronous events are moderated by count and period.
#[test]
fn wakeups_for_asynchronous_events_wait_for_more_or_for_a_time() {
    let engine = engine();
    let events = engine.async_events().unwrap();
    let raise = |qp| engine.device().raise(AsyncEvent::QpFatal(qp));
    let take = |events: &AsyncEventQueue| events.wait(Some(TIMEOUT));
    engine.moderate_events(&events, 3, Duration::ZERO).unwrap();
    (0..2).for_each(raise);
    assert!(!readable(&*events) && events.try_next().is_none(), "held back");
    raise(2);
    assert!(readable(&*events));
    for qp in 0..3 {
        assert_eq!(events.try_next(), Some(AsyncEvent::QpFatal(qp)));
    }
    raise(3);
    assert!(!readable(&*events));
    engine.moderate_events(&events, 3, Duration::from_millis(1)).unwrap();
    assert_eq!(take(&events), Some(AsyncEvent::QpFatal(3)), "a change delivers what was held back");
    raise(4);
    assert_eq!(take(&events), Some(AsyncEvent::QpFatal(4)), "the period has passed");
    engine.moderate_events(&events, 1, Duration::ZERO).unwrap();
    raise(5);
    assert!(readable(&*events));
    assert_eq!(events.poll_one(), Some(AsyncEvent::QpFatal(5)));
    raise(6);
    assert!(!readable(&*events), "polled, and not armed");
    events.arm();
    assert!(readable(&*events));
}
