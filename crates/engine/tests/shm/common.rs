//! An adapter with memory, and its queue pairs.

use ironwarp_engine::config::Config;
use ironwarp_engine::{
    CompletionHandler, CompletionQueue, ConnectOptions, Engine, QueuePair, QueuePairAttributes,
};
use ironwarp_rnic::link::Route;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{
    Arm, Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Status, WorkRequest,
};
use ironwarp_testkit::child;
use ironwarp_testkit::mapping::{Mapping, PAGE};
pub(crate) use ironwarp_testkit::pattern::pattern;
use ironwarp_testkit::wait::until;
use ironwarp_wire::{RemoteAddr, Tag};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any operation here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Both routes of an end that uses shared memory, and of one that uses TCP.
pub(crate) const SHARED: (Route, Route) = (Route::SharedMemory, Route::SharedMemory);
pub(crate) const TCP: (Route, Route) = (Route::Tcp, Route::Tcp);

/// An adapter with memory that has all rights.
pub(crate) struct Host {
    pub(crate) engine: Arc<Engine>,
    pub(crate) domain: Domain,
    pub(crate) memory: Mapping,
    pub(crate) tag: Tag,
}

impl Host {
    /// Opens an adapter with at least `bytes` bytes of memory.
    pub(crate) fn new(config: Config, bytes: usize) -> Arc<Self> {
        let (engine, memory) = (Engine::new(config).unwrap(), Mapping::new(bytes.div_ceil(PAGE)));
        let domain = engine.device().allocate_domain();
        let described = Memory::direct(memory.addr(0), memory.len() as u64, Rights::all()).unwrap();
        let tag = engine.device().register(domain, described).unwrap();
        Arc::new(Self { engine, domain, memory, tag })
    }

    /// Creates a queue pair with a completion queue of its own, not connected yet.
    pub(crate) fn end(self: &Arc<Self>, completes: Completes) -> End {
        self.end_on(&self.engine.create_cq(1024).unwrap(), completes)
    }

    /// Creates a queue pair on a completion queue.
    pub(crate) fn end_on(self: &Arc<Self>, cq: &Arc<CompletionQueue>, completes: Completes) -> End {
        let pair = self.engine.create_qp(QueuePairAttributes {
            send_depth: 64,
            receives: Receives::Own(64),
            max_sges: 1,
            completes,
            ..QueuePairAttributes::new(self.domain, cq)
        });
        End {
            host: Arc::clone(self),
            cq: Arc::clone(cq),
            pair: pair.unwrap(),
            waits: Waits::Sleeping,
            handler: None,
        }
    }
}

/// How a thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Polls all the time.
    Polling,
    /// In `wait`.
    Sleeping,
    /// For events of a completion handler.
    ForEvents,
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) host: Arc<Host>,
    pub(crate) cq: Arc<CompletionQueue>,
    pub(crate) pair: Arc<QueuePair>,
    waits: Waits,
    pub(crate) handler: Option<Arc<CompletionHandler>>,
}

impl End {
    /// Sets how the end waits for completions.
    pub(crate) fn waits(mut self, waits: Waits) -> Self {
        self.waits = waits;
        if waits == Waits::ForEvents {
            let handler = self.host.engine.create_handler().unwrap();
            self.cq.set_handler(Some(&handler));
            self.handler = Some(handler);
        }
        self
    }

    /// Returns the routes of both directions: sending and receiving.
    pub(crate) fn routes(&self) -> (Route, Route) {
        let qp = self.pair.qp();
        (qp.send_route(), qp.recv_route())
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.host.memory.len());
        Sge { tag: self.host.tag, addr: self.host.memory.addr(at), len: u32::try_from(len).unwrap() }
    }

    pub(crate) fn remote_addr(&self, at: usize) -> RemoteAddr {
        RemoteAddr { tag: self.host.tag, offset: self.host.memory.addr(at) }
    }

    pub(crate) fn receive(&self, id: u64, at: usize, len: usize) {
        self.pair.qp().post_receive(ReceiveRequest { id, buffers: self.sge(at, len).into() }).unwrap();
    }

    /// Returns a request that uses the memory at `at`.
    pub(crate) fn request(&self, id: u64, operation: Operation, at: usize, len: usize) -> WorkRequest {
        WorkRequest::new(id, operation, Data::Memory(self.sge(at, len).into()))
    }

    pub(crate) fn post(&self, id: u64, operation: Operation, at: usize, len: usize) {
        self.pair.post_send([self.request(id, operation, at, len)]).unwrap();
    }

    /// Waits for the next completion; `None` if the time is over.
    pub(crate) fn next_within(&self, time: Duration) -> Option<Completion> {
        let deadline = Instant::now() + time;
        loop {
            let mut found = None;
            self.cq.poll(1, |completion| found = Some(completion)).unwrap();
            let now = Instant::now();
            if found.is_some() || now >= deadline {
                return found;
            }
            match (self.waits, &self.handler) {
                (Waits::Sleeping, _) => drop(self.cq.wait(Some(deadline - now))),
                (Waits::ForEvents, Some(handler)) if !self.cq.arm(Arm::Next) => {
                    handler.wait(Some(deadline - now));
                }
                _ => {}
            }
        }
    }

    /// Waits for the next completion.
    #[track_caller]
    pub(crate) fn next(&self) -> Completion {
        let stuck = || format!("nothing completed, routes {:?}", self.routes());
        self.next_within(TIMEOUT).unwrap_or_else(|| panic!("{}", stuck()))
    }

    /// Waits for the next completion. Panics unless it is a success of this request.
    #[track_caller]
    pub(crate) fn succeeds(&self, opcode: Opcode, id: u64) -> Completion {
        let completion = self.next();
        let found = (completion.opcode, completion.wr_id, completion.status);
        assert_eq!(found, (opcode, id, Status::Success), "{completion:?}");
        completion
    }
}

