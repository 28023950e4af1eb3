//! The programs, and the model that checks what they see.

use super::network::{Event, Network, NodeLink, Plan, gid_of, port_of};
use super::tally::{Situation, Tally};
use crate::arena::Arena;
use crate::clock::Clock;
use crate::tags::tag_cipher;
use crate::trace::Trace;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::datagram::{
    AddressHandle, DatagramAttributes, DatagramQp, DatagramRequest, Destination, DropCounts, Grh, qpn_of_port,
};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Memory, Rights};
use ironwarp_rnic::qp::{Ready, Retries, State};
use ironwarp_rnic::queue::{
    Completes, Completion, Cq, Data, Opcode, Operation, ReceiveRequest, Sge, Status, WorkRequest,
};
use ironwarp_wire::Tag;
use ironwarp_wire::private::Secret;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of receives that a program can post, and the room for each.
const RECEIVES: usize = 80;
const ROOM: usize = 512;
/// The room of a receive that is too short for most messages.
const SHORT: u32 = 60;
/// Depth of the send queues: more than a window.
const SEND_DEPTH: usize = 90;
const QKEY: u32 = 7;
/// Upper bound on the number of events after the last post.
const MAX_EVENTS: usize = 1_000_000;

/// A process with a queue pair.
#[derive(Debug)]
struct Node {
    qp: Arc<DatagramQp>,
    cq: Arc<Cq>,
    arena: Arc<Arena>,
    memory: Span,
    tag: Tag,
    /// Receives that are not posted.
    free: Vec<usize>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Succeeded,
    Failed(QpError),
    /// Its queue pair was started again.
    Discarded,
}

/// What the model knows about a message.
#[derive(Debug)]
struct Message {
    from: usize,
    to: usize,
    len: usize,
    end: Option<End>,
    delivered: u32,
}

/// One run.
#[derive(Debug)]
pub(super) struct Scene {
    rng: Rng,
    trace: Trace,
    network: Arc<Network>,
    nodes: Vec<Node>,
    max_senders: usize,
    retries: Retries,
    /// Messages by the identifier of the request, with their sender.
    messages: BTreeMap<u64, Message>,
    tally: Tally,
}

