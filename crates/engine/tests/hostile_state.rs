//! The state of an adapter that a hostile process has made (requirement X2): it is refused, or harms nothing but the adapter
//! that is restored from it. What is refused leaves nothing behind, and the source goes on.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests, with small numbers")]

use ironwarp_engine::config::Config;
use ironwarp_engine::{
    Arrived, ArrivedSocket, CompletionQueue, ConnectOptions, Engine, FreezeError, FrozenEngine, Listener,
    LoadError, PausedListeners, QueuePair, QueuePairAttributes, RestoredEngine,
};
use ironwarp_rnic::connect::Agreed;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{KeyMask, Translation};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Arm, Opcode, ReceiveRequest, Sges, SharedReceiveQueue, SrqSize, Status};
use ironwarp_rnic::quota::Resource;
use ironwarp_testkit::engine::{SEND, Side, canaries, connect};
use ironwarp_testkit::wait::until;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);
/// Maximum time for which one of many connections is waited for.
const TURN: Duration = Duration::from_millis(500);
/// Size of the memory of an end.
const MEMORY: usize = 4096;
/// Length of a message.
const LEN: u32 = 100;
/// Number of queue pairs of the source.
const PAIRS: usize = 2;

/// The tests count the descriptors of the process, so they run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn config() -> Config {
    Config::default().lanes(1).shm(false).close(Duration::from_millis(100))
}

