//! The descriptor of a completion handler, as programs use it.

use super::{TIMEOUT, completion};
use ironwarp_engine::config::Config;
use ironwarp_engine::sys::poller::{Epoll, Events, Interest};
use ironwarp_engine::{CompletionHandler, CompletionQueue, Engine};
use ironwarp_rnic::device::HANDLERS;
use ironwarp_rnic::event::CqEvent;
use ironwarp_rnic::queue::Arm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

fn engine() -> Arc<Engine> {
    Engine::new(Config::default().lanes(1)).unwrap()
}

/// Creates `count` completion queues on one handler, all armed.
fn queues(engine: &Engine, count: usize) -> (Arc<CompletionHandler>, Vec<Arc<CompletionQueue>>) {
    let handler = engine.create_handler().unwrap();
    let queues: Vec<_> = (0..count).map(|_| engine.create_cq(4).unwrap()).collect();
    for cq in &queues {
        cq.set_handler(Some(&handler));
        assert!(!cq.arm(Arm::Next));
    }
    (handler, queues)
}

fn complete(cq: &CompletionQueue) {
    cq.cq().push(completion(1)).unwrap();
}

fn event(cq: &CompletionQueue) -> CqEvent {
    CqEvent::new(cq.cq().id())
}

fn readable(handler: &CompletionHandler) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(handler, PollFlags::IN)], Some(&now)).unwrap() == 1
}

#[test]
fn handlers_have_unique_numbers_up_to_the_maximum() {
    let engine = engine();
    let mut handlers: Vec<_> = (0..HANDLERS).map(|_| engine.create_handler().unwrap()).collect();
    let mut ids: Vec<_> = handlers.iter().map(|handler| handler.id()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), HANDLERS);
    assert!(engine.create_handler().is_err());
    let free = handlers.swap_remove(9).id();
    assert_eq!(engine.create_handler().unwrap().id(), free);
    engine.create_private_handler().expect("private handlers do not count");
}

#[test]
fn readable_exactly_while_there_is_an_event() {
    let engine = engine();
    let (handler, queues) = queues(&engine, 3);
    assert!(!readable(&handler) && handler.try_next().is_none());
    queues.iter().for_each(|cq| complete(cq));
    for cq in &queues {
        assert!(readable(&handler));
        assert_eq!(handler.try_next(), Some(event(cq)));
    }
    assert!(!readable(&handler) && handler.try_next().is_none());
}

/// Edge-triggered polling: a program that takes all events is notified of the next one.
#[test]
fn an_edge_triggered_poller_that_takes_all_events_sees_every_edge() {
    let engine = engine();
    let (handler, queues) = queues(&engine, 2);
    let (epoll, mut events) = (Epoll::new().unwrap(), Events::new(1));
    epoll.add(&*handler, 0, Interest::Edges).unwrap();
    let mut edge = || {
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        events.iter().any(|event| event.readable)
    };
    assert!(!edge());
    for _ in 0..3 {
        queues.iter().for_each(|cq| complete(cq));
        assert!(edge());
        assert!(
            queues.iter().all(|cq| handler.try_next() == Some(event(cq))) && handler.try_next().is_none()
        );
        assert!(!edge());
        for cq in &queues {
            assert_eq!(cq.poll(1, drop), Ok(1));
            assert!(!cq.arm(Arm::Next));
        }
    }
}

#[test]
fn destroying_a_queue_removes_its_events() {
    let engine = engine();
    let (handler, mut queues) = queues(&engine, 2);
    queues.iter().for_each(|cq| complete(cq));
    queues.remove(0);
    assert!(readable(&handler));
    assert_eq!((handler.try_next(), handler.try_next()), (Some(event(&queues[0])), None));
    assert!(queues[0].arm(Arm::Next));
    complete(&queues[0]);
    assert!(readable(&handler));
    queues.clear();
    assert!(!readable(&handler) && handler.try_next().is_none());
}

