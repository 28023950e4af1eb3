//! Unit tests of asynchronous events: before and after the program opens their queues.

use super::super::handler::{CompletionHandler, HandlerId};
use super::super::queue::QueueState;
use super::super::wake::Timer;
use super::*;
use crate::sync::atomic::AtomicUsize;
use std::time::Duration;

/// A descriptor that counts its signals, a timer that counts its starts, and a stop that counts its calls.
#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wake for Count {
    fn signal(&self) {
        self.add();
    }

    fn consume(&self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "consume without a signal");
    }
}

impl Timer for Count {
    fn start(&self, _: Duration) {
        self.add();
    }
}

impl Stop for Arc<Count> {
    fn stop(&self) {
        self.add();
    }
}

/// Creates the events of an adapter, and returns them with the number of times that the adapter was stopped.
fn events() -> (Arc<AsyncEvents>, Arc<Count>) {
    let stopped = Arc::<Count>::default();
    let events = AsyncEvents::new(Sizes { initial: 4, max: 64 }, &Routing::new(1));
    events.set_stop(Box::new(Arc::clone(&stopped)));
    (Arc::new(events), stopped)
}

fn take_all(events: &AsyncEvents) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| events.try_next()).collect()
}

/// Requirement I10: no event is lost, not even before the program asks for events.
#[test]
fn events_before_the_first_open_are_delivered_to_the_first_who_opens() {
    let (events, _) = events();
    assert_eq!(events.stats().map(|stats| stats.state), [QueueState::Unarmed; 2], "the queues have memory");
    let early = [AsyncEvent::QpFatal(3), AsyncEvent::CqError(1), AsyncEvent::SqDrained(4)];
    early.iter().for_each(|event| events.raise(*event));
    events.raise(AsyncEvent::PortError(1));
    assert_eq!((events.try_next(), events.arm()), (None, ()), "nobody has opened the queues");
    assert_eq!(events.revoke(&[AsyncEvent::CqError(1), AsyncEvent::CqError(2)]), 1, "its queue is destroyed");
    let readable = Arc::<Count>::default();
    events.open(Box::new(Arc::clone(&readable)));
    assert_eq!(readable.get(), 2, "one wakeup for each queue");
    let later = Arc::<Count>::default();
    events.open(Box::new(Arc::clone(&later)));
    assert_eq!(take_all(&events), [AsyncEvent::PortError(1), early[0], early[2]]);
    early.iter().for_each(|event| events.raise(*event));
    assert_eq!(events.revoke(&AsyncEvent::of_queue_pair(3)), 1);
    assert_eq!(take_all(&events), early[1..]);
    events.raise(AsyncEvent::QpFatal(5));
    assert_eq!((readable.get(), later.get(), take_all(&events)), (1, 0, vec![AsyncEvent::QpFatal(5)]));
    assert_eq!(readable.get(), 0);
}

/// Before the queues are open, there is one event for each code and object. A peer that makes the same queue pairs fail
/// again and again cannot fill them.
#[test]
fn peers_do_not_fill_queues_that_nobody_has_opened() {
    let (events, stopped) = events();
    for _ in 0..10_000 {
        for event in [AsyncEvent::PortError(1), AsyncEvent::PortActive(1), AsyncEvent::QpAccessError(7)] {
            events.raise(event);
        }
    }
    events.raise(AsyncEvent::PortError(1));
    assert_eq!((events.is_stopped(), stopped.get()), (false, 0));
    events.open(Box::new(Arc::<Count>::default()));
    let last = [AsyncEvent::PortActive(1), AsyncEvent::PortError(1), AsyncEvent::QpAccessError(7)];
    assert_eq!(take_all(&events), last, "the latest of each, in order");
    (0..3).for_each(|_| events.raise(AsyncEvent::QpAccessError(7)));
    assert_eq!(take_all(&events).len(), 3, "now the program reads them");
}