fn engine() -> Arc<Engine> {
    Engine::new(config()).unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// An adapter that is frozen, with its peer. Has two connections, one of which has a message that waits for a receive while
/// the other receives from a shared queue; a listener; and completions that were not polled, in queues of which one is armed.
struct Scene {
    source: Side,
    cq: Arc<CompletionQueue>,
    srq: Arc<SharedReceiveQueue>,
    pairs: [Arc<QueuePair>; PAIRS],
    listener: Listener,
    peer: Side,
    peers_pairs: [Arc<QueuePair>; PAIRS],
    frozen: FrozenEngine,
    state: Vec<u8>,
    /// Number of descriptors when the adapter was frozen.
    descriptors: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (source, mut peer) = (Side::new(&engine(), 16, MEMORY), Side::new(&engine(), 16, MEMORY));
        peer.memory.copy_from_slice(&canaries(MEMORY));
        let cq = source.engine.create_cq(16).unwrap();
        let srq = source.engine.create_srq(source.domain, SrqSize { depth: 8, max_sges: 1 }).unwrap();
        let shared = source.engine.create_qp(QueuePairAttributes {
            receives: Receives::Shared(Arc::clone(&srq)),
            completes: Completes::WhenSent,
            ..QueuePairAttributes::new(source.domain, &cq)
        });
        let pairs = [source.pair(4, Completes::WhenSent), shared.unwrap()];
        let peers_pairs = [0; PAIRS].map(|_| peer.pair(4, Completes::WhenSent));
        for (pair, peers_pair) in pairs.iter().zip(&peers_pairs) {
            connect((&source, pair), (&peer, peers_pair));
        }
        let listener = source.engine.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        // A message that was received and not polled, and one that waits for a receive.
        source.receive(&pairs[0], 10, 0, LEN);
        for id in [1, 2] {
            peers_pairs[0].post_send([peer.request(id, SEND, LEN)]).unwrap();
            peer.succeeds(Opcode::Send, id);
        }
        until(|| source.cq.cq().len() == 1 && source.engine.used(Resource::ParkedBytes) > 0);
        // Receives that nobody has used yet.
        for id in [20, 21] {
            let buffers = source.sge(1000 + id * 100, LEN).into();
            srq.post(ReceiveRequest { id, buffers }).unwrap();
        }
        assert!(!cq.cq().arm(Arm::Next));

        let paused = source.engine.pause_listening(Instant::now() + SOON).unwrap();
        let mut frozen = source.engine.freeze(paused).unwrap();
        let state = source.engine.store(&mut frozen, KeyMask::default()).unwrap();
        let descriptors = descriptors();
        Self {
            source,
            cq,
            srq,
            pairs,
            listener,
            peer,
            peers_pairs,
            frozen,
            state,
            descriptors,
            _alone: alone,
        }
    }

    /// Copies of the descriptors that belong to the state.
    fn arrived(&self) -> Arrived {
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let socket = |fd| ArrivedSocket { fd, received: Vec::new(), unsent: Vec::new() };
        let sockets = self.source.engine.connected_sockets().into_iter();
        let listeners = self.source.engine.listening_sockets().into_iter();
        Arrived {
            sockets: sockets.map(|(number, link)| (number, socket(copy(&*link)))).collect(),
            listeners: listeners.map(|(number, fd)| (number, copy(&*fd))).collect(),
            ..Arrived::default()
        }
    }

    /// Loads a state. Only the memory of the source was carried over.
    fn load(&self, state: &[u8], arrived: Arrived) -> Result<RestoredEngine, LoadError> {
        let memory = self.source.memory.as_ptr_range();
        let carried = memory.start as u64..memory.end as u64;
        let is_carried = |span: &Span| {
            let end = span.addr.checked_add(span.len as u64);
            carried.contains(&span.addr) && end.is_some_and(|end| end <= carried.end)
        };
        let mut relocate = |spans: &[Span]| match spans {
            [one] if is_carried(one) => Translation::direct(one.addr, one.len as u64).ok(),
            _ => None,
        };
        Engine::load(config(), self.source.engine.logical(), state, arrived, &mut relocate)
    }

    /// Loads a state that must be refused, and returns the reason.
    fn refused(&self, state: &[u8], arrived: Arrived) -> LoadError {
        self.load(state, arrived).map(RestoredEngine::discard).unwrap_err()
    }

    /// Checks that what was loaded has left nothing behind, and that the source goes on: with every message of its
    /// connections, and with its listener.
    fn source_goes_on(self) {
        let Self { source, cq, srq, pairs, listener, peer, peers_pairs, frozen, descriptors: before, .. } =
            self;
        until(|| descriptors() <= before);
        frozen.thaw();
        drop(srq);
        source.succeeds(Opcode::Receive, 10);
        assert_eq!(source.memory[..LEN as usize], peer.memory[..LEN as usize]);
        source.receive(&pairs[0], 11, 200, LEN);
        source.succeeds(Opcode::Receive, 11);
        assert_eq!(source.memory[200..200 + LEN as usize], peer.memory[..LEN as usize]);
        peers_pairs[1].post_send([peer.request(3, SEND, LEN)]).unwrap();
        peer.succeeds(Opcode::Send, 3);
        assert!(cq.wait(Some(SOON)).unwrap());
        let mut received = None;
        cq.poll(1, |completion| received = Some((completion.wr_id, completion.status))).unwrap();
        assert_eq!(received, Some((20, Status::Success)));
        assert_eq!(source.memory[3000..3000 + LEN as usize], peer.memory[..LEN as usize]);
        for (id, (pair, peers_pair)) in (30..).zip(pairs.iter().zip(&peers_pairs)) {
            peer.receive(peers_pair, id, 2000, LEN);
            pair.post_send([source.request(40, SEND, LEN)]).unwrap();
            peer.succeeds(Opcode::Receive, id);
            assert_eq!(peer.memory[2000..2000 + LEN as usize], peer.memory[..LEN as usize]);
        }
        let [near, far] = [peer.pair(1, Completes::WhenSent), source.pair(1, Completes::WhenSent)];
        peer.engine.connect(&near, listener.local_addr().unwrap(), &ConnectOptions::default()).unwrap();
        let incoming = listener.incoming().wait(SOON).unwrap();
        incoming.accept(&far, source.engine.terms(None, None), &[]).unwrap();
        near.wait_connected(SOON).unwrap();
    }
}

