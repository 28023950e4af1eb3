//! Shared receive queues with greedy peers: the peer that has waited longest is served first, and a peer that
//! waits forever does not affect others.

use crate::common::peer::{Peer, StartupSettings};
use crate::common::victim::{RECEIVE, Victim};
use crate::common::{TIMEOUT, send};
use ironwarp_engine::{CompletionQueue, QueuePair, QueuePairAttributes};
use ironwarp_rnic::error::{Protocol, QpError};
use ironwarp_rnic::qp::Receives;
use ironwarp_rnic::queue::{Completion, ReceiveRequest, SharedReceiveQueue, SrqSize, Status, XrcDomain};
use ironwarp_wire::{Cause, Header, Immediate, ImmediateData, Send, SendWord, Terminate, UntaggedBuffer};
use std::sync::Arc;
use std::time::Duration;

/// Many queue pairs that share a receive queue.
struct Crowd {
    victim: Victim,
    cq: Arc<CompletionQueue>,
    queue: Arc<SharedReceiveQueue>,
}

impl Crowd {
    fn new() -> Self {
        let victim = Victim::new();
        let cq = victim.engine.create_cq(1024).unwrap();
        let queue = SharedReceiveQueue::new(
            1,
            victim.engine.device().events(),
            victim.domain,
            SrqSize { depth: 64, max_sges: 1 },
            None,
        );
        Self { victim, cq, queue }
    }

    fn peer(&self, receives: Receives) -> (Arc<QueuePair>, Peer) {
        let attributes = QueuePairAttributes {
            receives,
            max_sges: 1,
            ..QueuePairAttributes::new(self.victim.domain, &self.cq)
        };
        let pair = self.victim.engine.create_qp(attributes).unwrap();
        let mut peer = self.victim.connected(&pair, StartupSettings::default());
        peer.open();
        (pair, peer)
    }

    fn sharing(&self) -> (Arc<QueuePair>, Peer) {
        self.peer(Receives::Shared(Arc::clone(&self.queue)))
    }

    fn post(&self, id: u64) {
        let sge = self.victim.private.sge(id % 16 * RECEIVE as u64, u32::try_from(RECEIVE).unwrap());
        self.queue.post(ReceiveRequest { id, buffers: sge.into() }).unwrap();
    }

    fn one(&self) -> Completion {
        assert!(self.cq.wait(Some(TIMEOUT)).unwrap(), "expected a completion");
        let mut done = None;
        self.cq.poll(1, |completion| done = Some(completion)).unwrap();
        done.unwrap()
    }

    /// Waits until everything that was sent has arrived and waits for a receive.
    fn settles(&self) {
        assert!(!self.cq.wait(Some(Duration::from_millis(100))).unwrap(), "completed without a receive");
    }

    fn assert_survives(&self) {
        self.victim.assert_untouched_except(&[(self.victim.private.at, 16 * RECEIVE)]);
        self.victim.assert_survives();
    }
}

#[test]
fn peers_that_starve_a_shared_queue_are_served_one_after_another() {
    const PEERS: usize = 16;
    const EACH: u32 = 3;
    let crowd = Crowd::new();
    let mut peers: Vec<_> = (0..PEERS).map(|_| crowd.sharing()).collect();
    for (_, peer) in &mut peers {
        (1..=EACH).for_each(|msn| drop(peer.send(&send(msn), b"hungry")));
    }
    crowd.settles();
    // One receive per message; no peer is served twice before all were served once.
    let mut served: Vec<u32> = Vec::new();
    for id in 0..PEERS as u64 * u64::from(EACH) {
        crowd.post(id);
        let done = crowd.one();
        assert_eq!((done.wr_id, done.status, done.byte_len), (id, Status::Success, 6), "{done:?}");
        served.push(done.qp);
    }
    for round in served.chunks(PEERS) {
        let mut round = round.to_vec();
        round.sort_unstable();
        round.dedup();
        assert_eq!(round.len(), PEERS, "{served:?}");
    }
    crowd.assert_survives();
}

/// A peer disconnects while it waits: its turn is not lost for the others.
#[test]
fn a_peer_that_leaves_while_it_waits_takes_no_receive() {
    let crowd = Crowd::new();
    let (gone, mut first) = crowd.sharing();
    first.send(&send(1), b"too late");
    crowd.settles();
    let (_pair, mut second) = crowd.sharing();
    second.send(&send(1), b"patient");
    crowd.settles();
    first.reset();
    assert!(gone.wait_closed(TIMEOUT), "the reset was not noticed");
    crowd.post(1);
    let done = crowd.one();
    assert_eq!((done.wr_id, done.status, done.byte_len), (1, Status::Success, 7), "{done:?}");
    crowd.assert_survives();
}

/// XRC: a message names a shared receive queue that does not exist, or no longer exists. It ends its own
/// stream; others can use the existing queues.
#[test]
fn messages_for_a_shared_queue_that_does_not_exist() {
    let crowd = Crowd::new();
    let domain = XrcDomain::new();
    domain.add(&crowd.queue);
    let forgotten = SharedReceiveQueue::new(
        2,
        crowd.victim.engine.device().events(),
        crowd.victim.domain,
        SrqSize { depth: 4, max_sges: 1 },
        None,
    );
    domain.add(&forgotten);
    drop(forgotten);
    for srq in [0, 2, 3, u32::MAX] {
        for header in [named_send(1, srq), named_immediate(1, srq)] {
            let (pair, mut peer) = crowd.peer(Receives::Named(Arc::clone(&domain)));
            let fpdu = peer.send(&header, &[]);
            let cause = Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer);
            assert_eq!(peer.receive_terminate(), Terminate::for_segment(cause, &fpdu), "{srq}");
            peer.finish();
            assert!(pair.wait_closed(TIMEOUT));
            let error = pair.qp().error().cloned().expect("the stream has ended");
            assert_eq!(*error, QpError::Protocol(Protocol::NoSharedQueue(srq)));
        }
    }
    let (_pair, mut peer) = crowd.peer(Receives::Named(domain));
    peer.send(&named_send(1, 1), b"well-behaved");
    crowd.post(1);
    assert_eq!(crowd.one().byte_len, 12);
    crowd.assert_survives();
}

fn named_send(msn: u32, srq: u32) -> Header {
    Header::Send(Send { msn, last: true, offset: 0, solicited: false, word: SendWord::Srq(srq) })
}

fn named_immediate(msn: u32, srq: u32) -> Header {
    Header::Immediate(Immediate { msn, solicited: false, srq, data: ImmediateData::new(1) })
}

/// RFC 5042 §6.4.3.1: a stream that takes more than its share of a shared queue can be found by its count.
#[test]
fn receives_of_a_shared_queue_are_counted_per_stream() {
    let crowd = Crowd::new();
    let ((greedy, mut takes), (modest, mut takes_one)) = (crowd.sharing(), crowd.sharing());
    (0..6).for_each(|id| crowd.post(id));
    (1..=5).for_each(|msn| drop(takes.send(&send(msn), b"mine")));
    takes_one.send(&send(1), b"one");
    for _ in 0..6 {
        assert_eq!(crowd.one().status, Status::Success);
    }
    assert_eq!((greedy.qp().shared_receives(), modest.qp().shared_receives()), (5, 1));
    crowd.assert_survives();
}
