//! A connection moves from one function of an adapter to another, in the middle of messages (requirement X2).
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp::completion::{Completion, Opcode};
use ironwarp::function::{Moving, PairNotMovable, Quotas, Resource, TakeInError};
use ironwarp::prelude::*;
use ironwarp_testkit::native::SOON;
use std::collections::VecDeque;
use std::thread;

/// Maximum length of a message.
const MAX: usize = 150_000;
/// Number of messages of each direction that are under way at once.
const DEPTH: usize = 4;
/// Number of messages in each direction.
const MESSAGES: u64 = 300;
/// Identifiers of receives have this bit, those of sends do not.
const RECEIVE: u64 = 1 << 32;

fn rights() -> Access {
    Access::LOCAL_READ
        | Access::LOCAL_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::REMOTE_ATOMIC
}

/// One end of a connection, which sends and receives numbered messages, and counts at the other end.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    /// Room for `DEPTH` messages to send, and as many to receive.
    region: MemoryRegion,
    /// A word that the other end increments, and one for the results of this end's increments.
    words: MemoryRegion,
    /// The word of the other end.
    counter: Option<RemoteAddr>,
    sent: u64,
    completed: u64,
    posted: u64,
    received: u64,
    /// What the increments have returned.
    counted: u64,
    /// Completions of a queue that the end has left.
    left: VecDeque<Completion>,
}

/// Returns the length of a message, which may be several segments.
fn len(number: u64, direction: u64) -> usize {
    1 + usize::try_from((number * 7919 + direction * 31) % (MAX as u64)).unwrap()
}

/// Returns the bytes of a message.
fn bytes(number: u64, direction: u64) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(direction);
    (0..len(number, direction) as u64).map(|at| (seed.wrapping_add(at * at) >> 5).to_le_bytes()[0]).collect()
}

impl End {
    fn new(adapter: &Adapter) -> Self {
        let (cq, domain) = (adapter.completion_queue(64).unwrap(), adapter.protection_domain());
        let region = domain.register(Buffer::new(2 * DEPTH * MAX).unwrap(), rights()).unwrap();
        let words = domain.register(Buffer::new(16).unwrap(), rights()).unwrap();
        let qp = domain.queue_pair(&cq).create().unwrap();
        let (counter, left) = (None, VecDeque::new());
        let (sent, completed, posted, received, counted) = (0, 0, 0, 0, 0);
        Self { qp, cq, region, words, counter, sent, completed, posted, received, counted, left }
    }

    /// Posts all receives and requests for which there is room.
    fn post(&mut self, direction: u64) {
        while self.posted < MESSAGES && self.posted < self.received + DEPTH as u64 {
            let at = (DEPTH + usize::try_from(self.posted).unwrap() % DEPTH) * MAX;
            self.qp.post_receive(RECEIVE | self.posted, &[self.region.slice(at..at + MAX).unwrap()]).unwrap();
            self.posted += 1;
        }
        while self.sent < MESSAGES && self.sent < self.completed + DEPTH as u64 {
            let at = usize::try_from(self.sent).unwrap() % DEPTH * MAX;
            let message = bytes(self.sent, direction);
            self.region.write(at, &message).unwrap();
            let slice = self.region.slice(at..at + message.len()).unwrap();
            self.qp.post_send(WorkRequest::send(self.sent, &[slice])).unwrap();
            let result = self.words.slice(8..16).unwrap();
            self.qp.post_send(WorkRequest::fetch_add(self.sent, result, self.counter.unwrap(), 1)).unwrap();
            self.sent += 1;
        }
    }

    /// Handles one completion, if there is one.
    fn poll(&mut self, direction: u64) -> bool {
        let Some(done) = self.left.pop_front().or_else(|| self.cq.poll_one().unwrap()) else { return false };
        let done = done.success().unwrap();
        if done.wr_id & RECEIVE != 0 {
            assert_eq!(done.wr_id, RECEIVE | self.received, "receives complete in order");
            let expected = bytes(self.received, 1 - direction);
            assert_eq!(done.byte_len as usize, expected.len());
            let at = (DEPTH + usize::try_from(self.received).unwrap() % DEPTH) * MAX;
            let mut message = vec![0; expected.len()];
            self.region.read(at, &mut message).unwrap();
            assert!(message == expected, "message {} is wrong", self.received);
            self.received += 1;
        } else if done.opcode == Opcode::Send {
            assert_eq!(done.wr_id, self.completed, "sends complete in order");
        } else {
            assert_eq!((done.opcode, done.wr_id), (Opcode::FetchAdd, self.completed));
            self.completed += 1;
            self.counted += 1;
        }
        true
    }

    fn is_done(&self) -> bool {
        self.completed == MESSAGES && self.received == MESSAGES
    }

    /// Moves to another function.
    fn move_to(&mut self, function: &Adapter) {
        let (cq, domain) = (function.completion_queue(64).unwrap(), function.protection_domain());
        // The handles move, so others take their place meanwhile.
        let spare = |len| domain.register(Buffer::new(len).unwrap(), rights()).unwrap();
        let qp = std::mem::replace(&mut self.qp, domain.queue_pair(&cq).create().unwrap());
        let region = std::mem::replace(&mut self.region, spare(1));
        let words = std::mem::replace(&mut self.words, spare(1));
        let (id, tags) = (qp.id(), [region.tag(), words.tag()]);
        let mut moved = Moving::new(qp, [region, words]).move_to(&domain, [&cq, &cq], SOON).unwrap();
        let mut left = Vec::new();
        self.cq.poll(&mut left, 64).unwrap();
        self.left.extend(left);
        (self.words, self.region) = (moved.regions.pop().unwrap(), moved.regions.pop().unwrap());
        (self.qp, self.cq) = (moved.qp, cq);
        assert_eq!((self.qp.id(), [self.region.tag(), self.words.tag()]), (id, tags));
    }
}