/// Uses an adapter that was restored: new objects get numbers that no other has.
fn create_objects(restored: &RestoredEngine) {
    let engine = restored.engine();
    let cq = engine.create_cq(4).unwrap();
    assert!(restored.completion_queues().iter().all(|known| known.cq().id() != cq.cq().id()));
    let domain = engine.device().allocate_domain();
    assert_ne!(engine.device().allocate_domain(), domain);
    let srq = engine.create_srq(domain, SrqSize { depth: 1, max_sges: 1 }).unwrap();
    assert!(restored.shared_receive_queues().iter().all(|known| known.id() != srq.id()));
    let pair = engine.create_qp(QueuePairAttributes::new(domain, &cq)).unwrap();
    assert!(restored.queue_pairs().all(|known| known.id() != pair.id()));
}

#[test]
fn a_state_that_is_cut_short_is_refused() {
    let scene = Scene::new();
    for len in 0..scene.state.len() {
        scene.refused(&scene.state[..len], scene.arrived());
    }
    let longer = [&scene.state[..], &[0]].concat();
    assert!(matches!(scene.refused(&longer, scene.arrived()), LoadError::Trailing(1)));
    let restored = scene.load(&scene.state, scene.arrived()).unwrap();
    create_objects(&restored);
    restored.discard();
    scene.source_goes_on();
}

/// A peer that connects meanwhile waits for the owner of the listener, which is the source.
#[test]
fn an_adapter_that_is_loaded_accepts_nothing_before_it_is_activated() {
    let scene = Scene::new();
    let mut restored = scene.load(&scene.state, scene.arrived()).unwrap();
    let listeners = restored.take_listeners();
    let near = scene.peer.pair(1, Completes::WhenSent);
    let addr = listeners[0].local_addr().unwrap();
    scene.peer.engine.connect(&near, addr, &ConnectOptions::default()).unwrap();
    assert!(listeners[0].incoming().wait(Duration::from_millis(100)).is_none(), "accepted too early");
    drop(listeners);
    restored.discard();
    let far = scene.source.pair(1, Completes::WhenSent);
    scene.frozen.thaw();
    let incoming = scene.listener.incoming().wait(SOON).unwrap();
    incoming.accept(&far, scene.source.engine.terms(None, None), &[]).unwrap();
    near.wait_connected(SOON).unwrap();
}

/// Returns the state with a damaged byte.
fn damaged(state: &[u8], at: usize, flip: u8) -> Vec<u8> {
    let mut state = state.to_vec();
    state[at] ^= flip;
    state
}

#[test]
fn a_state_with_a_damaged_byte_is_refused_or_makes_an_adapter() {
    let scene = Scene::new();
    let mut accepted = 0;
    for at in 0..scene.state.len() {
        let flip = [0x01, 0x80, 0xff][at % 3];
        if let Ok(restored) = scene.load(&damaged(&scene.state, at, flip), scene.arrived()) {
            create_objects(&restored);
            restored.discard();
            accepted += 1;
        }
    }
    assert!(accepted > 100, "only {accepted} were accepted");
    scene.source_goes_on();
}

/// What is accepted can be activated, whatever the peers send: the connections end, and so does the adapter.
#[test]
fn an_adapter_with_a_damaged_state_can_be_activated() {
    let scene = Scene::new();
    let at = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut activated, mut closed) = (0, 0);
    for position in (0..scene.state.len()).step_by(3) {
        let (mut arrived, mut peers) = (scene.arrived(), Vec::new());
        for socket in arrived.sockets.values_mut() {
            peers.push(TcpStream::connect(at.local_addr().unwrap()).unwrap());
            socket.fd = at.accept().unwrap().0.into();
        }
        arrived.listeners.values_mut().for_each(|fd| *fd = TcpListener::bind("127.0.0.1:0").unwrap().into());
        let flip = if position % 2 == 0 { 0x01 } else { 0xff };
        let Ok(restored) = scene.load(&damaged(&scene.state, position, flip), arrived) else { continue };
        let (engine, pairs) = (Arc::clone(restored.engine()), restored.queue_pairs().cloned());
        let pairs: Vec<_> = pairs.filter(|pair| pair.qp().is_linked()).collect();
        restored.activate();
        for mut peer in peers {
            // The adapter may have closed the connection, so this may fail.
            let _ = peer.write_all(&[0xab; 3000]);
            let _ = peer.shutdown(Shutdown::Write);
        }
        // Some believe that a direction was closed before. They end with their adapter.
        closed += pairs.iter().filter(|pair| pair.wait_closed(TURN)).count();
        drop(engine);
        activated += 1;
    }
    assert!(activated > 50, "only {activated} were activated");
    assert!(closed > activated, "of two connections each, {closed} of {activated} adapters were closed");
    drop(at);
    scene.source_goes_on();
}

