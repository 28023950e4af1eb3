//! Tests of completion queues whose sockets wake the program through the descriptor of a completion channel.

use super::tests::{Ends, TIMEOUT, block_lane, send};
use super::*;
use crate::notify::sockets::ChannelSockets;
use ironwarp_rnic::queue::{ReceiveRequest, Sges};
use ironwarp_testkit::wait::until;
use std::time::Duration;

/// A completion queue with a channel, from which the program takes events without blocking.
struct Channel {
    cq: Arc<CompletionQueue>,
    handler: Arc<CompletionHandler>,
    sockets: Arc<ChannelSockets>,
}

impl Channel {
    fn new(engine: &crate::Engine, cq: &Arc<CompletionQueue>) -> Self {
        let handler = engine.create_handler().unwrap();
        let sockets = ChannelSockets::new(&*handler, handler.id()).unwrap();
        cq.set_handler(Some(&handler));
        cq.join_channel(&sockets);
        sockets.use_sockets();
        Self { cq: Arc::clone(cq), handler, sockets }
    }

    /// Waits until the descriptor is readable.
    fn wait(&self) {
        assert!(self.is_readable(TIMEOUT));
    }

    /// Returns whether the descriptor becomes readable within this time.
    fn is_readable(&self, within: Duration) -> bool {
        let mut list = [rustix::event::PollFd::new(&*self.sockets, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut list, Some(&within.try_into().unwrap())).unwrap() > 0
    }

    /// Takes an event as `ibv_get_cq_event` does. Returns whether there was one.
    fn take(&self) -> bool {
        self.handler.try_next().is_some() || self.sockets.serve(|| self.handler.try_next()).is_some()
    }

    /// Takes an event for which the descriptor is readable, arms the queue again, and polls a completion. Returns whether
    /// there was one.
    fn take_and_poll(&self) -> bool {
        self.wait();
        if !self.take() {
            return false; // the lane receives
        }
        let _ = self.cq.arm(Arm::Next);
        self.cq.poll(1, drop).unwrap() == 1
    }

    /// Takes events until nothing makes the descriptor readable any more.
    fn settles(&self) {
        until(|| {
            self.take();
            !self.is_readable(Duration::ZERO)
        });
    }

    fn set(&self) -> Arc<PollSet> {
        Arc::clone(&self.cq.sets()[0])
    }
}

fn post_receive(qp: &crate::QueuePair) {
    qp.post_receive(ReceiveRequest { id: 8, buffers: Sges::default() }).unwrap();
}

#[test]
fn a_message_wakes_the_program_without_the_lane() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    let _blocker = block_lane(&ends.cq);
    ends.send();
    channel.wait();
    assert!(channel.take(), "the descriptor is readable only if there is an event");
    until(|| channel.cq.poll(1, drop) == Ok(1));
    channel.settles();
}

/// The peer's acknowledgement completes nothing here. Nevertheless, a program that finds the descriptor readable gets an
/// event.
#[test]
fn a_socket_event_without_a_completion_is_an_early_event() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.client, ends.near.receive_cq());
    assert!(!channel.cq.arm(Arm::Next));
    let _blocker = block_lane(&channel.cq);
    ends.send();
    channel.wait();
    assert!(channel.take());
    assert_eq!(channel.cq.poll(1, drop), Ok(0), "nothing has completed");
    assert!(!channel.cq.cq().is_armed());
    channel.settles();
}

/// Some programs take events until there are none before they sleep.
#[test]
fn without_news_there_is_no_early_event() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    // The end of the handshake may be in the socket. From now on the client sends nothing.
    let _blocker = block_lane(ends.near.receive_cq());
    until(|| !channel.take());
    assert!(!ends.cq.arm(Arm::Next));
    for _ in 0..3 {
        assert!(!channel.take());
    }
    assert!(ends.cq.cq().is_armed());
}

