//! A device with live regions, windows and queue pairs, and a hostile peer. The input is a script of what the peer sends, well-formed or
//! not, and of what the program does meanwhile: posts of every kind, shared and named receives, state transitions, a reset and reuse.
//! There must be no panic, no byte outside the memory granted to the peer may change, and every request completes at most once, or
//! exactly once if the stream has ended.
//!
//! `device.rs` and `initiator.rs` differ in how the stream begins.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "a fuzz target: every panic is a finding"
)]

pub(crate) mod host;
pub(crate) mod peer;

use host::{
    Arena, BASE, CANARY, END, FOREIGN, GONE, Nobody, PAGE, READABLE, RECEIVES, REGIONS, SINK, TAGS,
    UNTOUCHED, WORDS, WRITABLE, Wire,
};
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::Agreed;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::memory::{Binding, Domain, Memory, Rights, Scope, TagCipher};
use ironwarp_rnic::qp::{Attributes, Completes, Qp, Ready, Receives, RegistrationFailure, State};
use ironwarp_rnic::queue::{
    Completion, Cq, Data, Operation, ReceiveRequest, Sge, SharedReceiveQueue, SrqSize, WorkRequest, XrcDomain,
};
use ironwarp_wire::mpa::FpduWriter;
use ironwarp_wire::{AtomicOp, RemoteAddr, Tag};
use peer::{Due, Peer, SIGNAL, Script};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex};

/// Created once, because that takes longer than a run.
static CIPHER: LazyLock<Arc<TagCipher>> = LazyLock::new(|| TagCipher::new([0; 16]));

/// Runs a script. `agree` returns the parameters of each stream.
pub(crate) fn run(script: &mut Script<'_>, agree: impl Fn([u8; 2]) -> Agreed + 'static) {
    let mut world = World::new(script, Box::new(agree));
    // Only a few more steps after the stream has ended; the rest of the script is ignored.
    let mut over = 0;
    while !script.0.is_empty() && over < 4 {
        over += usize::from(world.qp.state() == State::Error);
        let mut sent = Vec::new();
        world.act(script, &mut sent);
        world.wire.state.lock().unwrap().0.extend(sent);
        world.drive();
    }
    world.expect_untouched();
    world.expect_given_back();
}

/// The program, its adapter, and the peer.
struct World {
    arena: Arc<Arena>,
    device: Arc<Device>,
    own: Domain,
    cq: Arc<Cq>,
    srq: Arc<SharedReceiveQueue>,
    xrc: Arc<XrcDomain>,
    options: [u8; 2],
    agree: Box<dyn Fn([u8; 2]) -> Agreed>,
    chunk: usize,
    qp: Arc<Qp>,
    wire: Arc<Wire>,
    peer: Peer,
    /// Requests and receives that have not completed, without unsignaled ones.
    requests: HashSet<u64>,
    receives: HashSet<u64>,
    next: u64,
}

impl World {
    fn new(script: &mut Script<'_>, agree: Box<dyn Fn([u8; 2]) -> Agreed>) -> Self {
        let options = [script.byte(), script.byte()];
        let arena = Arc::new(Arena(Mutex::new(vec![CANARY; (END - BASE) as usize])));
        let config = DeviceConfig {
            tags: 64,
            tag_slots: 0..4096, // the device lives briefly, and is created often
            strict_receive: options[0] & 1 != 0,
            private: options[0] & 2 == 0,
            park: 2048,
            shared_memory: true,
            ..DeviceConfig::default()
        };
        let device = Device::new(config, Arc::<Arena>::clone(&arena), Arc::clone(&CIPHER));
        let (own, other) = (device.allocate_domain(), device.allocate_domain());
        let tags = register(&device, own, other);
        let cq = Arc::new(Cq::new(1, 64));
        let xrc = XrcDomain::new();
        let srq = SharedReceiveQueue::new(1, device.events(), own, SrqSize { depth: 8, max_sges: 2 }, None);
        xrc.add(&srq);
        let chunk = 1 << (script.byte() % 13);
        let qp = new_qp(&device, own, &cq, (&srq, &xrc), options);
        let (wire, peer) = connect(&qp, &arena, &agree(options), chunk, tags);
        let (requests, receives) = (HashSet::new(), HashSet::new());
        Self {
            arena,
            device,
            own,
            cq,
            srq,
            xrc,
            options,
            agree,
            chunk,
            qp,
            wire,
            peer,
            requests,
            receives,
            next: 0,
        }
    }

    fn drive(&mut self) {
        self.qp.drive(Ready { readable: true, writable: true, ended: false });
        self.qp.poll(1);
        self.poll();
        while self.device.events().try_next().is_some() {}
    }

    /// Checks that every completion belongs to a request that has not completed yet.
    fn poll(&mut self) {
        let mut completions = Vec::new();
        let _ = self.cq.poll(64, |completion| completions.push(completion));
        for Completion { wr_id, .. } in completions {
            assert!(self.requests.remove(&wr_id) || self.receives.remove(&wr_id), "{wr_id} completed again");
        }
    }