/// Lengths and sizes are not believed: no memory is allocated for them before the elements were read.
#[test]
fn huge_numbers_in_a_state_allocate_little() {
    const MAX_GROWTH: u64 = 1 << 20; // KiB
    let peak = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
    };
    let scene = Scene::new();
    let (image, before) = (Image::of(&scene), peak());
    for huge in [[0xff_u8, 0xff, 0xff, 0xff, 0x0f].as_slice(), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let replaced = |bytes: &[u8], at: usize| [&bytes[..at], huge, &bytes[at + 1..]].concat();
        let snapshots = (0..image.snapshot.len())
            .map(|at| image.with(|image| image.snapshot = replaced(&image.snapshot, at)));
        let images = (0..scene.state.len()).map(|at| replaced(&scene.state, at));
        for state in snapshots.chain(images) {
            if let Ok(restored) = scene.load(&state, scene.arrived()) {
                create_objects(&restored);
                restored.discard();
            }
        }
    }
    let growth = peak() - before;
    assert!(growth < MAX_GROWTH, "{growth} KiB were allocated");
    scene.source_goes_on();
}

/// The state of an adapter, as the engine stores it.
#[derive(Clone, Serialize, Deserialize)]
struct Image {
    snapshot: Vec<u8>,
    pairs: Vec<Pair>,
    created: [u32; 2],
    listeners: Vec<u32>,
}

/// The part of a queue pair that the engine adds to the snapshot.
#[derive(Clone, Serialize, Deserialize)]
struct Pair {
    number: u32,
    established: Option<(Box<[u8]>, Agreed, SocketAddr, SocketAddr)>,
    /// Whether this end has initiated the connection, it is closed, has closed its sending direction, and is to be closed.
    flags: [bool; 4],
}

impl Image {
    fn of(scene: &Scene) -> Self {
        let image: Self = postcard::from_bytes(&scene.state).unwrap();
        assert!(image.encode() == scene.state, "the engine stores something else");
        image
    }

    fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap()
    }

    /// Returns the state after a change.
    fn with(&self, change: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut image = self.clone();
        change(&mut image);
        image.encode()
    }
}