impl Scene {
    /// Creates the programs of a seed.
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let clock = Clock::new();
        let trace = Trace::new(&clock, traced);
        let quiet = rng.below(4) == 0;
        let mut percent = |most| if quiet { 0 } else { rng.below(most) };
        let plan = Plan {
            loss: percent(40),
            duplicates: percent(40),
            damage: percent(5),
            full: percent(10),
            late: percent(20),
        };
        let nodes = 2 + usize::try_from(rng.below(4)).expect("small");
        let max_senders = 1 + usize::try_from(rng.below(3)).expect("small");
        let small = |rng: &mut Rng, most| u8::try_from(rng.below(most)).expect("small");
        let retries = Retries::default()
            .retry_count(1 + small(&mut rng, 7))
            .timeout(6 + small(&mut rng, 7))
            .rnr_retry(small(&mut rng, 7))
            .rnr_timer(8 + small(&mut rng, 8));
        let network = Network::new(&clock, &trace, plan, Rng::stream(seed, 1), nodes);
        let (messages, tally) = (BTreeMap::new(), Tally::default());
        let mut scene =
            Self { rng, trace, network, nodes: Vec::new(), max_senders, retries, messages, tally };
        for node in 0..nodes {
            let made = scene.start(node);
            scene.nodes.push(made);
        }
        scene
    }

    /// Returns the trace of the run.
    pub(super) fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// Runs the programs to the end.
    pub(super) fn run(mut self) -> Tally {
        let steps = 100 + self.rng.below(500);
        for _ in 0..steps {
            let node = self.pick_node();
            match self.rng.below(100) {
                0..30 => self.post_send(node),
                30..32 => (0..100).for_each(|_| self.post_send(node)),
                32..50 => self.post_receives(node),
                50..51 => self.restart(node),
                51..52 => self.reset(node),
                _ => {
                    self.step();
                }
            }
            self.poll();
        }
        let mut events = 0;
        while self.step() {
            self.poll();
            events += 1;
            assert!(events < MAX_EVENTS, "the queue pairs do not come to rest");
        }
        for (id, message) in &self.messages {
            assert!(message.end.is_some(), "request {id} has not ended: {message:?}");
        }
        (0..self.nodes.len()).for_each(|node| self.count_drops(node));
        self.tally
    }

    /// Creates a process with a queue pair that is ready to send.
    fn start(&mut self, node: usize) -> Node {
        let arena = Arena::new(u16::try_from(node).expect("few nodes"));
        let device = Device::new(DeviceConfig::default(), Arc::<Arena>::clone(&arena), tag_cipher(node % 2));
        let domain = device.allocate_domain();
        let memory = arena.alloc(RECEIVES * ROOM);
        let region = Memory::direct(memory.addr, memory.len as u64, Rights::LOCAL_WRITE).expect("a region");
        let tag = device.register(domain, region).expect("a free entry");
        let cq = Arc::new(Cq::new(1, 1000));
        let free = (0..RECEIVES).collect();
        let secret = self.new_secret();
        let attributes = DatagramAttributes {
            send_depth: SEND_DEPTH,
            receive_depth: RECEIVES,
            qkey: QKEY,
            completes: Completes::WhenAcknowledged,
            retries: self.retries,
            max_senders: self.max_senders,
            secret,
            ..DatagramAttributes::new(domain, &cq)
        };
        let link = Arc::new(NodeLink { network: Arc::clone(&self.network), node });
        let qp = DatagramQp::new(qpn_of_port(port_of(node)), &device, attributes, link);
        bring_up(&qp);
        Node { qp, cq, arena, memory, tag, free }
    }

    fn new_secret(&mut self) -> Secret {
        let (low, high) = (self.rng.next().to_le_bytes(), self.rng.next().to_le_bytes());
        Secret(std::array::from_fn(|at| if at < 8 { low[at] } else { high[at - 8] }))
    }

    fn pick_node(&mut self) -> usize {
        usize::try_from(self.rng.below(self.nodes.len() as u64)).expect("few nodes")
    }

    /// Posts a message to any node, also to the sender itself. Its first bytes are its identifier.
    fn post_send(&mut self, from: usize) {
        let id = self.messages.len() as u64;
        let to = self.pick_node();
        let len = 8 + usize::try_from(self.rng.below(300)).expect("small");
        let bytes = [&id.to_le_bytes()[..], &vec![pattern(id); len - 8]].concat();
        let address = AddressHandle::new(gid_of(from), gid_of(to));
        let destination = Destination { address, qpn: qpn_of_port(port_of(to)), qkey: QKEY };
        let data = Data::Inline(bytes.as_slice().into());
        let request = WorkRequest::new(id, Operation::Send { invalidate: None }, data);
        self.trace.note(from, format_args!("posts {id} to {to}, {len} bytes"));
        self.messages.insert(id, Message { from, to, len, end: None, delivered: 0 });
        match self.nodes[from].qp.post_send(vec![DatagramRequest { request, destination }]) {
            Ok(()) => {}
            Err(PostError::Full { .. }) => {
                self.messages.remove(&id);
                self.tally.record(Situation::QueueFull);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Posts some receives, of which some are too short.
    fn post_receives(&mut self, node: usize) {
        for _ in 0..self.rng.below(20) {
            let short = self.rng.below(20) == 0;
            let Node { qp, memory, tag, free, .. } = &mut self.nodes[node];
            let Some(slot) = free.pop() else { return };
            let len = if short { SHORT } else { u32::try_from(ROOM).expect("small") };
            let sge = Sge { tag: *tag, addr: memory.addr + (slot * ROOM) as u64, len };
            qp.post_receive(ReceiveRequest { id: slot as u64, buffers: sge.into() }).expect("room for it");
        }
    }

    /// Ends the process of a node, and starts another one with the same address and port.
    fn restart(&mut self, node: usize) {
        self.trace.note(node, format_args!("is started again"));
        self.tally.record(Situation::Restarted);
        self.count_drops(node);
        self.discard_requests(node);
        self.network.discard(node);
        self.nodes[node] = self.start(node);
    }

    /// Resets a queue pair, and brings it up again.
    fn reset(&mut self, node: usize) {
        self.trace.note(node, format_args!("is reset"));
        self.tally.record(Situation::Reset);
        self.discard_requests(node);
        let Node { qp, free, .. } = &mut self.nodes[node];
        qp.modify(State::Reset).expect("always allowed");
        *free = (0..RECEIVES).collect();
        bring_up(&self.nodes[node].qp);
    }

    /// Notes that the outstanding requests of a node will not complete.
    fn discard_requests(&mut self, node: usize) {
        self.poll();
        for message in self.messages.values_mut().filter(|message| message.from == node) {
            message.end.get_or_insert(End::Discarded);
        }
    }

    /// Lets the next event occur. Returns false if there is none.
    fn step(&mut self) -> bool {
        let Some(event) = self.network.next() else { return false };
        let ready = |readable, writable| Ready { readable, writable, ended: false };
        match event {
            Event::Arrival { node } => self.nodes[node].qp.drive(ready(true, false)),
            Event::Room { node } => self.nodes[node].qp.drive(ready(false, true)),
            Event::Timer { node } | Event::Schedule { node } => self.nodes[node].qp.resume(),
        }
        true
    }

    /// Polls all completion queues: first all receives, then all requests, because a message is delivered before its
    /// request completes.
    fn poll(&mut self) {
        let mut completions = Vec::new();
        for (node, Node { cq, .. }) in self.nodes.iter().enumerate() {
            cq.poll(usize::MAX, |completion| completions.push((node, completion))).expect("large enough");
        }
        completions.sort_by_key(|(_, completion)| completion.opcode != Opcode::Receive);
        for (node, completion) in completions {
            self.trace.note(
                node,
                format_args!("polls {:?} {}: {}", completion.opcode, completion.wr_id, completion.status),
            );
            match completion.opcode {
                Opcode::Receive => self.received(node, &completion),
                _ => self.sent(&completion),
            }
        }
    }

    /// Checks a received message, every byte of it.
    fn received(&mut self, node: usize, completion: &Completion) {
        let Node { arena, memory, free, .. } = &mut self.nodes[node];
        let slot = usize::try_from(completion.wr_id).expect("the number of a receive");
        free.push(slot);
        if completion.status != Status::Success {
            assert_eq!(completion.status, Status::LocalLength, "{completion:?}");
            return;
        }
        let len = completion.byte_len as usize;
        let bytes = arena.read(Span::new(memory.addr + (slot * ROOM) as u64, len));
        let (grh, message) = Grh::split(&bytes).expect("a GRH");
        let id = u64::from_le_bytes(*message.first_chunk().expect("an identifier"));
        let sent = self.messages.get_mut(&id).expect("a message that was posted");
        assert_eq!((sent.to, grh.destination), (node, gid_of(node)), "delivered to another node");
        assert_eq!(message.len(), sent.len);
        assert!(message[8..].iter().all(|byte| *byte == pattern(id)), "message {id} was damaged");
        sent.delivered += 1;
        assert_eq!(sent.delivered, 1, "message {id} was delivered again");
        assert!(!matches!(sent.end, Some(End::Failed(QpError::ReceiveFailed))), "message {id} was rejected");
    }

    /// Checks how a request ended.
    fn sent(&mut self, completion: &Completion) {
        let id = completion.wr_id;
        let message = self.messages.get_mut(&id).expect("a request that was posted");
        assert_eq!(message.end, None, "request {id} completed twice");
        let delivered = message.delivered > 0;
        let (situation, status) = match completion.cause.as_deref() {
            None => {
                assert!(delivered, "request {id} succeeded, but was not delivered");
                (Situation::Succeeded, Status::Success)
            }
            Some(QpError::ReceiveFailed) => {
                assert!(!delivered, "request {id} was delivered and rejected");
                (Situation::Rejected, Status::RemoteOperation)
            }
            Some(QpError::NotReady) => (Situation::NotReady, Status::RnrRetryExceeded),
            Some(QpError::Unreachable) if delivered => (Situation::AnswerLost, Status::RetryExceeded),
            Some(QpError::Unreachable) => (Situation::NoAnswer, Status::RetryExceeded),
            Some(QpError::SessionLost) if delivered => (Situation::SessionLostLater, Status::RetryExceeded),
            Some(QpError::SessionLost) => (Situation::SessionLost, Status::RetryExceeded),
            Some(error) => panic!("request {id} failed: {error}"),
        };
        assert_eq!(completion.status, status);
        let cause = completion.cause.as_deref();
        message.end = Some(cause.map_or(End::Succeeded, |error| End::Failed(error.clone())));
        self.tally.record(situation);
    }

    /// Adds what a queue pair has dropped to the tally.
    fn count_drops(&mut self, node: usize) {
        let DropCounts { duplicates, no_session, damaged, .. } = self.nodes[node].qp.drops();
        self.tally.add(Situation::Duplicate, duplicates);
        self.tally.add(Situation::NoSession, no_session);
        self.tally.add(Situation::Damaged, damaged);
    }
}

/// Moves a queue pair to the state ready to send.
fn bring_up(qp: &DatagramQp) {
    for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
        qp.modify(state).expect("a legal transition");
    }
}

/// Returns the byte that fills a message.
fn pattern(id: u64) -> u8 {
    id.to_le_bytes()[0].wrapping_mul(31).wrapping_add(5)
}
