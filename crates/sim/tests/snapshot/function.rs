//! A function with objects in every state that a snapshot stores, and a peer whose messages are cut anywhere.

use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{Agreed, MpaMode, Role};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::{Host as _, Span};
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_rnic::memory::{Binding, Domain, KeyMask, Memory, Rights, Scope, Translation};
use ironwarp_rnic::qp::{Attributes, FrozenQp, Qp, Ready, Receives, StreamDriver};
use ironwarp_rnic::queue::{
    Arm, Completion, Cq, Data, FrozenCq, FrozenSrq, Opcode, Operation, ReceiveRequest, Sge,
    SharedReceiveQueue, SrqSize, WorkRequest, XrcDomain,
};
use ironwarp_sim::{Arena, tag_cipher};
use ironwarp_wire::mpa::{FpduWriter, Framing};
use ironwarp_wire::{AtomicOp, AtomicRequest, Header, ReadRequest, RemoteAddr, Send, SendWord, Tag, Tagged};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

pub(crate) const BOTH: Ready = Ready { readable: true, writable: true, ended: false };
const LOCAL: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);
const SEND: Operation = Operation::Send { invalidate: None };
const FRAMING: Framing = Framing { crc: true, markers: true };
/// No limit.
const OPEN: usize = usize::MAX;

/// A link to which the test adds the bytes of the peer, and which takes as many bytes as it has room for.
#[derive(Debug)]
pub(crate) struct Wire {
    arena: Arc<Arena>,
    pub(crate) inbox: Mutex<VecDeque<u8>>,
    pub(crate) room: Mutex<usize>,
}

impl Wire {
    /// Creates a link without bytes that takes everything.
    pub(crate) fn new(arena: &Arc<Arena>) -> Self {
        Self { arena: Arc::clone(arena), inbox: Mutex::default(), room: Mutex::new(OPEN) }
    }
}

impl Link for Wire {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut room = self.room.lock().unwrap();
        let n = pieces.iter().map(Piece::len).sum::<usize>().min(*room);
        *room -= n;
        if n == 0 { Err(LinkError::WouldBlock) } else { Ok(n) }
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut inbox = self.inbox.lock().unwrap();
        if inbox.is_empty() {
            return Err(LinkError::WouldBlock);
        }
        let mut take = |len: usize| {
            let len = len.min(inbox.len());
            inbox.drain(..len).collect::<Vec<u8>>()
        };
        let mut placed = 0;
        for &Span { addr, len, .. } in host {
            let bytes = take(len);
            if self.arena.scatter(&bytes, &[Span::new(addr, bytes.len())]).is_err() {
                return Err(LinkError::Unmapped);
            }
            placed += bytes.len();
        }
        let bytes = take(own.len());
        own[..bytes.len()].copy_from_slice(&bytes);
        Ok(placed + bytes.len())
    }

    fn arrived(&self) -> usize {
        self.inbox.lock().unwrap().len()
    }

    fn finish(&self) {}
    fn abort(&self) {}
    fn segment_size(&self) -> usize {
        1448
    }
}

#[derive(Debug)]
pub(crate) struct Nobody;
impl StreamDriver for Nobody {
    fn on_peer_not_ready(&self) {}
    fn schedule(&self) {}
    fn on_first_message(&self) {}
    fn on_stream_ended(&self, _: &Arc<QpError>) {}
    fn on_link_closed(&self) {}
}

/// The peer of a queue pair, in whose place the test sends.
struct Peer {
    wire: Arc<Wire>,
    writer: FpduWriter,
    qp: Arc<Qp>,
}

impl Peer {
    /// Sends a segment without its last `missing` bytes.
    fn send(&mut self, header: &Header, payload: &[u8], missing: usize) {
        let mut bytes = Vec::new();
        self.writer.write(header, payload, |part| bytes.extend_from_slice(part)).unwrap();
        bytes.truncate(bytes.len() - missing);
        self.wire.inbox.lock().unwrap().extend(bytes);
        self.qp.drive(BOTH);
    }

    /// Allows this many further bytes to be sent to the peer.
    fn allow(&self, bytes: usize) {
        *self.wire.room.lock().unwrap() = bytes;
        self.qp.drive(BOTH);
    }
}