/// Connects two ends.
fn connect(one: &mut End, other: &mut End, adapter: &Adapter) {
    let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    one.qp.start_connect(listener.local_addr().unwrap(), &ConnectOptions::new()).unwrap();
    listener.accept(SOON).unwrap().accept(&other.qp, &AcceptOptions::new()).unwrap();
    one.qp.wait_connected(SOON).unwrap();
    one.counter = Some(other.words.remote_addr(0).unwrap());
    other.counter = Some(one.words.remote_addr(0).unwrap());
}

#[test]
fn messages_and_atomics_are_whole_while_their_connection_moves() {
    let peer_adapter = Adapter::new().unwrap();
    let adapter = Adapter::new().unwrap();
    let functions = [0; 2].map(|_| adapter.function(Quotas::default()).unwrap());
    let (mut mover, mut peer) = (End::new(&functions[0]), End::new(&peer_adapter));
    connect(&mut mover, &mut peer, &peer_adapter);
    let peer = thread::spawn(move || {
        while !peer.is_done() {
            peer.post(1);
            peer.poll(1);
        }
        peer
    });
    let mut moves = 0;
    let mut since_move = 0;
    while !mover.is_done() {
        mover.post(0);
        if mover.poll(0) {
            since_move += 1;
        }
        if since_move >= 7 {
            since_move = 0;
            moves += 1;
            mover.move_to(&functions[moves % 2]);
        }
    }
    let peer = peer.join().unwrap();
    assert!(moves > 50, "{moves}");
    for end in [&mover, &peer] {
        assert_eq!(end.counted, MESSAGES);
        let words = end.words.to_vec().unwrap();
        assert_eq!(
            u64::from_ne_bytes(words[..8].try_into().unwrap()),
            MESSAGES,
            "each increment counts once"
        );
    }
}

#[test]
fn a_connection_that_cannot_move_goes_on() {
    let (peer_adapter, adapter, stranger) =
        (Adapter::new().unwrap(), Adapter::new().unwrap(), Adapter::new().unwrap());
    let full = adapter.function(Quotas::default().queue_pairs(0)).unwrap();
    let small = adapter.function(Quotas::default().registered_bytes(100)).unwrap();
    let (mut mover, mut peer) = (End::new(&adapter), End::new(&peer_adapter));
    connect(&mut mover, &mut peer, &peer_adapter);
    let End { mut qp, mut region, mut words, cq, .. } = mover;
    words.write(8, &7_u64.to_ne_bytes()).unwrap();
    for (function, reason) in
        [(&stranger, "two adapters"), (&full, "quota of 0 queue pairs"), (&small, "bytes")]
    {
        let there = function.completion_queue(8).unwrap();
        // The first region fits into the last function, and has to come back.
        let moving = Moving { qp, regions: vec![words, region] };
        let refused = moving.move_to(&function.protection_domain(), [&there, &there], SOON).unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
        let Moving { qp: its, regions } = refused.unmoved;
        qp = its;
        [words, region] = regions.try_into().unwrap();
        for resource in [Resource::QueuePairs, Resource::Tags, Resource::RegisteredBytes] {
            assert_eq!(function.used(resource), 0, "{resource:?}");
        }
    }
    let there = full.completion_queue(8).unwrap();
    let refused = Moving { qp, regions: Vec::new() }
        .move_to(&small.protection_domain(), [&there, &there], SOON)
        .unwrap_err();
    assert!(matches!(refused.error, TakeInError::OtherAdapter), "queues of a third function");
    qp = refused.unmoved.qp;
    peer.qp.post_receive(1, &[peer.region.slice(..10).unwrap()]).unwrap();
    region.write(0, b"still here").unwrap();
    qp.post_send(WorkRequest::send(2, &[region.slice(..10).unwrap()])).unwrap();
    assert_eq!(peer.cq.wait(SOON).unwrap().success().unwrap().byte_len, 10);
    assert_eq!(&peer.region.to_vec().unwrap()[..10], b"still here");
    assert_eq!(cq.wait(SOON).unwrap().success().unwrap().wr_id, 2);
    // The peer finds the region that came back, under the tag that it had.
    let result = peer.words.slice(8..16).unwrap();
    let counter = words.remote_addr(8).unwrap();
    peer.qp.post_send(WorkRequest::fetch_add(3, result, counter, 1)).unwrap();
    assert_eq!(peer.cq.wait(SOON).unwrap().success().unwrap().wr_id, 3);
    assert_eq!(words.to_vec().unwrap()[8..], 8_u64.to_ne_bytes());
}

/// Links that delay hold bytes that have arrived, which would be lost.
#[test]
fn a_connection_whose_link_holds_bytes_does_not_move() {
    let delaying = Config::default().devices("1 delay=1ms".parse().unwrap());
    for config in [Config::default().adversary(1.into()), delaying] {
        let (adapter, peer_adapter) = (Adapter::open(config).unwrap(), Adapter::new().unwrap());
        let function = adapter.function(Quotas::default()).unwrap();
        let (mut mover, mut peer) = (End::new(&adapter), End::new(&peer_adapter));
        connect(&mut mover, &mut peer, &peer_adapter);
        let there = function.completion_queue(8).unwrap();
        let moving = Moving { qp: mover.qp, regions: Vec::new() };
        let refused = moving.move_to(&function.protection_domain(), [&there, &there], SOON).unwrap_err();
        assert!(matches!(refused.error, TakeInError::QueuePair(PairNotMovable::Delayed(_))), "{refused}");
    }
}