/// Requirement I5 holds before the queues are open, as well.
#[test]
fn too_many_different_events_that_nobody_reads_stop_the_adapter() {
    let (events, stopped) = events();
    (0..128).for_each(|qp| events.raise(AsyncEvent::QpFatal(qp)));
    assert_eq!((events.is_stopped(), stopped.get()), (true, 1));
    events.open(Box::new(Arc::<Count>::default()));
    let taken = take_all(&events);
    assert_eq!(taken[..2], [AsyncEvent::EventQueueOverflow(1), AsyncEvent::DeviceFatal]);
    assert!(taken[2..].iter().copied().eq((0..63).map(AsyncEvent::QpFatal)));
}

/// Requirement I2: only a mistake of the driver can do this. A completion queue gives the handler memory before.
#[test]
fn an_event_for_an_undefined_queue_stops_the_adapter() {
    let (events, stopped) = events();
    events.open(Box::new(Arc::<Count>::default()));
    let handler = CompletionHandler::new(HandlerId(2), Box::new(Arc::<Count>::default()), Some(&events));
    assert_eq!(handler.stats().state, QueueState::Undefined);
    handler.raise(9, 0, &mut None);
    assert_eq!((events.is_stopped(), stopped.get()), (true, 1));
    assert_eq!(take_all(&events), [AsyncEvent::DeviceFatal], "the global event");
    assert_eq!((handler.stats().written, handler.poll_one()), (0, None), "nothing was written");
    handler.raise(9, 0, &mut None);
    assert_eq!(stopped.get(), 1, "it stops once");
}

/// Requirement N11: the shutdown of an adapter makes queues undefined, too.
#[test]
fn an_event_after_the_shutdown_does_not_stop_the_adapter() {
    let (events, stopped) = events();
    let handler = CompletionHandler::new(HandlerId(2), Box::new(Arc::<Count>::default()), Some(&events));
    handler.shut_down();
    handler.open();
    handler.raise(9, 0, &mut None);
    events.shut_down();
    events.raise(AsyncEvent::QpFatal(1));
    assert_eq!(stopped.get(), 0, "it does not fail");
}

/// Requirement I10: as for completion queues, by count and period, for each queue on its own.
#[test]
fn wakeups_for_asynchronous_events_are_moderated() {
    let (events, _) = events();
    let (readable, timer) = (Arc::<Count>::default(), Arc::<Count>::default());
    events.open(Box::new(Arc::clone(&readable)));
    let settings = |count| {
        Some(Moderation { count, period: Duration::from_millis(1), timer: Arc::<Count>::clone(&timer) })
    };
    events.moderate(|_| settings(3));
    (0..2).for_each(|qp| events.raise(AsyncEvent::QpFatal(qp)));
    assert_eq!((readable.get(), timer.get(), events.try_next()), (0, 1, None), "held back");
    events.raise(AsyncEvent::QpFatal(2));
    assert_eq!((readable.get(), take_all(&events).len(), readable.get()), (1, 3, 0));
    events.raise(AsyncEvent::PortActive(1));
    assert_eq!((readable.get(), timer.get()), (0, 2), "the other queue counts on its own");
    events.fail(&"a test");
    let last = [AsyncEvent::PortActive(1), AsyncEvent::DeviceFatal];
    assert_eq!((readable.get(), take_all(&events)), (1, last.to_vec()), "the end is not held back");
}

/// Requirement I10: the program arms when it wants to be woken again.
#[test]
fn a_program_polls_asynchronous_events_and_arms_late() {
    let (events, _) = events();
    let readable = Arc::<Count>::default();
    events.open(Box::new(Arc::clone(&readable)));
    assert_eq!(events.poll_one(), None);
    let raised = [AsyncEvent::PortActive(1), AsyncEvent::QpFatal(1), AsyncEvent::QpFatal(2)];
    raised.iter().for_each(|event| events.raise(*event));
    assert_eq!((readable.get(), events.try_next()), (0, None), "not armed");
    assert_eq!([events.poll_one(), events.poll_one()], [Some(raised[0]), Some(raised[1])]);
    events.arm();
    assert_eq!((readable.get(), events.try_next(), readable.get()), (1, Some(raised[2]), 0));
}