#[test]
fn a_queue_moves_between_handlers_and_none() {
    let engine = engine();
    let (old, queues) = queues(&engine, 1);
    let (new, cq) = (engine.create_handler().unwrap(), &queues[0]);
    assert_eq!(cq.cq().handler(), Some(old.id()));
    cq.set_handler(None);
    complete(cq);
    assert!(!readable(&old) && cq.cq().handler().is_none());
    cq.set_handler(Some(&new));
    assert!(readable(&new) && !readable(&old), "a pending event moves to the new handler");
    assert_eq!((new.wait(Some(TIMEOUT)), old.try_next()), (Some(event(cq)), None));
}

#[test]
fn a_waiting_thread_is_woken_by_an_event_only() {
    let engine = engine();
    let (handler, queues) = queues(&engine, 1);
    assert_eq!(handler.wait(Some(Duration::from_millis(5))), None);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| handler.wait(Some(TIMEOUT)));
        complete(&queues[0]);
        assert_eq!(waiter.join().unwrap(), Some(event(&queues[0])));
    });
}

/// Requirement I10, with the clock of a lane.
#[test]
fn moderation_delays_the_wake_and_loses_nothing() {
    const INTERVAL: Duration = Duration::from_millis(300);
    let engine = engine();
    let (handler, queues) = queues(&engine, 3);
    engine.moderate(&handler, INTERVAL).unwrap();
    let began = Instant::now();
    complete(&queues[0]);
    assert_eq!(handler.try_next(), Some(event(&queues[0])), "the first event is delivered at once");
    complete(&queues[1]);
    complete(&queues[2]);
    assert_eq!(handler.wait(Some(TIMEOUT)), Some(event(&queues[1])));
    assert!(began.elapsed() >= INTERVAL, "{:?}", began.elapsed());
    assert_eq!(handler.try_next(), Some(event(&queues[2])), "all events that arrived meanwhile");
    assert!(!readable(&handler));
    engine.moderate(&handler, Duration::ZERO).unwrap();
    assert_eq!(queues[0].poll(1, drop), Ok(1));
    assert!(!queues[0].arm(Arm::Next));
    complete(&queues[0]);
    assert!(readable(&handler), "moderation is off");
}

/// With the clock of a lane. Completions can be polled before their event is raised.
#[test]
fn a_moderated_queue_raises_its_event_by_count_or_by_time() {
    const PERIOD: Duration = Duration::from_millis(300);
    let engine = engine();
    let (handler, queues) = queues(&engine, 1);
    let queue = &queues[0];
    engine.moderate_cq(queue, 3, PERIOD).unwrap();
    complete(queue);
    complete(queue);
    assert!(!readable(&handler) && !queue.cq().is_empty());
    complete(queue);
    assert!(readable(&handler), "three completions raise an event");
    assert_eq!((handler.try_next(), queue.poll(9, drop)), (Some(event(queue)), Ok(3)));

    engine.moderate_cq(queue, 3, PERIOD).unwrap();
    assert!(!queue.arm(Arm::Next));
    let began = Instant::now();
    complete(queue);
    assert_eq!(handler.wait(Some(TIMEOUT)), Some(event(queue)));
    assert!(began.elapsed() >= PERIOD, "the period that started before the change does not count");
}

/// A timer from before a change must not end the new interval early.
#[test]
fn changing_moderation_cancels_running_timers() {
    let engine = engine();
    let (handler, queues) = queues(&engine, 2);
    let (other, clocks) = self::queues(&engine, 1);
    engine.moderate(&handler, Duration::from_millis(1)).unwrap();
    complete(&queues[0]);
    assert_eq!(handler.try_next(), Some(event(&queues[0])), "the timer runs");
    engine.moderate(&handler, TIMEOUT).unwrap();
    complete(&queues[1]);
    assert_eq!(handler.try_next(), Some(event(&queues[1])), "this is the first event after the change");
    assert_eq!(queues[0].poll(1, drop), Ok(1));
    assert!(!queues[0].arm(Arm::Next));
    complete(&queues[0]);
    // Timers of a lane expire in order: once this one has expired, the earlier one would have, too.
    engine.moderate_cq(&clocks[0], 2, Duration::from_millis(2)).unwrap();
    complete(&clocks[0]);
    assert_eq!(other.wait(Some(TIMEOUT)), Some(event(&clocks[0])));
    assert!(!readable(&handler) && handler.try_next().is_none());
}