    fn expect_untouched(&self) {
        let memory = self.arena.0.lock().unwrap();
        let may_change = [WRITABLE, RECEIVES, SINK, WORDS].map(|page| (page - BASE) as usize);
        for (page, bytes) in memory.chunks(PAGE as usize).enumerate() {
            if !may_change.contains(&(page * PAGE as usize)) {
                assert!(bytes == UNTOUCHED, "page {page} was written");
            }
        }
    }

    /// Checks, if the stream has ended, that everything has completed except shared receives.
    fn expect_given_back(&mut self) {
        let _ = self.qp.modify(State::Error);
        self.poll();
        if !self.cq.has_overrun() {
            assert!(self.requests.is_empty(), "{:?} did not complete", self.requests);
            assert_eq!(self.receives.len(), self.srq.query().posted, "receives that did not complete");
        }
    }

    // --- The program ---

    /// Performs an action of the program.
    fn program(&mut self, script: &mut Script<'_>) {
        match script.byte() % 12 {
            0..=2 => self.post_receive(script),
            3..=6 => self.post(script),
            7 => {
                let _ = self.device.table().deregister(self.peer.tags[usize::from(script.byte()) % REGIONS]);
            }
            8 => {
                let to = State::ALL[usize::from(script.byte()) % 6];
                if to != State::Reset {
                    let _ = self.qp.modify(to);
                }
            }
            9 => self.qp.set_rights(Rights::from_bits_truncate(script.byte())),
            10 => self.srq.set_limit(usize::from(script.byte() % 8)),
            _ => match script.byte() % 4 {
                0 => self.reset(),
                1 => self.qp.disconnect(),
                2 => self.qp.acknowledge(),
                _ => drop(self.qp.nudge()),
            },
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn post_receive(&mut self, script: &mut Script<'_>) {
        let id = self.id();
        let at = RECEIVES + u64::from(script.byte()) * 4;
        let buffers = Sge { tag: self.peer.tags[2], addr: at, len: u32::from(script.byte()) * 4 }.into();
        let request = ReceiveRequest { id, buffers };
        self.receives.insert(id);
        let posted = match self.qp.attributes().receives {
            Receives::Own(_) => self.qp.post_receive(request),
            _ => self.srq.post(request),
        };
        if posted.is_err() {
            self.receives.remove(&id);
        }
        self.poll();
    }

    fn post(&mut self, script: &mut Script<'_>) {
        let (id, len, flags) = (self.id(), u32::from(script.byte()) * 8, script.byte());
        let addr = RemoteAddr { tag: self.peer.tags[3], offset: SINK };
        let sge = |len| Data::Memory(Sge { tag: addr.tag, addr: addr.offset, len }.into());
        let there = RemoteAddr::default();
        let (operation, data) = match script.byte() % 9 {
            0 => (Operation::Write(there), sge(len)),
            1 => (Operation::Send { invalidate: None }, sge(len)),
            2 => (Operation::Send { invalidate: Some(Tag(len)) }, sge(len)),
            3 => (Operation::Read(there), sge(len)),
            4 => (Operation::Atomic { target: there, op: AtomicOp::FetchAdd { add: 1, mask: 0 } }, sge(8)),
            5 => {
                let op = AtomicOp::CompareSwap { swap: 1, swap_mask: 2, compare: 3, compare_mask: 4 };
                (Operation::Atomic { target: there, op }, sge(8))
            }
            6 => (Operation::Bind { window: self.peer.tags[REGIONS], binding: self.binding(flags) }, sge(0)),
            7 => {
                let memory = Memory::direct(WRITABLE, PAGE, LOCAL | Rights::REMOTE_WRITE).unwrap();
                (Operation::Register { tag: self.peer.tags[REGIONS + 1], memory }, sge(0))
            }
            _ => (Operation::Invalidate(self.peer.tags[usize::from(flags) % TAGS]), sge(0)),
        };
        match operation {
            Operation::Read(_) => self.peer.due.push(Due::Read(addr, len)),
            Operation::Atomic { .. } => self.peer.due.push(Due::Atomic),
            _ => {}
        }
        let immediate = (flags & 1 != 0).then_some(u32::from(flags));
        let (fence, srq) = (flags & 2 != 0, u32::from(flags >> 7));
        let request = WorkRequest { immediate, fence, srq, ..WorkRequest::new(id, operation, data) };
        self.requests.insert(id);
        if self.qp.post_send(vec![request]).is_err() {
            self.requests.remove(&id);
        }
        self.poll();
    }

    /// Returns a binding of a window to memory that peers may write.
    fn binding(&self, flags: u8) -> Binding {
        let scope = if flags & 4 != 0 { Scope::Stream } else { Scope::Domain };
        let (region, rights) = (self.peer.tags[0], Rights::REMOTE);
        Binding {
            region,
            at: WRITABLE,
            len: PAGE / 2,
            rights,
            one_touch: flags & 16 != 0,
            zero_based: flags & 8 != 0,
            scope,
        }
    }

    /// Resets the queue pair and reuses its number. Nothing of its earlier requests may complete.
    fn reset(&mut self) {
        self.qp.reset();
        self.requests.clear();
        // Receives of a shared queue stay there, except one that may have been in use.
        self.receives.clear();
        if self.srq.query().posted > 0 {
            self.srq = SharedReceiveQueue::new(
                1,
                self.device.events(),
                self.own,
                SrqSize { depth: 8, max_sges: 2 },
                None,
            );
            self.xrc.add(&self.srq);
        }
        self.qp = new_qp(&self.device, self.own, &self.cq, (&self.srq, &self.xrc), self.options);
        let tags = self.peer.tags;
        (self.wire, self.peer) =
            connect(&self.qp, &self.arena, &(self.agree)(self.options), self.chunk, tags);
    }

    // --- The peer ---

    fn act(&mut self, script: &mut Script<'_>, sent: &mut Vec<u8>) {
        let what = script.byte() % 16;
        match what {
            12..=14 => return self.program(script),
            15 => {
                let n = usize::from(script.byte());
                sent.extend((0..n).map(|_| script.byte()));
                return;
            }
            _ => {}
        }
        let flags = script.byte();
        let len = usize::from(script.byte()) * if flags & 2 != 0 { 17 } else { 1 };
        let header = self.peer.header(script, what, flags, len);
        let payload = vec![flags; if header.carries_payload() && what != SIGNAL { len } else { 0 }];
        let start = sent.len();
        self.peer.writer.write(&header, &payload, |bytes| sent.extend_from_slice(bytes)).unwrap();
        if flags & 0xf0 == 0xf0 {
            // Flips one bit.
            let at = start + usize::from(script.byte()) % (sent.len() - start);
            sent[at] ^= 1 << (script.byte() % 8);
        }
    }
}

const LOCAL: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);

/// Registers memory of every kind, and allocates a window and a tag for registration by request.
fn register(device: &Device, own: Domain, other: Domain) -> [Tag; TAGS] {
    let tag = |domain: Domain, addr, rights| {
        device.register(domain, Memory::direct(addr, PAGE, LOCAL | rights).unwrap()).unwrap()
    };
    let none = Rights::empty();
    [
        tag(own, WRITABLE, Rights::REMOTE_WRITE | Rights::BIND),
        tag(own, READABLE, Rights::REMOTE_READ),
        tag(own, RECEIVES, none),
        tag(own, SINK, none),
        tag(other, FOREIGN, Rights::REMOTE),
        tag(own, GONE, Rights::REMOTE),
        tag(own, WORDS, Rights::REMOTE_ATOMIC),
        device.table().allocate_window(own).unwrap(),
        device.table().allocate(own).unwrap(),
    ]
}

fn new_qp(
    device: &Arc<Device>,
    domain: Domain,
    cq: &Arc<Cq>,
    (srq, xrc): (&Arc<SharedReceiveQueue>, &Arc<XrcDomain>),
    options: [u8; 2],
) -> Arc<Qp> {
    let manual = options[1] & 4 != 0;
    let attributes = Attributes {
        domain,
        send_cq: Arc::clone(cq),
        receive_cq: Arc::clone(cq),
        send_depth: 8,
        shared_send: None,
        max_sges: 2,
        completes: if options[0] & 4 != 0 { Completes::WhenAcknowledged } else { Completes::WhenSent },
        registration_failure: if options[0] & 8 != 0 {
            RegistrationFailure::Reactive
        } else {
            RegistrationFailure::Anticipatory
        },
        receives: match options[1] & 3 {
            0 | 1 => Receives::Own(8),
            2 => Receives::Shared(Arc::clone(srq)),
            _ => Receives::Named(Arc::clone(xrc)),
        },
        registration_by_request: true,
        rights: Rights::REMOTE,
        manual,
    };
    let qp = Qp::new(1, device, attributes);
    if manual {
        qp.modify(State::Init).unwrap();
        qp.modify(State::ReadyToReceive).unwrap();
    }
    qp
}

fn connect(
    qp: &Qp,
    arena: &Arc<Arena>,
    agreed: &Agreed,
    chunk: usize,
    tags: [Tag; TAGS],
) -> (Arc<Wire>, Peer) {
    let wire = Arc::new(Wire { arena: Arc::clone(arena), state: Mutex::new((Vec::new(), 0, chunk)) });
    let link: Arc<dyn Link> = Arc::<Wire>::clone(&wire);
    qp.connect(&link, agreed, Vec::new(), Arc::new(Nobody)).unwrap();
    let peer =
        Peer { writer: FpduWriter::new(agreed.receive), msn: [1, 1, 1], ids: 1, due: Vec::new(), tags };
    (wire, peer)
}