#[test]
fn sockets_that_are_missing_or_of_another_kind_are_refused() {
    let scene = Scene::new();
    let missing = |error: LoadError, what| {
        assert!(matches!(error, LoadError::Missing(missing) if missing == what), "{error}");
    };
    // The first connection is restored before the second is refused, and the other way round.
    for pair in &scene.pairs {
        let mut arrived = scene.arrived();
        arrived.sockets.remove(&pair.id()).unwrap();
        missing(scene.refused(&scene.state, arrived), "a socket");
    }
    let mut arrived = scene.arrived();
    arrived.listeners.clear();
    missing(scene.refused(&scene.state, arrived), "a listening socket");
    // A listening socket is not a connection, nor the other way round.
    let others: [OwnedFd; 4] = [
        TcpListener::bind("127.0.0.1:0").unwrap().into(),
        TcpStream::connect(scene.listener.local_addr().unwrap()).unwrap().into(),
        UnixStream::pair().unwrap().0.into(),
        File::open("/dev/null").unwrap().into(),
    ];
    for (index, other) in others.iter().enumerate() {
        let system = |error| assert!(matches!(error, LoadError::System(_)), "{error}");
        for pair in &scene.pairs {
            let mut arrived = scene.arrived();
            let socket = arrived.sockets.get_mut(&pair.id()).unwrap();
            socket.fd = other.try_clone().unwrap();
            match index {
                1 => scene.load(&scene.state, arrived).unwrap().discard(),
                _ => system(scene.refused(&scene.state, arrived)),
            }
        }
        let mut arrived = scene.arrived();
        arrived.listeners.values_mut().for_each(|fd| *fd = other.try_clone().unwrap());
        match index {
            0 => scene.load(&scene.state, arrived).unwrap().discard(),
            _ => system(scene.refused(&scene.state, arrived)),
        }
    }
    drop(others);
    // Descriptors that nothing names are closed.
    let mut arrived = scene.arrived();
    arrived.listeners.insert(u32::MAX, File::open("/dev/null").unwrap().into());
    scene.load(&scene.state, arrived).unwrap().discard();
    scene.source_goes_on();
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    let scene = Scene::new();
    let image = Image::of(&scene);
    let refused =
        |change: &dyn Fn(&mut Image)| scene.refused(&image.with(change), scene.arrived()).to_string();
    let missing = |what| format!("the state of the adapter contradicts itself: {what} is missing");
    let (pair, listener) = (missing("a queue pair"), missing("a listening socket"));
    assert_eq!(refused(&|image| image.pairs.truncate(1)), pair);
    assert_eq!(refused(&|image| image.pairs.push(image.pairs[0].clone())), pair);
    assert_eq!(refused(&|image| image.pairs.swap(0, 1)), pair);
    assert_eq!(refused(&|image| image.pairs[1].number = image.pairs[0].number), pair);
    assert_eq!(refused(&|image| image.pairs[1].established = None), missing("a connection"));
    assert_eq!(refused(&|image| image.listeners.push(image.listeners[0])), listener, "used twice");
    assert_eq!(refused(&|image| image.listeners[0] ^= 1), listener);
    // Objects that are created later would get numbers that are in use, or none.
    for (kind, largest) in [2, 1].into_iter().enumerate() {
        for created in [0, largest - 1, (1 << 31) + 1, u32::MAX] {
            let error = scene.refused(&image.with(|image| image.created[kind] = created), scene.arrived());
            let LoadError::Created { created: found, number, .. } = error else { panic!("{error}") };
            assert_eq!((found, number), (created, largest));
        }
        for created in [largest, 1 << 31] {
            let state = image.with(|image| image.created[kind] = created);
            let restored = scene.load(&state, scene.arrived()).unwrap();
            create_objects(&restored);
            restored.discard();
        }
    }
    scene.source_goes_on();
}

/// What the loader would refuse is refused before anything is frozen.
#[test]
fn a_completion_queue_that_is_too_large_prevents_a_move() {
    const MAX: usize = 1 << 22;
    let scene = Scene::new();
    let engine = engine();
    for (capacity, is_movable) in [(MAX, true), (MAX + 1, false)] {
        let cq = engine.create_cq(capacity).unwrap();
        let refused = engine.check_movable().err();
        assert_eq!(refused.is_none(), is_movable, "{refused:?}");
        let frozen = engine.freeze(engine.pause_listening(Instant::now() + SOON).unwrap());
        match frozen {
            Ok(mut frozen) => {
                let state = engine.store(&mut frozen, KeyMask::default()).unwrap();
                scene.load(&state, Arrived::default()).unwrap().discard();
            }
            Err(error) => {
                assert!(matches!(error, FreezeError::CompletionQueue(_)), "{error}");
                assert!(error.to_string().contains("4194305"), "{error}");
            }
        }
        drop(cq);
    }
    engine.check_movable().unwrap();
    drop(engine);
    scene.source_goes_on();
}

/// Its queues have receives and no room for them, which the loader would refuse.
#[test]
fn an_adapter_that_was_shut_down_cannot_move() {
    let engine = engine();
    let domain = engine.device().allocate_domain();
    let srq = engine.create_srq(domain, SrqSize { depth: 1, max_sges: 1 }).unwrap();
    srq.post(ReceiveRequest { id: 1, buffers: Sges::default() }).unwrap();
    engine.check_movable().unwrap();
    engine.shut_down(ironwarp_engine::Shutdown::Flush);
    let refused = engine.freeze(PausedListeners::default()).map(FrozenEngine::thaw);
    assert_eq!(refused, Err(FreezeError::ShutDown));
}
