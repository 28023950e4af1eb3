//! Tests of threads that block until an event, and sleep on the sockets.

use super::tests::{Ends, TIMEOUT, block_lane, send};
use super::*;
use crate::sys::testing::RawThread;
use ironwarp_testkit::wait::until;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Gives the server's completion queue a handler.
fn handler(ends: &Ends) -> Arc<CompletionHandler> {
    let handler = ends.server.create_handler().unwrap();
    ends.cq.set_handler(Some(&handler));
    handler
}

/// Receives a message as a program does that blocks until an event.
fn receive(cq: &CompletionQueue, handler: &CompletionHandler) {
    while cq.poll(1, drop).unwrap() == 0 {
        if !cq.arm(Arm::Next) {
            handler.wait(Some(TIMEOUT)).expect("the event of a message");
        }
    }
}

/// A thread that receives messages.
struct Receiving {
    thread: RawThread,
    received: Receiver<()>,
}

impl Receiving {
    /// Starts a thread that receives `count` messages, and waits until it sleeps on the sockets.
    fn start(ends: &Ends, handler: &Arc<CompletionHandler>, count: usize) -> Self {
        let (cq, handler) = (Arc::clone(&ends.cq), Arc::clone(handler));
        let (report, received) = channel();
        let thread = RawThread::spawn(move || {
            for _ in 0..count {
                receive(&cq, &handler);
                report.send(()).unwrap();
            }
        });
        let receiving = Self { thread, received };
        receiving.await_sleep(ends);
        receiving
    }

    /// Waits until the thread sleeps on the sockets.
    fn await_sleep(&self, ends: &Ends) {
        until(|| ends.cq.waiters.count() == (1, 1) && ends.cq.sets().iter().all(|set| set.is_slept_on()));
        until(|| self.thread.is_asleep());
    }

    /// Sends a message, which the thread receives.
    fn send(&self, ends: &Ends) {
        ends.receive();
        ends.send();
        self.received.recv_timeout(TIMEOUT).unwrap();
    }
}

#[test]
fn messages_wake_the_thread_without_the_lane() {
    for ends in [Ends::new(), Ends::shared()] {
        let receiving = Receiving::start(&ends, &handler(&ends), 5);
        let _blocker = block_lane(&ends.cq);
        for _ in 0..4 {
            receiving.send(&ends);
            receiving.await_sleep(&ends);
        }
        receiving.send(&ends);
        receiving.thread.join();
        assert_eq!(ends.cq.waiters.count(), (0, 0));
    }
}

/// After a few messages the sockets stay with the program when it arms the queue, because it sleeps on them next. If it
/// does not, the lane serves them.
#[test]
fn the_lane_serves_a_program_that_arms_and_does_not_sleep() {
    let ends = Ends::new();
    let handler = handler(&ends);
    let receiving = Receiving::start(&ends, &handler, 4);
    (0..3).for_each(|_| {
        receiving.send(&ends);
        receiving.await_sleep(&ends);
    });
    receiving.send(&ends);
    receiving.thread.join();
    assert!(!ends.cq.arm(Arm::Next));
    assert!(ends.cq.event_sleeps.keeps_sockets(), "the program is expected to sleep on the sockets");
    ends.receive();
    ends.send();
    until(|| handler.try_next().is_some());
    until(|| ends.cq.cq().poll(1, drop) == Ok(1));
    assert!(!ends.cq.arm(Arm::Next));
    assert!(!ends.cq.event_sleeps.keeps_sockets(), "no thread has come");
}

/// A thread that sleeps on a socket is not woken when the socket has room again.
#[test]
fn the_lane_serves_a_socket_that_is_full() {
    let ends = Ends::new();
    let handler = handler(&ends);
    let receiving = Receiving::start(&ends, &handler, 1);
    ends.cq.record_post(|| true);
    assert!(!ends.cq.sets()[0].is_polled());
    receiving.send(&ends);
    receiving.thread.join();
}

/// A thread that sleeps on the socket of the only connection does not wait for the sockets of others.
#[test]
fn the_lane_serves_sockets_that_are_added_during_a_sleep() {
    let ends = Ends::new();
    let handler = handler(&ends);
    let receiving = Receiving::start(&ends, &handler, 2);
    receiving.send(&ends);
    receiving.await_sleep(&ends); // on the socket itself, since it has received a message
    let [near, _far] = ends.connect_another();
    send(&near);
    receiving.thread.join();
}

#[test]
fn lanes_serve_handlers_with_a_share_and_those_whose_wakeups_are_limited() {
    let ends = Ends::new();
    let handler = handler(&ends);
    let sleeps_on_sockets = || {
        assert!(!ends.cq.arm(Arm::Next));
        ends.cq.event_sleeps.reset_score();
        assert!(handler.wait(Some(Duration::from_millis(1))).is_none());
        ends.cq.event_sleeps.score() > 0
    };
    assert!(sleeps_on_sockets());
    ends.server.moderate(&handler, Duration::from_micros(100)).unwrap();
    assert!(!sleeps_on_sockets());
    ends.server.moderate(&handler, Duration::ZERO).unwrap();
    assert!(sleeps_on_sockets());
    ends.server.moderate_cq(&ends.cq, 2, Duration::ZERO).unwrap();
    assert!(!sleeps_on_sockets());
    ends.server.moderate_cq(&ends.cq, 1, Duration::ZERO).unwrap();
    assert!(sleeps_on_sockets());
    handler.set_class(Class::Bulk(NonZero::<u8>::MIN)).unwrap();
    assert!(!sleeps_on_sockets());
}

/// A thread that is cancelled while it blocks leaves the sockets to the lane.
#[test]
fn the_lane_serves_after_a_thread_vanishes_in_its_sleep() {
    let ends = Ends::new();
    let handler = handler(&ends);
    let receiving = Receiving::start(&ends, &handler, 1);
    receiving.thread.kill();
    receiving.thread.join();
    ends.receive();
    ends.send();
    assert!(handler.wait(Some(TIMEOUT)).is_some(), "the lane or this thread receives the message");
    assert_eq!(ends.cq.poll(1, drop), Ok(1));
}