/// The scenes, each with a queue pair of its own.
pub(crate) const SCENES: [fn(&mut Function); 7] = [
    Function::send_in_part,
    Function::wait_for_responses,
    Function::receive_in_part,
    Function::park,
    Function::claim,
    Function::fail,
    Function::post_receives_only,
];

/// A function, and what its program has created in it.
pub(crate) struct Function {
    pub(crate) arena: Arc<Arena>,
    pub(crate) device: Arc<Device>,
    domain: Domain,
    pub(crate) cqs: Vec<Arc<Cq>>,
    pub(crate) srqs: Vec<Arc<SharedReceiveQueue>>,
    xrc: Arc<XrcDomain>,
    pub(crate) qps: Vec<Arc<Qp>>,
    /// The links of the queue pairs that were connected.
    pub(crate) wires: Mutex<Vec<Arc<Wire>>>,
    memory: Sge,
}

/// The settings of the device.
pub(crate) fn config() -> DeviceConfig {
    // Few slots, because tests load many tables, and few instances, so that indices retire.
    DeviceConfig { tags: 64, tag_slots: 0..4096, tag_instances: 2, ..DeviceConfig::default() }
}

impl Function {
    /// Creates a function in which these scenes have been played.
    pub(crate) fn new(scenes: &[fn(&mut Self)]) -> Self {
        let arena = Arena::new(0);
        let device = Device::new(config(), arena.clone(), tag_cipher(0));
        let domain = device.allocate_domain();
        let cqs: Vec<_> = [1, 2].map(|id| Arc::new(Cq::new(id, 64))).into();
        let size = SrqSize { depth: 8, max_sges: 3 };
        let srqs = [(1, None), (2, Some(Arc::clone(&cqs[1])))]
            .map(|(id, cq)| SharedReceiveQueue::new(id, device.events(), domain, size, cq));
        let xrc = XrcDomain::new();
        xrc.add(&srqs[1]);
        let Span { addr, len, .. } = arena.alloc(1000);
        let memory = Memory::direct(addr, len as u64, LOCAL | Rights::REMOTE | Rights::BIND).unwrap();
        let tag = device.register(domain, memory).unwrap();
        let memory = Sge { tag, addr, len: 1000 };
        let mut function = Self {
            arena,
            device,
            domain,
            cqs,
            srqs: srqs.into(),
            xrc,
            qps: Vec::new(),
            wires: Mutex::default(),
            memory,
        };
        function.use_tags();
        scenes.iter().for_each(|play| play(&mut function));
        function.arm();
        function
    }

    /// Frees an index and retires another, and registers memory in two parts.
    fn use_tags(&self) {
        let table = self.device.table();
        let window = table.allocate_window(self.domain).unwrap();
        table.deregister(window).unwrap();
        let spans = [self.arena.alloc(10), self.arena.alloc(20)];
        let translation = Arc::new(Translation::buffers(&spans).unwrap());
        let memory = Memory { start: 0, len: 30, rights: LOCAL, one_touch: false, translation };
        let tag = self.device.register(self.domain, memory).unwrap();
        let shared = table.share(tag, self.domain, 7, LOCAL).unwrap();
        table.deregister(shared).unwrap();
        table.allocate(self.domain).unwrap();
    }

    /// Leaves one queue armed and not empty, and the other armed for solicited completions, with an event that was not
    /// taken.
    fn arm(&self) {
        let [first, second] = &self.cqs[..] else { unreachable!() };
        let _ = (first.arm(Arm::Next), second.arm(Arm::Next));
        second.push(Completion::succeeded(99, Opcode::Receive, 7, 5)).unwrap();
        let _ = second.arm(Arm::Solicited);
    }

    /// Creates a queue pair with these receives.
    fn create_qp(&mut self, receives: Receives) -> Arc<Qp> {
        let number = u32::try_from(self.qps.len() + 1).unwrap();
        let attributes = Attributes {
            receive_cq: Arc::clone(&self.cqs[1]),
            max_sges: 2,
            receives,
            registration_by_request: true,
            rights: Rights::REMOTE,
            ..Attributes::new(self.domain, &self.cqs[0])
        };
        let qp = Qp::new(number, &self.device, attributes);
        self.qps.push(Arc::clone(&qp));
        qp
    }