/// Connects two ends, and waits until both are connected.
pub(crate) fn connect(client: &End, server: &End) {
    connect_at(client, server, "127.0.0.1:0");
}

pub(crate) fn connect_at(client: &End, server: &End, at: &str) {
    let listener = server.host.engine.listen(at.parse().unwrap()).unwrap();
    dial(client, listener.local_addr().unwrap());
    let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
    incoming.accept(&server.pair, server.host.engine.terms(None, None), &[]).unwrap();
    client.pair.wait_connected(TIMEOUT).unwrap();
    server.pair.wait_connected(TIMEOUT).unwrap();
}

/// Begins to connect.
pub(crate) fn dial(client: &End, to: SocketAddr) {
    client.host.engine.connect(&client.pair, to, &ConnectOptions::default()).unwrap();
}

/// Two connected ends, each with an adapter of its own.
pub(crate) fn ends(config: &Config, completes: Completes, bytes: usize) -> (End, End) {
    let end = || Host::new(config.clone(), bytes).end(completes);
    let (client, server) = (end(), end());
    connect(&client, &server);
    (client, server)
}

/// Two connected ends that use shared memory in both directions.
pub(crate) fn shared_ends(config: &Config, completes: Completes, bytes: usize) -> (End, End) {
    let (client, server) = ends(config, completes, bytes);
    begin_sharing(&client, &server);
    (client, server)
}

/// Sends an empty message in each direction, and waits until all directions use shared memory.
pub(crate) fn begin_sharing(client: &End, server: &End) {
    greet(client, server);
    until(|| client.routes() == SHARED && server.routes() == SHARED);
}

/// Sends an empty message in each direction.
pub(crate) fn greet(client: &End, server: &End) {
    let send = Operation::Send { invalidate: None };
    for (from, to) in [(client, server), (server, client)] {
        to.receive(1, 0, 0);
        from.post(2, send.clone(), 0, 0);
        to.succeeds(Opcode::Receive, 1);
        from.succeeds(Opcode::Send, 2);
    }
}

/// Takes completions until none comes for this time.
pub(crate) fn drain(end: &End, quiet: Duration) -> Vec<Completion> {
    std::iter::from_fn(|| end.next_within(quiet)).collect()
}

/// Panics unless these completions, the first of which has failed, are those of a connection that has ended: in each queue,
/// requests succeed, then one may have exceeded its retries, and all others are flushed. A message may still be received
/// after the first request of the other queue is flushed.
#[track_caller]
pub(crate) fn assert_flushed(first: &Completion, rest: &[Completion]) {
    assert_ne!(first.status, Status::Success);
    for receives in [true, false] {
        let queue =
            std::iter::once(first).chain(rest).filter(|it| (it.opcode == Opcode::Receive) == receives);
        let mut failed = queue.skip_while(|it| it.status == Status::Success);
        let at_front = failed.next().map_or(Status::Flushed, |it| it.status);
        let expected = at_front == Status::Flushed || !receives && at_front == Status::RetryExceeded;
        assert!(expected && failed.all(|it| it.status == Status::Flushed), "{first:?}, {rest:?}");
    }
}

/// Panics unless the bytes are those of [`pattern`].
#[track_caller]
pub(crate) fn check(found: &[u8], seed: u64, what: &str) {
    let expected = pattern(seed, found.len());
    if found != expected {
        let at = found.iter().zip(&expected).position(|(found, expected)| found != expected).unwrap();
        panic!("{what}: {} bytes, byte {at} is wrong", found.len());
    }
}

/// Random numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What this process holds: descriptors, and mappings of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) descriptors: usize,
    pub(crate) rings: usize,
}

impl Held {
    pub(crate) fn now() -> Self {
        Self { descriptors: descriptors().len(), rings: rings_mapped() }
    }
}

/// What the descriptors of this process refer to, without those that the adapter opens when it first needs them, and
/// keeps: its pool of buffers, and the timer of each lane.
pub(crate) fn descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let names = targets.map(|target| target.to_string_lossy().into_owned());
    let are_kept = ["ironwarp-window", "[timerfd]"];
    names.filter(|name| !are_kept.iter().any(|kept| name.contains(kept))).collect()
}

/// Number of mappings of shared memory with other adapters that this process has.
pub(crate) fn rings_mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("ironwarp-ring")).count()
}

/// The end of a test in a child process: listens, tells the address to the parent, and accepts one connection.
pub(crate) fn accept_parent(end: &End) {
    let listener = end.host.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    child::tell(&format!("address {}", listener.local_addr().unwrap()));
    let incoming = listener.incoming().wait(Some(TIMEOUT)).unwrap();
    incoming.accept(&end.pair, end.host.engine.terms(None, None), &[]).unwrap();
    end.pair.wait_connected(TIMEOUT).unwrap();
}

/// Writes an address as text, for the other process.
pub(crate) fn addr_text(addr: RemoteAddr) -> String {
    format!("{} {}", addr.tag.0, addr.offset)
}

/// Reads an address from the text of the other process.
pub(crate) fn parse_addr(text: &str) -> RemoteAddr {
    let (tag, offset) = text.trim().split_once(' ').unwrap();
    RemoteAddr { tag: Tag(tag.parse().unwrap()), offset: offset.parse().unwrap() }
}