#[test]
fn the_lane_serves_a_program_that_does_not_come() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    assert!(channel.set().is_polled(), "the program has the sockets");
    ends.send();
    until(|| !ends.cq.cq().is_empty());
    assert!(channel.handler.wait(Some(TIMEOUT)).is_some());
    until(|| !channel.set().is_in_channel());
}

#[test]
fn lanes_serve_a_channel_that_blocks_again() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    assert!(channel.set().is_in_channel());
    channel.sockets.leave_sockets_to_lanes();
    channel.sockets.use_sockets();
    assert!(!ends.cq.arm(Arm::Next));
    assert!(!channel.set().is_in_channel() && !channel.set().is_polled());
    ends.send();
    assert!(channel.handler.wait(Some(TIMEOUT)).is_some());
}

#[test]
fn lanes_serve_a_queue_that_leaves_its_channel() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    ends.cq.leave_channel();
    assert!(!channel.set().is_in_channel() && !channel.set().is_polled());
    ends.send();
    assert!(channel.handler.wait(Some(TIMEOUT)).is_some());
    assert!(!ends.cq.arm(Arm::Next) || channel.cq.poll(1, drop) == Ok(1));
    assert!(!channel.set().is_in_channel());
}

/// A thread that waits for events of the other handler would depend on the program to serve the sockets.
#[test]
fn sockets_of_queues_with_two_handlers_are_in_no_channel() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    let [other, plain] = [(); 2].map(|()| ends.server.create_cq(8).unwrap());
    channel.set().add_cq(plain.cq());
    assert!(channel.set().is_in_channel());
    other.set_handler(Some(&ends.server.create_handler().unwrap()));
    channel.set().add_cq(other.cq());
    assert!(!channel.set().is_in_channel() && !channel.set().is_polled());
    assert!(!ends.cq.arm(Arm::Next));
    assert!(!channel.set().is_in_channel());
}

#[test]
fn lanes_serve_queues_whose_messages_come_by_shared_memory() {
    let ends = Ends::shared();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    for _ in 0..3 {
        assert_eq!(ends.cq.poll(1, drop), Ok(0));
        assert!(!channel.set().is_in_channel() && !channel.set().is_polled());
    }
    post_receive(&ends.far);
    ends.send();
    assert!(channel.handler.wait(Some(TIMEOUT)).is_some());
}

#[test]
fn connections_of_an_event_loop_stay_with_tcp() {
    let ends = Ends::over_shared_memory();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    ends.send();
    let expected = "tcp: an event loop waits for its completion channel";
    until(|| channel.set().members().iter().any(|member| member.route().0 == expected));
}

#[test]
fn a_full_socket_is_left_to_the_lane() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    ends.cq.record_post(|| true);
    assert!(!channel.set().is_polled() && !channel.set().is_in_channel());
    assert!(!ends.cq.arm(Arm::Next));
    assert!(channel.set().is_polled() && channel.set().is_in_channel(), "it was not full");
}

/// Receives a message of the client as an event-driven program does, up to the poll that finds nothing more.
fn receive(ends: &Ends, channel: &Channel) {
    post_receive(&ends.far);
    post_receive(&ends.near);
    ends.send();
    until(|| channel.take_and_poll());
    assert_eq!(ends.cq.poll(1, drop), Ok(0));
}

#[test]
fn a_program_that_replies_acknowledges_with_its_reply() {
    let ends = Ends::new();
    let channel = Channel::new(&ends.server, &ends.cq);
    assert!(!ends.cq.arm(Arm::Next));
    receive(&ends, &channel);
    assert!(!ends.far.qp().owes_acknowledgement(), "no reply is expected yet");
    let replied = (0..1000).any(|_| {
        receive(&ends, &channel);
        let owes = ends.far.qp().owes_acknowledgement();
        send(&ends.far);
        assert!(!ends.far.qp().owes_acknowledgement());
        until(|| ends.near.receive_cq().poll(1, drop) == Ok(1));
        owes
    });
    assert!(replied, "the acknowledgement waits for the reply");
    // And without a reply, it does not wait for long.
    receive(&ends, &channel);
    until(|| !ends.far.qp().owes_acknowledgement());
}