    /// Connects a queue pair.
    fn connect(&self, qp: &Arc<Qp>) -> Peer {
        let wire = Arc::new(Wire::new(&self.arena));
        self.wires.lock().unwrap().push(wire.clone());
        let link: Arc<dyn Link> = wire.clone();
        let agreed = Agreed::symmetric(Role::Initiator { rtr: None }, MpaMode::PeerToPeer, FRAMING, 8, 8);
        qp.connect(&link, &agreed, Vec::new(), Arc::new(Nobody)).unwrap();
        qp.drive(BOTH);
        Peer { wire, writer: FpduWriter::new(FRAMING), qp: Arc::clone(qp) }
    }

    /// Returns a part of the memory that is registered.
    fn part(&self, at: u32, len: u32) -> Sge {
        Sge { addr: self.memory.addr + u64::from(at), len, ..self.memory }
    }

    fn post(qp: &Qp, id: u64, operation: Operation, data: &[Sge]) {
        qp.post_send([WorkRequest::new(id, operation, Data::Memory(data.into()))]).unwrap();
    }

    /// The link has taken a part of an FPDU, and further requests wait behind it.
    pub(crate) fn send_in_part(&mut self) {
        let qp = self.create_qp(Receives::Own(4));
        let peer = self.connect(&qp);
        peer.allow(40);
        Self::post(&qp, 1, SEND, &[self.part(0, 60), self.part(100, 40)]);
        Self::post(&qp, 2, Operation::Write(RemoteAddr { tag: Tag(0x1234), offset: 5 }), &[self.part(0, 9)]);
        Self::post(&qp, 3, Operation::Read(RemoteAddr { tag: Tag(0x5678), offset: 6 }), &[self.part(50, 9)]);
        let inline = WorkRequest::new(4, SEND, Data::Inline(b"within the request".as_slice().into()));
        qp.post_send([WorkRequest { immediate: Some(8), signaled: false, ..inline }]).unwrap();
        let tag = self.device.table().allocate(self.domain).unwrap();
        let memory = Memory::direct(self.memory.addr, 100, LOCAL).unwrap();
        Self::post(&qp, 5, Operation::Register { tag, memory }, &[]);
        Self::post(&qp, 6, Operation::Invalidate(tag), &[]);
    }

    /// A Read and an atomic operation are not answered, a response has arrived in part, and responses to the peer
    /// are owed, one of them the result of an atomic operation.
    fn wait_for_responses(&mut self) {
        let qp = self.create_qp(Receives::Own(4));
        let mut peer = self.connect(&qp);
        let sink = self.part(200, 50);
        Self::post(&qp, 1, Operation::Read(RemoteAddr { tag: Tag(0x5678), offset: 6 }), &[sink]);
        let op = AtomicOp::FetchAdd { add: 3, mask: 0 };
        let target = RemoteAddr { tag: Tag(0x5678), offset: 8 };
        Self::post(&qp, 2, Operation::Atomic { target, op }, &[self.part(256, 8)]);
        peer.allow(0);
        let own = |at: u32| RemoteAddr { tag: self.memory.tag, offset: self.memory.addr + u64::from(at) };
        let op = AtomicOp::FetchAdd { add: 7, mask: 0 };
        let request = AtomicRequest { msn: 1, id: 9, target: own(304), op };
        peer.send(&Header::AtomicRequest(request), &[], 0);
        let sink = RemoteAddr { tag: Tag(0x77), offset: 1 };
        peer.send(&Header::ReadRequest(ReadRequest { msn: 2, sink, len: 40, source: own(0) }), &[], 0);
        peer.send(&Header::ReadResponse(Tagged { last: false, addr: own(200) }), &[0xa; 20], 0);
        peer.send(&Header::ReadResponse(Tagged { last: true, addr: own(220) }), &[0xb; 30], 15);
    }

    /// A message that uses a receive of a shared queue has arrived in part.
    fn receive_in_part(&mut self) {
        let srq = Arc::clone(&self.srqs[0]);
        for id in 1..4 {
            srq.post(ReceiveRequest { id, buffers: self.part(400, 100).into() }).unwrap();
        }
        srq.set_limit(1);
        let qp = self.create_qp(Receives::Shared(srq));
        let mut peer = self.connect(&qp);
        peer.send(&Header::Send(Self::message(1, 0, true)), &[1; 10], 0);
        peer.send(&Header::Send(Self::message(2, 0, false)), &[2; 30], 0);
        peer.send(&Header::Send(Self::message(2, 30, true)), &[3; 40], 11);
    }

    /// Messages wait for a receive.
    fn park(&mut self) {
        let qp = self.create_qp(Receives::Own(4));
        let mut peer = self.connect(&qp);
        peer.send(&Header::Send(Self::message(1, 0, true)), &[4; 12], 0);
        peer.send(&Header::Send(Self::message(2, 0, false)), &[5; 14], 0);
        peer.send(&Header::Send(Self::message(2, 14, true)), &[6; 16], 9);
    }

    /// A Write in progress has claimed a window that serves one message.
    fn claim(&mut self) {
        let qp = self.create_qp(Receives::Named(Arc::clone(&self.xrc)));
        self.srqs[1].post(ReceiveRequest { id: 9, buffers: self.part(400, 10).into() }).unwrap();
        let mut peer = self.connect(&qp);
        let window = self.device.table().allocate_window(self.domain).unwrap();
        let binding = Binding {
            region: self.memory.tag,
            at: self.memory.addr,
            len: 100,
            rights: Rights::REMOTE,
            one_touch: true,
            zero_based: true,
            scope: Scope::Domain,
        };
        Self::post(&qp, 1, Operation::Bind { window, binding }, &[]);
        // The other window uses its two instances up, so that its index retires.
        let retired = self.device.table().allocate_window(self.domain).unwrap();
        Self::post(&qp, 2, Operation::Bind { window: retired, binding }, &[]);
        self.device.table().deregister(self.device.table().current_tag(retired).unwrap()).unwrap();
        let tag = self.device.table().current_tag(window).unwrap();
        let addr = RemoteAddr { tag, offset: 0 };
        peer.send(&Header::Write(Tagged { last: false, addr }), &[7; 20], 0);
    }

    /// The stream has failed: the completions have the cause.
    fn fail(&mut self) {
        let qp = self.create_qp(Receives::Own(4));
        let mut peer = self.connect(&qp);
        qp.post_receive(ReceiveRequest { id: 1, buffers: self.part(400, 10).into() }).unwrap();
        peer.allow(0);
        Self::post(&qp, 2, SEND, &[self.part(0, 10)]);
        let addr = RemoteAddr { tag: Tag(0xdead_beef), offset: 16 };
        peer.send(&Header::Write(Tagged { last: true, addr }), &[8; 20], 0);
        assert!(qp.error().is_some());
    }

    /// A queue pair without a connection.
    fn post_receives_only(&mut self) {
        let qp = self.create_qp(Receives::Own(4));
        for id in 1..3 {
            qp.post_receive(ReceiveRequest { id, buffers: self.part(500, 10).into() }).unwrap();
        }
    }

    /// Returns a segment of a Send.
    const fn message(msn: u32, offset: u32, last: bool) -> Send {
        Send { msn, last, offset, solicited: true, word: SendWord::Srq(0) }
    }

    /// Freezes all objects.
    pub(crate) fn freeze(&self) -> (Vec<FrozenCq>, Vec<FrozenSrq>, Vec<FrozenQp>) {
        let qps = self.qps.iter().map(|qp| qp.freeze().unwrap()).collect();
        let srqs = self.srqs.iter().map(|srq| srq.freeze()).collect();
        (self.cqs.iter().map(|cq| cq.freeze()).collect(), srqs, qps)
    }

    /// Freezes all objects, and returns the snapshot.
    pub(crate) fn store(&self) -> Vec<u8> {
        let (cqs, srqs, qps) = self.freeze();
        self.device.snapshot(&cqs, &srqs, &qps, KeyMask::default()).unwrap()
    }
}
